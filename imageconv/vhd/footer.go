package vhd

import (
	"fmt"
	"io"
	"math"

	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/internal/be"
)

// "Hard Disk Footer Format".
const (
	footerCookie                = "conectix"
	footerVersion        be.U32 = 12
	footerDataOffset     be.U64 = 16 // of the dynamic disk header, in the file
	footerCreator               = 28 // 4 bytes
	footerCurrentSize    be.U64 = 48 // bytes
	footerCylinders      be.U16 = 56
	footerHeads          be.U8  = 58
	footerSectors        be.U8  = 59
	footerType           be.U32 = 60
	footerChecksum       be.U32 = 64
	footerSize                  = 512
	oldFooterSize               = 511 // before Virtual PC 2004
	sectorSize                  = 512
	majorVersion                = 1
	creatorVirtualPC            = "vpc "
	creatorQEMU                 = "qemu"
	maxGeometry          int64  = 65535 * 16 * 255 // "CHS Calculation": sectors, more cannot be said
	maxDisk              int64  = 2040 << 30       // bytes, "Disk Geometry"; no VHD is larger
	noDataOffset                = math.MaxUint64   // of a fixed disk
	footerCreatorLen            = 4
	footerChecksumLength        = 4
)

// Type is the kind of image.
type Type uint32

const (
	Fixed        Type = 2
	Dynamic      Type = 3
	Differencing Type = 4
)

func (t Type) String() string {
	switch t {
	case Fixed:
		return "fixed"
	case Dynamic:
		return "dynamic"
	case Differencing:
		return "differencing"
	}
	return fmt.Sprintf("Type(%d)", uint32(t))
}

// Header is what there is to know of an image that can be read: every field is
// checked.
type Header struct {
	Type    Type
	Size    int64  // of the disk, bytes
	Creator string // "Creator Application", four characters

	// Of dynamic images.
	BlockSize  int64 // bytes
	BATOffset  int64 // in the file, bytes
	BATEntries int64
}

// footer is a view of a footer, of 512 bytes.
type footer []byte

func (f footer) kind() Type      { return Type(footerType.Get(f)) }
func (f footer) creator() string { return string(f[footerCreator:][:footerCreatorLen]) }

// valid reports whether this is a footer, and an undamaged one.
func (f footer) valid() (isFooter, undamaged bool) {
	isFooter = string(f[:len(footerCookie)]) == footerCookie
	return isFooter, isFooter && checksum(f, int(footerChecksum)) == footerChecksum.Get(f)
}

// checksum is the one's complement of the sum of all bytes but those of the
// checksum itself, which stands at.
func checksum(b []byte, at int) uint32 {
	sum := uint32(0)
	for i, c := range b {
		if i < at || i >= at+footerChecksumLength {
			sum += uint32(c)
		}
	}
	return ^sum
}

// diskSize is the size of the disk in bytes. Virtual PC, and QEMU where it was
// not told otherwise, go by the geometry, which is at most the size that the
// footer has; all others go by the latter, and so must everybody where the
// geometry cannot express it.
func (f footer) diskSize() int64 {
	chs := int64(footerCylinders.Get(f)) * int64(footerHeads.Get(f)) * int64(footerSectors.Get(f))
	byGeometry := f.creator() == creatorVirtualPC || f.creator() == creatorQEMU
	if byGeometry && chs != maxGeometry {
		return chs * sectorSize
	}
	size := footerCurrentSize.Get(f)
	if size > math.MaxInt64 {
		return math.MaxInt64 // beyond any limit
	}
	return int64(size) &^ (sectorSize - 1)
}

// sameDisk names the first field in which two footers of one image differ, of
// those that say what the disk is; "" if none does.
func (f footer) sameDisk(g footer) string {
	for _, field := range []struct {
		name string
		at   int
		n    int
	}{
		{"data offset", int(footerDataOffset), 8},
		{"creator application", footerCreator, footerCreatorLen},
		{"current size", int(footerCurrentSize), 8},
		{"disk geometry", int(footerCylinders), 4},
		{"disk type", int(footerType), 4},
	} {
		if string(f[field.at:][:field.n]) != string(g[field.at:][:field.n]) {
			return field.name
		}
	}
	return ""
}

// readHeader finds the footer and reads what hangs on it. A dynamic image has a
// copy of the footer at the beginning, a fixed one only the footer itself.
func readHeader(src io.ReaderAt, fileSize int64) (Header, error) {
	if fileSize < oldFooterSize {
		return Header{}, corrupt("a file of %d bytes has no footer", fileSize)
	}
	first := make(footer, footerSize)
	if err := pages.ReadFull(src, first[:min(fileSize, footerSize)], 0); err != nil {
		return Header{}, err
	}
	last, tail, err := readLast(src, fileSize)
	if err != nil {
		return Header{}, err
	}
	isFooter, undamaged := first.valid()
	_, lastGood := last.valid()
	switch {
	case tail == 0 && !isFooter:
		return Header{}, corrupt("there is no footer at the end of the file, nor a copy at its beginning")
	case isFooter && !undamaged:
		return Header{}, corrupt("the copy of the footer at the beginning has a wrong checksum")
	case isFooter && lastGood && first.sameDisk(last) != "":
		return Header{}, corrupt("the footer at the end of the file and its copy at the beginning differ in the %s", first.sameDisk(last))
	case isFooter && first.kind() == Fixed:
		return Header{}, corrupt("the copy of the footer at the beginning is one of a fixed disk, which has none")
	case isFooter:
		return checkFooter(src, first, fileSize)
	case !lastGood:
		return Header{}, corrupt("the footer has a wrong checksum")
	case last.kind() == Dynamic:
		return Header{}, corrupt("a dynamic disk without a copy of the footer at the beginning of the file")
	}
	return checkFooter(src, last, fileSize-tail)
}

// readLast reads the footer at the end of the file, and tells how long it is; 0:
// there is none.
func readLast(src io.ReaderAt, fileSize int64) (f footer, size int64, err error) {
	for _, n := range []int64{footerSize, oldFooterSize} {
		if n > fileSize {
			continue
		}
		f = make(footer, footerSize) // what the old one lacks is reserved
		if err := pages.ReadFull(src, f[:n], fileSize-n); err != nil {
			return nil, 0, err
		}
		if isFooter, _ := f.valid(); isFooter {
			return f, n, nil
		}
	}
	return make(footer, footerSize), 0, nil
}

// checkFooter checks the footer's fields and reads the header of a dynamic
// disk. room is what there is for data and tables, bytes.
func checkFooter(src io.ReaderAt, f footer, room int64) (Header, error) {
	h := Header{Type: f.kind(), Size: f.diskSize(), Creator: f.creator()}
	version, data := footerVersion.Get(f), footerDataOffset.Get(f)
	switch {
	case version>>16 != majorVersion:
		return h, unsupported("file format version %d.%d, known is %d", version>>16, version&0xffff, majorVersion)
	case h.Type == Differencing:
		return h, unsupported("a differencing disk, whose data is in a parent image: merge them first (Convert-VHD, or qemu-img convert)")
	case h.Type != Fixed && h.Type != Dynamic:
		return h, unsupported("disk type %d", uint32(h.Type))
	case h.Size > maxDisk:
		return h, corrupt("a disk of %d bytes, the limit of the format is %d", h.Size, maxDisk)
	case h.Type == Dynamic:
		return readDynamic(src, h, data, room)
	case data != noDataOffset:
		return h, corrupt("a fixed disk with a header at %#x", data)
	case h.Size > room:
		return h, corrupt("a disk of %d bytes, the file has %d", h.Size, room)
	}
	return h, nil
}
