package packed

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archive makes a tar archive of members.
func archive(t testing.TB, members ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range members {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(bytes.Repeat([]byte{'x'}, int(h.Size))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name string, size int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644}
}

func TestFind(t *testing.T) {
	long := strings.Repeat("long/", 60) + "disk.img" // PAX or GNU headers before it
	many := []tar.Header{}
	for i := range maxMembers + 1 {
		many = append(many, tar.Header{Typeflag: tar.TypeDir, Name: fmt.Sprint(i, "/"), Mode: 0o755})
	}
	for _, tt := range []struct {
		name    string
		archive []byte
		want    string // name of the member
		err     string
	}{
		{"one", archive(t, file("disk.img", 1000)), "disk.img", ""},
		{"long name", archive(t, file(long, 1000)), long, ""},
		{"directories and links", archive(t, tar.Header{Typeflag: tar.TypeDir, Name: "disk/"}, file("disk/a.qcow2", 513),
			tar.Header{Typeflag: tar.TypeSymlink, Name: "b.img", Linkname: "/etc/passwd"},
			tar.Header{Typeflag: tar.TypeLink, Name: "c.img", Linkname: "disk/a.qcow2"}), "disk/a.qcow2", ""},
		{"OVA", archive(t, file("vm.ovf", 10), file("vm.mf", 10), file("vm-disk1.vmdk", 700), file("vm.cert", 10)), "vm-disk1.vmdk", ""},
		{"two", archive(t, file("vm.ovf", 10), file("a.vmdk", 10), file("b.vmdk", 10)), "", `2 files that could be the image ("a.vmdk", "b.vmdk")`},
		{"none", archive(t, file("vm.ovf", 10)), "", "no file that could be an image"},
		{"empty", archive(t), "", "no file that could be an image"},
		{"many", archive(t, many...), "", "more than 1000 members"},
		{"cut", archive(t, file("disk.img", 1000))[:1024], "", "not within the archive"},
		{"header damaged", append([]byte("x"), archive(t, file("disk.img", 1000))[1:]...), "", "invalid tar header"},
		{"sparse, GNU", unzip(t, "sparse-gnu.tar.gz"), "", "stored as a sparse file"},
		{"sparse, PAX", unzip(t, "sparse-pax.tar.gz"), "", "stored as a sparse file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, err := Find(bytes.NewReader(tt.archive), int64(len(tt.archive)))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %+v, %v, want an error that contains %q", m, err, tt.err)
				}
				return
			}
			if err != nil || m.Name != tt.want {
				t.Fatalf("got %+v, %v, want %s", m, err, tt.want)
			}
			if got := tt.archive[m.Off:][:m.N]; len(bytes.Trim(got, "x")) > 0 || tt.archive[m.Off+m.N] == 'x' || tt.archive[m.Off-1] == 'x' {
				t.Errorf("the member is not at %d, %d bytes", m.Off, m.N)
			}
		})
	}
}

// TestFindLists: not more than a few names, and not whole ones.
func TestFindLists(t *testing.T) {
	var members []tar.Header
	for i := range 15 {
		members = append(members, file(strings.Repeat("n", 300)+fmt.Sprint(i), 1))
	}
	b := archive(t, members...)
	_, err := Find(bytes.NewReader(b), int64(len(b)))
	if err == nil || !strings.Contains(err.Error(), "5 more") || len(err.Error()) > 1500 {
		t.Errorf("got %v", err)
	}
}

func unzip(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzFind wants a member within the archive, or an error.
func FuzzFind(f *testing.F) {
	f.Add(archive(f, file("disk.img", 1000)))
	f.Add(archive(f, file("vm.ovf", 10), file(strings.Repeat("long/", 60)+"disk.vmdk", 10)))
	f.Add(unzip(f, "sparse-gnu.tar.gz"))
	f.Add(unzip(f, "sparse-pax.tar.gz"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Find(bytes.NewReader(b), int64(len(b)))
		if err == nil && (m.Off < 0 || m.N < 0 || m.Off > int64(len(b)) || m.N > int64(len(b))-m.Off) {
			t.Errorf("member %+v of an archive of %d bytes", m, len(b))
		}
	})
}

// streams are small streams of each compression, as the programs write them.
func streams(t testing.TB) map[Compression][]byte {
	t.Helper()
	all := make(map[Compression][]byte)
	for c, name := range map[Compression]string{Gzip: "gz", Bzip2: "bz2", XZ: "xz", Zstd: "zst"} {
		b, err := os.ReadFile("../testdata/small.qcow2." + name)
		if err != nil {
			t.Fatal(err)
		}
		all[c] = b
	}
	return all
}

func unpack(c Compression, stream []byte, limit int64) ([]byte, error) {
	z, err := NewReader(c, bytes.NewReader(stream))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	return io.ReadAll(io.LimitReader(z, limit))
}

// TestStreams: what comes out, of one stream and of two.
func TestStreams(t *testing.T) {
	want, err := os.ReadFile("../testdata/small.qcow2")
	if err != nil {
		t.Fatal(err)
	}
	for c, stream := range streams(t) {
		if got, err := unpack(c, stream, 1<<20); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: wrong bytes (%v)", c, err)
		}
		if got, err := unpack(c, append(bytes.Clone(stream), stream...), 1<<20); err != nil || !bytes.Equal(got, append(bytes.Clone(want), want...)) {
			t.Errorf("%s, two streams: wrong bytes (%v)", c, err)
		}
	}
	if _, err := NewReader("lz4", bytes.NewReader(nil)); err == nil {
		t.Error("an unknown compression has a reader")
	}
}

// TestWindow: a stream that would take much memory is refused by name.
func TestWindow(t *testing.T) {
	for c, name := range map[Compression]string{XZ: "xz", Zstd: "zst"} {
		b, err := os.ReadFile("../testdata/window." + name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unpack(c, b, 1<<20); err != ErrWindow {
			t.Errorf("%s: got %v, want %v", c, err, ErrWindow)
		}
	}
}

// TestDamagedStreams: a stream with a bit changed, or cut, gives an error or
// what it gave before. All of them have checksums.
func TestDamagedStreams(t *testing.T) {
	want, err := os.ReadFile("../testdata/small.qcow2")
	if err != nil {
		t.Fatal(err)
	}
	for c, stream := range streams(t) {
		for at := range stream {
			stream[at] ^= 1 << (at % 8)
			if got, err := unpack(c, stream, 1<<20); err == nil && !bytes.Equal(got, want) {
				t.Errorf("%s: byte %d changed: wrong bytes", c, at)
			}
			stream[at] ^= 1 << (at % 8)
			if at == 0 {
				continue // nothing at all
			}
			if got, err := unpack(c, stream[:at], 1<<20); err == nil {
				t.Errorf("%s: cut at %d: no error, %d bytes", c, at, len(got))
			}
		}
	}
}

// FuzzNewReader wants no panic, and of what can be read the same again.
func FuzzNewReader(f *testing.F) {
	for c, stream := range streams(f) {
		f.Add(string(c), stream)
	}
	f.Fuzz(func(t *testing.T, c string, stream []byte) {
		const limit = 1 << 20
		first, err1 := unpack(Compression(c), stream, limit)
		again, err2 := unpack(Compression(c), stream, limit)
		if err1 == nil && (err2 != nil || !bytes.Equal(first, again)) {
			t.Errorf("%s: %d bytes, and then %d (%v)", c, len(first), len(again), err2)
		}
	})
}
