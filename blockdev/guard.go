package blockdev

import "iter"

// Guard is the gate of a device: every request is checked here for its range
// and against a read-only device, so that the device below may trust what it
// is asked. A violated precondition below the gate is a bug.
type Guard struct {
	dev      Device
	size     int64
	readOnly bool
}

// NewGuard returns a Guard for dev. ro makes it refuse changes even where dev
// would take them.
func NewGuard(dev Device, ro Access) Guard {
	return Guard{dev: dev, size: dev.Size(), readOnly: ro == ReadOnly || dev.Caps().ReadOnly}
}

// Access says whether a disk may be changed.
type Access uint8

const (
	ReadWrite Access = iota
	ReadOnly
)

func (g Guard) Size() int64 { return g.size }

// Caps are those of the device, with what the guard itself forbids.
func (g Guard) Caps() Caps {
	c := g.dev.Caps()
	c.ReadOnly = g.readOnly
	return c
}

func (g Guard) ReadAt(p []byte, off int64) (int, error) {
	if err := CheckRange("read", off, int64(len(p)), g.size); err != nil {
		return 0, err
	}
	return g.dev.ReadAt(p, off)
}

func (g Guard) TryReadAt(p []byte, off int64) error {
	if err := CheckRange("read", off, int64(len(p)), g.size); err != nil {
		return err
	}
	return g.dev.TryReadAt(p, off)
}

func (g Guard) Extents(off, n int64) iter.Seq2[Extent, error] {
	if err := CheckRange("map", off, n, g.size); err != nil {
		return func(yield func(Extent, error) bool) { yield(Extent{}, err) }
	}
	return g.dev.Extents(off, n)
}

func (g Guard) WriteAt(p []byte, off int64) (int, error) {
	if err := g.checkChange("write", off, int64(len(p))); err != nil {
		return 0, err
	}
	return g.dev.WriteAt(p, off)
}

func (g Guard) TryWriteAt(p []byte, off int64) error {
	if err := g.checkChange("write", off, int64(len(p))); err != nil {
		return err
	}
	return g.dev.TryWriteAt(p, off)
}

func (g Guard) Zero(off, n int64, mode ZeroMode) error {
	if err := g.checkChange("zero", off, n); err != nil {
		return err
	}
	return g.dev.Zero(off, n, mode)
}

func (g Guard) Discard(off, n int64) error {
	if err := g.checkChange("discard", off, n); err != nil {
		return err
	}
	return g.dev.Discard(off, n)
}

func (g Guard) Flush() error { return g.dev.Flush() }
func (g Guard) Close() error { return g.dev.Close() }

func (g Guard) checkChange(op string, off, n int64) error {
	if g.readOnly {
		return &Error{Op: op, Off: off, Len: n, Kind: KindReadOnly}
	}
	return CheckRange(op, off, n, g.size)
}

var _ Device = Guard{}
