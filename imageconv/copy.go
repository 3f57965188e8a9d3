package imageconv

import (
	"bytes"
	"context"
	"runtime"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Copy takes the data of the source in pieces, in order, and lets each worker
// read one, drop the zeros in it and write the rest. Workers are at most a few
// pieces apart, so that the destination is written almost from front to back,
// and memory is a piece a worker.

const (
	// pieceSize is what a worker takes at a time, bytes, unless a cluster of
	// the source is larger. It fits into a CPU's second level cache.
	pieceSize = 256 << 10
	// zeroUnit is the size in bytes of the smallest run of zeros that is left
	// out: what a file system sets aside at a time.
	zeroUnit = 4096
	// surveyStep is how many bytes of the source are looked at between two
	// looks at the context.
	surveyStep = 1 << 30
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
}

// Copy writes what src holds to dst, which must be at least as large and read
// as zeros: zeros of src, those within its data as well, are not written. It
// does not flush. It ends early, with ctx's error, when ctx is done. How far a
// Copy got that failed is not told: some of the data is in dst.
func Copy(ctx context.Context, dst blockdev.Device, src blockdev.Source, o CopyOptions) error {
	if err := blockdev.CheckRange("write", 0, src.Size(), dst.Size()); err != nil {
		return err
	}
	c := &copier{dst: dst, src: src, piece: pieceOf(src), progress: o.Progress}
	err := c.survey(ctx, func(e blockdev.Extent) error {
		c.total += e.Len
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
// its clusters, so that no compressed one is needed twice.
func pieceOf(src blockdev.Source) int64 {
	if c, ok := src.(interface{ ClusterSize() int64 }); ok {
		return max(pieceSize, c.ClusterSize())
	}
	return pieceSize
}

type copier struct {
	dst   blockdev.Device
	src   blockdev.Source
	piece int64 // bytes, a power of two
	total int64 // bytes of data in src

	mu       sync.Mutex // guards done, and makes the calls of progress one at a time
	done     int64
	progress func(done, total int64)
}

// survey calls data for every extent of the source that may be other than zero.
func (c *copier) survey(ctx context.Context, data func(blockdev.Extent) error) error {
	for off, size := int64(0), c.src.Size(); off < size; off += surveyStep {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		for e, err := range c.src.Extents(off, min(surveyStep, size-off)) {
			if err != nil {
				return err
			}
			if e.Kind.ReadsZero() {
				continue
			}
			if err := data(e); err != nil {
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
	err := c.survey(ctx, func(e blockdev.Extent) error { return c.cut(ctx, e, pieces) })
	close(pieces)
	wg.Wait()
	if err == nil && ctx.Err() != nil { // a worker's, after the last piece was handed out
		err = context.Cause(ctx)
	}
	if err == nil {
		c.report(0)
	}
	return err
}

// cut hands the extent to the workers in pieces. The pieces end where a
// multiple of their size does, so that they begin with a cluster.
func (c *copier) cut(ctx context.Context, e blockdev.Extent, pieces chan<- blockdev.Extent) error {
	for e.Len > 0 {
		p := e
		p.Len = min(e.Len, c.piece-e.Off%c.piece)
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
		b := buf[:p.Len]
		if _, err := c.src.ReadAt(b, p.Off); err != nil {
			return err
		}
		if err := c.write(b, p.Off); err != nil {
			return err
		}
		c.report(p.Len)
	}
	return nil
}

// write writes b at off but for the zeros in it.
func (c *copier) write(b []byte, off int64) error {
	for len(b) > 0 {
		n, zero := streak(b, off)
		if !zero {
			if _, err := c.dst.WriteAt(b[:n], off); err != nil {
				return err
			}
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

func (c *copier) report(n int64) {
	if c.progress == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += n
	c.progress(c.done, c.total)
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
