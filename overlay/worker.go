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
	bad   *baseError
	next  *atomic.Int64
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
		w.next.Store(0)
		w.noSpace(err)
		if !sleep(ctx, spaceRetry) {
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
			w.bad.note(err)
			w.hydrator.bad.Add(1)
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
			w.bad.note(err)
			w.hydrator.bad.Add(1)
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

// baseError is the first error of the base.
type baseError struct {
	mu  sync.Mutex
	err error
}

func (e *baseError) note(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
	}
}

// get returns what there is to say about n clusters that were left out.
func (e *baseError) get(n int64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		return nil
	}
	return fmt.Errorf("%d clusters of the image cannot be read and were not copied, all others are; the first: %w", n, e.err)
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
