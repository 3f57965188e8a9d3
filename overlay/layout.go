package overlay

import (
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/containerdisk/containerdisk/internal/be"
)

// The file of a cluster map:
//
//	header A   page 0          who the map belongs to; each header and page carries
//	header B   page 1          a sequence number and a CRC-32C over all of it
//	pages A    pages 2 …       the durable bitmap, a bit a cluster
//	pages B    as many         the same once more
//	states     a byte a cluster, sparse: what is present as long as this kernel runs
//
// A byte a cluster and not a bit: two clusters are then marked by two writes
// that share nothing, and any other value shows damage.

const (
	pageSize = 4096 // bytes; what a header or a page of the bitmap takes

	pageWords    = 506 // of bits in a page
	pageClusters = pageWords * wordBits
)

// Both kinds of page end with the checksum of what is before it.
const pageCRC be.U32 = pageSize - 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func seal(p []byte) { pageCRC.Put(p, crc32.Checksum(p[:pageCRC], castagnoli)) }

func sealed(p []byte) bool { return pageCRC.Get(p) == crc32.Checksum(p[:pageCRC], castagnoli) }

// Limits of a map: what a header may say before memory is set aside for it.
const (
	minClusterSize = 4 << 10
	maxClusterSize = 4 << 20
	maxClusters    = 64 << 20
)

// ClusterSize is the size in bytes of the clusters that a disk of size bytes is
// best cut into: 64 KiB, and more for those above 4 TiB.
func ClusterSize(size int64) int {
	n := 64 << 10
	for n < maxClusterSize && (size-1)/int64(n) >= maxClusters {
		n *= 2
	}
	return n
}

// layout says where in the file things are.
type layout struct {
	clusters int64
	pages    int64 // of one copy of the bitmap
}

func layoutOf(h Header) (layout, error) {
	c := int64(h.ClusterSize)
	switch {
	case c < minClusterSize || c > maxClusterSize || bits.OnesCount64(uint64(c)) != 1:
		return layout{}, fmt.Errorf("clusters of %d bytes: they must be a power of two from %d to %d", c, minClusterSize, maxClusterSize)
	case h.BaseSize < 0 || h.Size <= 0 || h.Size < h.BaseSize:
		return layout{}, fmt.Errorf("a disk of %d bytes over a base of %d", h.Size, h.BaseSize)
	case (h.Size-1)/c >= maxClusters:
		return layout{}, fmt.Errorf("a disk of %d bytes in clusters of %d has more than %d of them", h.Size, c, maxClusters)
	}
	n := (h.Size-1)/c + 1
	return layout{clusters: n, pages: (n-1)/pageClusters + 1}, nil
}

func (l layout) header(c copyOf) int64 { return int64(c) * pageSize }

func (l layout) page(c copyOf, i int64) int64 { return (2 + int64(c)*l.pages + i) * pageSize }

func (l layout) state(cluster int64) int64 { return (2+2*l.pages)*pageSize + cluster }

func (l layout) size() int64 { return l.state(l.clusters) }

// copyOf is one of the two copies of a header or page.
type copyOf int

const (
	copyA copyOf = iota // written first
	copyB               // written when A is durable
)

// A page of the durable bitmap. The bits are words, the lowest bit of a word
// first.
const (
	bmMagic be.U64 = 0
	bmMap          = 8  // 16 bytes: the map's ID
	bmIndex be.U64 = 24 // of the page
	bmSeq   be.U64 = 32
	bmBits         = 40 // pageWords words
)

const bitmapMagic = 0x4344_6269_746d_6170 // "CDbitmap"

// mapID is a random number that tells the pages of one map from all others.
type mapID [16]byte

// encodePage makes the page of that index in p.
func encodePage(p []byte, id mapID, index int64, seq uint64, words []uint64) {
	clear(p)
	bmMagic.Put(p, bitmapMagic)
	copy(p[bmMap:], id[:])
	bmIndex.Put(p, uint64(index))
	bmSeq.Put(p, seq)
	for i, w := range words {
		be.U64(bmBits+8*i).Put(p, w)
	}
	seal(p)
}

// decodePage returns the page's sequence number, or false if p is not that
// page of that map.
func decodePage(p []byte, id mapID, index int64) (seq uint64, ok bool) {
	ok = bmMagic.Get(p) == bitmapMagic && sealed(p) &&
		mapID(p[bmMap:bmIndex]) == id && bmIndex.Get(p) == uint64(index)
	return bmSeq.Get(p), ok
}

func pageWord(p []byte, i int) uint64 { return be.U64(bmBits + 8*i).Get(p) }
