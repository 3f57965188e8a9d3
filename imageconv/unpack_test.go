package imageconv

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
	"github.com/containerdisk/containerdisk/imageconv/packed"
)

// smallDisk is what testdata/small.qcow2 holds: testdata/README.
func smallDisk() []byte {
	b := make([]byte, 100352)
	for i := range 20000 {
		b[30000+i] = byte(i % 251)
	}
	return b
}

func testFile(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	z.Close()
	return out.Bytes()
}

// tarred packs files: name, content, name, content.
func tarred(files ...any) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		b := files[i+1].([]byte)
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: files[i].(string), Size: int64(len(b)), Mode: 0o644})
		w.Write(b)
	}
	w.Close()
	return out.Bytes()
}

// wantEmpty: nothing may be left in the scratch directory.
func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the scratch directory: %v (%v)", left, err)
	}
}

func TestOpenPacked(t *testing.T) {
	small := testFile(t, "small.qcow2")
	raw := disk(50_000)
	iso := place(100<<10, 0x8001, "CD001")
	for _, x := range []struct {
		name     string
		file     []byte
		disk     []byte
		packed   []Format
		format   Format
		readOnly bool
	}{
		{"gz", testFile(t, "small.qcow2.gz"), nil, []Format{Gzip}, QCOW2, false},
		{"bz2", testFile(t, "small.qcow2.bz2"), nil, []Format{Bzip2}, QCOW2, false},
		{"xz", testFile(t, "small.qcow2.xz"), nil, []Format{XZ}, QCOW2, false},
		{"zst", testFile(t, "small.qcow2.zst"), nil, []Format{Zstd}, QCOW2, false},
		{"tar", tarred("disk.qcow2", small), nil, []Format{Tar}, QCOW2, false},
		{"ova", tarred("vm.ovf", []byte("<Envelope/>"), "vm.mf", []byte("SHA1"), "disk.qcow2", small), nil, []Format{Tar}, QCOW2, false},
		{"tar.gz", gzipped(tarred("disk.qcow2", small)), nil, []Format{Gzip, Tar}, QCOW2, false},
		{"raw.gz", gzipped(raw), raw, []Format{Gzip}, Raw, false},
		{"raw.tar", tarred("disk.img", raw), raw, []Format{Tar}, Raw, false},
		{"iso.gz", gzipped(iso), iso, []Format{Gzip}, ISO, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			want := x.disk
			if want == nil {
				want = smallDisk()
			}
			want = append(bytes.Clone(want), make([]byte, -len(want)&511)...)
			path, p := writeFile(t, x.file), Policy{Scratch: t.TempDir()}
			blockdevtest.RunSource(t, want, func(t *testing.T) blockdev.Source { return openImage(t, path, p) })
			im := openImage(t, path, p)
			got := im.Info()
			if im.Format != x.packed[0] || got.Format != x.format || !slices.Equal(got.Packed, x.packed) || im.ReadOnly() != x.readOnly {
				t.Errorf("format %s, read-only %v, info %+v", im.Format, im.ReadOnly(), got)
			}
			if im.Format.Live() {
				t.Error("a packed image is live")
			}
			if got.FileSize != int64(len(x.file)) || got.VirtualSize != int64(len(want)) {
				t.Errorf("sizes: %+v", got)
			}
			wantEmpty(t, p.Scratch)
			// What was recorded opens it again.
			p.Format = im.Format
			openImage(t, path, p)
		})
	}
}

func TestPackedRefused(t *testing.T) {
	small := testFile(t, "small.qcow2")
	cut := testFile(t, "small.qcow2.gz")
	for _, x := range []struct {
		name string
		file []byte
		kind blockdev.Kind
		want string
	}{
		{"gz in gz", gzipped(gzipped(small)), blockdev.KindUnsupported, "packed in gzip: "},
		{"xz in gz", gzipped(testFile(t, "small.qcow2.xz")), blockdev.KindUnsupported, "a xz stream within what was packed already"},
		{"gz in tar", tarred("a", gzipped(small)), blockdev.KindUnsupported, "a gzip stream within"},
		{"tar in tar", tarred("a", tarred("b", small)), blockdev.KindUnsupported, "an archive within an archive"},
		{"tar in tar in gz", gzipped(tarred("a", tarred("b", small))), blockdev.KindUnsupported, "an archive within an archive"},
		{"several", tarred("a.qcow2", small, "b.qcow2", small), blockdev.KindCorrupt, `"a.qcow2", "b.qcow2"`},
		{"polyglot", gzipped(append(bytes.Clone(small), place(512, 0, "conectix")...)), blockdev.KindUnsupported, "several formats (qcow2, vhd)"},
		{"unreadable", gzipped(place(1024, 0, "WithouFreSpacExt")), blockdev.KindUnsupported, "parallels"},
		{"backing file", gzipped(backed()), blockdev.KindUnsupported, "backing file"},
		{"cut", cut[:len(cut)-1], blockdev.KindCorrupt, "unexpected EOF"},
		{"garbage behind", append(bytes.Clone(cut), "garbage"...), blockdev.KindCorrupt, "gzip: "},
		{"window", testFile(t, "window.xz"), blockdev.KindUnsupported, "needs more than 64 MiB of memory"},
		{"empty", gzipped(nil), blockdev.KindUnsupported, "the image is empty"},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := Policy{Scratch: t.TempDir(), AllowDir: t.TempDir()}
			_, err := Open(writeFile(t, x.file), p)
			if blockdev.KindOf(err) != x.kind || !strings.Contains(err.Error(), x.want) {
				t.Errorf("got %v (%v), want %v: %q", err, blockdev.KindOf(err), x.kind, x.want)
			}
			wantEmpty(t, p.Scratch)
		})
	}
	if _, err := Open(writeFile(t, cut), Policy{}); blockdev.KindOf(err) != blockdev.KindUnsupported || !strings.Contains(err.Error(), "no directory to unpack it into") {
		t.Errorf("without a scratch directory: got %v", err)
	}
	if _, err := Open(writeFile(t, cut), Policy{Scratch: "/nonexistent/dir"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("with a scratch directory that is not there: got %v", err)
	}
}

// backed is an image that names a backing file.
func backed() []byte {
	b := place(1<<16, 0, qcow2v3)
	copy(b[8:], "\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x05\x00\x00\x00\x10") // the name's place, cluster bits
	copy(b[100:], "\x00\x00\x00\x68")
	copy(b[512:], "below")
	return b
}

// unpackLimited unpacks a stream under other limits than usual.
func unpackLimited(t *testing.T, c packed.Compression, stream []byte, maxSize, maxData int64) (*os.File, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	u := newUnpacker(f, bytes.NewReader(stream), int64(len(stream)))
	u.maxSize, u.maxData = maxSize, maxData
	return f, u.run(t.Context(), c)
}

// TestBombs: how much may come out of a stream has a limit, and how much of it
// may take room another one.
func TestBombs(t *testing.T) {
	zeros, ones := gzipped(make([]byte, 20<<20)), gzipped(bytes.Repeat([]byte{1}, 20<<20))
	if f, err := unpackLimited(t, packed.Gzip, zeros, 20<<20, 0); err != nil {
		t.Errorf("zeros within the limit: %v", err)
	} else if used := allocated(t, f); used != 0 {
		t.Errorf("zeros take %d bytes", used)
	} else if st, _ := f.Stat(); st.Size() != 20<<20 {
		t.Errorf("zeros unpack to %d bytes", st.Size())
	}
	if _, err := unpackLimited(t, packed.Gzip, zeros, 20<<20-1, 0); !errors.Is(err, errLimit) {
		t.Errorf("zeros beyond the limit: got %v", err)
	}
	if _, err := unpackLimited(t, packed.Gzip, ones, 20<<20, 20<<20); err != nil {
		t.Errorf("data within the limit: %v", err)
	}
	f, err := unpackLimited(t, packed.Gzip, ones, 20<<20, 10<<20)
	if !errors.Is(err, errLimit) || allocated(t, f) > 11<<20 {
		t.Errorf("data beyond the limit: got %v, %d bytes used", err, allocated(t, f))
	}
}

func allocated(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// TestLimits of what is unpacked, which are promised in docs/SECURITY.md.
func TestLimits(t *testing.T) {
	for _, tt := range []struct{ packed, size, data int64 }{
		{0, 32 << 30, 1 << 30},
		{1 << 20, 36 << 30, 1<<30 + 100<<20},
		{1 << 40, 1 << 40, 1<<30 + 100<<40},
		{1<<63 - 1, 1 << 40, 1<<30 + 100<<40},
	} {
		if u := newUnpacker(nil, nil, tt.packed); u.maxSize != tt.size || u.maxData != tt.data {
			t.Errorf("%d bytes: got %d and %d, want %d and %d", tt.packed, u.maxSize, u.maxData, tt.size, tt.data)
		}
	}
}

// TestUnpackCancelled: the end of the context ends the unpacking.
func TestUnpackCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	p := Policy{Scratch: t.TempDir(), Progress: func(done, total int64) {
		if calls++; calls == 2 {
			cancel()
		}
	}}
	_, err := OpenContext(ctx, writeFile(t, gzipped(disk(20<<20))), p)
	if !errors.Is(err, context.Canceled) || calls != 2 {
		t.Errorf("got %v after %d calls", err, calls)
	}
	wantEmpty(t, p.Scratch)
}

// TestUnpackProgress: never back, and to the end.
func TestUnpackProgress(t *testing.T) {
	stream := gzipped(disk(20 << 20))
	last := int64(0)
	p := Policy{Scratch: t.TempDir(), Progress: func(done, total int64) {
		if done < last || total != int64(len(stream)) {
			t.Errorf("%d of %d after %d of %d", done, total, last, len(stream))
		}
		last = done
	}}
	openImage(t, writeFile(t, stream), p)
	if last != int64(len(stream)) {
		t.Errorf("the last call tells %d of %d", last, len(stream))
	}
}

// TestUnpackMemory: unpacking takes its buffers and no more.
func TestUnpackMemory(t *testing.T) {
	var before, after runtime.MemStats
	stream := gzipped(make([]byte, 64<<20))
	runtime.ReadMemStats(&before)
	if _, err := unpackLimited(t, packed.Gzip, stream, 1<<30, 0); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
		t.Errorf("%d bytes were allocated for a stream of 64 MiB", got)
	}
}

// TestFill tells the end of a stream from one that is cut.
func TestFill(t *testing.T) {
	p := make([]byte, 10)
	if n, err := fill(strings.NewReader("abc"), p); n != 3 || err != io.EOF {
		t.Errorf("end: got %d, %v", n, err)
	}
	z, err := gzip.NewReader(bytes.NewReader(gzipped([]byte("abc"))[:15]))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fill(z, p); err != io.ErrUnexpectedEOF {
		t.Errorf("cut: got %v", err)
	}
}
