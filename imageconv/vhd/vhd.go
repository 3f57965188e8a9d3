// Package vhd reads disk images in the format of Virtual PC and of early
// Hyper-V, as Microsoft's "Virtual Hard Disk Image Format Specification"
// (version 1.0) describes it: fixed and dynamic ones. It cites that document by
// heading. A differencing image is refused: its data is in another file.
//
// The image is hostile until shown otherwise. Open checks every number of the
// footer and of the dynamic disk header before it is used; entries of the block
// allocation table (BAT) are checked when a read comes to them, so that a
// damaged one spoils no more than its own block. Memory is bounded by
// tableMemory whatever the image says.
//
// Of what lookup finds in the tables, package runs makes a disk. A Hole is a
// block that the BAT does not have, and Zero are sectors that nobody has written
// to of a block that it has.
package vhd

import (
	"fmt"
	"io"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
)

// tableMemory bounds what is kept of the BAT and of sector bitmaps, bytes.
const tableMemory = 4 << 20

// Options are the settings of a Reader.
type Options struct {
	// MaxSize is the largest disk in bytes that an image may hold.
	MaxSize int64
}

// Reader is the disk in a VHD image. Its methods may be called from several
// goroutines.
type Reader struct {
	runs.Disk
	fileSize int64
	header   Header

	tables *pages.Cache // dynamic: the BAT and the sector bitmaps
}

// Open reads the footer and headers of the image of fileSize bytes in src,
// which the caller keeps open. Where src is a blockdev.Source, the holes of a
// fixed disk are those of its file. The image cannot be read, or is refused,
// with KindCorrupt or KindUnsupported.
func Open(src io.ReaderAt, fileSize int64, o Options) (*Reader, error) {
	h, err := readHeader(src, fileSize)
	if err != nil {
		return nil, err
	}
	if h.Size > o.MaxSize {
		return nil, unsupported("a disk of %d bytes, the limit is %d", h.Size, o.MaxSize)
	}
	r := &Reader{Disk: runs.Disk{File: src, Bytes: h.Size, FileHoles: h.Type == Fixed}, fileSize: fileSize, header: h}
	r.Lookup = lookupFixed
	if h.Type == Dynamic {
		r.Lookup = r.lookupBlock
		r.tables = pages.New(src, fileSize, tableMemory)
	}
	return r, nil
}

// Header is what the image's footer and headers say.
func (r *Reader) Header() Header { return r.header }

// corrupt is the error for an image that contradicts the format or itself.
func corrupt(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindCorrupt, Err: fmt.Errorf("vhd: "+format, a...)}
}

// unsupported is the error for an image that is good but not for us.
func unsupported(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindUnsupported, Err: fmt.Errorf("vhd: "+format, a...)}
}

var _ blockdev.Source = (*Reader)(nil)
