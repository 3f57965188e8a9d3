package imageconv

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

func names(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// half copies the first part of a disk, as a process that is then killed would
// have, and returns what was said to be done.
func half(t *testing.T, dst string, content []byte, source string) int64 {
	t.Helper()
	p, err := OpenPartial(dst, int64(len(content)), source)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var marked int64
	err = Copy(ctx, p.Device(), blockdev.MemOf(content), CopyOptions{Workers: 2, Mark: func(done int64) {
		p.Mark(done)
		if marked = done; done > int64(len(content)/2) {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := p.Keep(); err != nil {
		t.Fatal(err)
	}
	return marked
}

// TestPartialResumes: what was done is not done again, and the disk is right.
func TestPartialResumes(t *testing.T) {
	dir := t.TempDir()
	dst := filepath.Join(dir, "disk.raw")
	content := disk(8 << 20)
	marked := half(t, dst, content, "source")
	if got := names(t, dir); got != ".disk.raw.partial .disk.raw.partial.journal" {
		t.Errorf("after the cut: %s", got)
	}
	p, err := OpenPartial(dst, 8<<20, "source")
	if err != nil {
		t.Fatal(err)
	}
	if p.Start() != marked || marked < 4<<20 {
		t.Errorf("starts at %d, want %d", p.Start(), marked)
	}
	if err := Copy(t.Context(), p.Device(), blockdev.MemOf(content), CopyOptions{Start: p.Start(), Mark: p.Mark}); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(false); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dst); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the disk differs (%v)", err)
	}
	if got := names(t, dir); got != "disk.raw" {
		t.Errorf("at the end: %s", got)
	}
}

// TestPartialBeginsAnew: the journal is not believed about anything else.
func TestPartialBeginsAnew(t *testing.T) {
	content := disk(4 << 20)
	for name, change := range map[string]func(t *testing.T, partial string) (size int64, source string){
		"another source": func(*testing.T, string) (int64, string) { return 4 << 20, "other" },
		"another size":   func(*testing.T, string) (int64, string) { return 5 << 20, "source" },
		"no journal": func(t *testing.T, partial string) (int64, string) {
			if err := os.Remove(partial + ".journal"); err != nil {
				t.Fatal(err)
			}
			return 4 << 20, "source"
		},
		"no file": func(t *testing.T, partial string) (int64, string) {
			if err := os.Remove(partial); err != nil {
				t.Fatal(err)
			}
			return 4 << 20, "source"
		},
		"a file of another length": func(t *testing.T, partial string) (int64, string) {
			if err := os.Truncate(partial, 1<<20); err != nil {
				t.Fatal(err)
			}
			return 4 << 20, "source"
		},
		"another boot": edit("boot ", "boot 0"),
		"a number cut": edit("\n", ""),
		"a word":       edit("done 0", "done x"),
		"too far":      edit("done 0", "done 9"),
		"negative":     edit("done 0", "done -"),
	} {
		t.Run(name, func(t *testing.T) {
			dst := filepath.Join(t.TempDir(), "disk")
			half(t, dst, content, "source")
			size, source := change(t, partialName(dst))
			p, err := OpenPartial(dst, size, source)
			if err != nil {
				t.Fatal(err)
			}
			if p.Start() != 0 || p.Device().Size() != size {
				t.Errorf("starts at %d of %d", p.Start(), p.Device().Size())
			}
			wantDisk(t, p.Device(), nil) // nothing is left of the old content
			if err := p.Discard(); err != nil {
				t.Fatal(err)
			}
			if got := names(t, filepath.Dir(dst)); got != "" {
				t.Errorf("left: %s", got)
			}
		})
	}
}

// edit replaces the last such text in the journal.
func edit(from, to string) func(t *testing.T, partial string) (int64, string) {
	return func(t *testing.T, partial string) (int64, string) {
		t.Helper()
		b, err := os.ReadFile(partial + ".journal")
		i := bytes.LastIndex(b, []byte(from))
		if err != nil || i < 0 {
			t.Fatalf("%q, %v", b, err)
		}
		b = append(append(bytes.Clone(b[:i]), to...), b[i+len(from):]...)
		if err := os.WriteFile(partial+".journal", b, 0o600); err != nil {
			t.Fatal(err)
		}
		return 4 << 20, "source"
	}
}

func TestPartialIsLocked(t *testing.T) {
	dst := filepath.Join(t.TempDir(), "disk")
	p, err := OpenPartial(dst, 512, "source")
	if err != nil {
		t.Fatal(err)
	}
	var busy *BusyError
	if _, err := OpenPartial(dst, 512, "source"); !errors.As(err, &busy) {
		t.Errorf("got %v, want a BusyError", err)
	}
	if err := p.Discard(); err != nil {
		t.Fatal(err)
	}
	p, err = OpenPartial(dst, 512, "source")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Discard(); err != nil {
		t.Fatal(err)
	}
}

// TestPublishReplaces only when it may.
func TestPublishReplaces(t *testing.T) {
	dst := filepath.Join(t.TempDir(), "disk")
	for _, replace := range []bool{false, true} {
		if err := os.WriteFile(dst, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := OpenPartial(dst, 512, "source")
		if err != nil {
			t.Fatal(err)
		}
		if err = p.Publish(replace); replace != (err == nil) || !replace && !errors.Is(err, fs.ErrExist) {
			t.Errorf("replace %t: %v", replace, err)
		}
		if b, err := os.ReadFile(dst); err != nil || replace != (len(b) == 512) {
			t.Errorf("replace %t: %d bytes, %v", replace, len(b), err)
		}
		if got := names(t, filepath.Dir(dst)); got != "disk" {
			t.Errorf("left: %s", got)
		}
	}
}
