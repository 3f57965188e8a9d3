package qed

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// open opens a file in memory that holds a disk of at most 32 MiB.
func open(file []byte) (blockdev.Source, error) {
	return Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 32 << 20})
}

func TestVectors(t *testing.T) { imagetest.RunVectors(t, open) }

// checkSane wants what must hold for any file, bounded memory included.
func checkSane(t testing.TB, file []byte) {
	t.Helper()
	r, ok := imagetest.CheckSane(t, open, file).(*Reader)
	if ok && r.tables.Kept() > tableMemory {
		t.Fatalf("%d bytes of tables are kept", r.tables.Kept())
	}
}

func TestBitFlips(t *testing.T) { imagetest.BitFlips(t, checkSane) }

func TestTruncation(t *testing.T) { imagetest.Truncations(t, open, checkSane) }

func FuzzOpenRead(f *testing.F) {
	for _, v := range imagetest.LoadVectors(f) {
		f.Add(v.File)
	}
	f.Fuzz(func(t *testing.T, file []byte) { checkSane(t, file) })
}

// build makes an image of the disk with clusters of 4 KiB, in which the
// clusters lie from the last to the first and every fifth is absent or zero,
// which are made zeros in disk as well.
func build(disk []byte) []byte {
	const cluster, perTable = minCluster, minCluster / entryLen
	n := (len(disk) + cluster - 1) / cluster
	tables := (n + perTable - 1) / perTable
	f := make([]byte, (2+tables)*cluster, (2+tables+n)*cluster)
	copy(f, magic)
	hdrClusterSize.Put(f, cluster)
	hdrTableSize.Put(f, 1)
	hdrHeaderSize.Put(f, 1)
	hdrL1Offset.Put(f, cluster)
	hdrSize.Put(f, uint64(len(disk)))
	for i := range tables {
		binary.LittleEndian.PutUint64(f[cluster+i*entryLen:], uint64(2+i)*cluster)
	}
	for i := n - 1; i >= 0; i-- {
		entry := f[2*cluster+i*entryLen:]
		if i%5 == 2 {
			clear(disk[i*cluster : min((i+1)*cluster, len(disk))])
			binary.LittleEndian.PutUint64(entry, uint64(i/5%2))
			continue
		}
		binary.LittleEndian.PutUint64(entry, uint64(len(f)))
		b := make([]byte, cluster)
		copy(b, disk[i*cluster:])
		f = append(f, b...)
	}
	return f
}

// TestConformance: the contract of a Source, with several L2 tables.
func TestConformance(t *testing.T) {
	disk := make([]byte, 1100*minCluster+512)
	for i := 0; i+8 <= len(disk); i += 8 {
		binary.BigEndian.PutUint64(disk[i:], uint64(i)+1)
	}
	file := build(disk)
	blockdevtest.RunSource(t, disk, func(t *testing.T) blockdev.Source {
		src, err := open(file)
		if err != nil {
			t.Fatal(err)
		}
		return src
	})
}

// sparse is a file of zeros but for its beginning.
type sparse struct{ head []byte }

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off < int64(len(s.head)) {
		copy(p, s.head[off:])
	}
	return len(p), nil
}

// TestLargest: the largest clusters and tables, and a disk as large as numbers
// are, most of which takes one look.
func TestLargest(t *testing.T) {
	f := make([]byte, headerLen)
	copy(f, magic)
	hdrClusterSize.Put(f, maxCluster)
	hdrTableSize.Put(f, maxTable)
	hdrHeaderSize.Put(f, 1)
	hdrL1Offset.Put(f, maxCluster)
	const size = 1<<63 - 512
	hdrSize.Put(f, size)
	var src io.ReaderAt = sparse{f}
	const fileSize = maxCluster * (1 + maxTable)
	r, err := Open(src, fileSize, Options{MaxSize: size})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for e, err := range r.Extents(0, size) {
		if n++; err != nil || e.Kind != blockdev.Hole || e.Len != size {
			t.Fatalf("got %v, %v", e, err)
		}
	}
	if n != 1 || r.tables.Kept() > tableMemory {
		t.Errorf("%d extents, %d bytes kept", n, r.tables.Kept())
	}
	for _, size := range []uint64{1 << 63, 1<<64 - 512} {
		hdrSize.Put(f, size)
		if _, err := Open(src, fileSize, Options{MaxSize: 1<<63 - 1}); blockdev.KindOf(err) != blockdev.KindCorrupt {
			t.Errorf("a disk of %d bytes: got %v, want a corrupt image", size, err)
		}
	}
}

// TestHeader: what is told of an image.
func TestHeader(t *testing.T) {
	file := build(make([]byte, 3<<20))
	hdrFeatures.Put(file, featureNeedCheck)
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 3 << 20})
	if err != nil {
		t.Fatal(err)
	}
	want := Header{ClusterSize: 4096, TableSize: 4096, First: 4096, L1Offset: 4096, Size: 3 << 20, NeedCheck: true}
	if got := r.Header(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
