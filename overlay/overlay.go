// Package overlay makes a writable disk of a read-only image without copying
// it first. Reads come from the image, the *base*, until a piece of the disk
// has been written or copied; from then on from the *store*, a raw disk of the
// same size. A Map remembers which piece is where.
//
// The pieces are clusters of 64 KiB:
//
//	state    content     read   write                          becomes
//	absent   the base's  base   fill the rest from the base,   present, when all of
//	                            write                          it is in the store
//	present  the store's store  straight to the store          durable, at a commit
//	durable  the store's store  straight to the store          –
//
// Durable is present with the mark for it on the medium. The difference only
// matters to a write: its flush must not be acknowledged before the cluster is
// durable, or a loss of power would show the base again.
//
// What holds, always:
//
//  1. A cluster is marked present when all of its data is in the page cache,
//     and durable when all of it is on the medium. Never earlier.
//  2. No cluster becomes absent again.
//  3. Absent clusters of the store are zeros, unless the disk is soiled: then
//     they may hold anything, such as a write that was cut short. So zeros of
//     the base need no copying, or in a soiled disk no more than a hole.
//  4. Who makes a cluster present holds its lock. The base is read without one,
//     for it does not change; so are present clusters, for they stay so.
//
// Locks, in the order in which they may be taken: the turn to commit, the lock
// of a run of clusters, the list of those locks. Nobody holds a run of
// clusters while waiting for another, or for the turn.
package overlay

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Mode says what is kept in the store.
type Mode uint8

const (
	CopyOnWrite Mode = iota // what was written
	CopyOnRead              // what was written or read
	Clone                   // everything, in the end: see Disk.Hydrate
)

// Options are the settings of a Disk.
type Options struct {
	Mode Mode

	// Anchor makes the names of the disk's files durable. It is called when the
	// first commit is on the medium, before that is acknowledged, and again
	// later if it failed for want of room. A disk that was opened again calls
	// it again. nil: there is nothing to do.
	Anchor func() error

	// Finish publishes the store when everything is in it and durable; it is
	// called by Hydrate and until it has succeeded once. nil: there is nothing
	// to do.
	Finish func() error

	// Rate is how many bytes of data a second Hydrate copies at most; 0: as
	// many as it can.
	Rate int64

	// Log is told what an operator should know; nil: nobody is.
	Log *slog.Logger
}

// Disk is a writable disk over a base. It is a blockdev.Device.
type Disk struct {
	opts  Options
	size  int64
	shift uint  // a cluster has 1<<shift bytes
	clust int64 // 1<<shift

	store blockdev.Device
	base  *base
	m     *Map
	locks locks

	// plain: everything is present and durable, and the map is not needed any
	// more. The disk is its store.
	plain  atomic.Bool
	closed atomic.Bool
	failed atomic.Bool // a sync failed: what is on the medium is not known
	soiled atomic.Bool // the store may hold something in absent clusters

	flushes  rounds
	anchored bool // guarded by the turn

	buffers sync.Pool // *[]byte of a cluster
	hydrator
}

// Open makes the disk of the map m over base and store. It copies nothing.
// It takes the store and the map, and the base if that can be closed: they are
// closed with the disk, or at once when Open fails. base may be nil if
// m.Complete.
func Open(src blockdev.Source, store blockdev.Device, m *Map, o Options) (*Disk, error) {
	h := m.Header()
	d := &Disk{
		opts: o, size: h.Size, clust: int64(h.ClusterSize),
		store: store, base: newBase(src, h.BaseSize), m: m,
		flushes: rounds{turn: make(chan struct{}, 1)},
	}
	for 1<<d.shift < d.clust {
		d.shift++
	}
	d.buffers.New = func() any { b := make([]byte, d.clust); return &b }
	d.soiled.Store(!m.fresh || !isHole(store))
	if d.opts.Log == nil {
		d.opts.Log = slog.New(slog.DiscardHandler)
	}
	d.hydrator.init(d)
	if err := d.fits(src); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// isHole reports whether the store says of itself that it is empty, as a new
// sparse file does. A block device does not.
func isHole(store blockdev.Device) bool {
	for e, err := range store.Extents(0, store.Size()) {
		return err == nil && e.Kind == blockdev.Hole && e.Len == store.Size()
	}
	return false
}

// fits refuses parts that do not belong together.
func (d *Disk) fits(src blockdev.Source) error {
	switch {
	case src == nil && !d.m.Complete():
		return fmt.Errorf("%s: parts of the disk are only in the image, which is missing", d.m.name)
	case src != nil && src.Size() != d.base.size:
		return &MismatchError{File: d.m.name, Field: "image size", Have: d.base.size, Got: src.Size()}
	case d.store.Size() != d.size:
		return &MismatchError{File: d.m.name, Field: "store's size", Have: d.size, Got: d.store.Size()}
	case d.store.Caps().ReadOnly:
		return opError("open", 0, 0, blockdev.KindReadOnly, errors.New("the store of an overlay must be writable"))
	}
	return nil
}

func (d *Disk) Size() int64 { return d.size }

// Caps are the store's: that is where the space is, and the disk becomes it.
func (d *Disk) Caps() blockdev.Caps { return d.store.Caps() }

// span is the clusters that [off, off+n) touches; n is not 0.
func (d *Disk) span(off, n int64) (first, count int64) {
	first = off >> d.shift
	return first, (off+n-1)>>d.shift - first + 1
}

// start is where cluster c begins, and end where it ends: the last one may be
// short.
func (d *Disk) start(c int64) int64 { return c << d.shift }
func (d *Disk) end(c int64) int64   { return min((c+1)<<d.shift, d.size) }

func (d *Disk) TryReadAt(p []byte, off int64) error {
	if d.plain.Load() {
		return d.store.TryReadAt(p, off)
	}
	if d.closed.Load() {
		return opError("read", off, int64(len(p)), blockdev.KindClosed, nil)
	}
	if len(p) == 0 {
		return nil
	}
	d.noteGuest()
	if first, n := d.span(off, int64(len(p))); !d.m.present.all(first, n) {
		return blockdev.ErrWouldBlock
	}
	return d.store.TryReadAt(p, off)
}

func (d *Disk) TryWriteAt(p []byte, off int64) error {
	if d.plain.Load() {
		return d.store.TryWriteAt(p, off)
	}
	if err := d.changeable("write", off, int64(len(p))); err != nil || len(p) == 0 {
		return err
	}
	d.noteGuest()
	first, n := d.span(off, int64(len(p)))
	switch {
	case d.direct(first, n):
		return d.store.TryWriteAt(p, off)
	case d.covers(first, n, off, int64(len(p))):
		return d.tryCover(p, off, first, n)
	}
	return blockdev.ErrWouldBlock
}

// direct reports whether these clusters are all present, so that the store can
// be changed without more ado. If they are not durable yet the next flush has
// to see to it.
func (d *Disk) direct(first, n int64) bool {
	switch {
	case d.m.durable.all(first, n):
	case d.m.present.all(first, n):
		d.m.soil(first, n, fromGuest)
	default:
		return false
	}
	return true
}

// changeable refuses changes of a disk that is closed or has failed.
func (d *Disk) changeable(op string, off, n int64) error {
	switch {
	case d.closed.Load():
		return opError(op, off, n, blockdev.KindClosed, nil)
	case d.failed.Load():
		return opError(op, off, n, blockdev.KindIO, errFailed)
	}
	return nil
}

var errFailed = errors.New("the disk has failed: an earlier sync did")

// fail ends all changes if err is of the kind after which nothing may be
// acknowledged any more. Reads go on.
func (d *Disk) fail(err error) error {
	if e := (*fatalError)(nil); errors.As(err, &e) && !d.failed.Swap(true) {
		d.opts.Log.Error("the disk has failed; it can be read and not written", "error", err)
		d.m.distrust()
	}
	return err
}

// Close ends Hydrate and closes all parts. It does not flush.
func (d *Disk) Close() error {
	if d.closed.Swap(true) {
		return nil
	}
	d.hydrator.stop()
	var errs []error
	if !d.plain.Load() {
		d.base.drop()
		errs = append(errs, d.m.Close())
	}
	return errors.Join(append(errs, <-d.base.closed, d.store.Close())...)
}

var _ blockdev.Device = (*Disk)(nil)
