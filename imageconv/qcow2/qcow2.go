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
// An image can name a backing file and an external data file. This package
// opens neither: the caller does, if it allows that, by the functions in
// Options; without them such an image is refused with the way out.
//
// Refcounts matter to writers only; Check looks at them. Encrypted images are
// refused, bitmaps are ignored.
package qcow2

import (
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/cache"
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
	// Below says that the image is read by way of another: it keeps less in
	// memory.
	Below bool
	// Snapshot is the ID or the name of the internal snapshot to read; ""
	// means the active disk.
	Snapshot string

	// Backing opens the backing file and DataFile the external data file that
	// the image names. They are called when all else is in order, and what they
	// return is read as long as the Reader is. nil: such an image is refused.
	Backing  func(Reference) (blockdev.Source, error)
	DataFile func(Reference) (blockdev.Source, error)
}

// Reader is the disk in a qcow2 image. Its methods may be called from several
// goroutines; reads of whole compressed clusters decompress in parallel.
type Reader struct {
	src      io.ReaderAt // the image: tables, and compressed clusters
	fileSize int64
	header   Header
	geo      geometry

	size int64 // of the disk that is read, bytes
	l1   int64 // where its L1 table is, bytes

	data     io.ReaderAt // what has the clusters: src, or the external data file
	dataSize int64
	backing  blockdev.Source // or nil
	absent   runKind         // what is in no table: runHole, or runBacking

	tables       *cache.Cache // by offset in the file
	clusters     *cache.Cache // decompressed, by L2 entry
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
	r := &Reader{src: src, fileSize: fileSize, header: h, geo: h.geometry(),
		size: h.Size, l1: h.L1Offset, data: src, dataSize: fileSize, absent: runHole}
	if o.Snapshot != "" {
		if err := r.useSnapshot(o.Snapshot); err != nil {
			return nil, err
		}
	}
	if r.size > o.MaxSize {
		return nil, unsupported("a disk of %d bytes, the limit is %d", r.size, o.MaxSize)
	}
	tables, clusters := tableMemory, clusterMemory
	if o.Below {
		tables, clusters = tables/4, clusters/2
	}
	r.tables = cache.New(tables/int(r.geo.page), r.loadTable)
	r.clusters = cache.New(min(max(clusters/int(r.geo.cluster), 2), maxCachedClusters), r.loadCluster)
	if r.decompressor, err = newDecompressor(h.Compression); err != nil {
		return nil, err
	}
	if err := r.openOthers(o); err != nil {
		return nil, err
	}
	return r, nil
}

// openOthers opens the files that the image names, if that is allowed.
func (r *Reader) openOthers(o Options) error {
	backing, data := r.header.Backing, r.header.DataFile
	switch { // both before either is opened
	case data != nil && o.DataFile == nil:
		return unsupported("the data is in an external data file (%.200q): %s", data.Name, flatten)
	case backing != nil && o.Backing == nil:
		return unsupported("the image has a backing file (%.200q): %s", backing.Name, flatten)
	}
	if data != nil {
		f, err := o.DataFile(*data)
		if err != nil {
			return fmt.Errorf("external data file %.200q: %w", data.Name, err)
		}
		r.data, r.dataSize = f, f.Size()
	}
	if backing != nil {
		f, err := o.Backing(*backing)
		if err != nil {
			return fmt.Errorf("backing file %.200q: %w", backing.Name, err)
		}
		r.backing, r.absent = f, runBacking
	}
	return nil
}

// Header is the image's header.
func (r *Reader) Header() Header { return r.header }

// Size is the size of the disk in bytes.
func (r *Reader) Size() int64 { return r.size }

// ReadAt reads from the disk; see blockdev.Source.
func (r *Reader) ReadAt(p []byte, off int64) (int, error) {
	if err := blockdev.CheckRange("read", off, int64(len(p)), r.size); err != nil {
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
		return readFull(r.data, p, run.host)
	case runCompressed:
		return r.readCompressed(p, run)
	case runBacking:
		return r.readBacking(p, run.off)
	case runHole, runZero:
		clear(p)
	}
	return nil
}

// readBacking reads what the backing file has at off. Behind its end are
// zeros: an image may be larger than what it is based on.
func (r *Reader) readBacking(p []byte, off int64) error {
	n := r.inBacking(off, int64(len(p)))
	clear(p[n:])
	if n == 0 {
		return nil
	}
	_, err := r.backing.ReadAt(p[:n], off)
	return err
}

// inBacking is how much of [off, off+n) the backing file itself has.
func (r *Reader) inBacking(off, n int64) int64 { return min(n, max(0, r.backing.Size()-off)) }

// readFull fills p from a file that should have all of it.
func readFull(src io.ReaderAt, p []byte, off int64) error {
	n, err := src.ReadAt(p, off)
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
		if err := blockdev.CheckRange("map", off, n, r.size); err != nil {
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
				if !r.joinRun(join, &run) {
					return
				}
				off = run.end()
			}
		}
		join.Done()
	}
}

// joinRun adds what the run holds. It reports whether more is wanted.
func (r *Reader) joinRun(join *blockdev.Join, run *run) bool {
	if run.kind != runBacking {
		return join.Add(run.extent())
	}
	n := r.inBacking(run.off, run.n)
	if n > 0 {
		for e, err := range r.backing.Extents(run.off, n) {
			if err != nil {
				join.Fail(err)
				return false
			}
			if !join.Add(e) {
				return false
			}
		}
	}
	return join.Add(blockdev.Extent{Off: run.off + n, Len: run.n - n, Kind: blockdev.Hole})
}

var _ blockdev.Source = (*Reader)(nil)
