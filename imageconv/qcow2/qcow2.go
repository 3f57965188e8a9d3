// Package qcow2 reads disk images in QEMU's qcow2 format, versions 2 and 3, as
// docs/interop/qcow2 of QEMU's sources describes it. It cites that document by
// heading.
//
// The image is hostile until shown otherwise. Open checks every number of the
// header before it is used; L1 and L2 entries are checked when a read comes to
// them, so that a damaged table spoils no more than its own part of the disk.
// Memory is bounded by the constants below whatever the image says: tables are
// read in pages when they are needed, and only the last few are kept.
//
// A read is two steps: plan turns a range of the disk into runs, each in one
// place of the file, and the runs are then read. The same plan gives Extents.
//
// What is deliberately not here: writing, refcounts (they matter to writers
// only), internal snapshots, backing files, external data files, encryption.
// An image that needs one of the last three is refused with the way out.
package qcow2

import (
	"errors"
	"io"
	"iter"

	"github.com/containerdisk/containerdisk/blockdev"
)

const (
	// maxPage is the largest piece in bytes in which L1 and L2 tables are read
	// and kept. They are aligned to a cluster, so a smaller cluster is a
	// smaller page.
	maxPage = 64 << 10
	// tableMemory bounds the tables that are kept, in bytes. At the usual
	// 64 KiB clusters it holds those of 64 GiB of disk.
	tableMemory = 8 << 20
	// clusterMemory bounds the decompressed clusters that are kept for reads
	// of less than a cluster, in bytes; two are kept in any case.
	clusterMemory = 4 << 20
	// maxCachedClusters keeps the bookkeeping small where clusters are.
	maxCachedClusters = 256
)

// Options are the settings of a Reader.
type Options struct {
	// MaxSize is the largest disk in bytes that an image may hold.
	MaxSize int64
}

// Reader is the disk in a qcow2 image. Its methods may be called from several
// goroutines; reads of whole compressed clusters decompress in parallel.
type Reader struct {
	src      io.ReaderAt
	fileSize int64
	header   Header
	geo      geometry

	tables       *cache // by offset in the file
	clusters     *cache // decompressed, by L2 entry
	decompressor *decompressor
}

// Open reads the header of the image of fileSize bytes in src, which the
// caller keeps open. The image cannot be read, or is refused, with KindCorrupt
// or KindUnsupported.
func Open(src io.ReaderAt, fileSize int64, o Options) (*Reader, error) {
	h, err := readHeader(src, fileSize)
	if err != nil {
		return nil, err
	}
	if h.Size > o.MaxSize {
		return nil, unsupported("a disk of %d bytes, the limit is %d", h.Size, o.MaxSize)
	}
	r := &Reader{src: src, fileSize: fileSize, header: h, geo: h.geometry()}
	r.tables = newCache(tableMemory/int(r.geo.page), r.loadTable)
	r.clusters = newCache(min(max(clusterMemory/int(r.geo.cluster), 2), maxCachedClusters), r.loadCluster)
	if r.decompressor, err = newDecompressor(h.Compression); err != nil {
		return nil, err
	}
	return r, nil
}

// Header is the image's header.
func (r *Reader) Header() Header { return r.header }

// Size is the size of the disk in bytes.
func (r *Reader) Size() int64 { return r.header.Size }

// ReadAt reads from the disk; see blockdev.Source.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if err := blockdev.CheckRange("read", off, int64(len(p)), r.header.Size); err != nil {
		return 0, err
	}
	var todo plan
	done := 0
	for done < len(p) {
		if err := r.plan(&todo, off+int64(done), int64(len(p)-done)); err != nil {
			return done, err
		}
		for _, run := range todo.runs() {
			if err := r.readRun(p[done:][:run.n], &run); err != nil {
				return done, err
			}
			done += int(run.n)
		}
	}
	return done, nil
}

func (r *Reader) readRun(p []byte, run *run) error {
	switch run.kind {
	case runData:
		return r.readFile(p, run.host)
	case runCompressed:
		return r.readCompressed(p, run)
	case runHole, runZero:
		clear(p)
	}
	return nil
}

// readFile fills p from the image file. The range is within the file.
func (r *Reader) readFile(p []byte, off int64) error {
	n, err := r.src.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // the file has become shorter
	}
	return &blockdev.Error{Op: "read", Off: off, Len: int64(len(p)), Kind: blockdev.KindOf(err), Err: err}
}

// Extents tells what the disk holds; see blockdev.Source. Zero is a cluster
// that reads as zeros but has space in the file; what is neither allocated nor
// kept anywhere is a Hole.
func (r *Reader) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		if err := blockdev.CheckRange("map", off, n, r.header.Size); err != nil {
			yield(blockdev.Extent{}, err)
			return
		}
		join := blockdev.NewJoin(yield)
		var next plan
		for end := off + n; off < end; {
			if err := r.plan(&next, off, end-off); err != nil {
				join.Fail(err)
				return
			}
			for _, run := range next.runs() {
				if !join.Add(run.extent()) {
					return
				}
				off = run.end()
			}
		}
		join.Done()
	}
}

var _ blockdev.Source = (*Reader)(nil)
