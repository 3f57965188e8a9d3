package main

import (
	"context"
	"io"
	"runtime"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// A pipe takes the disk in order, but reading it (decompression, mostly) pays
// off on all cores. So the pieces are read by several workers and wait, in
// order, for the one writer:
//
//	cut ──┬─> work ──> workers ──┐ piece.err
//	      └─> queue ─────────────┴──> writer
//
// The queue's length bounds the memory.

// streamPiece is how much is read at a time, bytes.
const streamPiece = 1 << 20

// piece is a part of the disk on its way to the writer.
type piece struct {
	off int64
	b   []byte
	err chan error // one value when b is filled, or could not be
}

// stream writes all of src to w, from the first byte to the last.
func stream(ctx context.Context, w io.Writer, src blockdev.Source, update func(done, total int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	workers := runtime.GOMAXPROCS(0)
	work := make(chan *piece)
	queue := make(chan *piece, 2*workers)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel() // before the wait

	for range workers {
		wg.Go(func() {
			for p := range work {
				_, err := src.ReadAt(p.b, p.off)
				p.err <- err
			}
		})
	}
	free := sync.Pool{New: func() any { return &piece{b: make([]byte, streamPiece), err: make(chan error, 1)} }}
	wg.Go(func() {
		defer close(work)
		defer close(queue)
		for off := int64(0); off < src.Size(); off += streamPiece {
			p := free.Get().(*piece)
			p.off, p.b = off, p.b[:min(streamPiece, src.Size()-off)]
			for _, to := range []chan *piece{queue, work} {
				select {
				case to <- p:
				case <-ctx.Done():
					return
				}
			}
		}
	})

	done := int64(0)
	for p := range queue {
		select {
		case err := <-p.err:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		if _, err := w.Write(p.b); err != nil {
			return err
		}
		done += int64(len(p.b))
		update(done, src.Size())
		free.Put(p)
	}
	return ctx.Err()
}
