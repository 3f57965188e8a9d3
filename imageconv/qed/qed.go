// Package qed reads disk images in QEMU's QED format, as docs/specs/qed_spec of
// its sources described it. It cites that document by heading.
//
// The image is hostile until shown otherwise. Open checks every number of the
// header before it is used; entries of the tables are checked when a read comes
// to them, so that a damaged table spoils no more than its own part of the
// disk. Memory is bounded by tableMemory whatever the image says.
//
// What is deliberately not here: writing, and backing files. An image that has
// one is refused.
package qed

import (
	"fmt"
	"io"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
	"github.com/containerdisk/containerdisk/internal/le"
)

// tableMemory bounds what is kept of the tables, bytes.
const tableMemory = 8 << 20

// "Tables".
const (
	entryLen   = 8
	entryZero  = 1 // "Data cluster offsets": reads as zeros
	unassigned = 0 // no table, or no cluster
)

// Options are the settings of a Reader.
type Options struct {
	// MaxSize is the largest disk in bytes that an image may hold.
	MaxSize int64
}

// Reader is the disk in a QED image, a blockdev.Source. A Hole is a cluster
// that has no place in the file, zero clusters included: they have none.
type Reader struct {
	runs.Disk
	fileSize int64
	header   Header
	tables   *pages.Cache
}

// Open reads the header of the image of fileSize bytes in src, which the caller
// keeps open. The image cannot be read, or is refused, with KindCorrupt or
// KindUnsupported.
func Open(src io.ReaderAt, fileSize int64, o Options) (*Reader, error) {
	h, err := readHeader(src, fileSize)
	if err != nil {
		return nil, err
	}
	if h.Size > o.MaxSize {
		return nil, unsupported("a disk of %d bytes, the limit is %d", h.Size, o.MaxSize)
	}
	r := &Reader{fileSize: fileSize, header: h, tables: pages.New(src, fileSize, tableMemory)}
	r.Disk = runs.Disk{File: src, Bytes: h.Size, Lookup: r.lookup}
	return r, nil
}

// Header is the image's header.
func (r *Reader) Header() Header { return r.header }

// lookup is the Lookup of runs.Disk: "Logical offset translation".
func (r *Reader) lookup(off, n int64) (runs.Run, error) {
	i, in := off/r.header.perL2(), off%r.header.perL2()
	entries, err := r.tables.At(r.header.L1Offset + i*entryLen)
	if err != nil {
		return runs.Run{}, fmt.Errorf("L1 entry %d: %w", i, err)
	}
	table := le.U64(0).Get(entries)
	if table == unassigned {
		return hole(n, streak(entries, isNone), r.header.perL2(), in), nil
	}
	if err := r.checkOffset(table, r.header.TableSize); err != nil {
		return runs.Run{}, fmt.Errorf("L1 entry %d: %w", i, err)
	}
	run, err := r.lookupCluster(int64(table), in, min(n, r.header.perL2()-in))
	if err != nil {
		return run, fmt.Errorf("L2 table %d at %#x, %w", i, table, err)
	}
	return run, nil
}

// lookupCluster is lookup within what the L2 table at that offset maps.
func (r *Reader) lookupCluster(table, off, n int64) (runs.Run, error) {
	i, in := off/r.header.ClusterSize, off%r.header.ClusterSize
	entries, err := r.tables.At(table + i*entryLen)
	if err != nil {
		return runs.Run{}, fmt.Errorf("entry %d: %w", i, err)
	}
	cluster := le.U64(0).Get(entries)
	if isZero(cluster) {
		return hole(n, streak(entries, isZero), r.header.ClusterSize, in), nil
	}
	n = min(n, r.header.ClusterSize-in)
	if err := r.checkOffset(cluster, in+n); err != nil {
		return runs.Run{}, fmt.Errorf("entry %d: %w", i, err)
	}
	return runs.Run{Len: n, Kind: blockdev.Data, Host: int64(cluster) + in}, nil
}

// checkOffset refuses an offset of an entry where n bytes cannot be.
func (r *Reader) checkOffset(off uint64, n int64) error {
	switch {
	case off%uint64(r.header.ClusterSize) != 0:
		return fmt.Errorf("%#x is not aligned to a cluster", off)
	case off < uint64(r.header.First):
		return fmt.Errorf("%#x is within the header", off)
	case off > uint64(r.fileSize) || n > r.fileSize-int64(off):
		return fmt.Errorf("%d bytes at %#x are not within the file's %d bytes", n, off, r.fileSize)
	}
	return nil
}

// isNone reports whether an L1 entry has no table.
func isNone(e uint64) bool { return e == unassigned }

// isZero reports whether an L2 entry has no cluster.
func isZero(e uint64) bool { return e == unassigned || e == entryZero }

// streak is how many entries from the first on are so, as far as entries reach.
func streak(entries []byte, is func(uint64) bool) int64 {
	n := 1
	for (n+1)*entryLen <= len(entries) && is(le.U64(n*entryLen).Get(entries)) {
		n++
	}
	return int64(n)
}

// hole is a hole of at most n bytes that begins in bytes into the first of count
// units. (A page's worth of units is less than 2^63 bytes.) Behind a table may
// be anything: n ends where the table does.
func hole(n, count, unit, in int64) runs.Run {
	return runs.Run{Len: min(n, count*unit-in), Kind: blockdev.Hole}
}

var _ blockdev.Source = (*Reader)(nil)
