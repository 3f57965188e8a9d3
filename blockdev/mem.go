package blockdev

import (
	"iter"
	"sync"
)

// Mem is a disk in memory, for tests and for callers that need a scratch disk.
// It has no space to give back and reports all of itself as data.
type Mem struct {
	mu     sync.RWMutex // guards b's bytes and closed
	b      []byte
	closed bool
}

// NewMem returns a disk of size bytes, all zeros.
func NewMem(size int64) *Mem { return &Mem{b: make([]byte, size)} }

// MemOf returns a disk that holds b; the disk owns b from now on.
func MemOf(b []byte) *Mem { return &Mem{b: b} }

func (d *Mem) Size() int64 { return int64(len(d.b)) }

func (d *Mem) Caps() Caps {
	return Caps{FastZero: true, Granularity: 1, PhysicalBlock: 512}
}

// check refuses what is outside the disk, and everything once it is closed.
// The caller holds mu.
func (d *Mem) check(op string, off, n int64) error {
	if d.closed {
		return &Error{Op: op, Off: off, Len: n, Kind: KindClosed}
	}
	return CheckRange(op, off, n, d.Size())
}

func (d *Mem) ReadAt(p []byte, off int64) (int, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if err := d.check("read", off, int64(len(p))); err != nil {
		return 0, err
	}
	return copy(p, d.b[off:]), nil
}

func (d *Mem) TryReadAt(p []byte, off int64) error {
	_, err := d.ReadAt(p, off)
	return err
}

func (d *Mem) WriteAt(p []byte, off int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check("write", off, int64(len(p))); err != nil {
		return 0, err
	}
	return copy(d.b[off:], p), nil
}

func (d *Mem) TryWriteAt(p []byte, off int64) error {
	_, err := d.WriteAt(p, off)
	return err
}

func (d *Mem) Zero(off, n int64, _ ZeroMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.check("zero", off, n); err != nil {
		return err
	}
	clear(d.b[off:][:n])
	return nil
}

// Discard does nothing: the bytes stay.
func (d *Mem) Discard(off, n int64) error { return d.ask("discard", off, n) }

func (d *Mem) Flush() error { return d.ask("flush", 0, 0) }

// ask is a request that changes nothing.
func (d *Mem) ask(op string, off, n int64) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.check(op, off, n)
}

func (d *Mem) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	return nil
}

func (d *Mem) Extents(off, n int64) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		if err := d.ask("map", off, n); err != nil {
			yield(Extent{}, err)
		} else if n > 0 {
			yield(Extent{off, n, Data}, nil)
		}
	}
}

var _ Device = (*Mem)(nil)
