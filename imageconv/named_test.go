package imageconv

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
)

// topSize is the disk of overlayImage, bytes.
const topSize = 32 << 10

// overlayImage is a qcow2 image of clusters of 512 bytes with nothing in it
// but, if data is set, one sector at data, and that names a backing file.
func overlayImage(name, format string, data int) []byte {
	be := binary.BigEndian
	b := make([]byte, 4*512)
	copy(b, "QFI\xfb\x00\x00\x00\x03")
	be.PutUint32(b[20:], 9)
	be.PutUint64(b[24:], topSize)
	be.PutUint32(b[36:], 1)
	be.PutUint64(b[40:], 512)
	be.PutUint32(b[96:], 4)
	be.PutUint32(b[100:], 104)
	if format != "" {
		be.PutUint32(b[104:], 0xe2792aca)
		be.PutUint32(b[108:], uint32(len(format)))
		copy(b[112:], format)
	}
	be.PutUint64(b[8:], 160)
	be.PutUint32(b[16:], uint32(len(name)))
	copy(b[160:], name)
	if data > 0 {
		be.PutUint64(b[512:], 1024)
		be.PutUint64(b[1024+data/512*8:], 1536)
		copy(b[1536:], bytes.Repeat([]byte{'0' + byte(data/512)}, 512))
	}
	return b
}

// dataFileImage is a qcow2 image whose first sector is in an external data file.
func dataFileImage(name string) []byte {
	be := binary.BigEndian
	b := overlayImage("", "", 0)
	be.PutUint64(b[8:], 0)
	be.PutUint64(b[72:], 1<<2)
	be.PutUint32(b[104:], 0x44415441)
	be.PutUint32(b[108:], uint32(len(name)))
	copy(b[112:], name)
	be.PutUint64(b[512:], 1024)
	be.PutUint64(b[1024:], 1<<63)
	return b
}

// files writes files below a new directory, which it returns.
func files(t *testing.T, all map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	for name, b := range all {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestChain: three images on a raw file that is shorter than they are.
func TestChain(t *testing.T) {
	raw := disk(20 << 10)
	dir := files(t, map[string][]byte{
		"a/top.qcow2":   overlayImage("../b/mid.qcow2", "qcow2", 512),
		"b/mid.qcow2":   overlayImage("./low.qcow2", "qcow2", 30<<10),
		"b/low.qcow2":   overlayImage("c/d/base", "raw", 1024),
		"b/c/d/base":    raw,
		"unrelated.txt": nil,
	})
	want := make([]byte, topSize)
	copy(want, raw)
	for _, at := range []int{512, 1024, 30 << 10} {
		copy(want[at:], bytes.Repeat([]byte{'0' + byte(at/512)}, 512))
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, way := range []struct{ image, allow string }{{dir, dir}, {link, link}, {link, dir}, {dir, link + "/"}, {dir, "/"}} {
		im := openImage(t, way.image+"/a/top.qcow2", Policy{AllowDir: way.allow})
		wantDisk(t, im, want)
		if got := im.Info(); got.BackingFile != "../b/mid.qcow2" || got.BackingFormat != "qcow2" {
			t.Errorf("info %+v", got)
		}
		if len(im.files) != 2 {
			t.Errorf("%d files are closed, want 2", len(im.files))
		}
	}
	if _, err := Open(dir+"/a/top.qcow2", Policy{}); err == nil || !strings.Contains(err.Error(), `backing file ("../b/mid.qcow2")`) {
		t.Errorf("without leave: %v", err)
	}
}

func TestDataFile(t *testing.T) {
	data := bytes.Repeat([]byte("data"), topSize/4)
	dir := files(t, map[string][]byte{"top": dataFileImage("sub/data.raw"), "sub/data.raw": data})
	im := openImage(t, dir+"/top", Policy{AllowDir: dir})
	want := make([]byte, topSize)
	copy(want, data[:512])
	wantDisk(t, im, want)
	if im.Info().DataFile != "sub/data.raw" {
		t.Errorf("info %+v", im.Info())
	}
	if _, err := Open(dir+"/top", Policy{}); err == nil || !strings.Contains(err.Error(), `external data file ("sub/data.raw")`) {
		t.Errorf("without leave: %v", err)
	}
}

// TestNamesRefused: what a name in an image leads to although a directory is
// allowed. The secret is never opened.
func TestNamesRefused(t *testing.T) {
	secret := files(t, map[string][]byte{"secret": make([]byte, topSize)})
	base := make([]byte, 4096)
	for _, x := range []struct {
		name, ref, format, want string
	}{
		{"no format", "base", "", "its format is not recorded"},
		{"unknown format", "base", "host_device", `unknown image format "host_device"`},
		{"nothing there", "none", "raw", "no such file"},
		{"absolute", secret + "/secret", "raw", "is not in the allowed directory"},
		{"dots", "../../../../../../../../../../etc/hostname", "raw", "escapes"},
		{"dots within", "sub/../../secret", "raw", "escapes"},
		{"link to a file", "link", "raw", "escapes"},
		{"link to a directory", "linkdir/secret", "raw", "escapes"},
		{"dots behind a link", "linkdir/../secret", "raw", "escapes"},
		{"json", `json:{"driver":"file","filename":"/etc/passwd"}`, "raw", "the name is that of a protocol"},
		{"nbd", "nbd:localhost:10809", "raw", "the name is that of a protocol"},
		{"file", "file:base", "raw", "the name is that of a protocol"},
		{"fat", "fat:rw:/etc", "raw", "the name is that of a protocol"},
		{"zero byte", "base\x00.img", "raw", "zero byte"},
		{"directory", "sub", "raw", "neither a file nor a block device"},
		{"FIFO", "fifo", "raw", "neither a file nor a block device"},
		{"itself", "top", "qcow2", "the chain of files is a loop"},
		{"loop", "loop1", "qcow2", "the chain of files is a loop"},
		{"through a hard link", "hard", "qcow2", "the chain of files is a loop"},
		{"eight", "deep1", "qcow2", "more than 8 files"},
		{"a raw disk as qcow2", "base", "qcow2", "not a qcow2 image"},
	} {
		t.Run(x.name, func(t *testing.T) {
			all := map[string][]byte{
				"top": overlayImage(x.ref, x.format, 512), "base": base, "sub/x": nil,
				"loop1": overlayImage("loop2", "qcow2", 512), "loop2": overlayImage("sub/../loop1", "qcow2", 512),
			}
			for i := 1; i < 8; i++ {
				all[fmt.Sprint("deep", i)] = overlayImage(fmt.Sprint("deep", i+1), "qcow2", 512)
			}
			all["deep8"] = base
			dir := files(t, all)
			if err := errors.Join(os.Symlink(secret+"/secret", dir+"/link"), os.Symlink(secret, dir+"/linkdir"),
				unix.Mkfifo(dir+"/fifo", 0o600), os.Link(dir+"/top", dir+"/hard")); err != nil {
				t.Fatal(err)
			}
			im, err := Open(dir+"/top", Policy{AllowDir: dir})
			if err == nil {
				im.Close()
			}
			if e := (*blockdev.Error)(nil); !errors.As(err, &e) || !strings.Contains(err.Error(), x.want) {
				t.Errorf("got error %v, want a blockdev.Error with %q", err, x.want)
			}
		})
	}
}

// TestChainDepth: as many files as the limit are good.
func TestChainDepth(t *testing.T) {
	all := map[string][]byte{fmt.Sprint(maxChain - 1): bytes.Repeat([]byte("z"), topSize)}
	for i := range maxChain - 1 {
		all[fmt.Sprint(i)] = overlayImage(fmt.Sprint(i+1), "qcow2", 0)
	}
	all[fmt.Sprint(maxChain-2)] = overlayImage(fmt.Sprint(maxChain-1), "raw", 0)
	dir := files(t, all)
	wantDisk(t, openImage(t, dir+"/0", Policy{AllowDir: dir}), all[fmt.Sprint(maxChain-1)])
}

// TestBackingIsNotProbed: a raw backing file that shows another format's header
// is read as what the image says it is.
func TestBackingIsNotProbed(t *testing.T) {
	raw := make([]byte, topSize)
	copy(raw, overlayImage("/etc/passwd", "raw", 0))
	dir := files(t, map[string][]byte{"top": overlayImage("base", "raw", 0), "base": raw})
	wantDisk(t, openImage(t, dir+"/top", Policy{AllowDir: dir}), raw)
}

func TestSnapshotOfOtherFormats(t *testing.T) {
	_, err := Open(writeFile(t, make([]byte, 512)), Policy{Snapshot: "x"})
	if blockdev.KindOf(err) != blockdev.KindUnsupported || !strings.Contains(err.Error(), "raw has no snapshots") {
		t.Errorf("got %v", err)
	}
}

// TestIdentity changes with every file that the disk is in, and with nothing
// else.
func TestIdentity(t *testing.T) {
	dir := files(t, map[string][]byte{"top": overlayImage("mid", "qcow2", 512), "mid": dataFileImage("data"), "data": make([]byte, topSize)})
	identity := func() string {
		t.Helper()
		return openImage(t, dir+"/top", Policy{AllowDir: dir}).Identity()
	}
	last := identity()
	if last != identity() {
		t.Error("it changes by itself")
	}
	for _, name := range []string{"top", "mid", "data"} {
		then := time.Now().Add(-time.Hour)
		if err := os.Chtimes(dir+"/"+name, then, then); err != nil {
			t.Fatal(err)
		}
		now := identity()
		if now == last {
			t.Errorf("%s was written, and the identity is the same: %s", name, now)
		}
		last = now
	}
}
