package imageconv

import (
	"iter"

	"github.com/containerdisk/containerdisk/blockdev"
)

// sectorSize is the smallest block that a disk is served in, bytes.
const sectorSize = 512

// rounded is a Source whose size is not a multiple of a sector, with zeros up
// to the next one. qemu-img convert writes the same.
type rounded struct {
	src  blockdev.Source
	size int64
}

// roundUp returns src in whole sectors of that size in bytes, a power of two.
func roundUp(src blockdev.Source, sector int64) blockdev.Source {
	size := src.Size()
	if size%sector == 0 {
		return src
	}
	return &rounded{src: src, size: (size + sector - 1) &^ (sector - 1)}
}

func (r *rounded) Size() int64 { return r.size }

func (r *rounded) ReadAt(p []byte, off int64) (int, error) {
	if err := blockdev.CheckRange("read", off, int64(len(p)), r.size); err != nil {
		return 0, err
	}
	n := r.inside(off, int64(len(p)))
	if k, err := r.src.ReadAt(p[:n], min(off, r.src.Size())); err != nil {
		return k, err
	}
	clear(p[n:])
	return len(p), nil
}

func (r *rounded) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		if err := blockdev.CheckRange("map", off, n, r.size); err != nil {
			yield(blockdev.Extent{}, err)
			return
		}
		join := blockdev.NewJoin(yield)
		in := r.inside(off, n)
		for e, err := range r.src.Extents(min(off, r.src.Size()), in) {
			if err != nil {
				join.Fail(err)
				return
			}
			if !join.Add(e) {
				return
			}
		}
		join.Add(blockdev.Extent{Off: off + in, Len: n - in, Kind: blockdev.Hole})
		join.Done()
	}
}

// inside is how much of [off, off+n) the source itself has.
func (r *rounded) inside(off, n int64) int64 { return min(n, max(0, r.src.Size()-off)) }
