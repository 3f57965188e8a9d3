package vhd

import (
	"fmt"
	"io"
	"math/bits"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
	"github.com/containerdisk/containerdisk/internal/be"
)

// "Dynamic Disk Header Format".
const (
	dynamicCookie              = "cxsparse"
	dynamicTableOffset  be.U64 = 16 // of the BAT, in the file
	dynamicVersion      be.U32 = 24
	dynamicTableEntries be.U32 = 28
	dynamicBlockSize    be.U32 = 32 // bytes, without the sector bitmap
	dynamicChecksum     be.U32 = 36
	dynamicSize                = 1024
)

// Limits. Microsoft's own blocks are of 512 KiB and 2 MiB.
const (
	minBlock = 64 << 10  // bytes; smaller ones would make tables of gigabytes
	maxBlock = 256 << 20 // bytes
)

// "Block Allocation Table and Data Blocks".
const (
	batEntryLen = 4
	batAbsent   = 0xffffffff // in a BAT entry: there is no block
)

// readDynamic reads the dynamic disk header at offset at of the file, which has
// fileSize bytes.
func readDynamic(src io.ReaderAt, h Header, at uint64, fileSize int64) (Header, error) {
	if at > uint64(fileSize) || dynamicSize > uint64(fileSize)-at {
		return h, corrupt("the dynamic disk header at %#x is not within the file's %d bytes", at, fileSize)
	}
	b := make([]byte, dynamicSize)
	if err := pages.ReadFull(src, b, int64(at)); err != nil {
		return h, err
	}
	var (
		version = dynamicVersion.Get(b)
		bat     = dynamicTableOffset.Get(b)
		entries = dynamicTableEntries.Get(b)
		block   = dynamicBlockSize.Get(b)
	)
	switch {
	case string(b[:len(dynamicCookie)]) != dynamicCookie:
		return h, corrupt("there is no dynamic disk header at %#x", at)
	case checksum(b, int(dynamicChecksum)) != dynamicChecksum.Get(b):
		return h, corrupt("the dynamic disk header has a wrong checksum")
	case version>>16 != majorVersion:
		return h, unsupported("dynamic disk header version %d.%d, known is %d", version>>16, version&0xffff, majorVersion)
	case bits.OnesCount32(block) != 1:
		return h, corrupt("blocks of %d bytes, which is no power of two", block)
	case block < minBlock || block > maxBlock:
		return h, unsupported("blocks of %d bytes, must be %d to %d", block, minBlock, maxBlock)
	case bat%sectorSize != 0:
		return h, corrupt("the block allocation table at %#x is not aligned to a sector", bat)
	case bat > uint64(fileSize) || uint64(entries)*batEntryLen > uint64(fileSize)-bat:
		return h, corrupt("the block allocation table, %d entries at %#x, is not within the file's %d bytes", entries, bat, fileSize)
	case int64(entries)*int64(block) < h.Size:
		return h, corrupt("a block allocation table of %d entries for a disk of %d bytes in blocks of %d", entries, h.Size, block)
	}
	h.BlockSize, h.BATOffset, h.BATEntries = int64(block), int64(bat), int64(entries)
	return h, nil
}

// bitmapSize is how many bytes the sector bitmap before each block takes.
func (h Header) bitmapSize() int64 {
	return (h.BlockSize/sectorSize/8 + sectorSize - 1) &^ (sectorSize - 1)
}

// lookupFixed is runs.Disk.Lookup of a fixed disk, which is the file's beginning.
func lookupFixed(off, n int64) (runs.Run, error) {
	return runs.Run{Len: n, Kind: blockdev.Data, Host: off}, nil
}

// lookupBlock is runs.Disk.Lookup of a dynamic disk.
func (r *Reader) lookupBlock(off, n int64) (runs.Run, error) {
	number := off / r.header.BlockSize
	in := off % r.header.BlockSize
	entries, err := r.tables.At(r.header.BATOffset + number*batEntryLen)
	if err != nil {
		return runs.Run{}, fmt.Errorf("block allocation table, entry %d: %w", number, err)
	}
	sector := be.U32(0).Get(entries)
	if sector == batAbsent {
		return runs.Run{Len: min(n, absent(entries)*r.header.BlockSize-in), Kind: blockdev.Hole}, nil
	}
	bitmap := int64(sector) * sectorSize
	next, err := r.lookupSectors(bitmap, in, min(n, r.header.BlockSize-in))
	if err != nil {
		return runs.Run{}, fmt.Errorf("block %d at %#x: %w", number, bitmap, err)
	}
	return next, nil
}

// absent is how many of the entries, from the first one on, have no block.
func absent(entries []byte) int64 {
	count := int64(0)
	for len(entries) >= batEntryLen && be.U32(0).Get(entries) == batAbsent {
		entries, count = entries[batEntryLen:], count+1
	}
	return count
}

// lookupSectors is lookupBlock in the block whose bitmap begins at that offset of
// the file: at most n bytes from in on, all within the block. A sector whose bit is not
// set has never been written to and is zero, whatever the file has there.
func (r *Reader) lookupSectors(bitmap, in, n int64) (runs.Run, error) {
	// Nothing overflows: a BAT entry names less than 2^41 bytes.
	host, sector := bitmap+r.header.bitmapSize()+in, in/sectorSize
	if host >= r.fileSize {
		return runs.Run{}, fmt.Errorf("%d bytes at %#x are not within the file's %d", n, host, r.fileSize)
	}
	bitsHere, err := r.tables.At(bitmap + sector/8)
	if err != nil {
		return runs.Run{}, fmt.Errorf("sector bitmap: %w", err)
	}
	set, count := streak(bitsHere, int(sector%8))
	n = min(n, count*sectorSize-in%sectorSize)
	if !set {
		return runs.Run{Len: n, Kind: blockdev.Zero}, nil
	}
	return runs.Run{Len: min(n, r.fileSize-host), Kind: blockdev.Data, Host: host}, nil
}

// streak is how many bits of b, from bit i of its first byte on, are as that
// one. The highest bit of a byte is the first.
func streak(b []byte, i int) (set bool, count int64) {
	flip := byte(0xff)
	if set = b[0]<<i&0x80 != 0; !set {
		flip = 0
	}
	first := bits.LeadingZeros8((b[0] ^ flip) << i)
	if first < 8-i {
		return set, int64(first)
	}
	count = int64(8 - i)
	for _, c := range b[1:] {
		k := bits.LeadingZeros8(c ^ flip)
		count += int64(k)
		if k < 8 {
			break
		}
	}
	return set, count
}
