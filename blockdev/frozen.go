package blockdev

import (
	"io"
	"iter"
	"sync/atomic"
)

// Frozen is a Source as a Device that nobody can write to.
type Frozen struct {
	src    Source
	closer io.Closer
	dev    Device // src, where it is one, or nil
	closed atomic.Bool
}

// NewFrozen returns src as a device; Close closes closer.
func NewFrozen(src Source, closer io.Closer) *Frozen {
	dev, _ := src.(Device)
	return &Frozen{src: src, closer: closer, dev: dev}
}

func (d *Frozen) Size() int64 { return d.src.Size() }

func (d *Frozen) Caps() Caps {
	if d.dev != nil {
		c := d.dev.Caps()
		c.ReadOnly, c.Discard, c.DiscardZeroes, c.FastZero = true, false, false, false
		return c
	}
	return Caps{ReadOnly: true, Granularity: filePage, PhysicalBlock: filePage}
}

func (d *Frozen) check(op string, off, n int64) error {
	if d.closed.Load() {
		return &Error{Op: op, Off: off, Len: n, Kind: KindClosed}
	}
	return nil
}

func (d *Frozen) ReadAt(p []byte, off int64) (int, error) {
	if err := d.check("read", off, int64(len(p))); err != nil {
		return 0, err
	}
	return d.src.ReadAt(p, off)
}

// TryReadAt passes on where the source can tell what would wait; another is
// taken to wait always.
func (d *Frozen) TryReadAt(p []byte, off int64) error {
	if err := d.check("read", off, int64(len(p))); err != nil {
		return err
	}
	if d.dev == nil {
		return ErrWouldBlock
	}
	return d.dev.TryReadAt(p, off)
}

func (d *Frozen) Extents(off, n int64) iter.Seq2[Extent, error] {
	if err := d.check("map", off, n); err != nil {
		return func(yield func(Extent, error) bool) { yield(Extent{}, err) }
	}
	return d.src.Extents(off, n)
}

// refuse is the answer to every change.
func (d *Frozen) refuse(op string, off, n int64) error {
	if err := d.check(op, off, n); err != nil {
		return err
	}
	return &Error{Op: op, Off: off, Len: n, Kind: KindReadOnly}
}

func (d *Frozen) WriteAt(p []byte, off int64) (int, error) {
	return 0, d.refuse("write", off, int64(len(p)))
}

func (d *Frozen) TryWriteAt(p []byte, off int64) error {
	return d.refuse("write", off, int64(len(p)))
}

func (d *Frozen) Zero(off, n int64, _ ZeroMode) error { return d.refuse("zero", off, n) }
func (d *Frozen) Discard(off, n int64) error          { return d.refuse("discard", off, n) }

// Flush has nothing to do: nothing was written.
func (d *Frozen) Flush() error { return d.check("flush", 0, 0) }

// Close closes what the source is in.
func (d *Frozen) Close() error {
	if err := d.check("close", 0, 0); err != nil {
		return err
	}
	d.closed.Store(true)
	return d.closer.Close()
}

var _ Device = (*Frozen)(nil)
