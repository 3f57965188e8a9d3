package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const testSize = 1 << 20

func openVolume(t *testing.T, path string) *Volume {
	t.Helper()
	v, err := OpenVolume(path, ReadWrite, self())
	if err != nil {
		t.Fatalf("OpenVolume: %v", err)
	}
	return v
}

// filling is a volume whose store holds content, as one that was hydrated.
func filling(t *testing.T, path, content string) *Volume {
	t.Helper()
	v := openVolume(t, path)
	if v.Complete() {
		t.Fatal("complete")
	}
	if err := v.Fill(testSize, Sparse); err != nil {
		t.Fatalf("Fill: %v", err)
	}
	if v.State.Fresh() {
		put(t, v.State, MapName, "map")
		if err := v.State.Begin(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := v.Disk.f.WriteAt([]byte(content), 0); err != nil {
		t.Fatal(err)
	}
	return v
}

func wantDisk(t *testing.T, v *Volume, content string) {
	t.Helper()
	b := make([]byte, len(content))
	if _, err := v.Disk.f.ReadAt(b, 0); err != nil || string(b) != content {
		t.Errorf("the disk holds %q, %v, want %q", b, err, content)
	}
	if v.Disk.Size != testSize {
		t.Errorf("the disk has %d bytes, want %d", v.Disk.Size, testSize)
	}
}

func TestVolumeLife(t *testing.T) {
	path := t.TempDir()
	if err := os.Mkdir(filepath.Join(path, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	v := filling(t, path, "begun")
	if err := v.State.Anchor(); err != nil {
		t.Fatal(err)
	}
	wantNames(t, path, fillName, "lost+found")
	closed(t, v)

	v = openVolume(t, path) // after a restart
	if v.Complete() || v.Disk != nil {
		t.Fatal("complete before it was published")
	}
	closed(t, v)
	v = filling(t, path, "whole")
	if m := v.Disk.Memory(); m != nil {
		if err := m.Save([]byte("a registration")); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Log("no extended attributes here")
	}
	untidy, err := v.Publish()
	if err != nil || untidy != nil {
		t.Fatalf("Publish: %v, untidy: %v", err, untidy)
	}
	wantNames(t, path, DiskName, "lost+found")
	wantDisk(t, v, "whole")
	closed(t, v)

	v = openVolume(t, path)
	defer v.Close()
	if !v.Complete() {
		t.Error("not complete after Publish")
	}
	wantDisk(t, v, "whole")
	if m := v.Disk.Memory(); m != nil {
		if b, err := m.Load(); err != nil || string(b) != "a registration" {
			t.Errorf("what was remembered while it was filled: %q, %v", b, err)
		}
	}
}

// Killed at each step of its life the volume goes on where it was, and disk.img
// is whole or absent.
func TestVolumeKilled(t *testing.T) {
	for _, test := range []struct {
		step     string
		complete bool
		fresh    bool
	}{
		{"made", false, true}, {"begun", false, false}, {"anchored", false, false},
		{"renamed", true, false}, {"synced", true, false}, {"tidied half", true, false}, {"published", true, false},
	} {
		t.Run(test.step, func(t *testing.T) {
			path, child := killed(t, test.step)
			if child {
				killVolume(t, path, test.step)
			}
			v := openVolume(t, path)
			if v.Complete() != test.complete {
				t.Fatalf("complete: %v", v.Complete())
			}
			if !test.complete {
				if err := v.Fill(testSize, Sparse); err != nil {
					t.Fatal(err)
				}
				if v.State.Fresh() != test.fresh {
					t.Errorf("fresh: %v", v.State.Fresh())
				}
				if test.fresh {
					put(t, v.State, MapName, "map")
					if err := v.State.Begin(); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := v.Publish(); err != nil {
					t.Fatal(err)
				}
			}
			if !test.fresh {
				wantDisk(t, v, "content")
			}
			closed(t, v)
			wantNames(t, path, DiskName)
		})
	}
}

// killVolume goes as far as the step and dies.
func killVolume(t *testing.T, path, step string) {
	t.Helper()
	v := openVolume(t, path)
	if err := v.Fill(testSize, Sparse); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Disk.f.WriteAt([]byte("content"), 0); err != nil {
		t.Fatal(err)
	}
	put(t, v.State, MapName, "map")
	for _, s := range []struct {
		step string
		do   func() error
	}{
		{"made", func() error { return nil }},
		{"begun", v.State.Begin},
		{"anchored", v.State.Anchor},
		{"renamed", v.rename},
		{"synced", func() error { return syncDir(path) }},
		{"tidied half", func() error {
			return errors.Join(v.State.rename(hidden(fillName)+".gone-1"), v.State.root.Remove(lockName))
		}},
		{"published", func() error { return os.RemoveAll(v.State.Dir()) }},
	} {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.step, err)
		}
		if s.step == step {
			die(t)
		}
	}
}

func TestVolumeHasOneOwner(t *testing.T) {
	path := t.TempDir()
	v := filling(t, path, "content")
	refused := func() {
		t.Helper()
		second, err := OpenVolume(path, ReadWrite, self())
		if err == nil {
			err = second.Fill(testSize, Sparse)
			closed(t, second)
		}
		var used *InUseError
		if !errors.As(err, &used) {
			t.Fatalf("a second owner got %v", err)
		}
		if !strings.Contains(used.Owner, self().Host) && hasAttrs(v.Disk.f) {
			t.Errorf("the owner is not named: %v", err)
		}
	}
	refused()
	if err := v.State.Anchor(); err != nil {
		t.Fatal(err)
	}
	refused()
	if _, err := v.Publish(); err != nil {
		t.Fatal(err)
	}
	refused()
	closed(t, v)
	v = openVolume(t, path)
	refused()
	closed(t, v)
	wantNames(t, path, DiskName)
}

// Those that only read have it together, and apart from one that writes.
func TestVolumeReaders(t *testing.T) {
	path := t.TempDir()
	v := filling(t, path, "content")
	if _, err := v.Publish(); err != nil {
		t.Fatal(err)
	}
	if r, err := OpenVolume(path, ReadOnly, self()); err == nil {
		t.Error("read while it is written")
		closed(t, r)
	}
	closed(t, v)
	for range 2 {
		r, err := OpenVolume(path, ReadOnly, self())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
	}
	if w, err := OpenVolume(path, ReadWrite, self()); err == nil {
		t.Error("written while it is read")
		closed(t, w)
	}
}

func TestVolumeRefused(t *testing.T) {
	write := func(name string, size int64) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			name := filepath.Join(path, name)
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(name, size); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		make func(t *testing.T, path string)
		want []string
	}{
		"foreign file":      {write("notes.txt", 1), []string{"notes.txt", "remove"}},
		"another disk":      {write("disk.qcow2", 1024), []string{"disk.qcow2"}},
		"hidden file":       {write(".config", 1), []string{".config"}},
		"directory":         {write("disk.img/x", 512), []string{"disk.img", "a directory"}},
		"empty":             {write("disk.img", 0), []string{"disk.img", "empty", "remove"}},
		"no whole sectors":  {write("disk.img", 1000), []string{"disk.img", "1000 bytes", "truncate"}},
		"our state, a file": {write(fillName, 1), []string{fillName, "remove"}},
		"two disks": {func(t *testing.T, path string) {
			write("disk.img", 512)(t, path)
			write(fillName+"/"+StoreName, 512)(t, path)
		}, []string{"disk.img", fillName + "/" + StoreName, "remove"}},
		"symlink": {func(t *testing.T, path string) {
			write("lost+found/disk.img", 512)(t, path)
			if err := os.Symlink("lost+found/disk.img", filepath.Join(path, DiskName)); err != nil {
				t.Fatal(err)
			}
		}, []string{"disk.img", "a symbolic link"}},
		"dangling symlink": {func(t *testing.T, path string) {
			if err := os.Symlink("nowhere", filepath.Join(path, DiskName)); err != nil {
				t.Fatal(err)
			}
		}, []string{"disk.img", "a symbolic link"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			test.make(t, path)
			before := names(t, path)
			v, err := OpenVolume(path, ReadWrite, self())
			if err == nil {
				err = v.Fill(testSize, Sparse)
				closed(t, v)
			}
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range test.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
			wantNames(t, path, before...)
		})
	}
}

// Beside a complete disk there may be what people put there.
func TestVolumeForeignBesideDisk(t *testing.T) {
	path := t.TempDir()
	v := filling(t, path, "content")
	if _, err := v.Publish(); err != nil {
		t.Fatal(err)
	}
	closed(t, v)
	if err := os.WriteFile(filepath.Join(path, "README"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	v = openVolume(t, path)
	defer v.Close()
	if !v.Complete() || len(v.Foreign) != 1 || v.Foreign[0] != "README" {
		t.Errorf("complete: %v, foreign: %q", v.Complete(), v.Foreign)
	}
}

// Somebody put a disk there while it was filled: neither is lost.
func TestVolumePublishReplacesNothing(t *testing.T) {
	path := t.TempDir()
	v := filling(t, path, "ours")
	disk := filepath.Join(path, DiskName)
	if err := os.WriteFile(disk, []byte("theirs"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Publish(); err == nil {
		t.Error("published over another disk")
	}
	closed(t, v)
	if b, err := os.ReadFile(disk); err != nil || string(b) != "theirs" {
		t.Errorf("their disk: %q, %v", b, err)
	}
	if v, err := OpenVolume(path, ReadWrite, self()); err == nil {
		closed(t, v)
		t.Error("two disks, and one was chosen")
	}
}

func TestVolumeTooSmall(t *testing.T) {
	path := t.TempDir()
	v := openVolume(t, path)
	defer v.Close()
	err := v.Fill(1<<60, Sparse)
	if err == nil || !strings.Contains(err.Error(), "larger volume") {
		t.Errorf("a disk that never fits: %v", err)
	}
	wantNames(t, path)
}

func TestVolumePreallocated(t *testing.T) {
	path := t.TempDir()
	v := openVolume(t, path)
	defer v.Close()
	if err := v.Fill(testSize, Preallocated); err != nil {
		if strings.Contains(err.Error(), "cannot set space aside") {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	if got := taken(t, v.State.Path(StoreName)); got < testSize {
		t.Errorf("%d bytes are set aside, want %d", got, testSize)
	}
}

func TestDiskGrows(t *testing.T) {
	path := t.TempDir()
	v := filling(t, path, "content")
	if _, err := v.Publish(); err != nil {
		t.Fatal(err)
	}
	if err := v.Disk.Grow(testSize / 2); err == nil || !strings.Contains(err.Error(), "DISK_SIZE") {
		t.Errorf("shrunk: %v", err)
	}
	if err := v.Disk.Grow(1 << 60); err == nil || !strings.Contains(err.Error(), "larger volume") {
		t.Errorf("grown beyond the volume: %v", err)
	}
	for _, same := range []int64{0, testSize} {
		if err := v.Disk.Grow(same); err != nil {
			t.Errorf("Grow(%d): %v", same, err)
		}
	}
	wantDisk(t, v, "content")
	if err := v.Disk.Grow(2 * testSize); err != nil {
		t.Fatal(err)
	}
	closed(t, v)
	v = openVolume(t, path)
	defer v.Close()
	if v.Disk.Size != 2*testSize {
		t.Errorf("%d bytes after growing", v.Disk.Size)
	}
	if err := v.Disk.Preallocate(); err != nil {
		t.Fatal(err)
	}
	if got := taken(t, v.Disk.Path); got < 2*testSize {
		t.Errorf("%d bytes are set aside, want %d", got, 2*testSize)
	}
}
