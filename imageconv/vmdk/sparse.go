package vmdk

import (
	"fmt"
	"io"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
	"github.com/containerdisk/containerdisk/internal/le"
)

// "Hosted Sparse Extents": grain directory and grain tables. An entry is a
// sector of the file.
const (
	entryNone = 0 // no table, or no grain
	entryZero = 1 // of a table, with flagZeroGrains: the grain reads as zeros
)

// sparse is the disk in one sparse extent. A Hole is a grain that has no place
// in the file, zeroed grains included: they have none.
type sparse struct {
	runs.Disk
	fileSize int64
	header   sparseHeader
	tables   *pages.Cache
	packed   *grains // nil: the grains are not compressed
}

// newSparse opens a sparse extent whose header is checked. It keeps at most
// memory bytes of tables.
func newSparse(src io.ReaderAt, fileSize int64, h sparseHeader, memory int) *sparse {
	s := &sparse{fileSize: fileSize, header: h, tables: pages.New(src, fileSize, memory)}
	s.Disk = runs.Disk{File: src, Bytes: h.size, Lookup: s.lookup}
	if h.compressed {
		s.packed = newGrains(src, fileSize, h, func(off int64) (int64, error) {
			run, err := s.lookup(off, 1)
			return run.Host, err
		})
		s.Unpack = s.packed.unpack
	}
	return s
}

// lookup is the Lookup of runs.Disk.
func (s *sparse) lookup(off, n int64) (runs.Run, error) {
	i, in := off/s.header.perTable(), off%s.header.perTable()
	entries, err := s.tables.At(s.header.directory + i*entryLen)
	if err != nil {
		return runs.Run{}, fmt.Errorf("grain directory, entry %d: %w", i, err)
	}
	sector := le.U32(0).Get(entries)
	if sector == entryNone {
		return hole(n, streak(entries, isNone), s.header.perTable(), in), nil
	}
	if err := s.inFile(sector, s.header.tableEntries*entryLen); err != nil {
		return runs.Run{}, fmt.Errorf("grain directory, entry %d: %w", i, err)
	}
	run, err := s.lookupGrain(sector, in, min(n, s.header.perTable()-in))
	if err != nil {
		return run, fmt.Errorf("grain table %d at sector %d, %w", i, sector, err)
	}
	return run, nil
}

// lookupGrain is lookup within what the grain table at that sector maps.
func (s *sparse) lookupGrain(table uint32, off, n int64) (runs.Run, error) {
	i, in := off/s.header.grain, off%s.header.grain
	entries, err := s.tables.At(int64(table)*sectorSize + i*entryLen)
	if err != nil {
		return runs.Run{}, fmt.Errorf("entry %d: %w", i, err)
	}
	sector := le.U32(0).Get(entries)
	if s.isZero(sector) {
		return hole(n, streak(entries, s.isZero), s.header.grain, in), nil
	}
	n = min(n, s.header.grain-in)
	need := in + n
	if s.header.compressed {
		need = grainMarkerLen
	}
	if int64(sector)*sectorSize < s.header.overhead {
		return runs.Run{}, fmt.Errorf("entry %d: sector %d is before the first grain", i, sector)
	}
	if err := s.inFile(sector, need); err != nil {
		return runs.Run{}, fmt.Errorf("entry %d: %w", i, err)
	}
	run := runs.Run{Len: n, Kind: blockdev.Data, Host: int64(sector) * sectorSize}
	if run.Packed = s.header.compressed; !run.Packed {
		run.Host += in
	}
	return run, nil
}

// inFile refuses a sector where n bytes cannot be.
func (s *sparse) inFile(sector uint32, n int64) error {
	if off := int64(sector) * sectorSize; off > s.fileSize || n > s.fileSize-off {
		return fmt.Errorf("%d bytes at sector %d are not within the file's %d bytes", n, sector, s.fileSize)
	}
	return nil
}

// isNone reports whether a directory's entry has no table.
func isNone(sector uint32) bool { return sector == entryNone }

// isZero reports whether a table's entry has no grain.
func (s *sparse) isZero(sector uint32) bool {
	return sector == entryNone || sector == entryZero && s.header.zeroGrains
}

// streak is how many entries from the first on are so, as far as entries reach.
func streak(entries []byte, is func(uint32) bool) int64 {
	n := 1
	for (n+1)*entryLen <= len(entries) && is(le.U32(n*entryLen).Get(entries)) {
		n++
	}
	return int64(n)
}

// hole is a hole of at most n bytes that begins in bytes into the first of count
// units. Behind a table may be anything: n ends where the table does.
func hole(n, count, unit, in int64) runs.Run {
	return runs.Run{Len: min(n, count*unit-in), Kind: blockdev.Hole}
}
