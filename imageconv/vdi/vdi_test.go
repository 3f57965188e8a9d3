package vdi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
	"github.com/containerdisk/containerdisk/imageconv/runs"
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
	if ok && r.blocks.Kept() > mapMemory {
		t.Fatalf("%d bytes of the map are kept", r.blocks.Kept())
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

// build makes a dynamic image of the disk in which every fifth block is absent
// and the others lie in the file from the last to the first.
func build(disk []byte, block int) []byte {
	n := (len(disk) + block - 1) / block
	data := (sectorSize + n*entryLen + sectorSize - 1) &^ (sectorSize - 1)
	f := make([]byte, data, data+n*block)
	hdrSignature.Put(f, signature)
	hdrVersion.Put(f, knownVersion)
	hdrLength.Put(f, minLength)
	hdrType.Put(f, uint32(Dynamic))
	hdrMapOffset.Put(f, sectorSize)
	hdrDataOffset.Put(f, uint32(data))
	hdrSectorSize.Put(f, sectorSize)
	hdrSize.Put(f, uint64(len(disk)))
	hdrBlockSize.Put(f, uint32(block))
	hdrBlocks.Put(f, uint32(n))
	at := uint32(0)
	for i := n - 1; i >= 0; i-- {
		entry := f[sectorSize+i*entryLen:]
		if i%5 == 2 {
			clear(disk[i*block : min((i+1)*block, len(disk))])
			binary.LittleEndian.PutUint32(entry, entryFree-uint32(i/5%2))
			continue
		}
		binary.LittleEndian.PutUint32(entry, at)
		at++
		b := make([]byte, block)
		copy(b, disk[i*block:])
		f = append(f, b...)
	}
	hdrAllocated.Put(f, at)
	return f
}

// TestConformance: the contract of a Source, with a map of several pages.
func TestConformance(t *testing.T) {
	disk := make([]byte, 1100*minBlock+700)
	for i := 0; i+8 <= len(disk); i += 8 {
		binary.BigEndian.PutUint64(disk[i:], uint64(i)+1)
	}
	file := build(disk, minBlock)
	blockdevtest.RunSource(t, disk, func(t *testing.T) blockdev.Source {
		src, err := open(file)
		if err != nil {
			t.Fatal(err)
		}
		return src
	})
}

// TestHeader: what is told of an image.
func TestHeader(t *testing.T) {
	file := build(make([]byte, 3<<20+512), 1<<20)
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 3<<20 + 512})
	if err != nil {
		t.Fatal(err)
	}
	want := Header{Type: Dynamic, Size: 3<<20 + 512, BlockSize: 1 << 20, Blocks: 4, MapOffset: 512, DataOffset: 1024}
	if got := r.Header(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 3<<20 + 511}); blockdev.KindOf(err) != blockdev.KindUnsupported {
		t.Errorf("a byte more than allowed: got %v", err)
	}
}

// TestManyAbsent: a disk of terabytes that was never written is mapped by its
// map's pages, not block by block, and without keeping the map.
func TestManyAbsent(t *testing.T) {
	const size = 16 << 40
	file := build(nil, 1<<20)
	hdrSize.Put(file, size)
	hdrBlocks.Put(file, size>>20)
	hdrDataOffset.Put(file, sectorSize+size>>20*entryLen)
	file = append(file, bytes.Repeat([]byte{0xff}, size>>20*entryLen)...)
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: size})
	if err != nil {
		t.Fatal(err)
	}
	lookups := 0
	r.Lookup = func(off, n int64) (runs.Run, error) { lookups++; return r.lookup(off, n) }
	for e, err := range r.Extents(0, size) {
		if err != nil || e.Len != size || e.Kind != blockdev.Hole {
			t.Fatalf("got %v, %v", e, err)
		}
	}
	if want := size >> 20 * entryLen / 4096; lookups > want+1 {
		t.Errorf("%d lookups, want about %d", lookups, want)
	}
	if r.blocks.Kept() > mapMemory {
		t.Errorf("%d bytes of the map are kept", r.blocks.Kept())
	}
}
