package blockdev_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// content is some data, zeros, data and an end within a page.
func content() []byte {
	b := make([]byte, 300_032)
	for i := range b {
		if i/4096%5 < 3 {
			b[i] = byte(i/512) ^ byte(i)
		}
	}
	return b
}

func TestMem(t *testing.T) {
	blockdevtest.Run(t, content(), func(*testing.T) blockdev.Device {
		return blockdev.MemOf(bytes.Clone(content()))
	})
}

// fileSystems are directories on a disk's file system, if the tests' temporary
// directory is, and on tmpfs: the two differ in what they can.
func fileSystems(t *testing.T) map[string]string {
	t.Helper()
	dirs := map[string]string{"temporary directory": t.TempDir()}
	const shm = "/dev/shm"
	var st unix.Statfs_t
	if err := unix.Statfs(shm, &st); err == nil && st.Type == unix.TMPFS_MAGIC {
		dir, err := os.MkdirTemp(shm, "blockdev")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		dirs["tmpfs"] = dir
	}
	return dirs
}

func TestFile(t *testing.T) {
	for name, dir := range fileSystems(t) {
		t.Run(name, func(t *testing.T) {
			n := 0
			blockdevtest.Run(t, content(), func(t *testing.T) blockdev.Device {
				n++
				return newFile(t, filepath.Join(dir, string(rune('a'+n))), content())
			})
		})
	}
}

// newFile makes a device that holds b, sparse where b is zero.
func newFile(t *testing.T, path string, b []byte) *blockdev.File {
	t.Helper()
	d, err := blockdev.CreateFile(path, int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(b); off += 4096 {
		p := b[off:min(off+4096, len(b))]
		if len(bytes.Trim(p, "\x00")) == 0 {
			continue
		}
		if _, err := d.WriteAt(p, int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

func TestReadOnlyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := newFile(t, path, content()).Close(); err != nil {
		t.Fatal(err)
	}
	blockdevtest.Run(t, content(), func(t *testing.T) blockdev.Device {
		d, err := blockdev.OpenFile(path, blockdev.ReadOnly)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Caps().ReadOnly || d.Caps().Discard {
			t.Fatalf("caps of a read-only file: %+v", d.Caps())
		}
		if err := d.Zero(0, 512, blockdev.ZeroMayUnmap); blockdev.KindOf(err) != blockdev.KindReadOnly {
			t.Fatalf("zero: got %v, want read-only", err)
		}
		return d
	})
}

// plain is a source that is no device.
type plain struct{ blockdev.Source }

// closes counts what is closed.
type closes int

func (c *closes) Close() error {
	*c++
	return nil
}

func TestFrozen(t *testing.T) {
	for name, src := range map[string]blockdev.Source{
		"device": blockdev.MemOf(content()),
		"source": plain{blockdev.MemOf(content())},
	} {
		t.Run(name, func(t *testing.T) {
			opened, closed := closes(0), closes(0)
			t.Cleanup(func() { // the suite's own have closed the devices then
				if opened == 0 || opened != closed {
					t.Errorf("%d devices, and their source was closed %d times", opened, closed)
				}
			})
			blockdevtest.Run(t, content(), func(t *testing.T) blockdev.Device {
				opened++
				d := blockdev.NewFrozen(src, &closed)
				if c := d.Caps(); !c.ReadOnly || c.Discard || c.DiscardZeroes || c.FastZero {
					t.Fatalf("caps: %+v", c)
				}
				if err := d.TryWriteAt([]byte{1}, 0); blockdev.KindOf(err) != blockdev.KindReadOnly {
					t.Fatalf("write: got %v, want read-only", err)
				}
				return d
			})
		})
	}
}

func TestGuard(t *testing.T) {
	blockdevtest.Run(t, content(), func(*testing.T) blockdev.Device {
		return blockdev.NewGuard(blockdev.MemOf(bytes.Clone(content())), blockdev.ReadWrite)
	})
}
