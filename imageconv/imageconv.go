// Package imageconv makes a disk of an image file: Detect tells the format by
// content, Open makes it a blockdev.Source, and Copy expands that into a raw
// disk. Each format has a folder of its own below this one; a format package
// opens no files itself, and no name that stands in an image is opened unless
// its Policy says where.
package imageconv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"syscall"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/qcow2"
)

// Policy says what an image may ask for. The zero value allows nothing that an
// image could name, and any size up to DefaultMaxSize.
type Policy struct {
	// MaxSize is the largest disk in bytes that an image may hold; 0 means
	// DefaultMaxSize.
	MaxSize int64

	// Format is the image's format where it is known already, so that nothing
	// is detected: of an image that a guest may have written it must be.
	Format Format

	// AllowDir is a directory within which a qcow2 image's backing file and
	// external data file may be opened. "": none is opened at all.
	AllowDir string

	// Snapshot is the ID or the name of the internal snapshot to read; "":
	// the active disk.
	Snapshot string

	// Scratch is the directory into which a compressed image is unpacked, into
	// a file without a name. "": compressed images are refused.
	Scratch string

	// Progress is told how many bytes of a compressed image are unpacked, and
	// how many it has.
	Progress func(done, total int64)

	ctx    context.Context // of OpenContext, or nil
	inside packing         // what was unpacked on the way
	chain  *chain          // of files, the image's own last
}

// DefaultMaxSize is the size in bytes above which an image is refused unless
// its Policy says otherwise: 64 TiB.
const DefaultMaxSize = 64 << 40

func (p Policy) maxSize() int64 {
	if p.MaxSize == 0 {
		return DefaultMaxSize
	}
	return p.MaxSize
}

// Image is an open disk image. It reads as the disk that the image holds.
type Image struct {
	blockdev.Source
	Format Format

	path     string
	identity string

	files []io.Closer // the image's own first
	info  Info

	file  *blockdev.File // the image's own, or nil: it is packed in another
	qcow2 *qcow2.Reader  // or nil
	data  *blockdev.File // the external data file, or nil
}

// Info is what there is to tell about an image without reading all of it.
type Info struct {
	Format      Format `json:"format"`
	VirtualSize int64  `json:"virtualSize"` // bytes, of the disk
	FileSize    int64  `json:"fileSize"`    // bytes, of the image file, with its holes
	DiskUsage   int64  `json:"diskUsage"`   // bytes that the image file takes

	Packed []Format `json:"packed,omitempty"` // what the image came out of, outermost first

	Version     int      `json:"version,omitempty"`     // of the format, where it has several
	ClusterSize int64    `json:"clusterSize,omitempty"` // bytes; 0: the format has no clusters
	Compression string   `json:"compression,omitempty"` // that compressed clusters have, if there are any
	Features    []string `json:"features,omitempty"`    // by the names that qemu gives them
	Snapshots   int      `json:"snapshots,omitempty"`   // kept in the image

	// The files that the image names, in its own words.
	BackingFile   string `json:"backingFile,omitempty"`
	BackingFormat string `json:"backingFormat,omitempty"`
	DataFile      string `json:"dataFile,omitempty"`
}

// OpenContext is Open that ends early, with ctx's error, when ctx is done: to
// unpack a compressed image takes long.
func OpenContext(ctx context.Context, path string, p Policy) (*Image, error) {
	p.ctx = ctx
	return Open(path, p)
}

// Open opens the image at path, a regular file or a block device, for reading. A
// compressed one is unpacked first.
// Sizes that are not a multiple of a sector are rounded up, with zeros at the
// end, so that every disk can be served in blocks of 512 bytes.
func Open(path string, p Policy) (*Image, error) {
	f, err := blockdev.OpenFile(path, blockdev.ReadOnly)
	if err != nil {
		return nil, err
	}
	im := &Image{path: path, files: []io.Closer{f}, info: Info{FileSize: f.Size()}}
	info, err := os.Stat(path)
	if err == nil {
		p.chain, err = (*chain)(nil).follow(path, info)
	}
	if err == nil {
		im.info.DiskUsage = usage(info)
		err = im.open(f, p)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), im.Close())
	}
	im.identity = fmt.Sprintf("%s %d %q%s", im.Format, im.Size(), p.Snapshot, p.chain.identity())
	return im, nil
}

// open makes the disk of the image in f. Files that it opens besides are added
// to im.files, and closed with the image.
func (im *Image) open(f blockdev.Source, p Policy) error {
	im.file, _ = f.(*blockdev.File)
	format := p.Format
	if format == "" {
		var err error
		if format, err = Detect(f, f.Size()); err != nil {
			return err
		}
	}
	r, err := format.row()
	if err != nil {
		return err
	}
	im.Format, im.info.Format = format, format
	if p.Snapshot != "" && format != QCOW2 && r.use != wrapper {
		return openError(blockdev.KindUnsupported, fmt.Errorf("the format %s has no snapshots", format))
	}
	if err := r.open(im, f, p); err != nil {
		return err
	}
	size := im.Source.Size()
	if size == 0 {
		return openError(blockdev.KindUnsupported, errors.New("the image is empty"))
	}
	if size > p.maxSize() {
		return openError(blockdev.KindUnsupported,
			fmt.Errorf("the image holds a disk of %d bytes, the limit is %d", size, p.maxSize()))
	}
	sector := int64(sectorSize)
	if r.use == disc {
		sector = discSector
	}
	im.Source = roundUp(im.Source, sector)
	im.info.VirtualSize = im.Source.Size()
	return nil
}

// usage is how much space a file takes, bytes.
func usage(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512 // whatever the file system's block size is
	}
	return info.Size()
}

// Identity says what the disk is, in one line: the same again as long as none
// of the files that it is in was replaced or written.
func (im *Image) Identity() string { return im.identity }

// ReadOnly reports whether this is a disc, which nobody can write to, and not a
// disk; it may be packed.
func (im *Image) ReadOnly() bool { return im.info.Format.ReadOnly() }

// Info tells about the image.
func (im *Image) Info() Info { return im.info }

// Snapshots yields the internal snapshots that the image keeps.
func (im *Image) Snapshots() iter.Seq2[qcow2.Snapshot, error] {
	if im.qcow2 == nil {
		return func(func(qcow2.Snapshot, error) bool) {}
	}
	return im.qcow2.Snapshots()
}

// ClusterSize is the unit in bytes in which the image is best read, or 0.
func (im *Image) ClusterSize() int64 { return im.info.ClusterSize }

// Close closes the image's files; reads must be over.
func (im *Image) Close() error {
	var err error
	for _, f := range im.files {
		err = errors.Join(err, f.Close())
	}
	return err
}
