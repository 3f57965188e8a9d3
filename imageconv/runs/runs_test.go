package runs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync/atomic"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

const unit = 1000

// counting counts the reads of a file.
type counting struct {
	io.ReaderAt
	reads atomic.Int64
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	c.reads.Add(1)
	return c.ReaderAt.ReadAt(p, off)
}

// testDisk is a disk of units: in the file one after the other but with a gap
// before the seventh, a hole, zeros, packed by an exclusive or, and damaged.
func testDisk(kinds string) (*Disk, *counting, []byte) {
	file := make([]byte, 0, 32*unit)
	disk := make([]byte, 0, len(kinds)*unit)
	hosts := make([]int64, len(kinds))
	for i, k := range kinds {
		b := bytes.Repeat([]byte{byte(i + 1)}, unit)
		switch k {
		case 'h', 'z':
			disk = append(disk, make([]byte, unit)...)
			continue
		case 'g':
			file = append(file, "a gap"...)
		}
		disk = append(disk, b...)
		if k == 'p' {
			b = bytes.Repeat([]byte{byte(i+1) ^ 0xff}, unit)
		}
		hosts[i] = int64(len(file))
		file = append(file, b...)
	}
	src := &counting{ReaderAt: bytes.NewReader(file)}
	d := &Disk{File: src, Bytes: int64(len(disk))}
	d.Lookup = func(off, n int64) (Run, error) {
		i, in := off/unit, off%unit
		r := Run{Len: min(n, unit-in), Host: hosts[i] + in}
		switch kinds[i] {
		case 'h':
			r.Kind = blockdev.Hole
		case 'z':
			r.Kind = blockdev.Zero
		case 'p':
			r.Packed = true
		case '!':
			return Run{}, fmt.Errorf("entry %d is damaged", i)
		}
		return r, nil
	}
	d.Unpack = func(p []byte, off int64, r Run) error {
		if int64(len(p)) != r.Len || off/unit != (off+r.Len-1)/unit {
			return fmt.Errorf("unpack of %d bytes at %d, run of %d", len(p), off, r.Len)
		}
		if _, err := src.ReadAt(p, r.Host); err != nil {
			return err
		}
		for i := range p {
			p[i] ^= 0xff
		}
		return nil
	}
	return d, src, disk
}

func TestConformance(t *testing.T) {
	_, _, content := testDisk("dddhzpgzdpph")
	blockdevtest.RunSource(t, content, func(t *testing.T) blockdev.Source {
		d, _, _ := testDisk("dddhzpgzdpph")
		return d
	})
}

// TestJoins: what is contiguous in the file is read at once, and nothing else.
func TestJoins(t *testing.T) {
	d, src, content := testDisk("dddggdh")
	p := make([]byte, len(content))
	if _, err := d.ReadAt(p, 0); err != nil || !bytes.Equal(p, content) {
		t.Fatalf("wrong bytes (%v)", err)
	}
	if got := src.reads.Load(); got != 3 {
		t.Errorf("the file was read %d times, want 3", got)
	}
	var got []string
	for e := range d.Extents(500, 6000) {
		got = append(got, e.String())
	}
	if want := "[data [500, 6000) hole [6000, 6500)]"; fmt.Sprint(got) != want {
		t.Errorf("extents: got %v, want %v", got, want)
	}
}

// TestDamage: a damaged entry spoils its own part only, and is a corrupt image;
// a file that cannot be read is not.
func TestDamage(t *testing.T) {
	d, _, content := testDisk("dd!dd")
	p := make([]byte, len(content))
	n, err := d.ReadAt(p, 0)
	if e := (*blockdev.Error)(nil); n != 2*unit || !errors.As(err, &e) || e.Kind != blockdev.KindCorrupt || e.Off != 2*unit {
		t.Errorf("got %d, %v", n, err)
	}
	if n, err := d.ReadAt(p[:2*unit], 3*unit); n != 2*unit || err != nil {
		t.Errorf("behind it: got %d, %v", n, err)
	}
	var last error
	for e, err := range d.Extents(0, d.Size()) {
		if last = err; err == nil && e.End() != 2*unit {
			t.Errorf("got %v before the damage", e)
		}
	}
	if blockdev.KindOf(last) != blockdev.KindCorrupt {
		t.Errorf("extents: got error %v", last)
	}
	d.File = bytes.NewReader(nil)
	if _, err := d.ReadAt(p[:1], 0); blockdev.KindOf(err) != blockdev.KindIO || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a file that became shorter: got %v", err)
	}
}

// holey is a file with data in its second 4 KiB of each 8.
type holey struct{ blockdev.Source }

func (h holey) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		for end := off + n; off < end; {
			e := blockdev.Extent{Off: off, Len: min(end-off, 4096-off%4096), Kind: blockdev.Hole}
			if off/4096%2 == 1 {
				e.Kind = blockdev.Data
			}
			if !yield(e, nil) {
				return
			}
			off += e.Len
		}
	}
}

// TestFileHoles: the holes of the file show where the disk says so.
func TestFileHoles(t *testing.T) {
	d := &Disk{File: holey{blockdev.NewMem(64 << 10)}, Bytes: 12 << 10}
	d.Lookup = func(off, n int64) (Run, error) { return Run{Len: n, Host: off + 7<<10}, nil }
	kinds := func() (list []blockdev.Extent) {
		for e, err := range d.Extents(0, d.Size()) {
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, e)
		}
		return list
	}
	if got, want := fmt.Sprint(kinds()), "[data [0, 12288)]"; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	d.FileHoles = true
	if got, want := fmt.Sprint(kinds()), "[data [0, 1024) hole [1024, 5120) data [5120, 9216) hole [9216, 12288)]"; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReadDoesNotAllocate(t *testing.T) {
	d, _, content := testDisk("dddhzg")
	p := make([]byte, len(content))
	if n := testing.AllocsPerRun(100, func() {
		if _, err := d.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a read allocates %v times, want 0", n)
	}
}
