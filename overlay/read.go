package overlay

import (
	"iter"

	"github.com/containerdisk/containerdisk/blockdev"
)

// ReadAt reads run by run, each from where it is at that moment. A cluster that
// becomes present between the look at it and the reading of the base has been
// written while the read was under way: either content is right.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if d.plain.Load() {
		return d.store.ReadAt(p, off)
	}
	if err := d.readable("read", off, int64(len(p))); err != nil {
		return 0, err
	}
	d.noteGuest()
	for done := int64(0); done < int64(len(p)); {
		n, present := d.plan(off+done, int64(len(p))-done)
		piece := p[done:][:n]
		err := error(nil)
		if present || !d.base.enter() {
			_, err = d.store.ReadAt(piece, off+done)
		} else {
			err = d.readAbsent(piece, off+done)
			d.base.leave()
		}
		if err != nil {
			return int(done), asError("read", off, int64(len(p)), err)
		}
		done += n
	}
	return len(p), nil
}

// readable refuses what is outside the disk, and everything once it is closed.
func (d *Disk) readable(op string, off, n int64) error {
	if d.closed.Load() {
		return opError(op, off, n, blockdev.KindClosed, nil)
	}
	return blockdev.CheckRange(op, off, n, d.size)
}

// plan tells how many of the n bytes at off are in one place, the store or the
// base. n is not 0.
func (d *Disk) plan(off, n int64) (int64, bool) {
	first, count := d.span(off, n)
	run, present := d.m.present.run(first, first+count)
	return min(off+n, d.end(first+run-1)) - off, present
}

// readAbsent reads from the base, and keeps what it read where that is asked
// for. The caller has entered the base.
func (d *Disk) readAbsent(p []byte, off int64) error {
	d.hint(off)
	if d.opts.Mode != CopyOnRead {
		return d.base.readAt(p, off)
	}
	buf := d.buffers.Get().(*[]byte)
	defer d.buffers.Put(buf)
	for end := off + int64(len(p)); off < end; {
		c := off >> d.shift
		data := (*buf)[:d.end(c)-d.start(c)]
		if err := d.base.readAt(data, d.start(c)); err != nil {
			return err
		}
		n := copy(p, data[off-d.start(c):])
		p, off = p[n:], off+int64(n)
		// That there is no room to keep it is no reason not to have read it.
		_ = d.keep(c, data)
	}
	return nil
}

// keep puts the base's content of cluster c into the store, unless it is
// present meanwhile.
func (d *Disk) keep(c int64, data []byte) error {
	if err := d.changeable("write", d.start(c), int64(len(data))); err != nil {
		return err
	}
	l := d.locks.lock(c, c)
	defer d.locks.unlock(l)
	if d.m.present.has(c) {
		return nil
	}
	if err := d.put(data, d.start(c)); err != nil {
		d.soiled.Store(true)
		return err
	}
	return d.markAbsent(c, 1, fromBase)
}

// Extents tells of present clusters what the store does, and of absent ones
// what the base does.
func (d *Disk) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	if d.plain.Load() {
		return d.store.Extents(off, n)
	}
	return func(yield func(blockdev.Extent, error) bool) {
		if err := d.readable("map", off, n); err != nil {
			yield(blockdev.Extent{}, err)
			return
		}
		j := blockdev.NewJoin(yield)
		for at := off; at < off+n; {
			k, present := d.plan(at, off+n-at)
			more, err := d.addExtents(j, at, k, present)
			if err != nil {
				j.Fail(asError("map", off, n, err))
				return
			}
			if !more {
				return
			}
			at += k
		}
		j.Done()
	}
}

func (d *Disk) addExtents(j *blockdev.Join, off, n int64, present bool) (more bool, err error) {
	if present || !d.base.enter() {
		return addAll(j, d.store.Extents(off, n))
	}
	defer d.base.leave()
	return addAll(j, d.base.extents(off, n))
}
