package vhdx

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
	"github.com/containerdisk/containerdisk/internal/le"
)

func TestConformance(t *testing.T) {
	disk, im := small()
	blockdevtest.RunSource(t, disk, func(t *testing.T) blockdev.Source {
		src, err := openSource(im.b)
		if err != nil {
			t.Fatal(err)
		}
		return src
	})
}

func TestGUID(t *testing.T) {
	for id, want := range map[guid]string{
		guidBAT:      "2DC27766-F623-4200-9D64-115E9BFD4A08",
		guidMetadata: "8B7CA206-4790-4B9A-B8FE-575F050F886E",
	} {
		if got := id.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// realImages are those in testdata, made by other programs, by name.
func realImages(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.vhdx.gz")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no images found (%v)", err)
	}
	all := make(map[string][]byte)
	for _, path := range paths {
		packed, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		if all[strings.TrimSuffix(filepath.Base(path), ".vhdx.gz")], err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestRealImages: a disk of zeros but for a run of bytes, as qemu-img packed it
// (testdata/README).
func TestRealImages(t *testing.T) {
	want := make([]byte, 3168256)
	for i := 1_000_000; i < 1_030_000; i++ {
		want[i] = byte(i % 251)
	}
	for name, file := range realImages(t) {
		r := wantDisk(t, file, want)
		if got := r.Info(); got.Size != 3168256 || got.BlockSize != 1<<20 || got.LogicalSector != 512 ||
			got.Fixed != strings.Contains(name, "fixed") || got.Replayed != 0 {
			t.Errorf("%s: info: got %+v", name, got)
		}
	}
}

// TestGeometry: block and sector sizes, and disks of more than one chunk, whose
// BAT has entries of sector bitmaps in between.
func TestGeometry(t *testing.T) {
	for _, sector := range []uint32{512, 4096} {
		for block := uint32(1 << 20); block <= 8<<20; block *= 2 {
			disk := numbered(int(block) + 3*4096)
			wantDisk(t, build(disk, block, sector).b, disk)
		}
	}
	// A chunk of 512-byte sectors has 4 GiB: 4096 blocks of a MiB. The one behind
	// it is two entries on.
	_, im := small()
	copy(im.b[builtItems+8:], le64(6<<30))
	e := le.U64(builtBAT).Get(im.b)
	for _, block := range []int{0, 1, 2, 3, 4, 5} {
		im.setBAT(block, 0)
	}
	im.setBAT(4095, uint64(statePartiallyPresent)) // must not be looked at
	im.setBAT(4096, e)
	le.U64(builtBAT+4096*batEntryLen).Put(im.b, 0xffffffffffffffff) // the sector bitmap's
	r, err := open(im.b)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 1<<20)
	if _, err := r.ReadAt(p, 4096<<20); err != nil || !bytes.Equal(p, numbered(1<<20)) {
		t.Errorf("the block behind a chunk: wrong bytes (%v)", err)
	}
	im.setBAT(4095, 0)
	var got []string
	for e, err := range r.Extents(0, r.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.String())
	}
	if want := "[hole [0, 4294967296) data [4294967296, 4296015872) hole [4296015872, 6442450944)]"; fmt.Sprint(got) != want {
		t.Errorf("extents: got %v, want %s", got, want)
	}
}

// refusal is a change of a good image and what comes of it.
type refusal struct {
	name   string
	change func(im *image)
	kind   blockdev.Kind
	want   string
}

// refusals change one thing of a good image each.
func refusals() []refusal {
	both := func(change func(b []byte)) func(*image) { return func(im *image) { im.headers(change) } }
	table := func(change func(b []byte)) func(*image) { return func(im *image) { im.regions(change) } }
	region := func(i int, change func(e []byte)) func(*image) {
		return table(func(b []byte) { change(b[regionsHeaderLen+i*regionEntryLen:]) })
	}
	item := func(i int, change func(e []byte)) func(*image) {
		return func(im *image) { change(im.item(i)) }
	}
	value := func(at int, v []byte) func(*image) {
		return func(im *image) { copy(im.b[builtItems+at:], v) }
	}
	const corrupt, unsupported = blockdev.KindCorrupt, blockdev.KindUnsupported
	return []refusal{
		{"short", func(im *image) { im.b = im.b[:sectionLen-1] }, corrupt, "a file of 1048575 bytes"},
		{"identifier", func(im *image) { im.b[0] = 'V' }, corrupt, "not a VHDX image"},
		{"both headers", func(im *image) { im.b[header1At+100]++; im.b[header2At+100]++ }, corrupt, "both headers are damaged"},
		{"equal headers", both(func(b []byte) { headSequence.Put(b, 1) }), corrupt, ""}, // made different below
		{"version", both(func(b []byte) { headVersion.Put(b, 2) }), unsupported, "version 2"},
		{"log unaligned", both(func(b []byte) { headLogAt.Put(b, builtLog+4096) }), corrupt, "in whole MiB"},
		{"log in headers", both(func(b []byte) { headLogAt.Put(b, 0) }), corrupt, "behind the header section"},
		{"log outside", both(func(b []byte) { headLogAt.Put(b, 1<<63) }), corrupt, "is not within the file"},
		{"log of no length", both(func(b []byte) { headLogLen.Put(b, 0); b[headLogGUID] = 1 }), corrupt, "a log of 0 bytes"},
		{"log version", both(func(b []byte) { headLogVer.Put(b, 1); b[headLogGUID] = 1 }), unsupported, "log version 1"},
		{"log empty", both(func(b []byte) { b[headLogGUID] = 1 }), corrupt, "its log has no valid entry"},
		{"both tables", func(im *image) { im.b[regions1At+100]++; im.b[regions2At+100]++ }, corrupt, "both region tables are damaged"},
		{"regions", table(func(b []byte) { regionsCount.Put(b, 2048) }), corrupt, "the limit is 2047"},
		{"regions overflow", table(func(b []byte) { regionsCount.Put(b, 1<<32-1) }), corrupt, "the limit is 2047"},
		{"region twice", table(func(b []byte) { regionsCount.Put(b, 3); putRegion(b, 2, guidBAT, 5<<20, 1<<20) }), corrupt, "is there twice"},
		{"region unknown", table(func(b []byte) { regionsCount.Put(b, 3); putRegion(b, 2, testGUID, 5<<20, 1<<20) }),
			unsupported, "the unknown region 04030201-0605-0807-090A-0B0C0D0E0F10"},
		{"region unaligned", region(0, func(e []byte) { regionAt.Put(e, builtBAT+4096) }), corrupt, "in whole MiB"},
		{"region empty", region(0, func(e []byte) { regionLen.Put(e, 0) }), corrupt, "in whole MiB"},
		{"region outside", region(0, func(e []byte) { regionAt.Put(e, 1<<63) }), corrupt, "is not within the file"},
		{"region in headers", region(0, func(e []byte) { regionAt.Put(e, 0) }), corrupt, "overlaps"},
		{"regions overlap", region(0, func(e []byte) { regionLen.Put(e, 2<<20); regionAt.Put(e, builtLog) }), corrupt, "overlaps"},
		{"no BAT", table(func(b []byte) { regionsCount.Put(b, 0) }), corrupt, "no block allocation table"},
		{"no metadata", table(func(b []byte) { regionsCount.Put(b, 1) }), corrupt, "no metadata region"},
		{"no metadata table", func(im *image) { im.b[builtMetadata] = 0 }, corrupt, "no metadata table"},
		{"items", func(im *image) { metadataCount.Put(im.b[builtMetadata:], 2048) }, corrupt, "the limit is 2047"},
		{"item twice", item(4, func(e []byte) { copy(e, items()[3].id[:]) }), corrupt, "is there twice"},
		{"item unknown", item(4, func(e []byte) { copy(e, testGUID[:]) }), unsupported, "the unknown metadata 04030201"},
		{"item of a user", item(4, func(e []byte) { itemFlags.Put(e, itemUser|itemRequired) }), unsupported, "the user metadata"},
		{"item in table", item(1, func(e []byte) { itemAt.Put(e, 32) }), corrupt, "is not within its region"},
		{"item outside", item(1, func(e []byte) { itemAt.Put(e, 1<<32-1) }), corrupt, "is not within its region"},
		{"item length", item(1, func(e []byte) { itemLen.Put(e, 9) }), corrupt, "the virtual disk size has 9 bytes"},
		{"item missing", item(1, func(e []byte) { e[0]++; itemFlags.Put(e, 0) }), corrupt, "there is no virtual disk size"},
		{"parent", value(4, le32(paramHasParent)), unsupported, "a differencing disk"},
		{"parent locator", item(4, func(e []byte) { copy(e, items()[5].id[:]) }), unsupported, "a differencing disk"},
		{"block size 0", value(0, le32(0)), corrupt, "blocks of 0 bytes"},
		{"block size small", value(0, le32(512<<10)), corrupt, "must be a power of two from 1048576"},
		{"block size odd", value(0, le32(3<<20)), corrupt, "blocks of 3145728 bytes"},
		{"block size large", value(0, le32(512<<20)), corrupt, "to 268435456"},
		{"size", value(8, le64(maxDisk+512)), corrupt, "the limit of the format is 70368744177664"},
		{"size odd", value(8, le64(513)), corrupt, "no multiple of its sectors"},
		{"size allowed", value(8, le64(1<<40+512)), unsupported, "the limit is 1099511627776"},
		{"size and BAT", value(8, le64(1<<40)), corrupt, "a block allocation table of 1048576 bytes"},
		{"sectors", value(16, le32(1024)), corrupt, "logical sectors of 1024 bytes"},
	}
}

func TestRefused(t *testing.T) {
	for _, tt := range refusals() {
		t.Run(tt.name, func(t *testing.T) {
			_, im := small()
			tt.change(im)
			if tt.name == "equal headers" {
				im.b[header2At+headerLen-1]++
				sealHeader(im.b[header2At:])
				tt.want = "two headers with the sequence number 1"
			}
			_, err := open(im.b)
			if err == nil || blockdev.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a %v that contains %q", err, tt.kind, tt.want)
			}
		})
	}
}

// TestSpares: of what is there twice, one may be damaged.
func TestSpares(t *testing.T) {
	disk, im := small()
	for _, at := range []int{header1At, header2At, regions1At, regions2At} {
		im.b[at+50] ^= 0xff
		wantDisk(t, im.b, disk)
		im.b[at+50] ^= 0xff
	}
	// Equal sequence numbers are no contradiction in headers that are equal.
	copy(im.b[header2At:][:headerLen], im.b[header1At:])
	wantDisk(t, im.b, disk)
}

// TestDamagedBAT: a bad entry fails its block and no other.
func TestDamagedBAT(t *testing.T) {
	disk, im := small()
	good := le.U64(builtBAT).Get(im.b)
	for _, tt := range []struct {
		name  string
		entry uint64
		want  string
	}{
		{"partially present", good | 7, "in a parent image"},
		{"state 4", good&^7 | 4, "unknown state 4"},
		{"state 5", good&^7 | 5, "unknown state 5"},
		{"reserved", good | 8, "reserved bits 0x8"},
		{"far", 0xfffffffffff00006, "not within the file"},
		{"headers", 6, "overlaps"},
		{"log", builtLog | 6, "overlaps"},
		{"metadata", builtMetadata | 6, "overlaps"},
		{"BAT", builtBAT | 6, "overlaps"},
		{"end", uint64(len(im.b)) | 6, "not within the file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			im.setBAT(0, tt.entry)
			r, err := open(im.b)
			if err != nil {
				t.Fatal(err)
			}
			_, err = r.ReadAt(make([]byte, 100), 0)
			if blockdev.KindOf(err) != blockdev.KindCorrupt || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a corrupt image: %q", err, tt.want)
			}
			got := make([]byte, len(disk)-1<<20)
			if _, err := r.ReadAt(got, 1<<20); err != nil || !bytes.Equal(got, disk[1<<20:]) {
				t.Errorf("the other blocks: %v", err)
			}
		})
	}
}

// failing is a file one sector of which cannot be read.
type failing struct {
	io.ReaderAt
	bad int64
}

var errBad = errors.New("bad sector")

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off < f.bad+512 && off+int64(len(p)) > f.bad {
		return 0, errBad
	}
	return f.ReaderAt.ReadAt(p, off)
}

// TestReadErrors: what the storage says is no corrupt image.
func TestReadErrors(t *testing.T) {
	_, im := dirty()
	for _, at := range []int64{0, header1At, header2At, builtLog, builtLog + logSector, builtLog + 2*logSector,
		regions1At, builtMetadata, builtItems, builtBAT, builtBlocks} {
		r, err := Open(failing{bytes.NewReader(im.b), at}, int64(len(im.b)), Options{MaxSize: 1 << 40})
		if err == nil {
			_, err = r.ReadAt(make([]byte, r.Size()), 0)
		}
		if !errors.Is(err, errBad) || blockdev.KindOf(err) != blockdev.KindIO {
			t.Errorf("bad sector at %#x: got %v, want an I/O error", at, err)
		}
	}
}

func TestReadDoesNotAllocate(t *testing.T) {
	_, im := small()
	r, err := open(im.b)
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
