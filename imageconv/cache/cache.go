// Package cache keeps blocks of bytes that are costly to make: pages of an
// image's tables, decompressed clusters.
package cache

import (
	"container/list"
	"sync"
)

// Cache keeps the blocks of bytes that were used last. Whoever gets a block
// may read it for as long as it likes and must not change it; what falls out
// of the cache is left to the garbage collector. Its methods may be called from
// several goroutines.
type Cache struct {
	Limit int // blocks that are kept; not changed once the cache is used

	load func(key uint64) ([]byte, error)

	// Lock order: block.mu before Cache.mu. mu is not held during a load.
	mu     sync.Mutex // guards the two fields below
	blocks map[uint64]*list.Element
	order  *list.List // of *block, last used first
}

// block is an entry of a Cache.
type block struct {
	key uint64

	// mu is held while the block is loaded, so that everybody who wants it
	// waits for one load.
	mu   sync.Mutex
	data []byte // nil: not loaded
}

// New returns a cache of at most limit blocks, each made by load.
func New(limit int, load func(key uint64) ([]byte, error)) *Cache {
	return &Cache{Limit: limit, load: load, blocks: make(map[uint64]*list.Element), order: list.New()}
}

// Get returns the block of that key. An error is not kept: the next Get tries
// again.
func (c *Cache) Get(key uint64) ([]byte, error) {
	b := c.find(key)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.data != nil {
		return b.data, nil
	}
	data, err := c.load(key)
	if err != nil {
		c.drop(b)
		return nil, err
	}
	b.data = data
	return data, nil
}

// Len is how many blocks the cache holds.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Len()
}

// find returns the block of that key, which may have to be loaded yet.
func (c *Cache) find(key uint64) *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.blocks[key]; e != nil {
		c.order.MoveToFront(e)
		return e.Value.(*block)
	}
	if c.order.Len() >= c.Limit {
		last := c.order.Back()
		delete(c.blocks, last.Value.(*block).key)
		c.order.Remove(last)
	}
	b := &block{key: key}
	c.blocks[key] = c.order.PushFront(b)
	return b
}

// drop takes b out of the cache, if it is still in it.
func (c *Cache) drop(b *block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.blocks[b.key]; e != nil && e.Value.(*block) == b {
		delete(c.blocks, b.key)
		c.order.Remove(e)
	}
}
