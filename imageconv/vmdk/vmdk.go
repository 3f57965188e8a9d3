// Package vmdk reads disk images of VMware, as its technical note "Virtual Disk
// Format 1.1" (and 5.0 for zeroed grains) describes them: sparse and
// stream-optimized ones, in one file or in parts, and flat ones. It cites that
// document by heading.
//
// The image is hostile until shown otherwise. Open checks every number of a
// header before it is used and every line of a descriptor; entries of the grain
// tables are checked when a read comes to them, so that a damaged table spoils
// no more than its own part of the disk. Memory is bounded by the constants
// below whatever the image says.
//
// A descriptor names the files of its extents. A name that is more than the
// name of a file is refused, and whether and where a file of that name is
// opened is the caller's decision.
//
// What is deliberately not here: images that only hold differences, extents of
// ESX servers (COWD, SESPARSE), raw devices. They are refused by name.
package vmdk

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"sort"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
)

// tableMemory bounds what is kept of the grain tables of all extents, bytes; a
// page of each is kept in any case.
const tableMemory = 8 << 20

// Options are the settings of a Reader.
type Options struct {
	// MaxSize is the largest disk in bytes that an image may hold.
	MaxSize int64

	// Extent opens the file that the image calls name, which is a plain name,
	// for as long as the Reader is used. It is called once for each name. nil:
	// an image that is in several files is refused.
	Extent func(name string) (blockdev.Source, error)
}

// Header is what there is to know of an image that can be read.
type Header struct {
	CreateType string // by the names of the format
	Version    int    // of sparse extents; 0: there are none
	Size       int64  // of the disk, bytes
	GrainSize  int64  // bytes; 0: the image is flat
	Compressed bool   // its grains are
	Unclean    bool   // the image was not closed
	Extents    int    // how many parts the disk has
}

// Reader is the disk in a VMDK image. Its methods may be called from several
// goroutines; reads of whole compressed grains decompress in parallel.
type Reader struct {
	header Header
	parts  []part // in the order of the disk, without gaps
}

// part is the piece of the disk that is in one extent.
type part struct {
	blockdev.Source
	off int64 // on the disk
}

// end is where on the disk the next part begins.
func (p part) end() int64 { return p.off + p.Size() }

// Open reads the image of fileSize bytes in src, which the caller keeps open.
// The image cannot be read, or is refused, with KindCorrupt or
// KindUnsupported, or with what Options.Extent says.
func Open(src io.ReaderAt, fileSize int64, o Options) (*Reader, error) {
	var begin [len(magic)]byte
	if fileSize < int64(len(begin)) {
		return nil, corrupt("a file of %d bytes", fileSize)
	}
	if err := pages.ReadFull(src, begin[:], 0); err != nil {
		return nil, err
	}
	switch string(begin[:]) {
	case magic:
		return openMonolithic(src, fileSize, o)
	case magicLegacy:
		return nil, unsupported("an extent of an ESX server (COWD, vmfsSparse): %s", flatten)
	}
	return openDescriptor(src, fileSize, o)
}

// openMonolithic opens an image that is one sparse extent with its descriptor.
func openMonolithic(src io.ReaderAt, fileSize int64, o Options) (*Reader, error) {
	h, err := readSparseHeader(src, fileSize)
	if err != nil {
		return nil, err
	}
	d, err := embeddedDescriptor(src, h)
	if err != nil {
		return nil, err
	}
	if h.size > o.MaxSize {
		return nil, unsupported("a disk of %d bytes, the limit is %d", h.size, o.MaxSize)
	}
	r := &Reader{header: Header{CreateType: d.createType, Extents: 1}}
	r.addSparse(src, fileSize, h, tableMemory)
	return r, nil
}

// embeddedDescriptor reads the descriptor in a sparse extent, which must say
// that this extent is the whole disk. It may be less than a grain shorter:
// VirtualBox rounds the extent up, and so does QEMU the disk.
func embeddedDescriptor(src io.ReaderAt, h sparseHeader) (descriptor, error) {
	if h.descSize == 0 || h.descOffset == 0 {
		return descriptor{}, unsupported("a sparse extent without a descriptor: it is a part of a disk, open the file that describes it")
	}
	text := make([]byte, h.descSize)
	if err := pages.ReadFull(src, text, h.descOffset); err != nil {
		return descriptor{}, err
	}
	d, err := parseDescriptor(text)
	if err != nil {
		return d, err
	}
	switch size := d.extents[0].sectors * sectorSize; {
	case len(d.extents) > 1 || d.createType != "monolithicSparse" && d.createType != "streamOptimized":
		return d, unsupported("%d extents of a disk of type %s in a single file", len(d.extents), d.createType)
	case size > h.size || h.size-size >= h.grain:
		return d, corrupt("the descriptor says %d bytes, the header %d", size, h.size)
	}
	return d, nil
}

// openDescriptor opens an image whose extents are in other files.
func openDescriptor(src io.ReaderAt, fileSize int64, o Options) (*Reader, error) {
	if fileSize > maxDescriptor {
		return nil, corrupt("a descriptor of %d bytes, the limit is %d", fileSize, maxDescriptor)
	}
	text := make([]byte, fileSize)
	if err := pages.ReadFull(src, text, 0); err != nil {
		return nil, err
	}
	if !IsDescriptor(text) {
		return nil, corrupt("not a VMDK image: it begins with %.20q", text)
	}
	d, err := parseDescriptor(text)
	if err != nil {
		return nil, err
	}
	if d.createType == "monolithicSparse" || d.createType == "streamOptimized" {
		return nil, unsupported("a disk of type %s in several files", d.createType)
	}
	if o.Extent == nil {
		return nil, unsupported("the disk is in other files (%.200q), which are not allowed: %s", d.extents[0].name, flatten)
	}
	if size := d.size(); size > o.MaxSize {
		return nil, unsupported("a disk of %d bytes, the limit is %d", size, o.MaxSize)
	}
	r := &Reader{header: Header{CreateType: d.createType, Extents: len(d.extents)}}
	return r, r.addExtents(d, o.Extent)
}

// size is that of the disk, bytes, or the largest number there is.
func (d descriptor) size() int64 {
	var sectors int64
	for _, e := range d.extents {
		if sectors += e.sectors; sectors > maxSectors { // each is at most maxSectors
			return 1<<63 - 1
		}
	}
	return sectors * sectorSize
}

// addExtents opens the extents, each file once.
func (r *Reader) addExtents(d descriptor, open func(name string) (blockdev.Source, error)) error {
	files := make(map[string]blockdev.Source)
	for _, e := range d.extents {
		f := files[e.name]
		if f == nil {
			var err error
			if f, err = open(e.name); err != nil {
				return fmt.Errorf("the extent %.200q: %w", e.name, err)
			}
			files[e.name] = f
		}
		if err := r.addExtent(f, e, tableMemory/len(d.extents)); err != nil {
			return fmt.Errorf("the extent %.200q: %w", e.name, err)
		}
	}
	return nil
}

func (r *Reader) addExtent(f blockdev.Source, e extent, memory int) error {
	size, offset := e.sectors*sectorSize, e.offset*sectorSize
	if e.kind != extentSparse {
		if offset > f.Size() || size > f.Size()-offset {
			return corrupt("%d sectors at sector %d are not within the file's %d bytes", e.sectors, e.offset, f.Size())
		}
		r.add(&runs.Disk{File: f, Bytes: size, FileHoles: true, Lookup: func(off, n int64) (runs.Run, error) {
			return runs.Run{Len: n, Kind: blockdev.Data, Host: offset + off}, nil
		}})
		return nil
	}
	h, err := readSparseHeader(f, f.Size())
	if err != nil {
		return err
	}
	if h.size != size {
		return corrupt("the descriptor says %d bytes, the header %d", size, h.size)
	}
	r.addSparse(f, f.Size(), h, memory)
	return nil
}

func (r *Reader) addSparse(src io.ReaderAt, fileSize int64, h sparseHeader, memory int) {
	r.header.Version = max(r.header.Version, h.version)
	r.header.GrainSize = max(r.header.GrainSize, h.grain)
	r.header.Compressed = r.header.Compressed || h.compressed
	r.header.Unclean = r.header.Unclean || h.unclean
	r.add(newSparse(src, fileSize, h, memory))
}

func (r *Reader) add(src blockdev.Source) {
	r.parts = append(r.parts, part{src, r.header.Size})
	r.header.Size += src.Size()
}

// Header tells about the image.
func (r *Reader) Header() Header { return r.header }

// Size is the size of the disk in bytes.
func (r *Reader) Size() int64 { return r.header.Size }

// partsAt are the parts from the one on that has the byte at off.
func (r *Reader) partsAt(off int64) []part {
	return r.parts[sort.Search(len(r.parts), func(i int) bool { return off < r.parts[i].end() }):]
}

// ReadAt reads from the disk; see blockdev.Source.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if err := blockdev.CheckRange("read", off, int64(len(p)), r.header.Size); err != nil {
		return 0, err
	}
	done := 0
	for _, part := range r.partsAt(off) {
		at := off + int64(done) - part.off
		n, err := part.ReadAt(p[done:][:min(int64(len(p)-done), part.Size()-at)], at)
		if done += n; err != nil {
			return done, shifted(err, part.off)
		}
		if done == len(p) {
			break
		}
	}
	return done, nil
}

// Extents tells what the disk holds; see blockdev.Source. In a flat extent, the
// holes of its file are holes of the disk.
func (r *Reader) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		if err := blockdev.CheckRange("map", off, n, r.header.Size); err != nil {
			yield(blockdev.Extent{}, err)
			return
		}
		join := blockdev.NewJoin(yield)
		for _, part := range r.partsAt(off) {
			if n == 0 {
				break
			}
			at := off - part.off
			take := min(n, part.Size()-at)
			for e, err := range part.Extents(at, take) {
				if err != nil {
					join.Fail(shifted(err, part.off))
					return
				}
				e.Off += part.off
				if !join.Add(e) {
					return
				}
			}
			off, n = off+take, n-take
		}
		join.Done()
	}
}

// shifted is the error of a part as one of the disk.
func shifted(err error, off int64) error {
	var e *blockdev.Error
	if off == 0 || !errors.As(err, &e) {
		return err
	}
	moved := *e
	moved.Off += off
	return &moved
}

var _ blockdev.Source = (*Reader)(nil)
