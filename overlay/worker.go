package overlay

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
)

// worker copies pieces.
type worker struct {
	*hydrator
	index int // of the workers; the first goes on, slowly, while the guest is busy
	buf   []byte
	next  *atomic.Int64 // the piece where those without a hint go on
}

// work copies until there are no pieces left. What the base cannot give is
// noted and left out.
func (w *worker) work(ctx context.Context) error {
	for {
		if err := w.wait(ctx); err != nil {
			return err
		}
		p := w.take()
		if p < 0 {
			return nil
		}
		begin := time.Now()
		n, err := w.copyPiece(p)
		if State(w.state.Load()) == NoSpace && err == nil {
			w.state.Store(uint32(Hydrating)) // there is room again
		}
		w.guest.took(time.Since(begin))
		if err == nil {
			w.pace.spend(n)
			continue
		}
		if blockdev.KindOf(err) != blockdev.KindNoSpace || w.d.failed.Load() {
			return err
		}
		w.todo.add(p, 1)
		w.noSpace(err)
		if !sleep(ctx, w.spaceRetry) {
			return context.Cause(ctx)
		}
	}
}

// take is the next piece to copy, or -1.
func (w *worker) take() int64 {
	if p := w.guest.near(w.todo, w.piece); p >= 0 {
		return p
	}
	for {
		p := w.todo.next(w.next.Load())
		if p < 0 {
			p = w.todo.next(0) // some were given back
		}
		if p < 0 {
			return -1
		}
		if w.todo.take(p) {
			w.next.Store(p)
			return p
		}
	}
}

// copyPiece copies what the base has of piece p and the store has not. It
// returns how many bytes of data it has read.
func (w *worker) copyPiece(p int64) (read int64, err error) {
	d := w.d
	if !d.base.enter() {
		return 0, opError("hydrate", 0, 0, blockdev.KindClosed, nil)
	}
	defer d.base.leave()
	off, data := p*w.piece, int64(0)
	for e, err := range d.base.src.Extents(off, min(w.piece, d.base.size-off)) {
		if err != nil {
			w.bad.note(err, w.piece)
			return read, nil
		}
		if e.Kind.ReadsZero() {
			continue
		}
		data += e.Len
		n, err := w.copyExtent(e)
		read += n
		if err != nil {
			return read, err
		}
	}
	w.done.Add(data)
	return read, nil
}

// copyExtent copies the clusters that e touches and that are absent.
func (w *worker) copyExtent(e blockdev.Extent) (read int64, err error) {
	d := w.d
	first, count := d.span(e.Off, e.Len)
	for end := first + count; first < end; {
		n, present := d.m.present.run(first, end)
		if !present {
			off := d.start(first)
			b := w.buf[:d.end(first+n-1)-off]
			read += int64(len(b))
			if err := w.copyRun(b, first, n); err != nil {
				return read, err
			}
		}
		first += n
	}
	return read, nil
}

// copyRun copies n absent clusters from first on through b, which is as large.
func (w *worker) copyRun(b []byte, first, n int64) error {
	d := w.d
	if err := d.base.readAt(b, d.start(first)); err != nil {
		if n == 1 {
			w.bad.note(err, int64(len(b)))
			return nil
		}
		for c := first; c < first+n; c++ { // one of them is bad
			if err := w.copyRun(b[:d.end(c)-d.start(c)], c, 1); err != nil {
				return err
			}
		}
		return nil
	}
	for c := first; c < first+n; c++ {
		k := d.end(c) - d.start(c)
		if err := d.keep(c, b[:k]); err != nil {
			return err
		}
		b = b[k:]
	}
	return nil
}

// unreadable is what the base could not give.
type unreadable struct {
	mu  sync.Mutex
	err *unreadableError // nil: there is nothing
}

// unreadableError says that parts of the base could not be copied.
type unreadableError struct {
	bytes int64 // about
	err   error // the first
}

func (e *unreadableError) Error() string {
	return fmt.Sprintf("about %d bytes of the image cannot be read and were not copied, all others are; the first: %v", e.bytes, e.err)
}

func (e *unreadableError) Unwrap() error { return e.err }

func (u *unreadable) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.err = nil
}

func (u *unreadable) note(err error, n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err == nil {
		u.err = &unreadableError{err: err}
	}
	u.err.bytes += n
}

// get returns an error if there was something.
func (u *unreadable) get() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.err == nil {
		return nil
	}
	return u.err
}

// wait returns when the next piece may be copied.
func (w *worker) wait(ctx context.Context) error {
	if !w.gate.pass(ctx) || !w.pace.wait(ctx) || !w.guest.giveWay(ctx, w.index) {
		return context.Cause(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
