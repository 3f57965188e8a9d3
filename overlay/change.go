package overlay

import (
	"bytes"

	"github.com/containerdisk/containerdisk/blockdev"
)

// A change of present clusters goes straight to the store. One that touches an
// absent cluster
//
//	locks all clusters it touches, each of them absent or not;
//	reads from the base what it does not cover of the first and the last one;
//	puts that into the store, and then the change itself;
//	marks as present what was absent.
//
// So a disk that fails half way has absent clusters that are soiled, and no
// present ones that are not whole.

// change is a write, a zeroing or a discard.
type change struct {
	op     string
	off, n int64
	do     func(store blockdev.Device, off, n int64) error // for a part of it
}

// changeStep is how many bytes are locked at a time at most. A long zeroing does
// not make all the others wait for all of it.
const changeStep = 1 << 30

func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if d.plain.Load() {
		return d.store.WriteAt(p, off)
	}
	if err := d.changeable("write", off, int64(len(p))); err != nil || len(p) == 0 {
		return 0, err
	}
	d.noteGuest()
	if d.direct(d.span(off, int64(len(p)))) {
		return d.store.WriteAt(p, off)
	}
	err := d.change(change{"write", off, int64(len(p)), func(store blockdev.Device, at, n int64) error {
		_, err := store.WriteAt(p[at-off:][:n], at)
		return err
	}})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// covers reports whether the n bytes at off are all of those clusters.
func (d *Disk) covers(first, count, off, n int64) bool {
	return off == d.start(first) && off+n == d.end(first+count-1)
}

// tryCover writes whole clusters, of which some are absent. That needs nothing
// of the base, and waits for nobody unless the clusters are being copied.
func (d *Disk) tryCover(p []byte, off, first, count int64) error {
	l := d.locks.try(first, first+count-1)
	if l == nil {
		return blockdev.ErrWouldBlock
	}
	defer d.locks.unlock(l)
	err := d.store.TryWriteAt(p, off)
	if err == blockdev.ErrWouldBlock {
		return err // nothing has changed
	}
	if err == nil {
		err = d.markGuest(first, count)
	} else {
		d.soiled.Store(true)
	}
	return asError("write", off, int64(len(p)), err)
}

// markGuest marks what a guest's change has made whole. The caller has locked
// the clusters.
func (d *Disk) markGuest(first, count int64) error {
	if err := d.markAbsent(first, count, fromGuest); err != nil {
		return err
	}
	d.m.soil(first, count, fromGuest) // those that were present need not be durable
	return nil
}

// Zero makes absent clusters present that it covers: over a hole, unless space
// is to be kept. What the base has there is not looked at.
func (d *Disk) Zero(off, n int64, mode blockdev.ZeroMode) error {
	if d.plain.Load() {
		return d.store.Zero(off, n, mode)
	}
	return d.change(change{"zero", off, n, func(store blockdev.Device, off, n int64) error {
		return store.Zero(off, n, mode)
	}})
}

// Discard is like Zero where the store promises zeros. Where it does not,
// absent clusters stay as they are: what the base has is as good as anything,
// and what the store has is somebody else's.
func (d *Disk) Discard(off, n int64) error {
	if d.plain.Load() {
		return d.store.Discard(off, n)
	}
	c := change{"discard", off, n, blockdev.Device.Discard}
	if !d.Caps().DiscardZeroes {
		return d.discardPresent(c)
	}
	return d.change(c)
}

func (d *Disk) discardPresent(c change) error {
	if err := d.changeable(c.op, c.off, c.n); err != nil {
		return err
	}
	d.noteGuest()
	for c.n > 0 {
		n, present := d.plan(c.off, c.n)
		if present && d.direct(d.span(c.off, n)) {
			if err := d.store.Discard(c.off, n); err != nil {
				return err
			}
		}
		c.off, c.n = c.off+n, c.n-n
	}
	return nil
}

// change makes c, in steps.
func (d *Disk) change(c change) error {
	if err := d.changeable(c.op, c.off, c.n); err != nil {
		return err
	}
	d.noteGuest()
	for off, left := c.off, c.n; left > 0; {
		n := min(left, changeStep-off%changeStep)
		if err := d.changePart(c, off, n); err != nil {
			return asError(c.op, c.off, c.n, err)
		}
		off, left = off+n, left-n
	}
	return nil
}

// changePart makes the part [off, off+n) of c.
func (d *Disk) changePart(c change, off, n int64) error {
	first, count := d.span(off, n)
	if d.direct(first, count) {
		return c.do(d.store, off, n)
	}
	l := d.locks.lock(first, first+count-1)
	defer d.locks.unlock(l)
	if d.direct(first, count) { // meanwhile
		return c.do(d.store, off, n)
	}
	edges, err := d.fill(off, n)
	defer edges.free(d)
	if err != nil {
		return err
	}
	err = edges.put(d)
	if err == nil {
		err = c.do(d.store, off, n)
	}
	if err != nil {
		d.soiled.Store(true)
		return err
	}
	// Those that were present and not durable are in dirty pages already: who
	// marked them has given up their locks.
	return d.markAbsent(first, count, fromGuest)
}

// markAbsent marks those of the clusters as present that are not. The caller
// has locked them.
func (d *Disk) markAbsent(first, count int64, o origin) error {
	for end := first + count; first < end; {
		n, present := d.m.present.run(first, end)
		if !present {
			if err := d.m.mark(first, n, o); err != nil {
				d.soiled.Store(true)
				return d.fail(err)
			}
		}
		first += n
	}
	return nil
}

// edges is what a change does not cover of the first and the last of its
// clusters, as the base has it.
type edges struct {
	parts [2]edge
	n     int
}

type edge struct {
	off  int64
	data []byte
	buf  *[]byte
}

// fill reads the edges of the change of [off, off+n). The caller has locked its
// clusters.
func (d *Disk) fill(off, n int64) (e edges, err error) {
	end := off + n
	first, last := off>>d.shift, (end-1)>>d.shift
	if head := d.start(first); head < off && !d.m.present.has(first) {
		err = e.read(d, head, off)
	}
	if tail := d.end(last); err == nil && end < tail && !d.m.present.has(last) {
		err = e.read(d, end, tail)
	}
	return e, err
}

// read adds the base's content from off to end, which are in one cluster.
func (e *edges) read(d *Disk, off, end int64) error {
	if !d.base.enter() {
		return opError("read", off, end-off, blockdev.KindClosed, nil)
	}
	defer d.base.leave()
	buf := d.buffers.Get().(*[]byte)
	e.parts[e.n] = edge{off, (*buf)[:end-off], buf}
	e.n++
	return d.base.readAt(e.parts[e.n-1].data, off)
}

func (e *edges) put(d *Disk) error {
	for _, p := range e.parts[:e.n] {
		if err := d.put(p.data, p.off); err != nil {
			return err
		}
	}
	return nil
}

func (e *edges) free(d *Disk) {
	for _, p := range e.parts[:e.n] {
		d.buffers.Put(p.buf)
	}
}

// zeroUnit is the size in bytes of the smallest run of zeros that is not
// written: what a file system sets aside at a time.
const zeroUnit = 4096

var zeros [zeroUnit]byte

// put writes b, which comes from the base, into absent clusters of the store.
// Zeros are there already, or are made there where the disk is soiled.
func (d *Disk) put(b []byte, off int64) error {
	soiled := d.soiled.Load()
	if soiled && !d.Caps().FastZero {
		_, err := d.store.WriteAt(b, off)
		return err
	}
	for len(b) > 0 {
		n, zero := streak(b, off)
		var err error
		if !zero {
			_, err = d.store.WriteAt(b[:n], off)
		} else if soiled {
			err = d.store.Zero(off, int64(n), blockdev.ZeroMayUnmap)
		}
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// streak is how far the units reach that are zero, or that are not, as the
// first unit of b is. b belongs at off.
func streak(b []byte, off int64) (n int, zero bool) {
	for n < len(b) {
		u := min(len(b)-n, int(zeroUnit-(off+int64(n))%zeroUnit))
		z := bytes.Equal(b[n:][:u], zeros[:u])
		if n > 0 && z != zero {
			break
		}
		zero = z
		n += u
	}
	return n, zero
}
