package overlay

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
)

// The hydrator copies what the base has and the store has not, until the disk
// is its store.
//
//	survey   asks the base where it has data: that is the work, in pieces
//	copy     workers take pieces, those near what the guest has just read first
//	finish   what is absent now reads as zeros: it is marked present; all is
//	         made durable, and published; the base and the map are let go
//
// A worker reads a piece from the base without any lock and then puts cluster
// by cluster into the store, each under its lock and only if it is still
// absent. So it never overwrites a guest's write, and a guest's write never
// waits for more than the copying of its own clusters.

const (
	// pieceSize is what a worker takes at a time, bytes, unless a cluster of
	// the base or of the disk is larger: as imageconv.Copy does, for it fits
	// into a CPU's second level cache.
	pieceSize = 256 << 10
	// maxPiece and maxHydrators bound the memory: where the base has very large
	// clusters, and where there are very many CPUs.
	maxPiece     = 4 << 20
	maxHydrators = 16
	// surveyStep is how many bytes of the base are looked at between two looks
	// at the context.
	surveyStep = 1 << 30
	// checkpointEvery is how often what was copied is made durable, so that a
	// loss of power does not undo all of it.
	checkpointEvery = 30 * time.Second
	// spaceRetry is how long to wait for room before looking again.
	spaceRetry = 3 * time.Second
)

// State is what the hydrator does.
type State uint8

const (
	Off        State = iota // Hydrate is not running, and not all is copied
	Hydrating               // copying
	Paused                  // until Resume
	NoSpace                 // waiting for room; the disk works as copy-on-write
	Incomplete              // Hydrate has ended: parts of the base cannot be read
	Complete                // the disk is its store
)

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

var stateNames = [...]string{"off", "hydrating", "paused", "no space", "incomplete", "complete"}

// Progress is how far the hydrator is.
type Progress struct {
	State       State
	Done, Total int64 // bytes of the base's data; Total is 0 until it is known
}

// hydrator is the part of a Disk that copies in the background.
type hydrator struct {
	d     *Disk
	piece int64 // bytes, a multiple of a cluster, a power of two

	running sync.Mutex         // held by Hydrate
	ended   context.Context    // done when the disk is closed
	end     context.CancelFunc // ends it

	todo  set // pieces; nil before the survey
	total atomic.Int64
	done  atomic.Int64
	state atomic.Uint32 // Off, Hydrating, NoSpace, Incomplete or Complete
	bad   unreadable

	guest guest
	pace  pace
	gate  gate

	spaceRetry time.Duration // how long to wait before looking again whether there is room
}

func (h *hydrator) init(d *Disk) {
	h.d = d
	h.piece = max(pieceSize, d.clust)
	if c, ok := d.base.src.(interface{ ClusterSize() int64 }); ok {
		for h.piece < c.ClusterSize() && h.piece < maxPiece {
			h.piece *= 2
		}
	}
	h.ended, h.end = context.WithCancel(context.Background())
	h.pace.rate = d.opts.Rate
	h.gate.init()
	h.spaceRetry = spaceRetry
}

// stop ends Hydrate and waits until it has returned.
func (h *hydrator) stop() {
	h.end()
	h.running.Lock()
	h.running.Unlock() //nolint:staticcheck // SA2001: that it could be taken is what is waited for
}

// Progress tells how far Hydrate is.
func (d *Disk) Progress() Progress {
	h := &d.hydrator
	p := Progress{State: State(h.state.Load()), Done: h.done.Load(), Total: h.total.Load()}
	if p.State == Hydrating && h.gate.shut() {
		p.State = Paused
	}
	return p
}

// Pause holds Hydrate up until Resume; the disk goes on.
func (d *Disk) Pause()  { d.hydrator.gate.close() }
func (d *Disk) Resume() { d.hydrator.gate.open() }

// Hydrate copies everything that is not in the store yet, publishes the store,
// and leaves the disk as that: then it returns nil. It ends early with an error
// when ctx is done or the disk fails or is closed, and when the base cannot be
// read somewhere: then all the rest is copied, the disk works on, and Hydrate
// may be called again. Want of room ends it not: it waits.
func (d *Disk) Hydrate(ctx context.Context) error {
	if d.opts.Mode != Clone {
		return fmt.Errorf("%s: the disk is not one that is copied", d.m.name)
	}
	h := &d.hydrator
	h.running.Lock()
	defer h.running.Unlock()
	if d.plain.Load() {
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.ended, func() { cancel(opError("hydrate", 0, 0, blockdev.KindClosed, nil)) })()
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	h.state.Store(uint32(Hydrating))
	err := h.run(ctx, cancel)
	switch {
	case err == nil:
		h.done.Store(h.total.Load())
		h.state.Store(uint32(Complete))
	case errors.As(err, new(*unreadableError)):
		h.state.Store(uint32(Incomplete))
	default:
		h.state.Store(uint32(Off))
	}
	return err
}

func (h *hydrator) run(ctx context.Context, cancel context.CancelCauseFunc) error {
	const rounds = 3 // one, unless the base tells of its data what was not so before
	for range rounds {
		if h.d.m.Complete() {
			break
		}
		if err := h.survey(ctx); err != nil {
			return err
		}
		if err := h.copy(ctx, cancel); err != nil {
			return err
		}
		if err := h.retry(ctx, h.markZeros); err != nil {
			return err
		}
	}
	return h.finish(ctx)
}

// survey finds the pieces in which the base has data that the store has not.
func (h *hydrator) survey(ctx context.Context) error {
	d := h.d
	h.todo = newSet((d.size-1)/h.piece + 1)
	h.bad.reset()
	if !d.base.enter() {
		return opError("hydrate", 0, 0, blockdev.KindClosed, nil)
	}
	defer d.base.leave()
	l := list{hydrator: h}
	for off := int64(0); off < d.base.size; off += surveyStep {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for e, err := range d.base.src.Extents(off, min(surveyStep, d.base.size-off)) {
			if err != nil {
				return err
			}
			if !e.Kind.ReadsZero() {
				l.add(e)
			}
		}
	}
	l.close()
	h.done.Store(l.total - l.left)
	h.total.Store(l.total)
	return nil
}

// list makes the list of pieces of the extents that it is given in order. A
// piece that is partly copied counts as not copied.
type list struct {
	*hydrator
	total, left int64 // bytes of data: in all, in the pieces that are on the list

	piece  int64 // the one that is being looked at
	bytes  int64 // of data in it
	absent bool  // some of it
}

func (l *list) add(e blockdev.Extent) {
	for e.Len > 0 {
		p := e.Off / l.hydrator.piece
		if p != l.piece {
			l.close()
			l.piece = p
		}
		n := min(e.Len, (p+1)*l.hydrator.piece-e.Off)
		l.bytes += n
		l.absent = l.absent || !l.d.m.present.all(l.d.span(e.Off, n))
		e.Off, e.Len = e.Off+n, e.Len-n
	}
}

// close is called when all of a piece has been looked at.
func (l *list) close() {
	l.total += l.bytes
	if l.absent {
		l.left += l.bytes
		l.todo.add(l.piece, 1)
	}
	l.bytes, l.absent = 0, false
}

// copy has workers copy the pieces. The first error that is not only the
// base's stops them all.
func (h *hydrator) copy(ctx context.Context, cancel context.CancelCauseFunc) error {
	defer h.guest.watch()()
	var next atomic.Int64 // where the workers are that have no hint
	var wg sync.WaitGroup
	for i := range min(runtime.GOMAXPROCS(0), maxHydrators) {
		wg.Go(func() {
			w := worker{hydrator: h, index: i, buf: make([]byte, h.piece), next: &next}
			if err := w.work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	stop := h.checkpoints(ctx, cancel)
	wg.Wait()
	stop()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return h.bad.get()
}

// checkpoints makes durable, from time to time, what was copied.
func (h *hydrator) checkpoints(ctx context.Context, cancel context.CancelCauseFunc) (stop func()) {
	ctx, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(checkpointEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if err := h.d.checkpoint(); err != nil && blockdev.KindOf(err) != blockdev.KindNoSpace {
				cancel(err)
			}
		}
	})
	return func() { end(); wg.Wait() }
}

// checkpoint makes durable all that is present.
func (d *Disk) checkpoint() error {
	d.flushes.begin()
	defer d.flushes.end()
	if err := d.changeable("flush", 0, 0); err != nil {
		return err
	}
	urgent := d.m.urgent.Swap(false)
	err := d.commit()
	if err != nil && urgent {
		d.m.urgent.Store(true)
	}
	return err
}

// finish makes the disk its store. Every cluster is present.
func (h *hydrator) finish(ctx context.Context) error {
	if !h.d.m.Complete() {
		return opError("hydrate", 0, 0, blockdev.KindCorrupt, errors.New("the image tells other things about its data each time"))
	}
	if err := h.retry(ctx, h.d.checkpoint); err != nil {
		return err
	}
	if h.d.opts.Finish != nil {
		if err := h.retry(ctx, h.d.opts.Finish); err != nil {
			return err
		}
	}
	h.d.becomePlain()
	return nil
}

// markZeros marks what is absent and zeros in the base: the store has zeros
// there as well, or is given them where the disk is soiled. It leaves what is
// data, whatever the survey said.
func (h *hydrator) markZeros() error {
	d := h.d
	const step = 16 << 10 // clusters that are locked at a time
	for c := int64(0); c < d.m.clusters; {
		n, present := d.m.present.run(c, min(c+step, d.m.clusters))
		if !present {
			if err := h.markZero(c, n); err != nil {
				return err
			}
		}
		c += n
	}
	return nil
}

// markZero does so for the n clusters from first on.
func (h *hydrator) markZero(first, n int64) error {
	d := h.d
	l := d.locks.lock(first, first+n-1)
	defer d.locks.unlock(l)
	if !d.base.enter() {
		return opError("hydrate", 0, 0, blockdev.KindClosed, nil)
	}
	defer d.base.leave()
	at := first // up to here nothing is data
	for e, err := range d.base.extents(d.start(first), d.end(first+n-1)-d.start(first)) {
		if err != nil {
			return err
		}
		if e.Kind != blockdev.Data {
			continue
		}
		if end := e.Off >> d.shift; end > at {
			if err := h.zeroAbsent(at, end-at); err != nil {
				return err
			}
		}
		c, k := d.span(e.Off, e.Len)
		at = c + k
	}
	if at < first+n {
		return h.zeroAbsent(at, first+n-at)
	}
	return nil
}

// zeroAbsent marks those of the clusters that are absent; they are to be zeros.
func (h *hydrator) zeroAbsent(first, n int64) error {
	d := h.d
	if err := d.changeable("zero", d.start(first), n<<d.shift); err != nil {
		return err
	}
	if d.soiled.Load() {
		if err := h.zeroStore(first, n); err != nil {
			return err
		}
	}
	return d.markAbsent(first, n, fromBase)
}

// zeroStore makes zeros of those of the clusters that are absent.
func (h *hydrator) zeroStore(first, n int64) error {
	d := h.d
	for end := first + n; first < end; {
		n, present := d.m.present.run(first, end)
		if !present {
			off := d.start(first)
			if err := d.store.Zero(off, d.end(first+n-1)-off, blockdev.ZeroMayUnmap); err != nil {
				return err
			}
		}
		first += n
	}
	return nil
}

// becomePlain lets the base and the map go.
func (d *Disk) becomePlain() {
	d.flushes.begin()
	defer d.flushes.end()
	d.plain.Store(true)
	d.base.drop()
	if err := d.m.Close(); err != nil {
		d.opts.Log.Warn("closing the cluster map, which is not needed any more", "error", err)
	}
}

// retry repeats do as long as there is no room for it.
func (h *hydrator) retry(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || blockdev.KindOf(err) != blockdev.KindNoSpace || errors.As(err, new(*fatalError)) {
			return err
		}
		h.noSpace(err)
		if !sleep(ctx, h.spaceRetry) {
			return context.Cause(ctx)
		}
		h.state.Store(uint32(Hydrating))
	}
}

func (h *hydrator) noSpace(err error) {
	if State(h.state.Swap(uint32(NoSpace))) != NoSpace {
		h.d.opts.Log.Warn("no room to copy more of the image; the disk goes on without", "error", err)
	}
}

// sleep waits for t. It reports false when ctx ended that.
func sleep(ctx context.Context, t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
