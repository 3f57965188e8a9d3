package overlay

import (
	"errors"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Flushes that come together are one: all that are called while one is under
// way share the next. None is answered by one that began before it was called.

// rounds are shared flushes.
type rounds struct {
	turn chan struct{} // has room for one: who put something into it has the turn

	mu   sync.Mutex // guards next
	next *round     // called and not begun
}

type round struct {
	done chan struct{}
	err  error
}

// begin takes the turn, and end gives it back.
func (r *rounds) begin() { r.turn <- struct{}{} }
func (r *rounds) end()   { <-r.turn }

// join returns what do does, which begins after join was called.
func (r *rounds) join(do func() error) error {
	r.mu.Lock()
	mine := r.next
	if mine != nil {
		r.mu.Unlock()
		<-mine.done
		return mine.err
	}
	mine = &round{done: make(chan struct{})}
	r.next = mine
	r.mu.Unlock()

	r.begin()
	r.mu.Lock()
	r.next = nil
	r.mu.Unlock()
	mine.err = do()
	r.end()
	close(mine.done)
	return mine.err
}

func (d *Disk) Flush() error {
	if d.plain.Load() {
		return d.store.Flush()
	}
	d.noteGuest()
	return d.flushes.join(d.flush)
}

// flush is one flush of the guest's. The caller has the turn.
func (d *Disk) flush() error {
	if d.plain.Load() { // since a moment ago
		return d.store.Flush()
	}
	if err := d.changeable("flush", 0, 0); err != nil {
		return err
	}
	if !d.m.urgent.Swap(false) {
		return d.flushStore()
	}
	err := d.commit()
	if err != nil {
		d.m.urgent.Store(true)
	}
	return err
}

// commit makes durable what is present: see commit.go. The caller has the turn.
func (d *Disk) commit() error {
	pages := d.m.freeze()
	err := d.flushStore()
	if err == nil {
		err = d.m.commit(pages)
	}
	if err != nil {
		d.m.thaw(pages)
		return d.fail(asError("flush", 0, 0, err))
	}
	return d.anchor()
}

// flushStore flushes the store. It is not tried again when it failed.
func (d *Disk) flushStore() error {
	if err := d.store.Flush(); err != nil {
		return d.fail(&fatalError{err})
	}
	return nil
}

// anchor sees to it that the files' names are as durable as what is in them.
func (d *Disk) anchor() error {
	if d.anchored || d.opts.Anchor == nil {
		return nil
	}
	if err := d.opts.Anchor(); err != nil {
		if blockdev.KindOf(err) != blockdev.KindNoSpace {
			err = &fatalError{err}
		}
		return d.fail(asError("flush", 0, 0, err))
	}
	d.anchored = true
	return nil
}

// asError makes a blockdev.Error of err, if it is none.
func asError(op string, off, n int64, err error) error {
	if err == nil || errors.As(err, new(*blockdev.Error)) {
		return err
	}
	return opError(op, off, n, blockdev.KindOf(err), err)
}
