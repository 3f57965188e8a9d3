package qed

import (
	"fmt"
	"io"
	"math/bits"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/internal/le"
)

// "Header".
const (
	magic = "QED\x00"

	hdrClusterSize   le.U32 = 4
	hdrTableSize     le.U32 = 8  // clusters
	hdrHeaderSize    le.U32 = 12 // clusters
	hdrFeatures      le.U64 = 16
	hdrL1Offset      le.U64 = 40
	hdrSize          le.U64 = 48
	hdrBackingOffset le.U32 = 56
	hdrBackingSize   le.U32 = 60
	headerLen               = 64

	featureBacking   = 1 << 0
	featureNeedCheck = 1 << 1 // matters to writers
	featureNoProbe   = 1 << 2 // of the backing file
	featuresKnown    = 1<<3 - 1
)

// Limits of the format.
const (
	minCluster     = 1 << 12
	maxCluster     = 1 << 26
	maxTable       = 16 // clusters
	maxBackingName = 1023
	sectorSize     = 512
)

// Header is the header of an image that can be read: every field is checked.
type Header struct {
	ClusterSize int64 // bytes, a power of two
	TableSize   int64 // of an L1 or L2 table, bytes, a power of two
	First       int64 // where in the file the first cluster behind the header is, bytes
	L1Offset    int64 // in the file, bytes
	Size        int64 // of the disk, bytes
	// NeedCheck is set when the image was not closed. Whatever is wrong in its
	// tables is found when a read comes to it.
	NeedCheck bool
}

// perL2 is how much of the disk an L2 table maps, bytes.
func (h Header) perL2() int64 { return h.TableSize / entryLen * h.ClusterSize }

// readHeader reads and checks the header in the order of its fields, but tells
// first of a feature that we do not know: the rest could mean something else
// then.
func readHeader(src io.ReaderAt, fileSize int64) (Header, error) {
	if fileSize < headerLen {
		return Header{}, corrupt("a file of %d bytes has no header", fileSize)
	}
	b := make([]byte, headerLen)
	if err := pages.ReadFull(src, b, 0); err != nil {
		return Header{}, err
	}
	if string(b[:len(magic)]) != magic {
		return Header{}, corrupt("not a QED image: it begins with %#x", b[:len(magic)])
	}
	if err := checkFeatures(src, b, fileSize); err != nil {
		return Header{}, err
	}
	if err := checkNumbers(b, fileSize); err != nil {
		return Header{}, err
	}
	cluster := int64(hdrClusterSize.Get(b))
	return Header{
		ClusterSize: cluster,
		TableSize:   cluster * int64(hdrTableSize.Get(b)),
		First:       cluster * int64(hdrHeaderSize.Get(b)),
		L1Offset:    int64(hdrL1Offset.Get(b)),
		Size:        int64(hdrSize.Get(b)),
		NeedCheck:   hdrFeatures.Get(b)&featureNeedCheck != 0,
	}, nil
}

const flatten = "make a plain image first: qemu-img convert -O qcow2 OLD NEW"

// checkFeatures refuses what the image needs and we do not have.
func checkFeatures(src io.ReaderAt, b []byte, fileSize int64) error {
	set := hdrFeatures.Get(b)
	switch unknown := set &^ featuresKnown; {
	case unknown != 0:
		return unsupported("the image needs the unknown feature bit %d: %s", bits.TrailingZeros64(unknown), flatten)
	case set&(featureBacking|featureNoProbe) != 0:
		return unsupported("the image has a backing file%s: %s", backingName(src, b, fileSize), flatten)
	}
	return nil
}

// backingName is the name of the backing file for the message, as far as it can
// be told. It is never opened.
func backingName(src io.ReaderAt, b []byte, fileSize int64) string {
	off, n := int64(hdrBackingOffset.Get(b)), int64(hdrBackingSize.Get(b))
	if n == 0 || n > maxBackingName || off > fileSize || n > fileSize-off {
		return ""
	}
	name := make([]byte, n)
	if err := pages.ReadFull(src, name, off); err != nil {
		return ""
	}
	return fmt.Sprintf(" (%.200q)", name)
}

// checkNumbers checks the numbers that say where things are. None is so large
// that their products could overflow once it is checked.
func checkNumbers(b []byte, fileSize int64) error {
	var (
		cluster = uint64(hdrClusterSize.Get(b))
		table   = uint64(hdrTableSize.Get(b))
		header  = uint64(hdrHeaderSize.Get(b))
		l1      = hdrL1Offset.Get(b)
		size    = hdrSize.Get(b)
	)
	switch {
	case bits.OnesCount64(cluster) != 1 || cluster < minCluster || cluster > maxCluster:
		return corrupt("clusters of %d bytes, must be a power of two from %d to %d", cluster, minCluster, maxCluster)
	case bits.OnesCount64(table) != 1 || table > maxTable:
		return corrupt("tables of %d clusters, must be a power of two up to %d", table, maxTable)
	case header == 0 || header*cluster > uint64(fileSize):
		return corrupt("a header of %d clusters in a file of %d bytes", header, fileSize)
	case l1%cluster != 0 || l1 < header*cluster:
		return corrupt("the L1 table at %#x is not aligned to a cluster or within the header", l1)
	case l1 > uint64(fileSize) || table*cluster > uint64(fileSize)-l1:
		return corrupt("the L1 table, %d bytes at %#x, is not within the file's %d bytes", table*cluster, l1, fileSize)
	case size%sectorSize != 0:
		return corrupt("a disk of %d bytes, which is no multiple of %d", size, sectorSize)
	}
	entries := table * cluster / entryLen
	if over, most := bits.Mul64(entries*entries, cluster); over == 0 && size > most || size > 1<<63-1 {
		return corrupt("a disk of %d bytes, tables of %d entries have room for %d clusters of %d", size, entries, entries*entries, cluster)
	}
	return nil
}

// corrupt is the error for a header that contradicts the format or itself.
func corrupt(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindCorrupt, Err: fmt.Errorf("qed: "+format, a...)}
}

// unsupported is the error for an image that is good but not for us.
func unsupported(format string, a ...any) error {
	return &blockdev.Error{Op: "open", Kind: blockdev.KindUnsupported, Err: fmt.Errorf("qed: "+format, a...)}
}
