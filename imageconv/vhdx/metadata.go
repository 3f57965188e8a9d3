package vhdx

import (
	"io"
	"math/bits"

	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/internal/le"
)

// "Metadata Region".
const (
	metadataSignature        = "metadata"
	metadataCount     le.U16 = 10
	metadataHeaderLen        = 32
	metadataTableLen         = 64 << 10

	itemEntryLen        = 32
	itemAt       le.U32 = 16 // from the beginning of the region
	itemLen      le.U32 = 20
	itemFlags    le.U32 = 24
	itemUser            = 1 << 0
	itemRequired        = 1 << 2
	maxItem             = 1 << 20

	paramBlockSize le.U32 = 0 // "File Parameters"
	paramFlags     le.U32 = 4
	paramFixed            = 1 << 0 // LeaveBlocksAllocated
	paramHasParent        = 1 << 1

	minBlock         = 1 << 20
	maxBlock         = 256 << 20
	maxDisk   uint64 = 64 << 40
	sector512        = 512
	sector4K         = 4096
)

// metadata is what the known items say.
type metadata struct {
	block, size, sector int64
	fixed               bool
}

// item is a kind of metadata that we know.
type item struct {
	id   guid
	name string
	n    uint32 // bytes; 0: any number, it is not read
	// parse takes the item's value; nil: it does not matter to a reader.
	parse func(m *metadata, b []byte) error
	need  need
}

// need says whether an image must have an item.
type need uint8

const (
	optional need = iota
	needed
)

// items are the known ones, "Known Metadata Items".
func items() []item {
	return []item{
		// CAA16737-FA36-4D43-B3B6-33F0AA44E76B
		{guid{0x37, 0x67, 0xa1, 0xca, 0x36, 0xfa, 0x43, 0x4d, 0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b},
			"file parameters", 8, parseParameters, needed},
		// 2FA54224-CD1B-4876-B211-5DBED83BF4B8
		{guid{0x24, 0x42, 0xa5, 0x2f, 0x1b, 0xcd, 0x76, 0x48, 0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b, 0xf4, 0xb8},
			"virtual disk size", 8, parseSize, needed},
		// 8141BF1D-A96F-4709-BA47-F233A8FAAB5F
		{guid{0x1d, 0xbf, 0x41, 0x81, 0x6f, 0xa9, 0x09, 0x47, 0xba, 0x47, 0xf2, 0x33, 0xa8, 0xfa, 0xab, 0x5f},
			"logical sector size", 4, parseSector, needed},
		// CDA348C7-445D-4471-9CC9-E9885251C556
		{guid{0xc7, 0x48, 0xa3, 0xcd, 0x5d, 0x44, 0x71, 0x44, 0x9c, 0xc9, 0xe9, 0x88, 0x52, 0x51, 0xc5, 0x56},
			"physical sector size", 0, nil, optional},
		// BECA12AB-B2E6-4523-93EF-C309E000C746
		{guid{0xab, 0x12, 0xca, 0xbe, 0xe6, 0xb2, 0x23, 0x45, 0x93, 0xef, 0xc3, 0x09, 0xe0, 0x00, 0xc7, 0x46},
			"virtual disk ID", 0, nil, optional},
		// A8D35F2D-B30B-454D-ABF7-D3D84834AB0C
		{guid{0x2d, 0x5f, 0xd3, 0xa8, 0x0b, 0xb3, 0x4d, 0x45, 0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c},
			"parent locator", 0, refuseParent, optional},
	}
}

// readMetadata reads the metadata table and the items that a reader needs.
func readMetadata(file io.ReaderAt, region span) (metadata, error) {
	b := make([]byte, metadataTableLen)
	if err := pages.ReadFull(file, b, region.off); err != nil { // a region has a MiB at least
		return metadata{}, err
	}
	if string(b[:len(metadataSignature)]) != metadataSignature {
		return metadata{}, corrupt("there is no metadata table at %#x", region.off)
	}
	count := int(metadataCount.Get(b))
	if count > maxEntries {
		return metadata{}, corrupt("a metadata table of %d entries, the limit is %d", count, maxEntries)
	}
	entries := make(map[guid][]byte)
	for b := b[metadataHeaderLen:][:count*itemEntryLen]; len(b) > 0; b = b[itemEntryLen:] {
		if itemFlags.Get(b)&itemUser != 0 {
			if itemFlags.Get(b)&itemRequired != 0 {
				return metadata{}, unsupported("the image needs the user metadata %v", guid(b))
			}
			continue
		}
		if entries[guid(b)] != nil {
			return metadata{}, corrupt("the metadata %v is there twice", guid(b))
		}
		entries[guid(b)] = b[:itemEntryLen]
	}
	return parseItems(file, region, entries)
}

// parseItems reads the known items, and refuses others that are required.
func parseItems(file io.ReaderAt, region span, entries map[guid][]byte) (metadata, error) {
	var m metadata
	for _, known := range items() {
		e := entries[known.id]
		delete(entries, known.id)
		switch {
		case e == nil && known.need == needed:
			return m, corrupt("there is no %s in the metadata", known.name)
		case e == nil || known.parse == nil:
			continue
		}
		value, err := readItem(file, region, known, e)
		if err == nil {
			err = known.parse(&m, value)
		}
		if err != nil {
			return m, err
		}
	}
	for id, e := range entries {
		if itemFlags.Get(e)&itemRequired != 0 {
			return m, unsupported("the image needs the unknown metadata %v", id)
		}
	}
	if m.size%m.sector != 0 {
		return m, corrupt("a disk of %d bytes, which is no multiple of its sectors of %d", m.size, m.sector)
	}
	return m, nil
}

// readItem reads a known item by its entry in the table.
func readItem(file io.ReaderAt, region span, known item, e []byte) ([]byte, error) {
	at, n := itemAt.Get(e), itemLen.Get(e)
	switch {
	case n > maxItem || known.n != 0 && n != known.n:
		return nil, corrupt("the %s has %d bytes", known.name, n)
	case known.n == 0:
		return nil, nil
	case at < metadataTableLen || int64(at)+int64(n) > region.n:
		return nil, corrupt("the %s, %d bytes at %#x, is not within its region's %d bytes", known.name, n, at, region.n)
	}
	b := make([]byte, n)
	return b, pages.ReadFull(file, b, region.off+int64(at))
}

func parseParameters(m *metadata, b []byte) error {
	block, flags := paramBlockSize.Get(b), paramFlags.Get(b)
	switch {
	case flags&paramHasParent != 0:
		return refuseParent(m, nil)
	case bits.OnesCount32(block) != 1 || block < minBlock || block > maxBlock:
		return corrupt("blocks of %d bytes, must be a power of two from %d to %d", block, minBlock, maxBlock)
	}
	m.block, m.fixed = int64(block), flags&paramFixed != 0
	return nil
}

func refuseParent(*metadata, []byte) error {
	return unsupported("a differencing disk, whose data is in a parent image: merge them first (Merge-VHD, or Convert-VHD)")
}

func parseSize(m *metadata, b []byte) error {
	size := le.U64(0).Get(b)
	if size > maxDisk {
		return corrupt("a disk of %d bytes, the limit of the format is %d", size, maxDisk)
	}
	m.size = int64(size)
	return nil
}

func parseSector(m *metadata, b []byte) error {
	size := le.U32(0).Get(b)
	if size != sector512 && size != sector4K {
		return corrupt("logical sectors of %d bytes, must be %d or %d", size, sector512, sector4K)
	}
	m.sector = int64(size)
	return nil
}
