package vmdk

import (
	"fmt"
	"io"
	"math/bits"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/internal/le"
)

const (
	sectorSize = 512
	entryLen   = 4 // of a grain directory or table
)

// "Hosted Sparse Extents": SparseExtentHeader. Offsets and sizes in it are
// sectors.
const (
	magic       = "KDMV"
	magicLegacy = "COWD" // "ESX Server Sparse Extents"

	hdrVersion       le.U32 = 4
	hdrFlags         le.U32 = 8
	hdrCapacity      le.U64 = 12
	hdrGrainSize     le.U64 = 20
	hdrDescOffset    le.U64 = 28
	hdrDescSize      le.U64 = 36
	hdrTableEntries  le.U32 = 44 // numGTEsPerGT
	hdrRedundant     le.U64 = 48 // rgdOffset
	hdrDirectory     le.U64 = 56 // gdOffset
	hdrOverhead      le.U64 = 64 // before the first grain
	hdrUnclean              = 72 // one byte
	hdrLineEnds             = 73 // four bytes
	hdrCompression   le.U16 = 77
	headerLen               = 512
	lineEnds                = "\n \r\n" // what a transfer as text would damage
	directoryAtEnd          = 1<<64 - 1 // "Stream-Optimized": GD_AT_END
	noCompression           = 0
	deflate                 = 1
	flagLineEnds            = 1 << 0 // hdrLineEnds is meant
	flagRedundant           = 1 << 1 // there is a redundant grain directory
	flagZeroGrains          = 1 << 2 // grain table entries may be entryZero
	flagCompressed          = 1 << 16
	flagMarkers             = 1 << 17
	knownFlags              = flagLineEnds | flagRedundant | flagZeroGrains | flagCompressed | flagMarkers
	zeroGrainVersion        = 2 // the first that has flagZeroGrains
)

// "Stream-Optimized Compressed Sparse Extents": markers, of a sector.
const (
	markerValue     le.U64 = 0
	markerSize      le.U32 = 8
	markerType      le.U32 = 12
	markerEndStream        = 0
	markerFooter           = 3
	footerLen              = 3 * sectorSize // marker, header, end of stream
)

// Limits of the format, or QEMU's where the format has none.
const (
	maxVersion         = 3
	minGrain           = 8       // sectors
	maxGrain           = 1 << 21 // sectors
	maxCompressedGrain = 1 << 11 // sectors: what a reader needs memory for
	maxTableEntries    = 512
	maxDescriptor      = 1<<20 - 1 // bytes
)

// sparseHeader is the header of a sparse extent that can be read: every field
// is checked. Offsets are in its file.
type sparseHeader struct {
	version      int
	size         int64 // of the extent, bytes
	grain        int64 // bytes, a power of two
	tableEntries int64 // of a grain table
	directory    int64 // offset of the grain directory, bytes
	overhead     int64 // before the first grain, bytes
	compressed   bool
	zeroGrains   bool // an entry may be entryZero
	unclean      bool // the image was not closed, which matters to writers

	descOffset, descSize int64 // bytes; 0: there is none
}

// perTable is how much of the extent a grain table maps, bytes.
func (h sparseHeader) perTable() int64 { return h.tableEntries * h.grain }

// readSparseHeader reads and checks the header of a sparse extent, and the
// footer where the header says that there is one.
func readSparseHeader(src io.ReaderAt, fileSize int64) (sparseHeader, error) {
	if fileSize < headerLen {
		return sparseHeader{}, corrupt("a file of %d bytes has no header", fileSize)
	}
	b := make([]byte, headerLen)
	if err := pages.ReadFull(src, b, 0); err != nil {
		return sparseHeader{}, err
	}
	if string(b[:len(magic)]) != magic {
		return sparseHeader{}, corrupt("not a sparse extent: it begins with %q", b[:len(magic)])
	}
	if err := checkFeatures(b); err != nil {
		return sparseHeader{}, err
	}
	if hdrDirectory.Get(b) == directoryAtEnd {
		footer, err := readFooter(src, b, fileSize)
		if err != nil {
			return sparseHeader{}, err
		}
		b = footer
	}
	if err := checkNumbers(b, fileSize); err != nil {
		return sparseHeader{}, err
	}
	flags := hdrFlags.Get(b)
	return sparseHeader{
		version:      int(hdrVersion.Get(b)),
		size:         int64(hdrCapacity.Get(b)) * sectorSize,
		grain:        int64(hdrGrainSize.Get(b)) * sectorSize,
		tableEntries: int64(hdrTableEntries.Get(b)),
		directory:    int64(hdrDirectory.Get(b)) * sectorSize,
		overhead:     int64(hdrOverhead.Get(b)) * sectorSize,
		compressed:   flags&flagCompressed != 0,
		zeroGrains:   flags&flagZeroGrains != 0,
		unclean:      b[hdrUnclean] != 0,
		descOffset:   int64(hdrDescOffset.Get(b)) * sectorSize,
		descSize:     int64(hdrDescSize.Get(b)) * sectorSize,
	}, nil
}

// checkFeatures refuses what the extent needs and we do not have, or what
// contradicts itself.
func checkFeatures(b []byte) error {
	version, flags, method := hdrVersion.Get(b), hdrFlags.Get(b), hdrCompression.Get(b)
	switch unknown := flags &^ knownFlags; {
	case version == 0 || version > maxVersion:
		return unsupported("version %d of the sparse format, known are 1 to %d", version, maxVersion)
	case unknown != 0:
		return unsupported("the unknown flag %d is set", bits.TrailingZeros32(unknown))
	case flags&flagLineEnds != 0 && string(b[hdrLineEnds:][:len(lineEnds)]) != lineEnds:
		return corrupt("the line ends %q of the header, must be %q: the file was transferred as text", b[hdrLineEnds:][:len(lineEnds)], lineEnds)
	case flags&flagZeroGrains != 0 && version < zeroGrainVersion:
		return corrupt("zeroed grains in version %d", version)
	case method != noCompression && method != deflate:
		return unsupported("compression %d, known is 1 (deflate)", method)
	case (flags&flagCompressed != 0) != (method == deflate):
		return corrupt("compression %d contradicts the flags %#x", method, flags)
	case method == deflate && flags&flagMarkers == 0:
		return unsupported("compressed grains without markers")
	}
	return nil
}

// readFooter reads the header that stands at the end of the file, and wants it
// to say of the disk what the one at the beginning says.
func readFooter(src io.ReaderAt, header []byte, fileSize int64) ([]byte, error) {
	if fileSize%sectorSize != 0 || fileSize < headerLen+footerLen {
		return nil, corrupt("a file of %d bytes has no footer: it was cut", fileSize)
	}
	b := make([]byte, footerLen)
	if err := pages.ReadFull(src, b, fileSize-footerLen); err != nil {
		return nil, err
	}
	marker, footer, end := b[:sectorSize], b[sectorSize:2*sectorSize], b[2*sectorSize:]
	switch {
	case markerSize.Get(marker) != 0 || markerType.Get(marker) != markerFooter || string(footer[:len(magic)]) != magic:
		return nil, corrupt("there is no footer before the last sector: the file was cut")
	case markerValue.Get(end) != 0 || markerSize.Get(end) != 0 || markerType.Get(end) != markerEndStream:
		return nil, corrupt("the last sector is not the end of the stream: the file was cut")
	case hdrDirectory.Get(footer) == directoryAtEnd:
		return nil, corrupt("the footer does not tell where the grain directory is")
	}
	for _, f := range []struct {
		name string
		at   int
		n    int
	}{
		{"version", int(hdrVersion), 4},
		{"flags", int(hdrFlags), 4},
		{"capacity", int(hdrCapacity), 8},
		{"grain size", int(hdrGrainSize), 8},
		{"descriptor offset", int(hdrDescOffset), 8},
		{"descriptor size", int(hdrDescSize), 8},
		{"grain table size", int(hdrTableEntries), 4},
		{"compression", int(hdrCompression), 2},
	} {
		if string(header[f.at:][:f.n]) != string(footer[f.at:][:f.n]) {
			return nil, corrupt("header and footer have a different %s", f.name)
		}
	}
	return footer, nil
}

// checkNumbers checks the numbers that say where things are. None is so large
// that their products could overflow once it is checked.
func checkNumbers(b []byte, fileSize int64) error {
	var (
		sectors  = uint64(fileSize) / sectorSize
		capacity = hdrCapacity.Get(b)
		grain    = hdrGrainSize.Get(b)
		entries  = uint64(hdrTableEntries.Get(b))
		largest  = uint64(maxGrain)
	)
	if hdrFlags.Get(b)&flagCompressed != 0 {
		largest = maxCompressedGrain
	}
	switch {
	case capacity == 0 || capacity > (1<<63-1)/sectorSize:
		return corrupt("an extent of %d sectors", capacity)
	case bits.OnesCount64(grain) != 1 || grain < minGrain || grain > largest:
		return unsupported("grains of %d sectors, must be a power of two from %d to %d", grain, minGrain, largest)
	case entries == 0 || entries > maxTableEntries:
		return corrupt("grain tables of %d entries, must be 1 to %d", entries, maxTableEntries)
	case hdrOverhead.Get(b) > sectors:
		return corrupt("the grains begin at sector %d, the file has %d: it was cut", hdrOverhead.Get(b), sectors)
	}
	tables := (capacity-1)/(entries*grain) + 1
	if err := checkDirectory("grain directory", hdrDirectory.Get(b), tables, fileSize); err != nil {
		return err
	}
	if hdrFlags.Get(b)&flagRedundant != 0 {
		if err := checkDirectory("redundant grain directory", hdrRedundant.Get(b), tables, fileSize); err != nil {
			return err
		}
	}
	return checkDescriptorPlace(hdrDescOffset.Get(b), hdrDescSize.Get(b), sectors)
}

// checkDirectory wants the grain directory of so many entries within the file.
func checkDirectory(what string, sector, entries uint64, fileSize int64) error {
	if sector > uint64(fileSize)/sectorSize || entries > (uint64(fileSize)-sector*sectorSize)/entryLen {
		return corrupt("the %s, %d entries at sector %d, is not within the file's %d bytes", what, entries, sector, fileSize)
	}
	return nil
}

// checkDescriptorPlace wants an embedded descriptor, if there is one, where
// every program looks for it.
func checkDescriptorPlace(offset, size, sectors uint64) error {
	switch {
	case offset == 0:
		return nil
	case offset != 1:
		return unsupported("the descriptor at sector %d, must be 1", offset)
	case size > maxDescriptor/sectorSize:
		return corrupt("a descriptor of %d sectors, the limit is %d", size, maxDescriptor/sectorSize)
	case size > sectors-offset:
		return corrupt("the descriptor, %d sectors at %d, is not within the file's %d", size, offset, sectors)
	}
	return nil
}

// corrupt is the error for an image that contradicts the format or itself.
func corrupt(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindCorrupt, Err: fmt.Errorf("vmdk: "+format, a...)}
}

// unsupported is the error for an image that is good but not for us.
func unsupported(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindUnsupported, Err: fmt.Errorf("vmdk: "+format, a...)}
}
