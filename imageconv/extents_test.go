package imageconv

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// flatVMDK is a descriptor of a disk whose extents are all of those files.
func flatVMDK(t *testing.T, names ...string) string {
	t.Helper()
	text := "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"twoGbMaxExtentFlat\"\n"
	for _, name := range names {
		text += fmt.Sprintf("RW %d FLAT %q 0\n", flatExtent/sectorSize, name)
	}
	return text
}

const flatExtent = 64 << 10 // bytes

// TestExtents: a disk in several files, one of them sparse.
func TestExtents(t *testing.T) {
	dir := t.TempDir()
	want := disk(2 * flatExtent)
	clear(want[flatExtent+8192:][:16384])
	for name, b := range map[string][]byte{"image-f001.vmdk": want[:flatExtent], "Other.VMDK": want[flatExtent:]} {
		writeSparse(t, filepath.Join(dir, name), b)
	}
	path := filepath.Join(dir, "image.img")
	text := flatVMDK(t, "image-f001.vmdk", "Other.VMDK")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	blockdevtest.RunSource(t, want, func(t *testing.T) blockdev.Source { return openImage(t, path, Policy{}) })
	info := openImage(t, path, Policy{}).Info()
	if info.Format != VMDK || info.FileSize != int64(2*flatExtent+len(text)) || fmt.Sprint(info.Features) != "[twoGbMaxExtentFlat]" {
		t.Errorf("got %+v", info)
	}
	var holes int64
	for e, err := range openImage(t, path, Policy{}).Extents(flatExtent, flatExtent) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind.ReadsZero() {
			holes += e.Len
		}
	}
	if holes < 16384 {
		t.Errorf("%d bytes of holes, want those of the file", holes)
	}
}

// writeSparse writes a file with holes where b has pages of zeros.
func writeSparse(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := blockdev.CreateFile(path, int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for off := 0; off < len(b); off += 4096 {
		page := b[off:min(off+4096, len(b))]
		if len(bytes.Trim(page, "\x00")) == 0 {
			continue
		}
		if _, err := f.WriteAt(page, int64(off)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestExtentsRefused: nothing is opened but parts of the image beside it
// (CVE-2022-47951). The files that are named exist.
func TestExtentsRefused(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret.vmdk")
	for _, path := range []string{outside, filepath.Join(dir, "secret"), filepath.Join(dir, "real.vmdk"), filepath.Join(dir, "image")} {
		if err := os.WriteFile(path, disk(flatExtent), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"out.vmdk": outside, "in.vmdk": "real.vmdk"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo.vmdk"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dir.vmdk"), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "image.vmdk")
	for name, want := range map[string]string{
		outside:                    "no plain name",
		"../" + filepath.Base(dir): "no plain name",
		"secret":                   "only a file whose name ends in .vmdk",
		"image":                    "only a file whose name ends in .vmdk",
		"json:{}":                  "only a file whose name ends in .vmdk",
		"out.vmdk":                 "too many levels of symbolic links",
		"in.vmdk":                  "too many levels of symbolic links",
		"fifo.vmdk":                "not a regular file",
		"dir.vmdk":                 "not a regular file",
		"none.vmdk":                "no such file",
	} {
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) {
			if err := os.WriteFile(path, []byte(flatVMDK(t, "real.vmdk", name)), 0o600); err != nil {
				t.Fatal(err)
			}
			before := openFiles(t)
			im, err := Open(path, Policy{})
			if err == nil {
				im.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want %q", err, want)
			}
			if after := openFiles(t); after != before {
				t.Errorf("%d files are open, before there were %d", after, before)
			}
		})
	}
}

// openFiles is how many files the process has open.
func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestExtentsOfPacked: an image that is no file itself has nothing beside it.
func TestExtentsOfPacked(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "real.vmdk"), disk(flatExtent), 0o600); err != nil {
		t.Fatal(err)
	}
	text := flatVMDK(t, "real.vmdk")
	m := blockdev.NewMem(int64(len(text)))
	if _, err := m.WriteAt([]byte(text), 0); err != nil {
		t.Fatal(err)
	}
	err := (&Image{path: filepath.Join(dir, "x")}).open(m, Policy{chain: &chain{path: filepath.Join(dir, "x")}})
	if err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("got %v", err)
	}
}
