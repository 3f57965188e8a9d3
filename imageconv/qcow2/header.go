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
	Snapshots   int   // internal ones, which are not read
	ExtendedL2  bool
	Compression Compression
	// Features are the names of the feature bits that are set.
	Features []string
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
	return Header{
		Version:     int(hdrVersion.Get(b)),
		ClusterBits: int(hdrClusterBits.Get(b)),
		Size:        int64(hdrSize.Get(b)),
		L1Offset:    int64(hdrL1Offset.Get(b)),
		L1Size:      int(hdrL1Size.Get(b)),
		Snapshots:   int(hdrSnapshots.Get(b)),
		ExtendedL2:  b.incompatible()&incompatExtendedL2 != 0,
		Compression: b.compression(),
		Features:    featureNames(b, ext),
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
		bits    = hdrClusterBits.Get(b)
		cluster = uint64(1) << bits
		size    = hdrSize.Get(b)
		l1Size  = uint64(hdrL1Size.Get(b))
		l1      = hdrL1Offset.Get(b)
		refs    = hdrRefcountOffset.Get(b)
	)
	switch {
	case size > 1<<63-1:
		return corrupt("a disk of %d bytes", size)
	case l1Size*8 > maxL1Bytes:
		return corrupt("an L1 table of %d entries, the limit is %d", l1Size, maxL1Bytes/8)
	case l1%cluster != 0:
		return corrupt("the L1 table at %#x is not aligned to a cluster", l1)
	case l1 > uint64(fileSize) || l1Size*8 > uint64(fileSize)-l1:
		return corrupt("the L1 table, %d entries at %#x, is not within the file's %d bytes", l1Size, l1, fileSize)
	case uint64(hdrRefcountSize.Get(b))<<bits > maxRefcountBytes:
		return corrupt("a refcount table of %d clusters", hdrRefcountSize.Get(b))
	case refs%cluster != 0:
		return corrupt("the refcount table at %#x is not aligned to a cluster", refs)
	case b.v3() && hdrRefcountOrder.Get(b) > maxRefcountOrder:
		return corrupt("refcounts of 2^%d bits", hdrRefcountOrder.Get(b))
	case hdrSnapshots.Get(b) > maxSnapshots:
		return corrupt("%d snapshots, the limit is %d", hdrSnapshots.Get(b), maxSnapshots)
	}
	g := newGeometry(int(bits), b.incompatible()&incompatExtendedL2 != 0)
	if need := (size + uint64(g.perL1) - 1) / uint64(g.perL1); l1Size < need {
		return corrupt("an L1 table of %d entries for a disk of %d bytes, which needs %d", l1Size, size, need)
	}
	return nil
}

// corrupt is the error for a header that contradicts the format or itself.
func corrupt(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindCorrupt, Err: fmt.Errorf("qcow2: "+format, a...)}
}

// unsupported is the error for an image that is good but not for us.
func unsupported(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindUnsupported, Err: fmt.Errorf("qcow2: "+format, a...)}
}
