// Package vdi reads disk images of VirtualBox, version 1.1, dynamic and static
// ones. There is no document but VirtualBox's own sources; the names are those
// of its src/VBox/Storage/VDICore.h.
//
// The image is hostile until shown otherwise. Open checks every number of the
// header before it is used; an entry of the block map is checked when a read
// comes to it, so that a damaged one spoils no more than its own block. Memory
// is bounded by mapMemory whatever the image says.
//
// What is deliberately not here: images that only hold differences. They are
// refused, as is extra data before blocks, which VirtualBox allows for and
// never writes, and which QEMU would read as the block itself.
package vdi

import (
	"fmt"
	"io"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
	"github.com/containerdisk/containerdisk/internal/le"
)

// mapMemory bounds what is kept of the block map, bytes.
const mapMemory = 4 << 20

// Options are the settings of a Reader.
type Options struct {
	// MaxSize is the largest disk in bytes that an image may hold.
	MaxSize int64
}

// Reader is the disk in a VDI image, a blockdev.Source. A Hole is a block that
// was never written or was discarded; in a static image, the holes of the file
// are holes of the disk.
type Reader struct {
	runs.Disk
	fileSize int64
	header   Header
	blocks   *pages.Cache // the block map
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
	r := &Reader{fileSize: fileSize, header: h, blocks: pages.New(src, fileSize, mapMemory)}
	r.Disk = runs.Disk{File: src, Bytes: h.Size, Lookup: r.lookup, FileHoles: h.Type == Static}
	return r, nil
}

// Header is the image's header.
func (r *Reader) Header() Header { return r.header }

// lookup is the Lookup of runs.Disk.
func (r *Reader) lookup(off, n int64) (runs.Run, error) {
	number, in := off/r.header.BlockSize, off%r.header.BlockSize
	entries, err := r.blocks.At(r.header.MapOffset + number*entryLen)
	if err != nil {
		return runs.Run{}, fmt.Errorf("block map, entry %d: %w", number, err)
	}
	entry := le.U32(0).Get(entries)
	if absent(entry) {
		return runs.Run{Len: min(n, streak(entries)*r.header.BlockSize-in), Kind: blockdev.Hole}, nil
	}
	if int64(entry) >= r.header.Blocks {
		return runs.Run{}, fmt.Errorf("block map, entry %d: block %d, the image has %d", number, entry, r.header.Blocks)
	}
	n = min(n, r.header.BlockSize-in)
	host := r.header.DataOffset + int64(entry)*r.header.BlockSize + in
	if host > r.fileSize || n > r.fileSize-host {
		return runs.Run{}, fmt.Errorf("block map, entry %d: %d bytes at %#x are not within the file's %d bytes", number, n, host, r.fileSize)
	}
	return runs.Run{Len: n, Kind: blockdev.Data, Host: host}, nil
}

func absent(entry uint32) bool { return entry == entryFree || entry == entryZero }

// streak is how many entries from the first on are of absent blocks. Behind the
// map may be anything: the caller cuts at the end of the disk, which the map
// covers.
func streak(entries []byte) int64 {
	n := 1
	for (n+1)*entryLen <= len(entries) && absent(le.U32(n*entryLen).Get(entries)) {
		n++
	}
	return int64(n)
}

var _ blockdev.Source = (*Reader)(nil)
