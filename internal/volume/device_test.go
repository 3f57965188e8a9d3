package volume

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
)

// taken is how many bytes of space a file has.
func taken(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// loop is a block device with size bytes of zeros.
func loop(t *testing.T, size int64) (device, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--show", "-f", file).CombinedOutput()
	if err != nil {
		missing := "no loop devices: %v: %s"
		if os.Getenv("E2E_REQUIRE") == "all" {
			t.Fatalf(missing, err, out)
		}
		t.Skipf(missing, err, out)
	}
	device = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v: %s", err, out)
		}
	})
	return device, file
}

func openDisk(t *testing.T, path string) *Disk {
	t.Helper()
	d, err := OpenDisk(path, ReadWrite, self())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDevice(t *testing.T) {
	device, file := loop(t, 16<<20)
	d := openDisk(t, device)
	if !d.Device || d.Size != 16<<20 {
		t.Errorf("device: %v, %d bytes", d.Device, d.Size)
	}
	if d.Memory() != nil {
		t.Error("a device has attributes")
	}
	var used *InUseError
	if second, err := OpenDisk(device, ReadWrite, self()); !errors.As(err, &used) {
		closed(t, second)
		t.Errorf("a second owner got %v", err)
	}
	// By another node flock would be another lock.
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		t.Fatal(err)
	}
	node := filepath.Join(t.TempDir(), "node")
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(st.Rdev)); err != nil {
		t.Logf("mknod: %v", err)
	} else if second, err := OpenDisk(node, ReadWrite, self()); !errors.As(err, &used) {
		closed(t, second)
		t.Errorf("a second owner by another node got %v", err)
	}
	if err := d.Grow(16 << 20); err != nil {
		t.Errorf("its own size: %v", err)
	}
	for _, size := range []int64{8 << 20, 32 << 20} {
		if err := d.Grow(size); err == nil || !strings.Contains(err.Error(), "DISK_SIZE") {
			t.Errorf("DISK_SIZE=%d: %v", size, err)
		}
	}
	if id := d.Identity(); !strings.Contains(id, file) || !strings.Contains(id, "16777216 bytes") {
		t.Errorf("identity %q", id)
	}
	closed(t, d)
}

// A device that is claimed can be written and given back, page by page.
func TestDeviceZero(t *testing.T) {
	device, _ := loop(t, 16<<20)
	d := openDisk(t, device)
	dev, err := d.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	p := bytes.Repeat([]byte{1}, 64<<10)
	for _, mode := range []blockdev.ZeroMode{blockdev.ZeroKeepAllocated, blockdev.ZeroMayUnmap} {
		if _, err := dev.WriteAt(p, 1<<20); err != nil {
			t.Fatal(err)
		}
		if err := dev.Zero(1<<20, 36<<10, mode); err != nil {
			t.Errorf("mode %d: %v", mode, err)
		}
		got := make([]byte, len(p))
		if _, err := dev.ReadAt(got, 1<<20); err != nil || !bytes.Equal(got[:36<<10], make([]byte, 36<<10)) || !bytes.Equal(got[36<<10:], p[36<<10:]) {
			t.Errorf("mode %d: not zeroed as it should be, %v", mode, err)
		}
	}
	// The lock lasts as long as the device.
	closed(t, d)
	var used *InUseError
	if second, err := OpenDisk(device, ReadWrite, self()); !errors.As(err, &used) {
		closed(t, second)
		t.Errorf("a second owner got %v", err)
	}
}

func TestDevicePopulated(t *testing.T) {
	device, _ := loop(t, 16<<20)
	other, _ := loop(t, 16<<20)
	d, o := openDisk(t, device), openDisk(t, other)
	defer d.Close()
	defer o.Close()
	parent := t.TempDir()
	s := made(t, parent)
	if done, err := s.Populated(d); done || err != nil {
		t.Errorf("before: %v, %v", done, err)
	}
	if err := s.SetPopulated(d); err != nil {
		t.Fatal(err)
	}
	closed(t, s)
	s, err := OpenState(parent, stateName, Self(otherBoot)) // or a loss of power would forget it
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if done, err := s.Populated(d); !done || err != nil {
		t.Errorf("after: %v, %v", done, err)
	}
	if done, err := s.Populated(o); done || err == nil || !strings.Contains(err.Error(), "another device") {
		t.Errorf("of another device: %v, %v", done, err)
	}
}

func TestBlank(t *testing.T) {
	const size = 64 << 20
	for name, off := range map[string]int64{
		"boot sector": 510, "superblock": 1024, "LVM label": 512, "before the end of the first part": 4<<20 - 1,
		"GPT at the end": size - 512, "last byte": size - 1, "a sample in between": size / 2,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Truncate(size); err != nil {
				t.Fatal(err)
			}
			d := openDisk(t, path)
			defer d.Close()
			if blank, err := d.Blank(); !blank || err != nil {
				t.Errorf("of zeros: %v, %v", blank, err)
			}
			if _, err := f.WriteAt([]byte{1}, off); err != nil {
				t.Fatal(err)
			}
			if blank, err := d.Blank(); blank || err != nil {
				t.Errorf("with a byte at %d: %v, %v", off, blank, err)
			}
		})
	}
}

// What a link or a pipe leads to is no disk, and nobody waits for its writer.
func TestDiskRefused(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		fifo: "a named pipe", "/dev/null": "a character device", dir: "a directory",
		filepath.Join(dir, "none"): "no such file",
	} {
		d, err := OpenDisk(path, ReadWrite, self())
		if err == nil {
			closed(t, d)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
