// Package pages keeps the pages of an image file that were used last: tables
// of any size are read where they are looked at, in bounded memory.
package pages

import (
	"container/list"
	"errors"
	"io"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Size is how much of the file is read and kept at a time, bytes.
const Size = 4 << 10

// Cache holds pages of one file. Its methods may be called from several
// goroutines.
type Cache struct {
	src   io.ReaderAt
	size  int64 // of the file, bytes
	limit int   // pages

	// Lock order: page.mu before Cache.mu. mu is not held during a read.
	mu    sync.Mutex // guards the two fields below
	pages map[int64]*list.Element
	order *list.List // of *page, last used first
}

// page is an entry of a Cache.
type page struct {
	number int64

	// mu is held while the page is read, so that everybody who wants it waits
	// for one read.
	mu   sync.Mutex
	data []byte // nil: not read
}

// New returns a cache of at most memory bytes, a page at least, over the file
// of size bytes in src.
func New(src io.ReaderAt, size int64, memory int) *Cache {
	return &Cache{src: src, size: size, limit: max(memory/Size, 1), pages: make(map[int64]*list.Element), order: list.New()}
}

// At returns what the file holds from off on, which is within it: one byte at
// least, up to the end of the page or of the file. The caller may keep it and
// must not change it. The error is a blockdev.Error, and is not kept: the next
// call tries again.
func (c *Cache) At(off int64) ([]byte, error) {
	if err := blockdev.CheckRange("read", off, 1, c.size); err != nil {
		return nil, err
	}
	p := c.find(off / Size)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.data == nil {
		data, err := c.read(p.number)
		if err != nil {
			c.drop(p)
			return nil, err
		}
		p.data = data
	}
	return p.data[off%Size:], nil
}

// Kept is how many bytes the cache holds.
func (c *Cache) Kept() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.order.Len() * Size
}

func (c *Cache) read(number int64) ([]byte, error) {
	off := number * Size
	b := make([]byte, min(Size, c.size-off))
	return b, ReadFull(c.src, b, off)
}

// find returns the page of that number, which may have to be read yet.
func (c *Cache) find(number int64) *page {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.pages[number]; e != nil {
		c.order.MoveToFront(e)
		return e.Value.(*page)
	}
	if c.order.Len() >= c.limit {
		last := c.order.Back()
		delete(c.pages, last.Value.(*page).number)
		c.order.Remove(last)
	}
	p := &page{number: number}
	c.pages[number] = c.order.PushFront(p)
	return p
}

// drop takes p out of the cache, if it is still in it.
func (c *Cache) drop(p *page) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.pages[p.number]; e != nil && e.Value.(*page) == p {
		delete(c.pages, p.number)
		c.order.Remove(e)
	}
}

// ReadFull fills p from byte off of src on. That src ends before, although the
// range was within the file when it was checked, is an error like any other:
// the file has become shorter.
func ReadFull(src io.ReaderAt, p []byte, off int64) error {
	n, err := src.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &blockdev.Error{Op: "read", Off: off, Len: int64(len(p)), Kind: blockdev.KindOf(err), Err: err}
}
