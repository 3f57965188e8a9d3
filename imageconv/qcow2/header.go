package qcow2

import (
	"errors"
	"fmt"
	"io"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/be"
)

// "Header".
const (
	magic = 0x514649fb // "QFI\xfb"

	hdrMagic          be.U32 = 0
	hdrVersion        be.U32 = 4
	hdrBackingOffset  be.U64 = 8
	hdrBackingSize    be.U32 = 16
	hdrClusterBits    be.U32 = 20
	hdrSize           be.U64 = 24
	hdrCryptMethod    be.U32 = 32
	hdrL1Size         be.U32 = 36 // entries
	hdrL1Offset       be.U64 = 40
	hdrRefcountOffset be.U64 = 48
	hdrRefcountSize   be.U32 = 56 // clusters
	hdrSnapshots      be.U32 = 60
	hdrSnapshotOffset be.U64 = 64

	// Version 3 only.
	hdrIncompatible  be.U64 = 72
	hdrCompatible    be.U64 = 80
	hdrAutoclear     be.U64 = 88
	hdrRefcountOrder be.U32 = 96
	hdrLength        be.U32 = 100

	hdrCompression be.U8 = 104 // where the header is longer than 104

	headerV2Len = 72
	headerV3Len = 104
)

// Limits of the format, or QEMU's where the format has none.
const (
	minClusterBits   = 9
	maxClusterBits   = 21
	minExtendedBits  = 14 // "Extended L2 Entries": 32 subclusters of at least a sector
	maxRefcountOrder = 6
	maxL1Bytes       = 32 << 20
	maxRefcountBytes = 8 << 20
	maxSnapshots     = 65536
	maxBackingName   = 1023
	maxHostOffset    = 1<<56 - 1 // of anything in the file: entries have no room for more
	// maxHeader is how much of the file the header and its extensions may
	// take, bytes. QEMU writes less than one KiB.
	maxHeader = 64 << 10
)

// Compression is how compressed clusters are compressed.
type Compression uint8

const (
	Zlib Compression = 0 // raw deflate, in fact: no zlib header
	Zstd Compression = 1
)

func (c Compression) String() string {
	switch c {
	case Zlib:
		return "zlib"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("Compression(%d)", uint8(c))
}

// Header is the header of an image that can be read: every field is checked.
type Header struct {
	Version     int
	ClusterBits int
	Size        int64 // of the disk, bytes
	L1Offset    int64 // in the file, bytes
	L1Size      int   // entries
	ExtendedL2  bool
	Compression Compression
	// Features are the names of the feature bits that are set.
	Features []string

	Snapshots      int   // internal ones
	SnapshotOffset int64 // of their table in the file, bytes

	// Backing and DataFile are the other files that the image names, or nil.
	Backing  *Reference
	DataFile *Reference

	refcountOffset   int64 // of the refcount table in the file, bytes
	refcountClusters int64 // of the refcount table
	refcountOrder    int   // a refcount has 1 << refcountOrder bits
	bitmaps          []byte
}

// Reference is another file that an image needs, in the image's own words:
// whoever made the image chose them.
type Reference struct {
	Name   string
	Format string // of the backing file; "": not recorded
}

// ClusterSize is the unit of the image's mapping, bytes.
func (h Header) ClusterSize() int64 { return 1 << h.ClusterBits }

// rawHeader is a view of the first bytes of an image: the header itself and
// what is left of the first cluster, at most maxHeader bytes.
type rawHeader []byte

func (b rawHeader) v3() bool { return hdrVersion.Get(b) >= 3 }

// length is where the header ends and its extensions begin.
func (b rawHeader) length() uint32 {
	if b.v3() {
		return hdrLength.Get(b)
	}
	return headerV2Len
}

func (b rawHeader) incompatible() uint64 {
	if b.v3() {
		return hdrIncompatible.Get(b)
	}
	return 0
}

func (b rawHeader) compression() Compression {
	if b.length() > headerV3Len {
		return Compression(hdrCompression.Get(b))
	}
	return Zlib
}

// refcountOrder is the binary logarithm of a refcount's width in bits.
func (b rawHeader) refcountOrder() int {
	if b.v3() {
		return int(hdrRefcountOrder.Get(b))
	}
	return 4
}

// bitmaps is the bitmaps extension, where it is valid: an autoclear bit that
// is not set says that somebody wrote who did not know of bitmaps.
func (b rawHeader) bitmaps(x extensions) []byte {
	if b.v3() && hdrAutoclear.Get(b)&autoclearBitmaps != 0 {
		return x.bitmaps
	}
	return nil
}

// readHeader reads and checks the header in the order of its fields, but tells
// first of a version or feature that we do not know: the rest could mean
// something else then.
func readHeader(src io.ReaderAt, fileSize int64) (Header, error) {
	b, err := readFirst(src, fileSize)
	if err != nil {
		return Header{}, err
	}
	ext, err := parseExtensions(b)
	if err != nil {
		return Header{}, err
	}
	if err := checkFeatures(b, ext); err != nil {
		return Header{}, err
	}
	if err := checkTables(b, fileSize); err != nil {
		return Header{}, err
	}
	backing, err := backingOf(b, ext)
	if err != nil {
		return Header{}, err
	}
	data, err := dataFileOf(b, ext)
	if err != nil {
		return Header{}, err
	}
	return Header{
		Version:     int(hdrVersion.Get(b)),
		ClusterBits: int(hdrClusterBits.Get(b)),
		Size:        int64(hdrSize.Get(b)),
		L1Offset:    int64(hdrL1Offset.Get(b)),
		L1Size:      int(hdrL1Size.Get(b)),
		ExtendedL2:  b.incompatible()&incompatExtendedL2 != 0,
		Compression: b.compression(),
		Features:    featureNames(b, ext),

		Snapshots:      int(hdrSnapshots.Get(b)),
		SnapshotOffset: int64(hdrSnapshotOffset.Get(b)),

		Backing:  backing,
		DataFile: data,

		refcountOffset:   int64(hdrRefcountOffset.Get(b)),
		refcountClusters: int64(hdrRefcountSize.Get(b)),
		refcountOrder:    b.refcountOrder(),
		bitmaps:          b.bitmaps(ext),
	}, nil
}

// readFirst reads the header and the room for its extensions, and checks what
// must be right before anything else can be found.
func readFirst(src io.ReaderAt, fileSize int64) (rawHeader, error) {
	if fileSize < headerV2Len {
		return nil, corrupt("a file of %d bytes has no header", fileSize)
	}
	b := make(rawHeader, min(fileSize, maxHeader))
	if n, err := src.ReadAt(b, 0); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, &blockdev.Error{Op: "open", Kind: blockdev.KindOf(err), Err: err}
	}
	if got := hdrMagic.Get(b); got != magic {
		return nil, corrupt("not a qcow2 image: it begins with %#08x", got)
	}
	version := hdrVersion.Get(b)
	if version != 2 && version != 3 {
		return nil, unsupported("version %d: convert the image to version 3 (qemu-img convert -O qcow2 OLD NEW)", version)
	}
	bits := hdrClusterBits.Get(b)
	if bits < minClusterBits || bits > maxClusterBits {
		return nil, corrupt("clusters of 2^%d bytes, must be 2^%d to 2^%d", bits, minClusterBits, maxClusterBits)
	}
	b = b[:min(len(b), 1<<bits)]
	if b.v3() && len(b) < headerV3Len {
		return nil, corrupt("a file of %d bytes has no header", fileSize)
	}
	if n := b.length(); b.v3() && (n < headerV3Len || n%8 != 0 || uint64(n) > uint64(len(b))) {
		return nil, corrupt("a header of %d bytes", n)
	}
	return b, nil
}

// checkTables checks the numbers that say where things are.
func checkTables(b rawHeader, fileSize int64) error {
	var (
		bits      = hdrClusterBits.Get(b)
		cluster   = uint64(1) << bits
		size      = hdrSize.Get(b)
		refs      = hdrRefcountOffset.Get(b)
		snapshots = hdrSnapshotOffset.Get(b)
	)
	switch {
	case size > 1<<63-1:
		return corrupt("a disk of %d bytes", size)
	case uint64(hdrRefcountSize.Get(b))<<bits > maxRefcountBytes:
		return corrupt("a refcount table of %d clusters", hdrRefcountSize.Get(b))
	case refs%cluster != 0:
		return corrupt("the refcount table at %#x is not aligned to a cluster", refs)
	case refs > maxHostOffset:
		return corrupt("the refcount table is at %#x", refs)
	case b.v3() && hdrRefcountOrder.Get(b) > maxRefcountOrder:
		return corrupt("refcounts of 2^%d bits", hdrRefcountOrder.Get(b))
	case hdrSnapshots.Get(b) > maxSnapshots:
		return corrupt("%d snapshots, the limit is %d", hdrSnapshots.Get(b), maxSnapshots)
	case hdrSnapshots.Get(b) > 0 && (snapshots%cluster != 0 || snapshots == 0):
		return corrupt("the snapshot table at %#x is not aligned to a cluster", snapshots)
	case hdrSnapshots.Get(b) > 0 && snapshots > uint64(fileSize):
		return corrupt("the snapshot table at %#x is not within the file's %d bytes", snapshots, fileSize)
	}
	g := newGeometry(int(bits), b.incompatible()&incompatExtendedL2 != 0)
	return g.checkL1("an L1 table", hdrL1Offset.Get(b), hdrL1Size.Get(b), size, fileSize)
}

// checkL1 checks where the L1 table of a disk of size bytes is; what says whose
// it is.
func (g geometry) checkL1(what string, offset uint64, entries uint32, size uint64, fileSize int64) error {
	n := uint64(entries) * 8
	switch {
	case n > maxL1Bytes:
		return corrupt("%s of %d entries, the limit is %d", what, entries, maxL1Bytes/8)
	case offset%uint64(g.cluster) != 0:
		return corrupt("%s at %#x, which is not aligned to a cluster", what, offset)
	case offset > uint64(fileSize) || n > uint64(fileSize)-offset:
		return corrupt("%s of %d entries at %#x, not within the file's %d bytes", what, entries, offset, fileSize)
	}
	if need := (size + uint64(g.perL1) - 1) / uint64(g.perL1); uint64(entries) < need {
		return corrupt("%s of %d entries for a disk of %d bytes, which needs %d", what, entries, size, need)
	}
	return nil
}

// backingOf is the backing file that the header names, or nil.
func backingOf(b rawHeader, x extensions) (*Reference, error) {
	off, n := hdrBackingOffset.Get(b), uint64(hdrBackingSize.Get(b))
	switch {
	case off == 0:
		return nil, nil
	case n == 0 || n > maxBackingName:
		return nil, corrupt("a backing file whose name has %d bytes, the limit is %d", n, maxBackingName)
	case off > uint64(len(b)) || n > uint64(len(b))-off:
		return nil, corrupt("the name of the backing file, %d bytes at %#x, is not within the first cluster", n, off)
	}
	return &Reference{Name: string(b[off:][:n]), Format: string(x.backFormat)}, nil
}

// dataFileOf is the external data file that the header names, or nil.
func dataFileOf(b rawHeader, x extensions) (*Reference, error) {
	if b.incompatible()&incompatDataFile == 0 {
		return nil, nil
	}
	if len(x.dataFile) == 0 || len(x.dataFile) > maxBackingName {
		return nil, corrupt("an external data file whose name has %d bytes, the limit is %d", len(x.dataFile), maxBackingName)
	}
	return &Reference{Name: string(x.dataFile)}, nil
}

// corrupt is the error for a header that contradicts the format or itself.
func corrupt(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindCorrupt, Err: fmt.Errorf("qcow2: "+format, a...)}
}

// unsupported is the error for an image that is good but not for us.
func unsupported(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindUnsupported, Err: fmt.Errorf("qcow2: "+format, a...)}
}
