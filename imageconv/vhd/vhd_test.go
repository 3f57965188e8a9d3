package vhd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

func TestConformance(t *testing.T) {
	sources := func(file []byte) func(*testing.T) blockdev.Source {
		return func(t *testing.T) blockdev.Source {
			r, err := open(file)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
	}
	disk, file := smallDynamic()
	t.Run("dynamic", func(t *testing.T) { blockdevtest.RunSource(t, disk, sources(file)) })
	disk = numbered(100 * sectorSize)
	t.Run("fixed", func(t *testing.T) { blockdevtest.RunSource(t, disk, sources(buildFixed(disk))) })
	t.Run("fixed in a source", func(t *testing.T) {
		blockdevtest.RunSource(t, disk, func(t *testing.T) blockdev.Source {
			file := blockdev.MemOf(buildFixed(disk))
			r, err := Open(file, file.Size(), Options{MaxSize: 1 << 40})
			if err != nil {
				t.Fatal(err)
			}
			return r
		})
	})
	t.Run("old footer", func(t *testing.T) {
		file := buildFixed(disk)
		blockdevtest.RunSource(t, disk, sources(file[:len(file)-1]))
	})
}

// TestRealImages: a disk of zeros but for a run of bytes, as qemu-img packed it
// (testdata/README).
func TestRealImages(t *testing.T) {
	for name, file := range realImages(t) {
		r, err := open(file)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := make([]byte, r.Size())
		for i := 1_000_000; i < 1_030_000; i++ {
			want[i] = byte(i % 251)
		}
		got := make([]byte, len(want))
		if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: wrong bytes (%v)", name, err)
		}
		if r.Size() != 3168256 {
			t.Errorf("%s: a disk of %d bytes, want 3168256", name, r.Size())
		}
	}
}

// TestExtents wants the sectors that have no bit and the blocks that are not
// there.
func TestExtents(t *testing.T) {
	_, file := smallDynamic()
	r, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for e, err := range r.Extents(0, r.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %d", e.Kind, e.Len/sectorSize))
	}
	want := "zero 1, data 4, zero 4, data 21, zero 1, data 96, zero 1, hole 256, data 193"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

// TestDiskSize: Virtual PC and QEMU go by the geometry, all others do not.
func TestDiskSize(t *testing.T) {
	for _, tt := range []struct {
		creator string
		c, h, s int
		want    int64
	}{
		{"vpc ", 10, 4, 17, 10 * 4 * 17 * 512},
		{"qemu", 10, 4, 17, 10 * 4 * 17 * 512},
		{"qemu", 65535, 16, 255, 1 << 20}, // cannot express more
		{"qem2", 10, 4, 17, 1 << 20},
		{"win ", 10, 4, 17, 1 << 20},
		{"d2v ", 10, 4, 17, 1 << 20},
		{"CTXS", 10, 4, 17, 1 << 20},
		{"tap\x00", 10, 4, 17, 1 << 20},
		{"vbox", 10, 4, 17, 1 << 20},
		{"wa\x00\x00", 10, 4, 17, 1 << 20},
	} {
		f := newFooter(Fixed, 1<<20)
		copy(f[footerCreator:], tt.creator)
		footerCylinders.Put(f, uint16(tt.c))
		footerHeads.Put(f, uint8(tt.h))
		footerSectors.Put(f, uint8(tt.s))
		f.seal()
		r, err := open(append(make([]byte, 1<<20), f...))
		if err != nil {
			t.Errorf("%q: %v", tt.creator, err)
			continue
		}
		if r.Size() != tt.want || r.Header().Creator != tt.creator {
			t.Errorf("%q: got a disk of %d bytes by %q, want %d", tt.creator, r.Size(), r.Header().Creator, tt.want)
		}
	}
}

// TestRefused changes one thing of a good image each.
func TestRefused(t *testing.T) {
	_, dynamic := smallDynamic()
	fixed := buildFixed(numbered(100 * sectorSize))
	both := func(change func(f footer)) func([]byte) []byte { // footer and copy
		return func(b []byte) []byte {
			for _, f := range []footer{b[:footerSize], b[len(b)-footerSize:]} {
				change(f)
				f.seal()
			}
			return b
		}
	}
	last := func(change func(f footer)) func([]byte) []byte {
		return func(b []byte) []byte {
			f := footer(b[len(b)-footerSize:])
			change(f)
			f.seal()
			return b
		}
	}
	header := func(change func(b []byte)) func([]byte) []byte {
		return func(b []byte) []byte {
			change(b[builtHeader:])
			sealDynamic(b[builtHeader:][:dynamicSize])
			return b
		}
	}
	for _, tt := range []struct {
		name   string
		file   []byte
		change func([]byte) []byte
		kind   blockdev.Kind
		want   string
	}{
		{"empty", fixed, func([]byte) []byte { return nil }, blockdev.KindCorrupt, "a file of 0 bytes"},
		{"no footer", fixed, func(b []byte) []byte { return b[:99*sectorSize] }, blockdev.KindCorrupt, "no footer"},
		{"footer checksum", fixed, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, blockdev.KindCorrupt, "the footer has a wrong checksum"},
		{"copy checksum", dynamic, func(b []byte) []byte { b[footerSize-1] ^= 1; return b }, blockdev.KindCorrupt, "the copy of the footer"},
		{"copy missing", dynamic, func(b []byte) []byte { clear(b[:8]); return b }, blockdev.KindCorrupt, "without a copy of the footer"},
		{"copy of a fixed disk", dynamic, both(func(f footer) { footerType.Put(f, uint32(Fixed)) }), blockdev.KindCorrupt, "which has none"},
		{"copy differs", dynamic, last(func(f footer) { footerCurrentSize.Put(f, 512) }), blockdev.KindCorrupt, "differ in the current size"},
		{"dynamic in fixed", dynamic, func(b []byte) []byte { return append(b, newFooter(Fixed, 512)...) }, blockdev.KindCorrupt, "differ in the data offset"},
		{"version", fixed, last(func(f footer) { footerVersion.Put(f, 0x20001) }), blockdev.KindUnsupported, "version 2.1"},
		{"differencing", dynamic, both(func(f footer) { footerType.Put(f, uint32(Differencing)) }), blockdev.KindUnsupported, "a differencing disk"},
		{"type", dynamic, both(func(f footer) { footerType.Put(f, 5) }), blockdev.KindUnsupported, "disk type 5"},
		{"size", dynamic, both(func(f footer) { footerCurrentSize.Put(f, uint64(maxDisk)+512) }), blockdev.KindCorrupt, "the limit of the format"},
		{"size overflow", dynamic, both(func(f footer) { footerCurrentSize.Put(f, 1<<63) }), blockdev.KindCorrupt, "the limit of the format"},
		{"size limit", dynamic, both(func(f footer) { footerCurrentSize.Put(f, 1<<40+512) }), blockdev.KindCorrupt, "table of 5 entries"},
		{"fixed too short", fixed, last(func(f footer) { footerCurrentSize.Put(f, 101*512) }), blockdev.KindCorrupt, "the file has"},
		{"fixed with header", fixed, last(func(f footer) { footerDataOffset.Put(f, 512) }), blockdev.KindCorrupt, "a fixed disk with a header"},
		{"header outside", dynamic, both(func(f footer) { footerDataOffset.Put(f, 1<<63) }), blockdev.KindCorrupt, "is not within the file"},
		{"header overflow", dynamic, both(func(f footer) { footerDataOffset.Put(f, 1<<64-1) }), blockdev.KindCorrupt, "is not within the file"},
		{"no header", dynamic, both(func(f footer) { footerDataOffset.Put(f, 0) }), blockdev.KindCorrupt, "no dynamic disk header"},
		{"header checksum", dynamic, func(b []byte) []byte { b[builtHeader+100] ^= 1; return b }, blockdev.KindCorrupt, "header has a wrong checksum"},
		{"header version", dynamic, header(func(b []byte) { dynamicVersion.Put(b, 0x20000) }), blockdev.KindUnsupported, "header version 2.0"},
		{"block size", dynamic, header(func(b []byte) { dynamicBlockSize.Put(b, 3<<20) }), blockdev.KindCorrupt, "no power of two"},
		{"no block size", dynamic, header(func(b []byte) { dynamicBlockSize.Put(b, 0) }), blockdev.KindCorrupt, "no power of two"},
		{"small blocks", dynamic, header(func(b []byte) { dynamicBlockSize.Put(b, minBlock/2) }), blockdev.KindUnsupported, "must be 65536 to"},
		{"large blocks", dynamic, header(func(b []byte) { dynamicBlockSize.Put(b, 1<<31) }), blockdev.KindUnsupported, "to 268435456"},
		{"table unaligned", dynamic, header(func(b []byte) { dynamicTableOffset.Put(b, builtBAT+4) }), blockdev.KindCorrupt, "not aligned"},
		{"table outside", dynamic, header(func(b []byte) { dynamicTableOffset.Put(b, 1<<63) }), blockdev.KindCorrupt, "is not within the file"},
		{"table too long", dynamic, header(func(b []byte) { dynamicTableEntries.Put(b, 1<<32-1) }), blockdev.KindCorrupt, "is not within the file"},
		{"table too short", dynamic, header(func(b []byte) { dynamicTableEntries.Put(b, 4) }), blockdev.KindCorrupt, "table of 4 entries"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := open(tt.change(bytes.Clone(tt.file)))
			if err == nil || blockdev.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a %v that contains %q", err, tt.kind, tt.want)
			}
		})
	}
	if _, err := Open(bytes.NewReader(fixed), int64(len(fixed)), Options{MaxSize: 100*sectorSize - 1}); blockdev.KindOf(err) != blockdev.KindUnsupported {
		t.Errorf("a disk larger than allowed: got %v", err)
	}
}

// TestFooterLost: a dynamic image that lost its end can be read by the copy.
func TestFooterLost(t *testing.T) {
	disk, file := smallDynamic()
	for name, file := range map[string][]byte{
		"cut": file[:len(file)-footerSize], "damaged": append(bytes.Clone(file[:len(file)-1]), 1),
	} {
		r, err := open(file)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := make([]byte, len(disk))
		if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, disk) {
			t.Errorf("%s: wrong bytes (%v)", name, err)
		}
	}
}

// TestDamagedTable: a bad entry fails its block and no other.
func TestDamagedTable(t *testing.T) {
	disk, good := smallDynamic()
	for _, tt := range []struct {
		name  string
		entry uint32
		want  string
	}{
		{"far", 0xfffffffe, "not within the file"},
		{"at the end", uint32(len(good)/sectorSize) - 1, "not within the file"},
		{"cut", uint32(len(good)/sectorSize) - 6, ""}, // data within, but not all of it
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := bytes.Clone(good)
			file[builtBAT], file[builtBAT+1] = byte(tt.entry>>24), byte(tt.entry>>16)
			file[builtBAT+2], file[builtBAT+3] = byte(tt.entry>>8), byte(tt.entry)
			r, err := open(file)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = r.ReadAt(make([]byte, minBlock), 0); err == nil && tt.want == "" {
				t.Fatal("a block that is not in the file was read")
			}
			if err != nil && blockdev.KindOf(err) != blockdev.KindCorrupt || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a corrupt image: %q", err, tt.want)
			}
			got := make([]byte, len(disk)-minBlock)
			if _, err := r.ReadAt(got, minBlock); err != nil || !bytes.Equal(got, disk[minBlock:]) {
				t.Errorf("the other blocks: %v", err)
			}
			checkSane(t, file)
		})
	}
}

// failing is a file that cannot be read from an offset on.
type failing struct {
	io.ReaderAt
	from int64
}

var errBad = errors.New("bad sector")

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.from && off < f.from+sectorSize {
		return 0, errBad
	}
	return f.ReaderAt.ReadAt(p, off)
}

// TestReadErrors: what the storage says is no corrupt image.
func TestReadErrors(t *testing.T) {
	_, file := smallDynamic()
	for at := int64(0); at < int64(len(file)); at += sectorSize {
		r, err := Open(failing{bytes.NewReader(file), at}, int64(len(file)), Options{MaxSize: 1 << 40})
		if err == nil {
			_, err = r.ReadAt(make([]byte, r.Size()), 0)
		}
		if err != nil && (!errors.Is(err, errBad) || blockdev.KindOf(err) != blockdev.KindIO) {
			t.Fatalf("sector at %d: got %v, want an I/O error", at, err)
		}
		if err == nil && at < builtBAT+sectorSize {
			t.Fatalf("sector at %d: no error", at)
		}
	}
}

func TestReadDoesNotAllocate(t *testing.T) {
	_, file := smallDynamic()
	r, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := r.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a read allocates %v times, want 0", n)
	}
}
