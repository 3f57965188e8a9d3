package qcow2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// mixed is a disk of runs that compress well, badly, or are zero.
func mixed(size int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, size)
	for at := 0; at < size; {
		n := min(size-at, 1+rng.IntN(200<<10))
		switch p := b[at : at+n]; rng.IntN(3) {
		case 0:
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
		case 1:
			for i := range p {
				p[i] = byte((at + i) / 100)
			}
		}
		at += n
	}
	return b
}

// written is the image that Write makes.
func written(t testing.TB, src blockdev.Source, o WriteOptions) []byte {
	t.Helper()
	w := new(growing)
	n, err := Write(t.Context(), w, src, o)
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(len(w.b)) {
		t.Fatalf("a file of %d bytes, but %d were written", n, len(w.b))
	}
	return w.b
}

// growing is a file in memory.
type growing struct{ b []byte }

func (g *growing) WriteAt(p []byte, off int64) (int, error) {
	if n := int(off) + len(p) - len(g.b); n > 0 {
		g.b = append(g.b, make([]byte, n)...)
	}
	return copy(g.b[off:], p), nil
}

func writeOptions() map[string]WriteOptions {
	return map[string]WriteOptions{"zlib": {Compression: Zlib}, "zstd": {Compression: Zstd}, "plain": {Plain: true}}
}

// TestWrite: what was written reads as the disk, with every cluster size.
func TestWrite(t *testing.T) {
	for name, o := range writeOptions() {
		for _, bits := range []int{0, 9, 10, 12, 14, 16, 18, 21} {
			for _, size := range []int{0, 512, 100<<10 + 512, 5<<20 + 1536} {
				if bits == 9 && size > 1<<20 {
					size = 1<<20 + 1536 // many L2 tables already
				}
				o.ClusterBits = bits
				t.Run(fmt.Sprintf("%s_%d_%d", name, bits, size), func(t *testing.T) {
					disk := mixed(size, uint64(bits))
					file := written(t, blockdev.MemOf(disk), o)
					r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
					if err != nil {
						t.Fatal(err)
					}
					got := make([]byte, r.Size())
					if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, disk) {
						t.Errorf("the image differs from the disk (%v)", err)
					}
				})
			}
		}
	}
}

// TestWriteIsRepeatable: the same disk gives the same image, however many
// workers there are.
func TestWriteIsRepeatable(t *testing.T) {
	disk := blockdev.MemOf(mixed(20<<20, 7))
	for name, o := range writeOptions() {
		o.Workers = 1
		one := written(t, disk, o)
		o.Workers = 5
		if !bytes.Equal(one, written(t, disk, o)) {
			t.Errorf("%s: five workers make another image than one", name)
		}
	}
}

// TestWriteSparse: holes and zeros are in no table, and take no place.
func TestWriteSparse(t *testing.T) {
	const size = 3 << 30 // several L2 tables
	src := &islands{size: size, at: []int64{0, 513 << 20, 2<<30 + 64<<10, size - 64<<10}}
	var last [2]int64
	file := written(t, src, WriteOptions{Plain: true, Progress: func(done, total int64) { last = [2]int64{done, total} }})
	if limit := 64 << 10 * (2 + 4 + 4 + 2); len(file) > limit {
		t.Errorf("a file of %d bytes, want at most %d", len(file), limit)
	}
	if want := [2]int64{4 << 20, 4 << 20}; last != want {
		t.Errorf("last progress: got %v, want %v", last, want)
	}
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for e, err := range r.Extents(0, size) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Kind == blockdev.Data {
			got = append(got, e.Off)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(src.at) {
		t.Errorf("data at %v, want %v", got, src.at)
	}
}

// TestWriteFails makes every read and write fail in turn. No worker is left
// behind; TestMain looks for them.
func TestWriteFails(t *testing.T) {
	disk := mixed(3<<20, 3)
	for n := 1; ; n++ {
		src := blockdevtest.Fail(blockdev.MemOf(disk), n, blockdev.KindIO)
		_, err := Write(t.Context(), new(growing), src, WriteOptions{Workers: 2})
		if !src.Fired() {
			if err != nil || n < 4 {
				t.Errorf("after %d failures: %v", n-1, err)
			}
			break
		}
		if !errors.Is(err, blockdevtest.ErrInjected) {
			t.Fatalf("read %d failed: %v", n, err)
		}
	}
	for n := 1; ; n++ {
		dst := blockdevtest.Fail(blockdev.NewMem(8<<20), n, blockdev.KindNoSpace)
		_, err := Write(t.Context(), dst, blockdev.MemOf(disk), WriteOptions{Workers: 2})
		if !dst.Fired() {
			if err != nil || n < 8 {
				t.Errorf("after %d failures: %v", n-1, err)
			}
			break
		}
		if !errors.Is(err, blockdevtest.ErrInjected) {
			t.Fatalf("write %d failed: %v", n, err)
		}
		// What was cut is not an image.
		var head [4]byte
		if _, err := dst.ReadAt(head[:], 0); err == nil && head == [4]byte{'Q', 'F', 'I', 0xfb} {
			t.Fatalf("write %d failed: the file has a header", n)
		}
	}
}

func TestWriteCancelled(t *testing.T) {
	why := errors.New("no longer wanted")
	for _, at := range []int64{0, 2 << 20, 5 << 20} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if at == 0 {
			cancel(why)
		}
		_, err := Write(ctx, new(growing), blockdev.MemOf(bytes.Repeat([]byte("x"), 40<<20)), WriteOptions{Progress: func(done, _ int64) {
			if done >= at {
				cancel(why)
			}
		}})
		if !errors.Is(err, why) {
			t.Errorf("cancelled at %d: got %v, want %v", at, err, why)
		}
		cancel(nil)
	}
}

func TestWriteRefuses(t *testing.T) {
	for _, bits := range []int{8, 22, -1} {
		if _, err := Write(t.Context(), new(growing), blockdev.NewMem(512), WriteOptions{ClusterBits: bits}); err == nil {
			t.Errorf("clusters of 2^%d bytes are written", bits)
		}
	}
	_, err := Write(t.Context(), new(growing), &islands{size: 1 << 40}, WriteOptions{ClusterBits: 9})
	if blockdev.KindOf(err) != blockdev.KindUnsupported {
		t.Errorf("a disk of 1 TiB in clusters of 512 bytes: %v", err)
	}
}

// FuzzWrite holds that what is written is read again, with any content.
func FuzzWrite(f *testing.F) {
	f.Add([]byte("some disk"), uint8(9), uint8(0), uint16(3))
	f.Add(bytes.Repeat([]byte{0, 1, 2, 3}, 1000), uint8(12), uint8(1), uint16(7))
	f.Add(make([]byte, 5000), uint8(16), uint8(2), uint16(40))
	f.Fuzz(func(t *testing.T, content []byte, bits, how uint8, repeat uint16) {
		o := WriteOptions{ClusterBits: 9 + int(bits%8), Plain: how%3 == 2, Workers: 2}
		if how%3 == 1 {
			o.Compression = Zstd
		}
		disk := bytes.Repeat(content, 1+int(repeat)%(1+(256<<10)/(1+len(content))))
		file := written(t, blockdev.MemOf(disk), o)
		r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(disk))
		if _, err := r.ReadAt(got, 0); err != nil || !bytes.Equal(got, disk) {
			t.Fatalf("the image differs from the disk (%v)", err)
		}
	})
}

// islands is a disk of holes but for 64 KiB of ones at each of some places.
type islands struct {
	size int64
	at   []int64
}

func (s *islands) Size() int64 { return s.size }

func (s *islands) ReadAt(p []byte, off int64) (int, error) {
	for i := range p {
		p[i] = 0
		for _, at := range s.at {
			if o := off + int64(i); o >= at && o < at+64<<10 {
				p[i] = 1
			}
		}
	}
	return len(p), nil
}

func (s *islands) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		join := blockdev.NewJoin(yield)
		for end := off + n; off < end; {
			e := blockdev.Extent{Off: off, Len: 64<<10 - off%(64<<10), Kind: blockdev.Hole}
			e.Len = min(e.Len, end-off)
			if slices.Contains(s.at, off&^(64<<10-1)) {
				e.Kind = blockdev.Data
			}
			if !join.Add(e) {
				return
			}
			off = e.End()
		}
		join.Done()
	}
}

// TestWindow: QEMU decompresses zlib with a window of 4 KiB, so that nothing
// may be gained from what is further back.
func TestWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 5))
	unit := make([]byte, 4196)
	for i := range unit {
		unit[i] = byte(rng.Uint32())
	}
	disk := bytes.Repeat(unit, 16)[:64<<10]
	h := check(t, written(t, blockdev.MemOf(disk), WriteOptions{Compression: Zlib}))
	if h.Data != 1 || h.Compressed != 0 {
		t.Errorf("a cluster that repeats itself after %d bytes: %+v", len(unit), h)
	}
	h = check(t, written(t, blockdev.MemOf(bytes.Repeat(unit[:4000], 17)[:64<<10]), WriteOptions{Compression: Zlib}))
	if h.Compressed != 1 {
		t.Errorf("a cluster that repeats itself after 4000 bytes: %+v", h)
	}
}
