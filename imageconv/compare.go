package imageconv

import (
	"bytes"
	"context"
	"errors"
	"math"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Same is what Compare returns where the disks do not differ.
const Same = -1

// Compare returns the offset of the first byte in which two disks differ, or
// Same. A disk that is longer than the other may have zeros there and is the
// same: it would be a copy on a larger disk. What neither has as data is not
// read.
func Compare(ctx context.Context, a, b blockdev.Source, o CopyOptions) (int64, error) {
	c := &comparer{a: a, b: b, size: max(a.Size(), b.Size()), piece: max(pieceOf(a), pieceOf(b)), first: math.MaxInt64}
	var total int64
	if err := c.survey(ctx, func(blockdev.Extent) error { total++; return nil }); err != nil {
		return Same, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pieces := make(chan blockdev.Extent)
	var wg sync.WaitGroup
	for range workers(o.Workers) {
		wg.Go(func() {
			bufs := [2][]byte{make([]byte, c.piece), make([]byte, c.piece)}
			for p := range pieces {
				if err := c.compare(p, bufs); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	done := int64(0)
	err := c.survey(ctx, func(p blockdev.Extent) error {
		if c.found() {
			return errFound
		}
		if o.Progress != nil {
			o.Progress(done*c.piece, total*c.piece)
		}
		done++
		select {
		case pieces <- p:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	close(pieces)
	wg.Wait()
	switch {
	case err == nil && ctx.Err() != nil:
		return Same, context.Cause(ctx)
	case err != nil && !errors.Is(err, errFound):
		return Same, err
	case c.first < math.MaxInt64:
		return c.first, nil
	}
	if o.Progress != nil {
		o.Progress(total*c.piece, total*c.piece)
	}
	return Same, nil
}

// comparer is one run of Compare. Pieces are handed out in order, so that all
// before a difference are looked at to the end.
type comparer struct {
	a, b  blockdev.Source
	size  int64 // of the larger one
	piece int64

	mu    sync.Mutex // guards first
	first int64      // the first difference that was found
}

var errFound = errors.New("a difference was found")

func (c *comparer) found() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first < math.MaxInt64
}

// survey calls take for every piece that one of the disks has data in.
func (c *comparer) survey(ctx context.Context, take func(blockdev.Extent) error) error {
	for off := int64(0); off < c.size; off += surveyStep {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(surveyStep, c.size-off)
		data := make([]bool, (n+c.piece-1)/c.piece)
		for _, src := range []blockdev.Source{c.a, c.b} {
			if err := c.mark(data, src, off, n); err != nil {
				return err
			}
		}
		for i, has := range data {
			at := off + int64(i)*c.piece
			if !has {
				continue
			}
			if err := take(blockdev.Extent{Off: at, Len: min(c.piece, c.size-at)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// mark notes in which pieces of [off, off+n) a disk has data.
func (c *comparer) mark(data []bool, src blockdev.Source, off, n int64) error {
	n = min(n, src.Size()-off)
	if n <= 0 {
		return nil
	}
	for e, err := range src.Extents(off, n) {
		if err != nil {
			return err
		}
		if e.Kind.ReadsZero() {
			continue
		}
		for i := (e.Off - off) / c.piece; i*c.piece < e.End()-off; i++ {
			data[i] = true
		}
	}
	return nil
}

// compare compares a piece.
func (c *comparer) compare(p blockdev.Extent, bufs [2][]byte) error {
	var got [2][]byte
	for i, src := range []blockdev.Source{c.a, c.b} {
		got[i] = bufs[i][:p.Len]
		n := max(0, min(p.Len, src.Size()-p.Off))
		clear(got[i][n:])
		if n == 0 {
			continue
		}
		if _, err := src.ReadAt(got[i][:n], p.Off); err != nil {
			return err
		}
	}
	if bytes.Equal(got[0], got[1]) {
		return nil
	}
	for i := range got[0] {
		if got[0][i] != got[1][i] {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.first = min(c.first, p.Off+int64(i))
			return nil
		}
	}
	return nil
}
