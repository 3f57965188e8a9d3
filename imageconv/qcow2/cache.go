package qcow2

import (
	"container/list"
	"sync"
)

// cache keeps the blocks of bytes that were used last. Whoever gets a block
// may read it for as long as it likes and must not change it; what falls out
// of the cache is left to the garbage collector.
type cache struct {
	load  func(key uint64) ([]byte, error)
	limit int // blocks

	// Lock order: block.mu before cache.mu. mu is not held during a load.
	mu     sync.Mutex // guards the two fields below
	blocks map[uint64]*list.Element
	order  *list.List // of *block, last used first
}

// block is an entry of a cache.
type block struct {
	key uint64

	// mu is held while the block is loaded, so that everybody who wants it
	// waits for one load.
	mu   sync.Mutex
	data []byte // nil: not loaded
}

func newCache(limit int, load func(key uint64) ([]byte, error)) *cache {
	return &cache{load: load, limit: limit, blocks: make(map[uint64]*list.Element), order: list.New()}
}

// get returns the block of that key. An error is not kept: the next get tries
// again.
func (c *cache) get(key uint64) ([]byte, error) {
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

// find returns the block of that key, which may have to be loaded yet.
func (c *cache) find(key uint64) *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.blocks[key]; e != nil {
		c.order.MoveToFront(e)
		return e.Value.(*block)
	}
	if c.order.Len() >= c.limit {
		last := c.order.Back()
		delete(c.blocks, last.Value.(*block).key)
		c.order.Remove(last)
	}
	b := &block{key: key}
	c.blocks[key] = c.order.PushFront(b)
	return b
}

// drop takes b out of the cache, if it is still in it.
func (c *cache) drop(b *block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.blocks[b.key]; e != nil && e.Value.(*block) == b {
		delete(c.blocks, b.key)
		c.order.Remove(e)
	}
}
