// Package vhdx reads disk images in Hyper-V's VHDX format, version 1, as
// [MS-VHDX] describes it: fixed and dynamic ones. It cites that document by
// heading. A differencing image is refused: its data is in another file.
//
// The image is hostile until shown otherwise. Open checks every number of the
// headers, the region and metadata tables and the log before it is used;
// entries of the block allocation table (BAT) are checked when a read comes to
// them, so that a damaged one spoils no more than its own block. Memory is
// bounded by tableMemory and the limits of log.go whatever the image says.
//
// An image that was not closed has updates of its tables in a log. They are laid
// over the file as it is read, and the file is not written.
//
// Of what lookup finds in the BAT, package runs makes a disk.
package vhdx

import (
	"fmt"
	"hash/crc32"
	"io"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
	"github.com/containerdisk/containerdisk/internal/le"
)

// tableMemory bounds what is kept of the BAT, bytes.
const tableMemory = 4 << 20

// Options are the settings of a Reader.
type Options struct {
	// MaxSize is the largest disk in bytes that an image may hold.
	MaxSize int64
}

// Reader is the disk in a VHDX image. Its methods may be called from several
// goroutines.
type Reader struct {
	runs.Disk
	info Info
	bat  bat
}

// Info is what there is to know of an image that can be read: every field is
// checked.
type Info struct {
	Size          int64 // of the disk, bytes
	BlockSize     int64 // bytes
	LogicalSector int   // bytes
	Fixed         bool  // every block has its place in the file
	Replayed      int   // entries of the log that are laid over the file
}

// Open reads the headers and tables of the image of fileSize bytes in src, which
// the caller keeps open. Where src is a blockdev.Source, the holes of a fixed
// disk are those of its file. The image cannot be read, or is refused, with
// KindCorrupt or KindUnsupported.
func Open(src io.ReaderAt, fileSize int64, o Options) (*Reader, error) {
	h, err := readHeader(src, fileSize)
	if err != nil {
		return nil, err
	}
	file, size, replayed, err := replay(src, fileSize, h)
	if err != nil {
		return nil, err
	}
	found, err := readRegions(file, size, h)
	if err != nil {
		return nil, err
	}
	m, err := readMetadata(file, found.metadata)
	if err != nil {
		return nil, err
	}
	if m.size > o.MaxSize {
		return nil, unsupported("a disk of %d bytes, the limit is %d", m.size, o.MaxSize)
	}
	r := &Reader{
		info: Info{Size: m.size, BlockSize: m.block, LogicalSector: int(m.sector), Fixed: m.fixed, Replayed: replayed},
		bat: bat{file: pages.New(file, size, tableMemory), at: found.bat.off, block: m.block,
			chunk: chunkSectors * m.sector / m.block, fileSize: size, taken: found.all},
	}
	if err := r.bat.check(m.size, found.bat.n); err != nil {
		return nil, err
	}
	r.Disk = runs.Disk{File: file, Bytes: m.size, Lookup: r.bat.lookup, FileHoles: m.fixed}
	return r, nil
}

// Info tells about the image.
func (r *Reader) Info() Info { return r.info }

// guid is a GUID as it stands in the file.
type guid [16]byte

// String writes it as people do: the first three groups are little-endian.
func (g guid) String() string {
	return fmt.Sprintf("%08X-%04X-%04X-%X-%X", le.U32(0).Get(g[:]), le.U16(4).Get(g[:]), le.U16(6).Get(g[:]), g[8:10], g[10:])
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksumLen is the length of a checksum field, which counts as zeros.
const checksumLen = 4

// checksum is the CRC-32C of b, with the checksum that stands at in it as zeros.
func checksum(b []byte, at le.U32) uint32 {
	var zeros [checksumLen]byte
	sum := crc32.Update(0, castagnoli, b[:at])
	sum = crc32.Update(sum, castagnoli, zeros[:])
	return crc32.Update(sum, castagnoli, b[at+checksumLen:])
}

// corrupt is the error for an image that contradicts the format or itself.
func corrupt(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindCorrupt, Err: fmt.Errorf("vhdx: "+format, a...)}
}

// unsupported is the error for an image that is good but not for us.
func unsupported(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindUnsupported, Err: fmt.Errorf("vhdx: "+format, a...)}
}

var _ blockdev.Source = (*Reader)(nil)
