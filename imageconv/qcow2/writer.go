package qcow2

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// An image is written once, from front to back, and in the same way whenever
// the same disk is written with the same options:
//
//	header | L1 table | clusters, and each L2 table behind the last that it maps
//	       | refcount blocks | refcount table
//
// Workers read and compress batches of clusters; one writer takes the batches in
// order and gives each cluster its place:
//
//	cut ──┬─> work ──> workers ──┐ batch.err
//	      └─> queue ─────────────┴──> layout
//
// The queue's length bounds the memory. The header comes last, so that an image
// that was cut is not one.

const (
	// batchBytes is how much of the disk a worker takes at a time, if a cluster
	// is not larger.
	batchBytes = 1 << 20
	// maxWriteWorkers bounds the memory where there are very many CPUs: each
	// has a batch before and one after compression.
	maxWriteWorkers = 8
	// DefaultClusterBits makes clusters of 64 KiB, as QEMU does.
	DefaultClusterBits = 16
)

// WriteOptions are the settings of Write. The zero value is good.
type WriteOptions struct {
	Compression Compression
	Plain       bool // no cluster is compressed
	// ClusterBits is the binary logarithm of the cluster size in bytes, 9 to
	// 21; 0 means DefaultClusterBits.
	ClusterBits int
	// Workers is how many goroutines read and compress; 0 means GOMAXPROCS.
	Workers int
	// Progress is told how many of the bytes that hold data are done; the last
	// call has done == total.
	Progress func(done, total int64)
}

// Write writes an image of the disk src, of version 3, to w, which must be
// empty and read as zeros where nothing was written. It returns the length of
// the file. It ends early, with ctx's error, when ctx is done. It does not
// flush.
func Write(ctx context.Context, w io.WriterAt, src blockdev.Source, o WriteOptions) (int64, error) {
	if o.ClusterBits == 0 {
		o.ClusterBits = DefaultClusterBits
	}
	if o.ClusterBits < minClusterBits || o.ClusterBits > maxClusterBits {
		return 0, fmt.Errorf("qcow2: clusters of 2^%d bytes, must be 2^%d to 2^%d", o.ClusterBits, minClusterBits, maxClusterBits)
	}
	l, err := newLayout(w, src.Size(), o)
	if err != nil {
		return 0, err
	}
	iw := &imageWriter{src: src, layout: l, options: o}
	if err := iw.run(ctx); err != nil {
		return 0, err
	}
	return l.finish()
}

type imageWriter struct {
	src     blockdev.Source
	layout  *layout
	options WriteOptions
	total   int64 // batches
}

// batch is a run of clusters on its way to the file.
type batch struct {
	number int64
	in     []byte     // the disk's content
	out    []byte     // what goes to the file, cluster by cluster
	parts  []part     // of out
	err    chan error // one value when it is compressed, or could not be
}

// part is a cluster of a batch that is not zero.
type part struct {
	cluster int64 // of the disk
	n       int   // bytes
	packed  bool  // compressed
}

func (w *imageWriter) batchSize() int64 { return max(batchBytes, int64(1)<<w.options.ClusterBits) }

// batches calls yield for every batch that may hold data, in order.
func (w *imageWriter) batches(ctx context.Context, yield func(number int64) error) error {
	const step = 1 << 30 // bytes between two looks at the context
	next := int64(0)
	for off := int64(0); off < w.src.Size(); off += step {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for e, err := range w.src.Extents(off, min(step, w.src.Size()-off)) {
			if err != nil {
				return err
			}
			if e.Kind.ReadsZero() {
				continue
			}
			for next = max(next, e.Off/w.batchSize()); next*w.batchSize() < e.End(); next++ {
				if err := yield(next); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (w *imageWriter) run(ctx context.Context) error {
	if err := w.batches(ctx, func(int64) error { w.total++; return nil }); err != nil {
		return err
	}
	workers := w.options.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	workers = min(workers, maxWriteWorkers)

	ctx, cancel := context.WithCancelCause(ctx)
	work := make(chan *batch)
	queue := make(chan *batch, workers+1)
	free := make(chan *batch, workers+3) // one more than can be in use
	for range cap(free) - 1 {
		free <- &batch{err: make(chan error, 1)}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil) // before the wait
	for range workers {
		wg.Go(func() { w.work(work) })
	}
	var cutErr error
	wg.Go(func() {
		defer close(work)
		defer close(queue)
		cutErr = w.cut(ctx, free, queue, work)
	})
	if err := w.collect(ctx, queue, free); err != nil {
		return err
	}
	return cutErr // its goroutine has closed the queue
}

// cut hands out the batches.
func (w *imageWriter) cut(ctx context.Context, free <-chan *batch, queue, work chan<- *batch) error {
	return w.batches(ctx, func(number int64) error {
		var b *batch
		select {
		case b = <-free:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		b.number = number
		for _, to := range []chan<- *batch{queue, work} {
			select {
			case to <- b:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
}

// collect takes the batches in order and writes them.
func (w *imageWriter) collect(ctx context.Context, queue <-chan *batch, free chan<- *batch) error {
	done := int64(0)
	for b := range queue {
		select {
		case err := <-b.err:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := w.layout.add(b); err != nil {
			return err
		}
		done++
		w.report(done)
		free <- b
	}
	if w.total == 0 {
		w.report(0)
	}
	return nil
}

func (w *imageWriter) report(done int64) {
	if w.options.Progress != nil {
		w.options.Progress(done*w.batchSize(), w.total*w.batchSize())
	}
}

// work compresses batches until there are no more.
func (w *imageWriter) work(batches <-chan *batch) {
	var c *packer
	var err error
	if !w.options.Plain {
		c, err = newPacker(w.options.Compression)
	}
	for b := range batches {
		if err == nil {
			b.err <- w.pack(b, c)
			continue
		}
		b.err <- err
	}
}

// pack reads a batch and compresses its clusters; c is nil where they stay as
// they are.
func (w *imageWriter) pack(b *batch, c *packer) error {
	cluster := int64(1) << w.options.ClusterBits
	off := b.number * w.batchSize()
	n := min(w.batchSize(), w.src.Size()-off)
	if b.in == nil {
		b.in = make([]byte, w.batchSize())
	}
	clear(b.in[n:]) // behind the end of the disk
	if _, err := w.src.ReadAt(b.in[:n], off); err != nil {
		return err
	}
	b.out, b.parts = b.out[:0], b.parts[:0]
	for at := int64(0); at < n; at += cluster {
		in := b.in[at : at+cluster]
		if isZero(in) {
			continue
		}
		p := part{cluster: (off + at) / cluster}
		before := len(b.out)
		if c != nil {
			var err error
			if b.out, err = c.pack(b.out, in); err != nil {
				return err
			}
			p.n, p.packed = len(b.out)-before, true
		}
		if !p.packed || p.n >= len(in) { // a packed cluster must be smaller
			b.out = append(b.out[:before], in...)
			p.n, p.packed = len(in), false
		}
		b.parts = append(b.parts, p)
	}
	return nil
}
