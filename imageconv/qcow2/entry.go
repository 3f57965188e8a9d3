package qcow2

import "math/bits"

// "Cluster mapping": an L1 entry has an offset and the copied flag; an L2 entry
// is a standard or a compressed cluster descriptor.
const (
	entryCopied     = 1 << 63 // refcount is one, which matters to writers
	entryCompressed = 1 << 62
	entryZero       = 1 << 0 // "the cluster reads as all zeros", version 3

	entryOffset = 0x00ff_ffff_ffff_fe00 // bits 9 to 55
)

// l1Entry says where an L2 table is.
type l1Entry uint64

// offset is where the L2 table begins in the file; 0: there is none.
func (e l1Entry) offset() int64 { return int64(e & entryOffset) }

// reserved are the bits that must be zero.
func (e l1Entry) reserved() uint64 { return uint64(e) &^ (entryOffset | entryCopied) }

// l2Entry says where a cluster is. Of an extended entry it is the first half.
type l2Entry uint64

func (e l2Entry) compressed() bool { return e&entryCompressed != 0 }
func (e l2Entry) zero() bool       { return e&entryZero != 0 }

// offset is where an uncompressed cluster begins in the file; 0: nowhere.
func (e l2Entry) offset() int64 { return int64(e & entryOffset) }

// reserved are the bits of an uncompressed cluster's entry that must be zero.
func (e l2Entry) reserved() uint64 {
	return uint64(e) &^ (entryOffset | entryCopied | entryZero)
}

// stream is where a compressed cluster lies in the file, bytes. Its end is only
// known to a sector: behind the stream may be the beginning of another.
func (e l2Entry) stream(clusterBits int) (off, n int64) {
	x := 62 - (clusterBits - 8) // "Compressed Clusters Descriptor"
	off = int64(e & (1<<x - 1))
	sectors := int64(e&(entryCompressed-1)) >> x // besides the first
	return off, (sectors+1)*512 - off%512
}

// subclusters is the bitmap of an extended L2 entry: its low half says which of
// the 32 subclusters have data, its high half which read as zeros.
type subclusters uint64

const subclustersPerCluster = 32

func (s subclusters) allocated() uint32 { return uint32(s) }
func (s subclusters) zero() uint32      { return uint32(s >> 32) }

// streak is how many subclusters from i on are in the state of i.
func (s subclusters) streak(i int) int {
	n := subclustersPerCluster - i
	return min(n, same(s.allocated()>>i), same(s.zero()>>i))
}

// same is how many bits of w are as its lowest.
func same(w uint32) int {
	if w&1 != 0 {
		w = ^w
	}
	return bits.TrailingZeros32(w)
}
