package imageconv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// disk is some data, zeros and data, each page telling where it is.
func disk(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		if i/4096%7 < 4 {
			b[i] = byte(i/4096) + byte(i)%251 + 1
		}
	}
	return b
}

func writeFile(t *testing.T, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func openImage(t *testing.T, path string, p Policy) *Image {
	t.Helper()
	im, err := Open(path, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := im.Close(); err != nil {
			t.Error(err)
		}
	})
	return im
}

// TestOpenRaw: raw disks of whole sectors and others, which are rounded up.
func TestOpenRaw(t *testing.T) {
	for _, size := range []int{512, 100 << 10, 100<<10 + 1, 100<<10 + 511, 1} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b := disk(size)
			path := writeFile(t, b)
			want := append(bytes.Clone(b), make([]byte, -size&511)...)
			blockdevtest.RunSource(t, want, func(t *testing.T) blockdev.Source { return openImage(t, path, Policy{}) })
			im := openImage(t, path, Policy{})
			if got := im.Info(); im.Format != Raw || got.VirtualSize != int64(len(want)) || got.FileSize != int64(size) {
				t.Errorf("format %s, info %+v", im.Format, got)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, path string
		policy     Policy
		want       string
	}{
		{"nothing", filepath.Join(dir, "none"), Policy{}, "no such file"},
		{"a directory", dir, Policy{}, "neither a file nor a block device"},
		{"a FIFO", fifo, Policy{}, "neither a file nor a block device"},
		{"an empty file", writeFile(t, nil), Policy{}, "the image is empty"},
		{"a large disk", writeFile(t, make([]byte, 1024)), Policy{MaxSize: 1023}, "the limit is 1023"},
		{"a known but unread format", writeFile(t, []byte("KDMV")), Policy{}, "vmdk"},
		{"a format that is none", writeFile(t, make([]byte, 512)), Policy{Format: "rwa"}, `unknown image format "rwa"`},
		{"a raw disk as qcow2", writeFile(t, make([]byte, 512)), Policy{Format: QCOW2}, "not a qcow2 image"},
	} {
		t.Run(x.name, func(t *testing.T) {
			im, err := Open(x.path, x.policy)
			if err == nil {
				im.Close()
			}
			var e *blockdev.Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), x.path) {
				t.Errorf("got error %v, want a blockdev.Error with the path and %q", err, x.want)
			}
		})
	}
}

// TestPolicyFormat: a raw disk that a guest has written is not looked into.
func TestPolicyFormat(t *testing.T) {
	path := writeFile(t, place(4096, 0, "QFI\xfb\x00\x00\x00\x03 written by the guest"))
	im := openImage(t, path, Policy{Format: Raw})
	p := make([]byte, 3)
	if _, err := im.ReadAt(p, 0); err != nil || string(p) != "QFI" || im.Size() != 4096 {
		t.Errorf("got %q of %d bytes, %v", p, im.Size(), err)
	}
}

// TestOpenQCOW2 opens what qemu-img made; qcow2's own tests have the rest.
func TestOpenQCOW2(t *testing.T) {
	const path = "testdata/small.qcow2" // qemu-img 7.2, see testdata/README
	im := openImage(t, path, Policy{})
	want := make([]byte, 100_352)
	for i := range 20_000 {
		want[30_000+i] = byte(i % 251)
	}
	blockdevtest.RunSource(t, want, func(t *testing.T) blockdev.Source { return openImage(t, path, Policy{}) })
	got, err := json.Marshal(im.Info())
	if err != nil {
		t.Fatal(err)
	}
	const info = `{"format":"qcow2","virtualSize":100352,"fileSize":%d,"diskUsage":%d,"version":3,"clusterSize":4096,` +
		`"compression":"zstd","features":["compression type","lazy refcounts"],"snapshots":1}`
	if want := fmt.Sprintf(info, im.Info().FileSize, im.Info().DiskUsage); string(got) != want {
		t.Errorf("info:\n got %s\nwant %s", got, want)
	}
	if _, err := Open(path, Policy{MaxSize: 100_351}); blockdev.KindOf(err) != blockdev.KindUnsupported {
		t.Errorf("open with a limit: got %v, want not supported", err)
	}
}
