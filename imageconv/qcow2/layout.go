package qcow2

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/containerdisk/containerdisk/blockdev"
)

// layout gives everything in a new image its place, and writes it there.
type layout struct {
	w    io.WriterAt
	geo  geometry
	size int64 // of the disk, bytes
	head []byte

	next int64    // the first cluster of the file that is not used, by number
	refs []uint16 // how often each cluster of the file is used

	open int64 // the cluster of the file that takes compressed ones; 0: none
	fill int64 // how much of it is used, bytes

	l1    []uint64
	l2    []byte // the table that is being filled
	l2At  int64  // which one that is, by its L1 entry
	dirty bool   // it has an entry
}

const refcountOrder = 4 // refcounts of 16 bits, as QEMU has them

func newLayout(w io.WriterAt, size int64, o WriteOptions) (*layout, error) {
	l := &layout{w: w, size: size, geo: newGeometry(o.ClusterBits, false)}
	entries := (size + l.geo.perL1 - 1) / l.geo.perL1
	if entries*8 > maxL1Bytes {
		return nil, &blockdev.Error{Op: "open", Kind: blockdev.KindUnsupported,
			Err: fmt.Errorf("qcow2: a disk of %d bytes needs larger clusters than %d bytes", size, l.geo.cluster)}
	}
	l.l1 = make([]uint64, entries)
	l.l2 = make([]byte, l.geo.cluster)
	l.head = newHeader(size, o)
	l.take(1)                                      // the header
	l.take(l.clusters(max(int64(len(l.l1))*8, 1))) // QEMU wants a place for a table without entries, too
	return l, nil
}

// newHeader is the header of a new image but for the refcount table's place.
func newHeader(size int64, o WriteOptions) []byte {
	const length = headerV3Len + 8 // with the compression type, padded
	b := make([]byte, length, 512)
	hdrMagic.Put(b, magic)
	hdrVersion.Put(b, 3)
	hdrClusterBits.Put(b, uint32(o.ClusterBits))
	hdrSize.Put(b, uint64(size))
	hdrL1Offset.Put(b, 1<<o.ClusterBits)
	hdrRefcountOrder.Put(b, refcountOrder)
	hdrLength.Put(b, length)
	if o.Compression == Zstd && !o.Plain {
		// Old programs can tell what they do not know.
		hdrIncompatible.Put(b, incompatCompression)
		hdrCompression.Put(b, uint8(Zstd))
		b = binary.BigEndian.AppendUint32(b, extFeatureNames)
		b = binary.BigEndian.AppendUint32(b, featureEntryLen)
		var entry [featureEntryLen]byte
		featureType.Put(entry[:], uint8(setIncompatible))
		featureBit.Put(entry[:], 3)
		copy(entry[featureName:], "compression type")
		b = append(b, entry[:]...)
	}
	return append(b, make([]byte, extData)...) // the end of the extensions
}

// clusters is how many clusters n bytes take.
func (l *layout) clusters(n int64) int64 { return (n + l.geo.cluster - 1) >> l.geo.bits }

// take sets n clusters aside and returns where they begin.
func (l *layout) take(n int64) int64 {
	off := l.next << l.geo.bits
	l.next += n
	for range n {
		l.refs = append(l.refs, 1)
	}
	return off
}

// add writes the clusters of a batch, which comes behind all others.
func (l *layout) add(b *batch) error {
	var at, n int  // of b.out, what is to be written next
	var host int64 // and where to
	flush := func() error {
		if n == 0 {
			return nil
		}
		_, err := l.w.WriteAt(b.out[at:at+n], host)
		at, n = at+n, 0
		return err
	}
	for _, p := range b.parts {
		if err := l.turnTo(p.cluster * l.geo.cluster / l.geo.perL1); err != nil {
			return err
		}
		off, entry := l.place(p)
		if n > 0 && off != host+int64(n) {
			if err := flush(); err != nil {
				return err
			}
		}
		if n == 0 {
			host = off
		}
		n += p.n
		i := p.cluster * l.geo.cluster % l.geo.perL1 / l.geo.cluster
		binary.BigEndian.PutUint64(l.l2[i*8:], entry)
		l.dirty = true
	}
	return flush()
}

// place gives a cluster its place in the file, and its L2 entry.
func (l *layout) place(p part) (off int64, entry uint64) {
	if !p.packed {
		off = l.take(1)
		return off, uint64(off) | entryCopied
	}
	off = l.placePacked(int64(p.n))
	sectors := (off%512+int64(p.n)+511)/512 - 1
	return off, entryCompressed | uint64(sectors)<<(62-(l.geo.bits-8)) | uint64(off)
}

// placePacked finds a place for n bytes, less than a cluster: behind the last
// compressed cluster where they fit, or where they can go on in the next
// cluster of the file.
func (l *layout) placePacked(n int64) int64 {
	off := l.open<<l.geo.bits + l.fill
	free := l.geo.cluster - l.fill
	switch {
	case l.open == 0 || l.refs[l.open] == math.MaxUint16:
	case n <= free:
		l.refs[l.open]++
		l.fill += n
		return off
	case free > 0 && l.open == l.next-1:
		l.refs[l.open]++
		l.open = l.take(1) >> l.geo.bits
		l.fill = n - free
		return off
	}
	off = l.take(1)
	l.open, l.fill = off>>l.geo.bits, n
	return off
}

// turnTo makes the i-th L2 table the one that is filled.
func (l *layout) turnTo(i int64) error {
	if i == l.l2At {
		return nil
	}
	err := l.closeL2()
	l.l2At = i
	return err
}

// closeL2 writes the L2 table, if it has an entry, and begins an empty one.
func (l *layout) closeL2() error {
	if !l.dirty {
		return nil
	}
	off := l.take(1)
	l.l1[l.l2At] = uint64(off) | entryCopied
	_, err := l.w.WriteAt(l.l2, off)
	clear(l.l2)
	l.dirty = false
	return err
}

// finish writes what is left when all clusters are in place. It returns the
// length of the file.
func (l *layout) finish() (int64, error) {
	if err := l.closeL2(); err != nil {
		return 0, err
	}
	table, clusters, err := l.writeRefcounts()
	if err != nil {
		return 0, err
	}
	l1 := make([]byte, 0, len(l.l1)*8)
	for _, e := range l.l1 {
		l1 = binary.BigEndian.AppendUint64(l1, e)
	}
	if _, err := l.w.WriteAt(l1, l.geo.cluster); err != nil {
		return 0, err
	}
	// The last cluster may be a packed one: the file ends with a whole cluster.
	end := l.next << l.geo.bits
	hdrL1Size.Put(l.head, uint32(len(l.l1)))
	hdrRefcountOffset.Put(l.head, uint64(table))
	hdrRefcountSize.Put(l.head, uint32(clusters))
	_, err = l.w.WriteAt(l.head, 0)
	return end, err
}

// writeRefcounts writes the refcount blocks and their table. It returns where
// the table is, bytes, and its clusters.
func (l *layout) writeRefcounts() (table, clusters int64, err error) {
	perBlock := l.geo.cluster / 2
	// Blocks and table are counted in the blocks, too.
	var blocks int64
	for {
		clusters = l.clusters(blocks * 8)
		need := (l.next + blocks + clusters + perBlock - 1) / perBlock
		if need <= blocks {
			break
		}
		blocks = need
	}
	if clusters<<l.geo.bits > maxRefcountBytes {
		return 0, 0, &blockdev.Error{Op: "write", Kind: blockdev.KindUnsupported,
			Err: fmt.Errorf("qcow2: the image needs larger clusters than %d bytes", l.geo.cluster)}
	}
	first := l.take(blocks)
	table = l.take(clusters)
	entries := make([]byte, clusters<<l.geo.bits)
	block := make([]byte, l.geo.cluster)
	for i := range blocks {
		clear(block)
		for k, n := range l.refs[i*perBlock : min((i+1)*perBlock, l.next)] {
			binary.BigEndian.PutUint16(block[k*2:], n)
		}
		off := first + i<<l.geo.bits
		binary.BigEndian.PutUint64(entries[i*8:], uint64(off))
		if _, err := l.w.WriteAt(block, off); err != nil {
			return 0, 0, err
		}
	}
	_, err = l.w.WriteAt(entries, table) // whole clusters: the file ends here
	return table, clusters, err
}
