package blockdev

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

func create(t *testing.T, size int64) *File {
	t.Helper()
	d, err := CreateFile(filepath.Join(t.TempDir(), "disk"), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func fill(t *testing.T, d Device, off, n int64) {
	t.Helper()
	if _, err := d.WriteAt(bytes.Repeat([]byte{0x5a}, int(n)), off); err != nil {
		t.Fatal(err)
	}
}

func extents(t *testing.T, src Source, off, n int64) []Extent {
	t.Helper()
	var list []Extent
	for e, err := range src.Extents(off, n) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

func wantExtents(t *testing.T, src Source, off, n int64, want ...Extent) {
	t.Helper()
	if got := extents(t, src, off, n); !slices.Equal(got, want) {
		t.Errorf("extents of %d bytes at %d: got %v, want %v", n, off, got, want)
	}
}

// used is how many bytes the file has on its file system.
func used(t *testing.T, d *File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(d.fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestFileSpace(t *testing.T) {
	d := create(t, 4*mib)
	wantExtents(t, d, 0, 4*mib, Extent{0, 4 * mib, Hole})
	fill(t, d, mib, mib)
	wantExtents(t, d, 0, 4*mib, Extent{0, mib, Hole}, Extent{mib, mib, Data}, Extent{2 * mib, 2 * mib, Hole})
	wantExtents(t, d, mib+5, 100, Extent{mib + 5, 100, Data})
	wantExtents(t, d, mib-5, 10, Extent{mib - 5, 5, Hole}, Extent{mib, 5, Data})
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	full := used(t, d)
	if err := d.Zero(mib, 256<<10, ZeroKeepAllocated); err != nil {
		t.Fatal(err)
	}
	if got := used(t, d); got < full {
		t.Errorf("zeroed but kept: the file uses %d bytes, had %d", got, full)
	}
	if err := d.Zero(mib, 256<<10, ZeroMayUnmap); err != nil {
		t.Fatal(err)
	}
	if got := used(t, d); got > full-256<<10 {
		t.Errorf("zeroed: the file uses %d bytes, had %d", got, full)
	}
	if err := d.Discard(2*mib-256<<10, 256<<10); err != nil {
		t.Fatal(err)
	}
	if got := used(t, d); got > full-512<<10 {
		t.Errorf("discarded: the file uses %d bytes, had %d", got, full)
	}
	wantExtents(t, d, mib, mib, Extent{mib, 256 << 10, Hole}, Extent{mib + 256<<10, 512 << 10, Data}, Extent{2*mib - 256<<10, 256 << 10, Hole})
}

// TestExtentsWhilePunching maps a file while holes come and go in it.
func TestExtentsWhilePunching(t *testing.T) {
	const size = 64 << 10
	d := create(t, size)
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		p := bytes.Repeat([]byte{1}, 4096)
		for i := int64(0); ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			off := i * 3 % 16 * 4096
			if _, err := d.WriteAt(p, off); err != nil {
				done <- err
				return
			}
			if err := d.Discard(i*7%16*4096, 4096); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 2000 {
		var at int64
		for e, err := range d.Extents(0, size) {
			if err != nil || e.Off != at || e.Len < 4096 || e.Len%4096 != 0 {
				t.Fatalf("%v follows byte %d (%v)", e, at, err)
			}
			at = e.End()
		}
		if at != size {
			t.Fatalf("the map ends at %d", at)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestTryReadAt(t *testing.T) {
	d := create(t, 4*mib)
	fill(t, d, 0, 4*mib)
	p := make([]byte, 4096)
	if err := d.TryReadAt(p, 8192); err != nil && !d.noNowait.Load() {
		t.Errorf("what was just written: %v", err)
	}
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(d.fd, 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if err := d.TryReadAt(p, 2*mib); !errors.Is(err, ErrWouldBlock) && !inMemory(t, d) {
		t.Errorf("cold: got %v, want %v", err, ErrWouldBlock)
	}
	if _, err := d.ReadAt(p, 2*mib); err != nil {
		t.Fatal(err)
	}
	clear(p)
	if err := d.TryReadAt(p, 2*mib); err == nil && p[4095] != 0x5a {
		t.Errorf("warm: got % x", p[4090:])
	} else if err != nil && !d.noNowait.Load() {
		t.Errorf("warm: got %v", err)
	}
	if err := d.TryReadAt(p, 4*mib-100); !errors.Is(err, ErrWouldBlock) {
		t.Errorf("across the end: got %v, want %v: ReadAt tells what is wrong", err, ErrWouldBlock)
	}
	d.noNowait.Store(true)
	if err := d.TryReadAt(p, 0); !errors.Is(err, ErrWouldBlock) {
		t.Errorf("on a file system without RWF_NOWAIT: got %v, want %v", err, ErrWouldBlock)
	}
}

// inMemory reports whether the file system has nothing but the page cache.
func inMemory(t *testing.T, d *File) bool {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Fstatfs(d.fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Type == unix.TMPFS_MAGIC
}

func TestTryReadAtDoesNotAllocate(t *testing.T) {
	d := create(t, mib)
	fill(t, d, 0, mib)
	g := NewGuard(d, ReadWrite)
	p := make([]byte, 4096)
	for name, dev := range map[string]Device{"file": d, "guard": g} {
		if n := testing.AllocsPerRun(100, func() {
			if err := dev.TryReadAt(p, 4096); err != nil && !errors.Is(err, ErrWouldBlock) {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: TryReadAt allocates %v times, want 0", name, n)
		}
	}
}

// TestFailedFlushStaysFailed: the kernel reports a lost page once.
func TestFailedFlushStaysFailed(t *testing.T) {
	d := create(t, mib)
	fill(t, d, 0, 4096)
	good := d.fd
	d.fd = -1 // fdatasync: EBADF
	if err := d.Flush(); err == nil {
		t.Fatal("flush: no error")
	}
	d.fd = good
	for name, err := range map[string]error{
		"flush": d.Flush(),
		"write": func() error { _, err := d.WriteAt(make([]byte, 512), 0); return err }(),
		"try":   d.TryWriteAt(make([]byte, 512), 0),
		"zero":  d.Zero(0, 512, ZeroMayUnmap),
		"trim":  d.Discard(0, 512),
	} {
		if !errors.Is(err, errSyncFailed) || KindOf(err) != KindIO {
			t.Errorf("%s after a failed flush: got %v, want %v", name, err, errSyncFailed)
		}
	}
	if _, err := d.ReadAt(make([]byte, 512), 0); err != nil {
		t.Errorf("read after a failed flush: %v", err)
	}
}

// TestFileShrinks: a disk whose file somebody cuts fails, and is not zeros.
func TestFileShrinks(t *testing.T) {
	d := create(t, mib)
	if err := os.Truncate(d.f.Name(), 512<<10); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadAt(make([]byte, 4096), 768<<10); KindOf(err) != KindIO {
		t.Errorf("read: got %v, want an I/O error", err)
	}
}

func TestOpenFileRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, fifo, filepath.Join(dir, "none"), "/dev/null"} {
		for _, access := range []Access{ReadOnly, ReadWrite} {
			d, err := OpenFile(path, access)
			if err == nil {
				t.Errorf("open %s: no error", path)
				d.Close()
			}
			if e := (*Error)(nil); !errors.As(err, &e) {
				t.Errorf("open %s: got %v, want a blockdev.Error", path, err)
			}
		}
	}
	if _, err := CreateFile(dir, 1); !errors.Is(err, os.ErrExist) {
		t.Errorf("create over a directory: got %v, want %v", err, os.ErrExist)
	}
}

// TestNoSpaceLimit writes over the process's file size limit, in a process of
// its own.
func TestNoSpaceLimit(t *testing.T) {
	const child = "BLOCKDEV_TEST_FILE_LIMIT"
	if path := os.Getenv(child); path != "" {
		signal.Ignore(syscall.SIGXFSZ)
		d, err := OpenFile(path, ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: mib, Max: mib}); err != nil {
			t.Fatal(err)
		}
		wantNoSpace(t, d, 2*mib)
		return
	}
	d := create(t, 4*mib)
	cmd := exec.Command(os.Args[0], "-test.run=^TestNoSpaceLimit$", "-test.v")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s", child, d.f.Name()))
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestNoSpace fills a small file system. It needs the right to mount one.
func TestNoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mount a tmpfs: %v (TestNoSpaceLimit has the same by other means)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	d, err := CreateFile(filepath.Join(dir, "disk"), 4*mib)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	fill(t, d, 0, mib)
	wantNoSpace(t, d, 2*mib)
	if err := d.Discard(0, mib); err != nil {
		t.Fatal(err)
	}
	fill(t, d, 2*mib, 512<<10) // there is room again
}

// wantNoSpace wants every way to write at off to be out of space.
func wantNoSpace(t *testing.T, d *File, off int64) {
	t.Helper()
	p := make([]byte, 64<<10)
	_, err := d.WriteAt(p, off)
	for name, err := range map[string]error{
		"write": err,
		"try":   d.TryWriteAt(p, off),
		"zero":  d.writeZeros(off, int64(len(p))),
	} {
		if e := (*Error)(nil); !errors.As(err, &e) || e.Kind != KindNoSpace {
			t.Errorf("%s: got %v, want no space", name, err)
		}
	}
}
