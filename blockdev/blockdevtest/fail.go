package blockdevtest

import (
	"errors"
	"iter"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// ErrInjected is in the chain of every error that a Failing makes.
var ErrInjected = errors.New("injected fault")

// Op is a kind of operation on a device. Several make a set.
type Op uint8

const (
	OpRead    Op = 1 << iota // ReadAt, TryReadAt
	OpWrite                  // WriteAt, TryWriteAt
	OpZero                   // Zero
	OpDiscard                // Discard
	OpFlush                  // Flush
	OpExtents                // Extents

	OpAll     = OpRead | OpChanges | OpFlush | OpExtents
	OpChanges = OpWrite | OpZero | OpDiscard
)

// Failing is a device one operation of which fails. A write that fails has
// written its first half, in sectors; a flush that fails makes all later ones
// fail as well, as blockdev.Device wants it.
type Failing struct {
	blockdev.Device

	// Ops are the operations that count, and Sticky makes all of them fail
	// from the chosen one on. Set them before the first operation.
	Ops    Op
	Sticky bool

	kind blockdev.Kind

	mu      sync.Mutex // guards the fields below
	left    int        // operations until one fails, that one included
	fired   bool
	noFlush bool
}

// Fail returns dev with its n-th operation, counted from 1, failing with that
// kind. A test runs its scenario with n = 1, 2, … until it no longer fires.
func Fail(dev blockdev.Device, n int, kind blockdev.Kind) *Failing {
	return &Failing{Device: dev, Ops: OpAll, kind: kind, left: n}
}

// Fired reports whether an operation has failed.
func (f *Failing) Fired() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

// fault counts an operation and returns the error that it fails with, or nil.
func (f *Failing) fault(op Op, name string, off, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := op == OpFlush && f.noFlush
	if f.Ops&op != 0 {
		f.left--
		failed = failed || f.left == 0 || f.Sticky && f.left < 0
	}
	if !failed {
		return nil
	}
	f.fired = true
	f.noFlush = f.noFlush || op == OpFlush
	return &blockdev.Error{Op: name, Off: off, Len: n, Kind: f.kind, Err: ErrInjected}
}

func (f *Failing) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fault(OpRead, "read", off, int64(len(p))); err != nil {
		return 0, err
	}
	return f.Device.ReadAt(p, off)
}

func (f *Failing) TryReadAt(p []byte, off int64) error {
	if err := f.fault(OpRead, "read", off, int64(len(p))); err != nil {
		return err
	}
	return f.Device.TryReadAt(p, off)
}

func (f *Failing) WriteAt(p []byte, off int64) (int, error) {
	err := f.fault(OpWrite, "write", off, int64(len(p)))
	if err == nil {
		return f.Device.WriteAt(p, off)
	}
	n, werr := f.Device.WriteAt(p[:len(p)/2&^(sector-1)], off)
	return n, errors.Join(err, werr)
}

func (f *Failing) TryWriteAt(p []byte, off int64) error {
	err := f.fault(OpWrite, "write", off, int64(len(p)))
	if err == nil {
		return f.Device.TryWriteAt(p, off)
	}
	_, werr := f.Device.WriteAt(p[:len(p)/2&^(sector-1)], off)
	return errors.Join(err, werr)
}

func (f *Failing) Zero(off, n int64, mode blockdev.ZeroMode) error {
	if err := f.fault(OpZero, "zero", off, n); err != nil {
		return err
	}
	return f.Device.Zero(off, n, mode)
}

func (f *Failing) Discard(off, n int64) error {
	if err := f.fault(OpDiscard, "discard", off, n); err != nil {
		return err
	}
	return f.Device.Discard(off, n)
}

func (f *Failing) Flush() error {
	if err := f.fault(OpFlush, "flush", 0, 0); err != nil {
		return err
	}
	return f.Device.Flush()
}

func (f *Failing) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	if err := f.fault(OpExtents, "map", off, n); err != nil {
		return func(yield func(blockdev.Extent, error) bool) { yield(blockdev.Extent{}, err) }
	}
	return f.Device.Extents(off, n)
}

var _ blockdev.Device = (*Failing)(nil)
