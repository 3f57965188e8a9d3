package imageconv

import (
	"bytes"
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Copy takes the data of the source in pieces, in order, and lets each worker
// read one, drop the zeros in it and write the rest. Workers are at most a few
// pieces apart, so that the destination is written almost from front to back,
// and memory is a piece a worker.
//
// Where the file system can share space between files, a piece that the source
// has as it is, is shared and not read. One attempt that fails is enough to
// know that it cannot.

const (
	// pieceSize is what a worker takes at a time, bytes, unless a cluster of
	// the source is larger. It fits into a CPU's second level cache.
	pieceSize = 256 << 10
	maxPiece  = 2 << 20
	// zeroUnit is the size in bytes of the smallest run of zeros that is left
	// out: what a file system sets aside at a time.
	zeroUnit = 4096
	// surveyStep is how many bytes of the source are looked at between two
	// looks at the context.
	surveyStep = 1 << 30
	// zeroRun is the smallest run of zeros, bytes, within data that is zeroed
	// and not written where the destination does not read as zeros.
	zeroRun = 64 << 10
	// zeroPiece is how much is zeroed at a time, bytes.
	zeroPiece = 1 << 30
	// maxWorkers bounds the memory where there are very many CPUs.
	maxWorkers = 16
)

// CopyOptions are the settings of a Copy. The zero value is good.
type CopyOptions struct {
	// Workers is how many goroutines read, decompress and write; 0 means
	// GOMAXPROCS, and more than maxWorkers are never used.
	Workers int

	// Progress is told how many of the bytes that hold data are done; the
	// last call has done == total. Calls do not overlap.
	Progress func(done, total int64)

	// Dirty says that dst has content: it does not read as zeros.
	Dirty bool
	// Start is where to begin, bytes: an earlier Copy of the same source has
	// done what is before.
	Start int64
	// Mark is told that everything before done is in dst. Calls do not overlap,
	// and done grows from call to call.
	Mark func(done int64)
}

// Copy writes what src holds to dst, which must be at least as large and,
// unless it is said to be dirty, read as zeros: zeros of src, those within its
// data as well, are then not written. It does not flush. It ends early, with
// ctx's error, when ctx is done. Of a Copy that failed some of the data is in
// dst, in no order; Mark has told up to where all of it is.
func Copy(ctx context.Context, dst blockdev.Device, src blockdev.Source, o CopyOptions) error {
	if err := blockdev.CheckRange("write", 0, src.Size(), dst.Size()); err != nil {
		return err
	}
	c := &copier{dst: dst, src: src, piece: pieceOf(src), options: o, handed: o.Start, marked: o.Start}
	c.clone = cloner(dst, src, o)
	err := c.survey(ctx, 0, func(e blockdev.Extent) error {
		c.total += e.Len
		if before := o.Start - e.Off; before > 0 {
			c.done += min(before, e.Len)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.run(ctx, workers(o.Workers))
}

func workers(n int) int {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	return min(n, maxWorkers)
}

// pieceOf is the size of the pieces in which src is best read: a multiple of
// its clusters, so that no compressed one is needed twice. Larger clusters than
// maxPiece no format compresses.
func pieceOf(src blockdev.Source) int64 {
	im, ok := src.(*Image)
	if ok && im.ClusterSize() <= maxPiece {
		return max(pieceSize, im.ClusterSize())
	}
	return pieceSize
}

type copier struct {
	dst     blockdev.Device
	src     blockdev.Source
	piece   int64 // bytes, a power of two
	total   int64 // bytes to copy
	options CopyOptions

	clone   func(blockdev.Extent) (bool, error) // see cloner; may be nil
	cannot  atomic.Bool                         // clone has failed
	writing sync.Mutex                          // held during a write: see write

	mu     sync.Mutex // guards the fields below, and makes the calls of Progress and Mark one at a time
	done   int64
	busy   []int64 // where the pieces begin that are worked on
	handed int64   // where the last piece ends that was handed out
	marked int64   // what Mark was told last
}

// survey calls take for every extent of the source from off on that is to be
// copied.
func (c *copier) survey(ctx context.Context, off int64, take func(blockdev.Extent) error) error {
	for size := c.src.Size(); off < size; off += surveyStep {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		for e, err := range c.src.Extents(off, min(surveyStep, size-off)) {
			if err != nil {
				return err
			}
			if e.Kind.ReadsZero() && !c.options.Dirty {
				continue
			}
			if err := take(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// run copies with n workers. The first error stops all of them.
func (c *copier) run(ctx context.Context, n int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pieces := make(chan blockdev.Extent)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := c.work(pieces); err != nil {
				cancel(err)
			}
		})
	}
	err := c.survey(ctx, c.options.Start, func(e blockdev.Extent) error { return c.cut(ctx, e, pieces) })
	close(pieces)
	wg.Wait()
	if err == nil && ctx.Err() != nil { // a worker's, after the last piece was handed out
		err = context.Cause(ctx)
	}
	if err == nil {
		c.end()
	}
	return err
}

// cut hands the extent to the workers in pieces. The pieces end where a
// multiple of their size does, so that they begin with a cluster.
func (c *copier) cut(ctx context.Context, e blockdev.Extent, pieces chan<- blockdev.Extent) error {
	for e.Len > 0 {
		p := e
		size := c.piece
		if e.Kind.ReadsZero() {
			size = zeroPiece
		}
		p.Len = min(e.Len, size-e.Off%size)
		c.begin(p)
		select {
		case pieces <- p:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		e.Off, e.Len = e.Off+p.Len, e.Len-p.Len
	}
	return nil
}

// work copies pieces until there are no more. After an error it stops, and the
// cancelled context stops the others.
func (c *copier) work(pieces <-chan blockdev.Extent) error {
	buf := make([]byte, c.piece)
	for p := range pieces {
		if err := c.copy(p, buf); err != nil {
			return err
		}
		c.report(p)
	}
	return nil
}

// copy copies one piece by way of buf.
func (c *copier) copy(p blockdev.Extent, buf []byte) error {
	if p.Kind.ReadsZero() {
		return c.dst.Zero(p.Off, p.Len, blockdev.ZeroMayUnmap)
	}
	if c.clone != nil && !c.cannot.Load() {
		shared, err := c.clone(p)
		if shared {
			return nil
		}
		c.cannot.Store(err != nil) // the copy will tell if it matters
	}
	b := buf[:p.Len]
	if _, err := c.src.ReadAt(b, p.Off); err != nil {
		return err
	}
	return c.write(b, p.Off)
}

// write writes b at off but for the zeros in it. Linux lets one writer at a
// time into a file; who waits for it spins. So the workers queue up here,
// where the CPU is free to decompress meanwhile.
func (c *copier) write(b []byte, off int64) error {
	for len(b) > 0 {
		n, zero := streak(b, off)
		var err error
		switch {
		case zero && !c.options.Dirty:
		case zero && n >= zeroRun:
			err = c.dst.Zero(off, int64(n), blockdev.ZeroMayUnmap)
		default:
			c.writing.Lock()
			_, err = c.dst.WriteAt(b[:n], off)
			c.writing.Unlock()
		}
		if err != nil {
			return err
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// begin notes that a piece is about to be handed out.
func (c *copier) begin(p blockdev.Extent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = append(c.busy, p.Off)
	c.handed = p.End()
}

// report notes that a piece is done.
func (c *copier) report(p blockdev.Extent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = slices.Delete(c.busy, slices.Index(c.busy, p.Off), slices.Index(c.busy, p.Off)+1)
	c.done += p.Len
	c.tell()
}

// end notes that everything is done.
func (c *copier) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handed = c.src.Size()
	c.tell()
}

// tell makes the calls that the options ask for. The caller holds mu.
func (c *copier) tell() {
	mark := c.handed
	for _, off := range c.busy {
		mark = min(mark, off)
	}
	if mark > c.marked && c.options.Mark != nil {
		c.marked = mark
		c.options.Mark(mark)
	}
	if c.options.Progress != nil {
		c.options.Progress(c.done, c.total)
	}
}

var zeros [zeroUnit]byte

// streak is how far the units reach that are zero, or that are not, as the
// first unit of b is. b belongs at off.
func streak(b []byte, off int64) (n int, zero bool) {
	for n < len(b) {
		u := unit(b[n:], off+int64(n))
		z := bytes.Equal(b[n:][:u], zeros[:u])
		if n > 0 && z != zero {
			break
		}
		zero = z
		n += u
	}
	return n, zero
}

// unit is how much of b, which belongs at off, is within off's unit.
func unit(b []byte, off int64) int {
	return min(len(b), int(zeroUnit-off%zeroUnit))
}
