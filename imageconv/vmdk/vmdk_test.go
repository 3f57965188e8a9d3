package vmdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zlib"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// maxSize is the largest disk of the tests, bytes.
const maxSize = 32 << 20

// open opens a file in memory that is all of its image.
func open(file []byte) (blockdev.Source, error) {
	return Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: maxSize})
}

// memory is a file in memory.
func memory(t testing.TB, b []byte) blockdev.Source {
	t.Helper()
	m := blockdev.NewMem(int64(len(b)))
	if _, err := m.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return m
}

// openNamed opens an image whose extents are in files.
func openNamed(t testing.TB, descriptor string, files map[string][]byte) (*Reader, error) {
	t.Helper()
	opened := map[string]bool{}
	return Open(strings.NewReader(descriptor), int64(len(descriptor)), Options{MaxSize: maxSize, Extent: func(name string) (blockdev.Source, error) {
		if opened[name] {
			t.Errorf("%q is opened twice", name)
		}
		opened[name] = true
		b, ok := files[name]
		if !ok {
			return nil, &blockdev.Error{Op: "open", Kind: blockdev.KindIO, Err: fmt.Errorf("no file %q", name)}
		}
		return memory(t, b), nil
	}})
}

func TestVectors(t *testing.T) { imagetest.RunVectors(t, open) }

func TestTruncation(t *testing.T) { imagetest.Truncations(t, open, checkSane) }

// checkSane wants what must hold for any file: what the formats have in common,
// bounded memory, and that nothing is opened but plain names.
func checkSane(t testing.TB, file []byte) {
	t.Helper()
	part := memory(t, bytes.Repeat([]byte{0xa5}, 8<<10))
	anything := func(file []byte) (blockdev.Source, error) {
		return Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: maxSize, Extent: func(name string) (blockdev.Source, error) {
			if name != filepath.Base(name) || !filepath.IsLocal(name) {
				t.Fatalf("asks for %q", name)
			}
			return part, nil
		}})
	}
	r, ok := imagetest.CheckSane(t, anything, file).(*Reader)
	if !ok {
		return
	}
	tables, packed := 0, 0
	for _, p := range r.parts {
		s, ok := p.Source.(*sparse)
		if !ok {
			continue
		}
		tables += s.tables.Kept()
		if s.packed != nil {
			packed += s.packed.kept.Len() * int(s.header.grain)
		}
	}
	if tables > tableMemory || packed > grainMemory {
		t.Fatalf("%d bytes of tables and %d of grains are kept", tables, packed)
	}
}

// TestBitFlips flips every bit of the header, descriptor and tables. In an
// image with compressed grains what is read then is right, or zeros where an
// entry was lost: marker and checksum tell the rest.
func TestBitFlips(t *testing.T) {
	for _, v := range imagetest.LoadVectors(t) {
		if v.Expect != "ok" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			imagetest.FlipBits(t, v.File, v.Meta, func(t testing.TB, file []byte) {
				checkSane(t, file)
				if src, err := open(file); err == nil && strings.HasPrefix(v.Name, "stream") {
					checkRightOrZero(t, src, v.Disk)
				}
			})
		})
	}
}

func checkRightOrZero(t testing.TB, src blockdev.Source, disk []byte) {
	t.Helper()
	p := make([]byte, sectorSize)
	for off := 0; off+len(p) <= min(len(disk), int(src.Size())); off += len(p) {
		_, err := src.ReadAt(p, int64(off))
		if err == nil && !bytes.Equal(p, disk[off:][:len(p)]) && len(bytes.Trim(p, "\x00")) > 0 {
			t.Fatalf("wrong bytes at %d", off)
		}
	}
}

// FuzzOpenRead holds checkSane's word against arbitrary files.
func FuzzOpenRead(f *testing.F) {
	for _, v := range imagetest.LoadVectors(f) {
		f.Add(v.File)
	}
	for _, x := range descriptors() {
		f.Add([]byte(x.text))
	}
	f.Fuzz(func(t *testing.T, file []byte) { checkSane(t, file) })
}

// pattern is a disk that no offset error can hide in: every 8 bytes carry their
// own offset, every third grain is random, every fifth is zeros.
func pattern(size, grain int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		switch g := i / grain; {
		case g%5 == 2:
		case g%3 == 0:
			binary.BigEndian.PutUint64(b[i:], rng.Uint64())
		default:
			binary.BigEndian.PutUint64(b[i:], uint64(i)+1)
		}
	}
	return b
}

// build makes a sparse extent of the disk, of whole sectors. Grains of zeros are
// absent and the others lie in the file from the last to the first. The
// descriptor has room for a kilobyte.
func build(t testing.TB, disk []byte, grain int, packed bool, descriptor string) []byte {
	t.Helper()
	const tableEntries = 512
	n := (len(disk) + grain - 1) / grain
	tables := (n + tableEntries - 1) / tableEntries
	const directory = 3 // sector
	first := directory + (tables*entryLen+sectorSize-1)/sectorSize
	overhead := first + tables*tableEntries*entryLen/sectorSize
	f := make([]byte, overhead*sectorSize)
	copy(f, magic)
	hdrVersion.Put(f, 1)
	hdrFlags.Put(f, flagLineEnds)
	hdrCapacity.Put(f, uint64(len(disk)/sectorSize))
	hdrGrainSize.Put(f, uint64(grain/sectorSize))
	if descriptor != "" {
		hdrDescOffset.Put(f, 1)
		hdrDescSize.Put(f, 2)
	}
	hdrTableEntries.Put(f, tableEntries)
	hdrDirectory.Put(f, directory)
	hdrOverhead.Put(f, uint64(overhead))
	copy(f[hdrLineEnds:], lineEnds)
	copy(f[sectorSize:directory*sectorSize], descriptor)
	if packed {
		hdrVersion.Put(f, 3)
		hdrFlags.Put(f, flagLineEnds|flagCompressed|flagMarkers)
		hdrCompression.Put(f, deflate)
	}
	for i := range tables {
		binary.LittleEndian.PutUint32(f[directory*sectorSize+i*entryLen:], uint32(first+i*tableEntries*entryLen/sectorSize))
	}
	for i := n - 1; i >= 0; i-- {
		b := make([]byte, grain)
		copy(b, disk[i*grain:])
		if len(bytes.Trim(b, "\x00")) == 0 {
			continue
		}
		binary.LittleEndian.PutUint32(f[first*sectorSize+i*entryLen:], uint32(len(f)/sectorSize))
		if packed {
			b = packedGrain(t, b, i*grain/sectorSize)
		}
		f = append(f, b...)
		f = append(f, make([]byte, -len(f)&(sectorSize-1))...)
	}
	return f
}

// packedGrain is a grain of the disk that begins at that sector, with its marker.
func packedGrain(t testing.TB, b []byte, sector int) []byte {
	t.Helper()
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	_, err := w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	f := make([]byte, grainMarkerLen)
	grainSector.Put(f, uint64(sector))
	grainDataSize.Put(f, uint32(z.Len()))
	return append(f, z.Bytes()...)
}

func describe(createType string, extents ...string) string {
	return "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"" + createType + "\"\n" +
		strings.Join(extents, "\n") + "\nddb.adapterType = \"ide\"\n"
}

// TestConformance: the contract of a Source for each kind of image. The disks
// have more than one grain table, and end within a grain.
func TestConformance(t *testing.T) {
	const grain = 4096
	disk := pattern(700*grain+3*sectorSize, grain)
	sectors := len(disk) / sectorSize
	half := 600 * grain
	files := map[string][]byte{
		"flat":   append(make([]byte, 5*sectorSize), disk...),
		"s001":   build(t, disk[:half], grain, false, ""),
		"s002":   build(t, disk[half:], grain*2, false, ""),
		"packed": build(t, disk[half:], grain, true, ""),
	}
	for name, image := range map[string]string{
		"sparse": string(build(t, disk, grain, false, describe("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "x"`, sectors)))),
		"stream": string(build(t, disk, grain, true, describe("streamOptimized", fmt.Sprintf(`RW %d SPARSE "x"`, sectors)))),
		"flat":   describe("monolithicFlat", fmt.Sprintf(`RW %d FLAT "flat" 5`, sectors)),
		"flat in two": describe("twoGbMaxExtentFlat", fmt.Sprintf(`RW %d FLAT "flat" 5`, half/sectorSize),
			fmt.Sprintf(`RW %d FLAT "flat" %d`, sectors-half/sectorSize, 5+half/sectorSize)),
		"sparse in two": describe("twoGbMaxExtentSparse", fmt.Sprintf(`RW %d SPARSE "s001"`, half/sectorSize),
			fmt.Sprintf(`RW %d SPARSE "s002"`, sectors-half/sectorSize)),
		"mixed": describe("twoGbMaxExtentSparse", fmt.Sprintf(`RW %d SPARSE "s001"`, half/sectorSize),
			fmt.Sprintf(`RW %d SPARSE "packed"`, sectors-half/sectorSize)),
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.RunSource(t, disk, func(t *testing.T) blockdev.Source {
				r, err := openNamed(t, image, files)
				if err != nil {
					t.Fatal(err)
				}
				return r
			})
		})
	}
}

// TestLargeExtent: a disk of VMware's largest size with small tables is mapped
// by pages, not grain by grain.
func TestLargeExtent(t *testing.T) {
	const grain, size = 64 << 10, 2 << 40
	f := build(t, make([]byte, grain), grain, false, describe("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "x"`, size/sectorSize)))
	hdrCapacity.Put(f, size/sectorSize)
	hdrDirectory.Put(f, uint64(len(f)/sectorSize))
	f = append(f, make([]byte, size/(512*grain)*entryLen)...)
	r, err := Open(bytes.NewReader(f), int64(len(f)), Options{MaxSize: size})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for e, err := range r.Extents(0, size) {
		if n++; err != nil || e.Kind != blockdev.Hole || e.Len != size {
			t.Fatalf("got %v, %v", e, err)
		}
	}
	if n != 1 {
		t.Errorf("%d extents", n)
	}
	if _, err := Open(bytes.NewReader(f), int64(len(f)), Options{MaxSize: size - 1}); blockdev.KindOf(err) != blockdev.KindUnsupported {
		t.Errorf("a byte more than allowed: got %v", err)
	}
}

// TestErrorsTellWhere: an error of a later extent is about the disk's bytes.
func TestErrorsTellWhere(t *testing.T) {
	disk := pattern(16*4096, 4096)
	bad := build(t, disk, 4096, false, "")
	r, err := openNamed(t, describe("twoGbMaxExtentSparse", `RW 128 SPARSE "a"`, `RW 128 SPARSE "b"`),
		map[string][]byte{"a": build(t, disk, 4096, false, ""), "b": bad[:len(bad)-4096]}) // without its first grain
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, r.Size())
	n, err := r.ReadAt(p, 0)
	var e *blockdev.Error
	if !errors.As(err, &e) || e.Kind != blockdev.KindCorrupt || e.Off != 16*4096 || n != 16*4096 {
		t.Errorf("got %d, %v, want a corrupt image from byte %d on", n, err, 16*4096)
	}
	var last error
	for _, last = range r.Extents(8*4096, 16*4096) {
	}
	if !errors.As(last, &e) || e.Off != 16*4096 {
		t.Errorf("extents: got %v", last)
	}
}

// TestConcurrentReads reads from several goroutines, more grains than are kept.
func TestConcurrentReads(t *testing.T) {
	const grain = 16 << 10
	disk := pattern(600*grain, grain)
	f := build(t, disk, grain, true, describe("streamOptimized", fmt.Sprintf(`RW %d SPARSE "x"`, len(disk)/sectorSize)))
	src, err := open(f)
	if err != nil {
		t.Fatal(err)
	}
	src.(*Reader).parts[0].Source.(*sparse).packed.kept.Limit = 3
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 0))
			for range 200 {
				off := rng.IntN(len(disk))
				p := make([]byte, 1+rng.IntN(min(3*grain, len(disk)-off)))
				if _, err := src.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, disk[off:][:len(p)]) {
					t.Errorf("read of %d bytes at %d is wrong (%v)", len(p), off, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestReadDoesNotAllocate: a whole grain, and a part of one that is kept.
func TestReadDoesNotAllocate(t *testing.T) {
	const grain = 64 << 10
	disk := pattern(5*grain, grain)
	for _, packed := range []bool{false, true} {
		src, err := open(build(t, disk, grain, packed, describe("streamOptimized", fmt.Sprintf(`RW %d SPARSE "x"`, len(disk)/sectorSize))))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{4096, grain} {
			p := make([]byte, n)
			if allocs := testing.AllocsPerRun(100, func() {
				if _, err := src.ReadAt(p, grain); err != nil {
					t.Fatal(err)
				}
			}); allocs != 0 {
				t.Errorf("packed %v: a read of %d bytes allocates %v times, want 0", packed, n, allocs)
			}
		}
	}
}
