package vhdx

import (
	"cmp"
	"io"
	"slices"

	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/internal/le"
)

// "Region Table".
const (
	regionsSignature        = "regi"
	regionsChecksum  le.U32 = 4
	regionsCount     le.U32 = 8
	regionsHeaderLen        = 16
	regionsLen              = 64 << 10
	maxEntries              = 2047 // of a region or metadata table

	regionEntryLen        = 32
	regionAt       le.U64 = 16
	regionLen      le.U32 = 24
	regionFlags    le.U32 = 28
	regionRequired        = 1 << 0
)

var (
	// 2DC27766-F623-4200-9D64-115E9BFD4A08
	guidBAT = guid{0x66, 0x77, 0xc2, 0x2d, 0x23, 0xf6, 0x00, 0x42, 0x9d, 0x64, 0x11, 0x5e, 0x9b, 0xfd, 0x4a, 0x08}
	// 8B7CA206-4790-4B9A-B8FE-575F050F886E
	guidMetadata = guid{0x06, 0xa2, 0x7c, 0x8b, 0x90, 0x47, 0x9a, 0x4b, 0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f, 0x88, 0x6e}
)

// regions are where the parts of the image are.
type regions struct {
	bat, metadata span
	all           []span // these, the log, and regions that we do not know; in order
}

// readRegions reads the region table, or its copy where it is damaged.
func readRegions(file io.ReaderAt, fileSize int64, h header) (regions, error) {
	for _, at := range []int64{regions1At, regions2At} {
		b := make([]byte, regionsLen)
		if err := pages.ReadFull(file, b, at); err != nil {
			return regions{}, err
		}
		if string(b[:len(regionsSignature)]) == regionsSignature && checksum(b, regionsChecksum) == regionsChecksum.Get(b) {
			return parseRegions(b, fileSize, h)
		}
	}
	return regions{}, corrupt("both region tables are damaged")
}

func parseRegions(b []byte, fileSize int64, h header) (regions, error) {
	count := regionsCount.Get(b)
	if count > maxEntries {
		return regions{}, corrupt("a region table of %d entries, the limit is %d", count, maxEntries)
	}
	found := regions{all: []span{{0, sectionLen}}}
	if h.log.n > 0 {
		found.all = append(found.all, h.log)
	}
	seen := make(map[guid]bool)
	for b := b[regionsHeaderLen:][:count*regionEntryLen]; len(b) > 0; b = b[regionEntryLen:] {
		id := guid(b)
		s, err := checkRegion(b, fileSize)
		switch {
		case err != nil:
			return found, err
		case seen[id]:
			return found, corrupt("the region %v is there twice", id)
		case id == guidBAT:
			found.bat = s
		case id == guidMetadata:
			found.metadata = s
		case regionFlags.Get(b)&regionRequired != 0:
			return found, unsupported("the image needs the unknown region %v", id)
		}
		seen[id] = true
		found.all = append(found.all, s)
	}
	switch {
	case found.bat.n == 0:
		return found, corrupt("there is no block allocation table")
	case found.metadata.n == 0:
		return found, corrupt("there is no metadata region")
	}
	return found, checkApart(found.all)
}

// checkRegion checks where a region is, by its entry in the table.
func checkRegion(b []byte, fileSize int64) (span, error) {
	at, n := regionAt.Get(b), uint64(regionLen.Get(b))
	switch {
	case at%unit != 0 || n%unit != 0 || n == 0:
		return span{}, corrupt("the region %v of %d bytes at %#x: must be in whole MiB", guid(b), n, at)
	case at > uint64(fileSize) || n > uint64(fileSize)-at:
		return span{}, corrupt("the region %v, %d bytes at %#x, is not within the file's %d bytes", guid(b), n, at, fileSize)
	}
	return span{int64(at), int64(n)}, nil
}

// checkApart sorts the parts of the file and wants none to overlap another.
func checkApart(all []span) error {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.off, b.off) })
	for i := range all[1:] {
		if a, b := all[i], all[i+1]; a.meets(b) {
			return corrupt("what is at %#x, %d bytes, overlaps what is at %#x", a.off, a.n, b.off)
		}
	}
	return nil
}
