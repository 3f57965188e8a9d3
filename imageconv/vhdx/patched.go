package vhdx

import (
	"io"
	"slices"
	"sort"

	"github.com/containerdisk/containerdisk/imageconv/pages"
)

// patch is a range of the file that the log has written: a sector of data, or
// zeros.
type patch struct {
	off, end int64 // in the file, bytes, multiples of a sector of the log
	data     int64 // where in the file the data sector is; 0: zeros
	lead     [dataLead]byte
	trail    [dataTrail]byte
}

// patched is a file with patches laid over it. What is behind its real end
// reads as zeros.
type patched struct {
	src        io.ReaderAt
	real, size int64   // bytes
	patches    []patch // in order, without overlaps
}

// ReadAt reads the file as it is with the patches.
func (f *patched) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= f.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), f.size-off))
	if err := f.readBase(p[:n], off); err != nil {
		return 0, err
	}
	end := off + int64(n)
	first := sort.Search(len(f.patches), func(i int) bool { return f.patches[i].end > off })
	for i := first; i < len(f.patches) && f.patches[i].off < end; i++ {
		if err := f.lay(p[:n], off, &f.patches[i]); err != nil {
			return 0, err
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *patched) readBase(p []byte, off int64) error {
	n := min(int64(len(p)), max(0, f.real-off))
	clear(p[n:])
	if n == 0 {
		return nil
	}
	return pages.ReadFull(f.src, p[:n], off)
}

// lay lays a patch over p, which is the file from off on.
func (f *patched) lay(p []byte, off int64, q *patch) error {
	from, to := max(q.off, off), min(q.end, off+int64(len(p)))
	into := p[from-off : to-off]
	if q.data == 0 {
		clear(into)
		return nil
	}
	var sector [logSector]byte
	if err := pages.ReadFull(f.src, sector[:], q.data); err != nil {
		return err
	}
	copy(sector[:], q.lead[:])
	copy(sector[logSector-dataTrail:], q.trail[:])
	copy(into, sector[from-q.off:])
	return nil
}

// flatten makes of patches in the order in which they were written those that
// are left to see, in the order of the file. The last writer of a range wins:
// the ranges between all the borders are given away from the last patch on, and
// next skips those that are gone.
func flatten(list []patch) []patch {
	var borders []int64
	for _, p := range list {
		borders = append(borders, p.off, p.end)
	}
	slices.Sort(borders)
	borders = slices.Compact(borders)
	owner := make([]int, len(borders)) // of [borders[i], borders[i+1]), an index of list
	next := make([]int, len(borders)+1)
	for i := range next {
		next[i] = i
	}
	for i := range owner {
		owner[i] = -1
	}
	for i := len(list) - 1; i >= 0; i-- {
		k, _ := slices.BinarySearch(borders, list[i].off)
		for k = skip(next, k); k < len(borders) && borders[k] < list[i].end; k = skip(next, k) {
			owner[k], next[k] = i, k+1
		}
	}
	return owned(list, borders, owner)
}

// skip is the first range from k on that nobody has, and shortens the way.
func skip(next []int, k int) int {
	for next[k] != k {
		next[k] = next[next[k]]
		k = next[k]
	}
	return k
}

// owned are the patches cut to the ranges that they own.
func owned(list []patch, borders []int64, owner []int) []patch {
	var out []patch
	for k, i := range owner {
		if i < 0 {
			continue
		}
		p := list[i]
		p.off, p.end = borders[k], borders[k+1]
		if last := len(out) - 1; last >= 0 && out[last].end == p.off && out[last].data == 0 && p.data == 0 {
			out[last].end = p.end
			continue
		}
		out = append(out, p)
	}
	return out
}
