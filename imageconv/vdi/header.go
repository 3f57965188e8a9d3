package vdi

import (
	"fmt"
	"io"
	"math/bits"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/internal/le"
)

// VDIPREHEADER and VDIHEADER1, by the names of VDICore.h.
const (
	hdrSignature       le.U32 = 64
	hdrVersion         le.U32 = 68
	hdrLength          le.U32 = 72 // cbHeader, counted from here on
	hdrType            le.U32 = 76
	hdrMapOffset       le.U32 = 340
	hdrDataOffset      le.U32 = 344
	hdrSectorSize      le.U32 = 360
	hdrSize            le.U64 = 368
	hdrBlockSize       le.U32 = 376
	hdrBlockExtra      le.U32 = 380 // bytes before each block's data
	hdrBlocks          le.U32 = 384 // entries of the map
	hdrAllocated       le.U32 = 388
	hdrUUIDLink               = 424 // uuidLinkage, 16 bytes
	hdrUUIDParent             = 440 // uuidParentModify, 16 bytes
	headerLen                 = 456
	uuidLen                   = 16
	signature                 = 0xbeda107f
	knownVersion              = 1<<16 | 1
	minLength                 = 0x180
	sectorSize                = 512
	entryLen                  = 4
	entryFree          uint32 = 0xffffffff // VDI_IMAGE_BLOCK_FREE: never written
	entryZero          uint32 = 0xfffffffe // VDI_IMAGE_BLOCK_ZERO: discarded
	typeUndo, typeDiff        = 3, 4
	minBlock, maxBlock        = 4 << 10, 256 << 20 // bytes; VirtualBox makes 1 MiB
	maxBlocks                 = 0x3fffffff         // as QEMU: the map's bytes fit 32 bits
)

// Type is how an image takes space.
type Type uint32

const (
	Dynamic Type = 1 // blocks have space once they are written
	Static  Type = 2 // all blocks have
)

func (t Type) String() string {
	switch t {
	case Dynamic:
		return "dynamic"
	case Static:
		return "static"
	}
	return fmt.Sprintf("Type(%d)", uint32(t))
}

// Header is the header of an image that can be read: every field is checked.
type Header struct {
	Type       Type
	Size       int64 // of the disk, bytes
	BlockSize  int64 // bytes, a power of two
	Blocks     int64 // entries of the map; at least as many as the disk has blocks
	MapOffset  int64 // in the file, bytes
	DataOffset int64 // in the file, bytes
}

// readHeader reads and checks the header. A version or kind of image that we do
// not know is told first: the rest could mean something else then.
func readHeader(src io.ReaderAt, fileSize int64) (Header, error) {
	if fileSize < headerLen {
		return Header{}, corrupt("a file of %d bytes has no header", fileSize)
	}
	b := make([]byte, headerLen)
	if err := pages.ReadFull(src, b, 0); err != nil {
		return Header{}, err
	}
	if got := hdrSignature.Get(b); got != signature {
		return Header{}, corrupt("not a VDI image: the signature is %#08x", got)
	}
	if v := hdrVersion.Get(b); v != knownVersion {
		return Header{}, unsupported("version %d.%d, known is 1.1: %s", v>>16, v&0xffff, convert)
	}
	if err := checkKind(b); err != nil {
		return Header{}, err
	}
	if err := checkNumbers(b, fileSize); err != nil {
		return Header{}, err
	}
	return Header{
		Type:       Type(hdrType.Get(b)),
		Size:       int64(hdrSize.Get(b)),
		BlockSize:  int64(hdrBlockSize.Get(b)),
		Blocks:     int64(hdrBlocks.Get(b)),
		MapOffset:  int64(hdrMapOffset.Get(b)),
		DataOffset: int64(hdrDataOffset.Get(b)),
	}, nil
}

const convert = "make a plain image first (VBoxManage clonemedium disk OLD NEW --format VDI)"

// checkKind refuses images of which a part is elsewhere.
func checkKind(b []byte) error {
	var null [uuidLen]byte
	switch kind := hdrType.Get(b); {
	case kind == typeUndo, kind == typeDiff:
		return unsupported("the image only holds what differs from another: %s", convert)
	case kind != uint32(Dynamic) && kind != uint32(Static):
		return unsupported("image type %d is not known: %s", kind, convert)
	case [uuidLen]byte(b[hdrUUIDLink:]) != null:
		return unsupported("the image belongs to another (link UUID): %s", convert)
	case [uuidLen]byte(b[hdrUUIDParent:]) != null:
		return unsupported("the image belongs to another (parent UUID): %s", convert)
	}
	return nil
}

// checkNumbers checks the numbers that say where things are.
func checkNumbers(b []byte, fileSize int64) error {
	var (
		length  = uint64(hdrLength.Get(b))
		mapAt   = uint64(hdrMapOffset.Get(b))
		dataAt  = uint64(hdrDataOffset.Get(b))
		size    = hdrSize.Get(b)
		block   = hdrBlockSize.Get(b)
		entries = uint64(hdrBlocks.Get(b))
	)
	switch {
	case length < minLength || length+uint64(hdrLength) > mapAt:
		return corrupt("a header of %d bytes, must be %d at least and end before the block map at %#x", length, minLength, mapAt)
	case mapAt%sectorSize != 0 || dataAt%sectorSize != 0:
		return unsupported("the block map at %#x or the data at %#x is not aligned to a sector", mapAt, dataAt)
	case hdrSectorSize.Get(b) != sectorSize:
		return unsupported("sectors of %d bytes, must be %d", hdrSectorSize.Get(b), sectorSize)
	case bits.OnesCount32(block) != 1 || block < minBlock || block > maxBlock:
		return unsupported("blocks of %d bytes, must be a power of two from %d to %d", block, minBlock, maxBlock)
	case hdrBlockExtra.Get(b) != 0:
		return unsupported("%d bytes of extra data before each block", hdrBlockExtra.Get(b))
	case entries > maxBlocks:
		return corrupt("a block map of %d entries, the limit is %d", entries, maxBlocks)
	case size > entries*uint64(block):
		return corrupt("a disk of %d bytes and %d blocks of %d bytes", size, entries, block)
	case uint64(hdrAllocated.Get(b)) > entries:
		return corrupt("%d blocks are allocated, of %d", hdrAllocated.Get(b), entries)
	case mapAt+entries*entryLen > uint64(fileSize):
		return corrupt("the block map, %d entries at %#x, is not within the file's %d bytes", entries, mapAt, fileSize)
	case dataAt < mapAt+entries*entryLen:
		return corrupt("the data at %#x begins within the block map, %d entries at %#x", dataAt, entries, mapAt)
	}
	return nil
}

// corrupt is the error for a header that contradicts the format or itself.
func corrupt(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindCorrupt, Err: fmt.Errorf("vdi: "+format, a...)}
}

// unsupported is the error for an image that is good but not for us.
func unsupported(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindUnsupported, Err: fmt.Errorf("vdi: "+format, a...)}
}
