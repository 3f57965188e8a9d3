package imageconv

import (
	"iter"

	"github.com/containerdisk/containerdisk/blockdev"
)

// window is a part of a source that is a source of its own.
type window struct {
	src    blockdev.Source
	off, n int64 // bytes
}

func (w *window) Size() int64 { return w.n }

func (w *window) ReadAt(p []byte, off int64) (int, error) {
	if err := blockdev.CheckRange("read", off, int64(len(p)), w.n); err != nil {
		return 0, err
	}
	return w.src.ReadAt(p, w.off+off)
}

func (w *window) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		if err := blockdev.CheckRange("map", off, n, w.n); err != nil {
			yield(blockdev.Extent{}, err)
			return
		}
		for e, err := range w.src.Extents(w.off+off, n) {
			e.Off -= w.off
			if !yield(e, err) {
				return
			}
		}
	}
}
