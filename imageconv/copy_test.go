package imageconv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func wantDisk(t *testing.T, d blockdev.Source, want []byte) {
	t.Helper()
	got := make([]byte, d.Size())
	if _, err := d.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:len(want)], want) || len(bytes.Trim(got[len(want):], "\x00")) > 0 {
		t.Error("the copy differs")
	}
}

func TestCopy(t *testing.T) {
	for _, size := range []int{1, 512, 4096, pieceSize, 3*pieceSize + 1000, 5 << 20} {
		for _, workers := range []int{0, 1, 3, 1000} {
			t.Run(fmt.Sprintf("%d_bytes_%d_workers", size, workers), func(t *testing.T) {
				src := disk(size)
				dst := blockdev.NewMem(int64(size) + 4096)
				var last [2]int64
				err := Copy(t.Context(), dst, blockdev.MemOf(src), CopyOptions{Workers: workers, Progress: func(done, total int64) {
					if done < last[0] || done > total || last[1] != 0 && total != last[1] {
						t.Errorf("progress %d of %d after %d of %d", done, total, last[0], last[1])
					}
					last = [2]int64{done, total}
				}})
				if err != nil {
					t.Fatal(err)
				}
				if want := [2]int64{int64(size), int64(size)}; last != want {
					t.Errorf("last progress: got %v, want %v", last, want)
				}
				wantDisk(t, dst, src)
			})
		}
	}
}

// TestCopySparse: holes of the source and zeros in its data become holes.
func TestCopySparse(t *testing.T) {
	const size = 8 << 20
	dir := t.TempDir()
	src, err := blockdev.CreateFile(filepath.Join(dir, "src"), size)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	data := disk(64 << 10)
	for _, off := range []int64{1 << 20, 5<<20 - 512} { // the second is not aligned
		if _, err := src.WriteAt(data, off); err != nil {
			t.Fatal(err)
		}
	}
	dst, err := blockdev.CreateFile(filepath.Join(dir, "dst"), size)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	var total int64
	if err := Copy(t.Context(), dst, src, CopyOptions{Progress: func(_, n int64) { total = n }}); err != nil {
		t.Fatal(err)
	}
	if want := int64(64<<10 + 68<<10); total != want { // in pages
		t.Errorf("%d bytes of data, want %d", total, want)
	}
	want := make([]byte, size)
	if _, err := src.ReadAt(want, 0); err != nil {
		t.Fatal(err)
	}
	wantDisk(t, dst, want)
	for e, err := range dst.Extents(0, size) {
		if err != nil {
			t.Fatal(err)
		}
		for off := e.Off; e.Kind == blockdev.Data && off < e.End(); off += zeroUnit {
			if page := want[off : off+zeroUnit]; bytes.Equal(page, zeros[:]) {
				t.Fatalf("zeros were written at %d", off)
			}
		}
	}
}

func TestCopyTooLarge(t *testing.T) {
	err := Copy(t.Context(), blockdev.NewMem(1024), blockdev.NewMem(1025), CopyOptions{})
	if blockdev.KindOf(err) != blockdev.KindOutOfRange {
		t.Errorf("got %v, want out of range", err)
	}
}

// TestCopyFails makes every operation fail in turn, of both sides.
func TestCopyFails(t *testing.T) {
	content := disk(2 << 20)
	for _, side := range []string{"source", "destination"} {
		failures := 0
		for n := 1; ; n++ {
			src := blockdevtest.Fail(blockdev.MemOf(bytes.Clone(content)), n, blockdev.KindNoSpace)
			dst := blockdevtest.Fail(blockdev.NewMem(2<<20), n, blockdev.KindNoSpace)
			failing := src
			if side == "source" {
				dst.Ops = 0
			} else {
				src.Ops, failing = 0, dst
			}
			err := Copy(t.Context(), dst, src, CopyOptions{Workers: 2})
			if !failing.Fired() {
				if err != nil {
					t.Errorf("%s: nothing failed, but: %v", side, err)
				}
				break
			}
			failures++
			if !errors.Is(err, blockdevtest.ErrInjected) || blockdev.KindOf(err) != blockdev.KindNoSpace {
				t.Fatalf("%s: operation %d failed: got %v", side, n, err)
			}
		}
		if failures < 8 {
			t.Errorf("%s: only %d operations", side, failures)
		}
	}
}

// cancelling ends a context after some reads.
type cancelling struct {
	blockdev.Source
	left   atomic.Int64
	cancel func()
}

func (c *cancelling) ReadAt(p []byte, off int64) (int, error) {
	if c.left.Add(-1) == 0 {
		c.cancel()
	}
	return c.Source.ReadAt(p, off)
}

func TestCopyCancelled(t *testing.T) {
	for _, reads := range []int64{1, 2, 5} {
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("no longer wanted")
		src := &cancelling{Source: blockdev.MemOf(disk(20 << 20)), cancel: func() { cancel(why) }}
		src.left.Store(reads)
		if err := Copy(ctx, blockdev.NewMem(20<<20), src, CopyOptions{Workers: 2}); !errors.Is(err, why) {
			t.Errorf("cancelled at read %d: got %v, want %v", reads, err, why)
		}
		if done := reads - src.left.Load(); done > reads+4 {
			t.Errorf("cancelled at read %d: %d were made", reads, done)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Copy(ctx, blockdev.NewMem(512), blockdev.NewMem(512), CopyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: got %v, want %v", err, context.Canceled)
	}
}

// TestCopyMarks: what Mark says is done is in the destination, and a Copy that
// starts there completes the disk.
func TestCopyMarks(t *testing.T) {
	content := disk(9 << 20)
	src := blockdev.MemOf(content)
	dst := blockdev.NewMem(9 << 20)
	var marks []int64
	got := make([]byte, 9<<20)
	err := Copy(t.Context(), dst, src, CopyOptions{Workers: 4, Mark: func(done int64) {
		if len(marks) > 0 && done <= marks[len(marks)-1] {
			t.Errorf("mark %d after %d", done, marks[len(marks)-1])
		}
		marks = append(marks, done)
		if _, err := dst.ReadAt(got[:done], 0); err != nil || !bytes.Equal(got[:done], content[:done]) {
			t.Errorf("the first %d bytes are said to be done and are not (%v)", done, err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(marks) < 2 || marks[len(marks)-1] != 9<<20 {
		t.Fatalf("marks %v", marks)
	}
	for _, start := range []int64{0, marks[0], marks[len(marks)/2], 9 << 20} {
		dst := blockdev.NewMem(9 << 20)
		var first, last [2]int64
		err := Copy(t.Context(), dst, src, CopyOptions{Start: start, Progress: func(done, total int64) {
			if first[1] == 0 {
				first = [2]int64{done, total}
			}
			last = [2]int64{done, total}
		}})
		if err != nil {
			t.Fatal(err)
		}
		if first[0] < start || last != [2]int64{9 << 20, 9 << 20} {
			t.Errorf("start %d: progress from %v to %v", start, first, last)
		}
		want := bytes.Clone(content)
		clear(want[:start]) // not touched again
		wantDisk(t, dst, want)
	}
}

// TestCopyDirty: a destination with content has none of it afterwards.
func TestCopyDirty(t *testing.T) {
	dir := t.TempDir()
	const size = 6 << 20
	src, err := blockdev.CreateFile(filepath.Join(dir, "src"), size)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	want := make([]byte, size)
	copy(want[1<<20:], disk(1<<20)) // zeros in it are shorter than zeroRun
	copy(want[2<<20:], bytes.Repeat([]byte{7}, 100<<10))
	copy(want[2<<20+300<<10:], bytes.Repeat([]byte{8}, 100<<10)) // zeros between that are longer
	if _, err := src.WriteAt(want[1<<20:3<<20], 1<<20); err != nil {
		t.Fatal(err)
	}
	dst := blockdev.MemOf(bytes.Repeat([]byte{0xff}, size))
	var last [2]int64
	err = Copy(t.Context(), dst, src, CopyOptions{Dirty: true, Progress: func(done, total int64) { last = [2]int64{done, total} }})
	if err != nil {
		t.Fatal(err)
	}
	wantDisk(t, dst, want)
	if last != [2]int64{size, size} {
		t.Errorf("last progress %v", last)
	}
}
