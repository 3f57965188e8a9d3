// Package runs makes a disk of a lookup. Formats differ in how they say where a
// part of the disk is in the image; what follows from that is here once: reading
// and Extents go by the same lookup, so that they cannot contradict each other.
package runs

import (
	"errors"
	"io"
	"iter"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
)

// Run is a piece of the disk that comes from one place.
type Run struct {
	Len    int64 // bytes, one at least
	Kind   blockdev.ExtentKind
	Host   int64 // of Data: the offset in the file
	Packed bool  // of Data: it is compressed, and Unpack knows how
}

// Disk is a blockdev.Source. Its fields are set before it is used and not
// changed afterwards; the functions may be called from several goroutines.
type Disk struct {
	File  io.ReaderAt // the image
	Bytes int64       // size of the disk

	// Lookup tells what the disk has at off: of [off, off+n), which is within
	// the disk and not empty, as much as is easily told. What it says of the
	// file is within the file. An error that is no blockdev.Error means that
	// the image is corrupt.
	Lookup func(off, n int64) (Run, error)

	// Unpack fills p with the disk's content from off on, of which r.Len is
	// len(p). Needed where Lookup gives packed runs.
	Unpack func(p []byte, off int64, r Run) error

	// FileHoles says that the holes of the file are those of the disk: the
	// image has a place for every byte of the disk, written or not.
	FileHoles bool
}

// Size is the size of the disk in bytes.
func (d *Disk) Size() int64 { return d.Bytes }

// ReadAt reads from the disk; see blockdev.Source.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if err := blockdev.CheckRange("read", off, int64(len(p)), d.Bytes); err != nil {
		return 0, err
	}
	done := 0
	for done < len(p) {
		at := off + int64(done)
		r, err := d.span(at, int64(len(p)-done))
		if err != nil {
			return done, rangeError("read", at, int64(len(p)-done), err)
		}
		if err := d.read(p[done:][:r.Len], at, r); err != nil {
			return done, rangeError("read", at, r.Len, err)
		}
		done += int(r.Len)
	}
	return done, nil
}

// span is Lookup with runs joined that follow each other in the file as well.
// An error about what comes later ends the run before it.
func (d *Disk) span(off, n int64) (Run, error) {
	r, err := d.Lookup(off, n)
	if err != nil {
		return r, err
	}
	for r.Len < n && r.Kind == blockdev.Data && !r.Packed {
		next, err := d.Lookup(off+r.Len, n-r.Len)
		if err != nil || next.Kind != blockdev.Data || next.Packed || next.Host != r.Host+r.Len {
			break
		}
		r.Len += next.Len
	}
	return r, nil
}

func (d *Disk) read(p []byte, off int64, r Run) error {
	switch {
	case r.Kind.ReadsZero():
		clear(p)
		return nil
	case r.Packed:
		return d.Unpack(p, off, r)
	}
	return pages.ReadFull(d.File, p, r.Host)
}

// Extents tells what the disk holds; see blockdev.Source.
func (d *Disk) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		if err := blockdev.CheckRange("map", off, n, d.Bytes); err != nil {
			yield(blockdev.Extent{}, err)
			return
		}
		join := blockdev.NewJoin(yield)
		for end := off + n; off < end; {
			r, err := d.span(off, end-off)
			if err != nil {
				join.Fail(rangeError("map", off, end-off, err))
				return
			}
			if !d.tell(join, off, r) {
				return
			}
			off += r.Len
		}
		join.Done()
	}
}

// tell adds a run to the extents. It reports whether more is wanted.
func (d *Disk) tell(join *blockdev.Join, off int64, r Run) bool {
	file, ok := d.File.(blockdev.Source)
	if !d.FileHoles || !ok || r.Kind != blockdev.Data || r.Packed {
		return join.Add(blockdev.Extent{Off: off, Len: r.Len, Kind: r.Kind})
	}
	for e, err := range file.Extents(r.Host, r.Len) {
		if err != nil {
			join.Fail(rangeError("map", off, r.Len, err))
			return false
		}
		e.Off += off - r.Host
		if !join.Add(e) {
			return false
		}
	}
	return true
}

// rangeError is the error for a range of the disk: of the kind that reading the
// file gave, or else the image is corrupt.
func rangeError(op string, off, n int64, err error) error {
	kind := blockdev.KindCorrupt
	if e := (*blockdev.Error)(nil); errors.As(err, &e) {
		kind = e.Kind
	}
	return &blockdev.Error{Op: op, Off: off, Len: n, Kind: kind, Err: err}
}

var _ blockdev.Source = (*Disk)(nil)
