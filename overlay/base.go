package overlay

import (
	"io"
	"iter"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/blockdev"
)

// base is the image under the disk. It does not change, so it is read without
// a lock; it is closed when it is not needed any more and its last reader has
// left.
type base struct {
	src    blockdev.Source // nil: there is none, and no cluster needs it
	size   int64           // bytes
	refs   atomic.Int64    // readers, and 1 until drop
	closed chan error      // takes the result of closing
}

func newBase(src blockdev.Source, size int64) *base {
	b := &base{src: src, size: size, closed: make(chan error, 1)}
	b.refs.Store(1)
	return b
}

// enter makes the caller a reader, who leaves. It reports false when the base
// is gone: then all clusters are present.
func (b *base) enter() bool {
	for {
		n := b.refs.Load()
		if n == 0 || b.src == nil {
			return false
		}
		if b.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (b *base) leave() {
	if b.refs.Add(-1) > 0 {
		return
	}
	var err error
	if c, ok := b.src.(io.Closer); ok {
		err = c.Close()
	}
	b.closed <- err
}

// drop lets no more readers in. Call it once.
func (b *base) drop() { b.leave() }

// readAt fills p from off on: beyond the base are zeros. The caller has
// entered.
func (b *base) readAt(p []byte, off int64) error {
	n := max(0, min(int64(len(p)), b.size-off))
	if n > 0 {
		if _, err := b.src.ReadAt(p[:n], off); err != nil {
			return err
		}
	}
	clear(p[n:])
	return nil
}

// extents tells what the base has in [off, off+n). What reads as zeros is a
// hole here: the disk has set nothing aside for it. The caller has entered.
func (b *base) extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		if k := max(0, min(n, b.size-off)); k > 0 {
			for e, err := range b.src.Extents(off, k) {
				if e.Kind.ReadsZero() {
					e.Kind = blockdev.Hole
				}
				if !yield(e, err) || err != nil {
					return
				}
			}
			off, n = off+k, n-k
		}
		if n > 0 {
			yield(blockdev.Extent{Off: off, Len: n, Kind: blockdev.Hole}, nil)
		}
	}
}

// addAll hands extents to j. It reports whether more is wanted.
func addAll(j *blockdev.Join, extents iter.Seq2[blockdev.Extent, error]) (more bool, err error) {
	for e, err := range extents {
		if err != nil {
			return false, err
		}
		if !j.Add(e) {
			return false, nil
		}
	}
	return true, nil
}
