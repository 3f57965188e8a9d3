// Package blockdevtest is what every Source and Device is tested with: Run and
// RunSource hold them to the contract in package blockdev, Fail makes the n-th
// operation fail, and a Journal records the order of changes, to replay what a
// loss of power may leave of them.
package blockdevtest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// sector is the unit in bytes in which overlapping and torn writes show.
const sector = 512

// RunSource holds the source that open returns to the contract of
// blockdev.Source. content is what it must hold: best a few times the source's
// own unit, not a multiple of it, with zeros in between.
func RunSource(t *testing.T, content []byte, open func(*testing.T) blockdev.Source) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(*testing.T, blockdev.Source, []byte)
	}{
		{"size", testSize},
		{"read", testRead},
		{"read concurrently", testReadConcurrently},
		{"read out of range", testReadOutOfRange},
		{"extents", testExtents},
		{"extents stop early", testExtentsStop},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t), content) })
	}
}

// Run holds the device that open returns, a new one each time with that
// content, to the contract of blockdev.Device. It closes the devices.
func Run(t *testing.T, content []byte, open func(*testing.T) blockdev.Device) {
	t.Helper()
	opened := func(t *testing.T) blockdev.Device {
		dev := open(t)
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		return dev
	}
	RunSource(t, content, func(t *testing.T) blockdev.Source { return opened(t) })
	t.Run("caps", func(t *testing.T) { testCaps(t, opened(t)) })
	t.Run("read-only gate", func(t *testing.T) { testReadOnly(t, opened(t), content) })
	t.Run("closed", func(t *testing.T) { testClosed(t, open(t)) })
	if dev := opened(t); dev.Caps().ReadOnly {
		return
	}
	t.Run("change out of range", func(t *testing.T) { testChangeOutOfRange(t, opened(t), content) })
	for seed := range uint64(10) {
		t.Run("model", func(t *testing.T) { testModel(t, opened(t), content, seed) })
	}
	t.Run("write concurrently", func(t *testing.T) { testWriteConcurrently(t, opened(t)) })
}

func testSize(t *testing.T, src blockdev.Source, content []byte) {
	if got := src.Size(); got != int64(len(content)) {
		t.Fatalf("size: got %d, want %d", got, len(content))
	}
}

func testRead(t *testing.T, src blockdev.Source, content []byte) {
	size := len(content)
	for _, r := range [][2]int{{0, size}, {0, 0}, {size, 0}, {size - 1, 1}, {0, 1}, {size / 2, size - size/2}} {
		wantRead(t, src, content, r[0], r[1])
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		off := rng.IntN(size)
		wantRead(t, src, content, off, rng.IntN(size-off+1))
	}
}

// wantRead reads n bytes at off into a buffer that holds something else.
func wantRead(t testing.TB, src blockdev.Source, content []byte, off, n int) {
	t.Helper()
	p := bytes.Repeat([]byte{0xa5}, n)
	if got, err := src.ReadAt(p, int64(off)); err != nil || got != n {
		t.Fatalf("read of %d bytes at %d: got %d, %v", n, off, got, err)
	}
	if i := mismatch(p, content[off:][:n]); i >= 0 {
		t.Fatalf("read of %d bytes at %d: byte %d is %#02x, want %#02x", n, off, off+i, p[i], content[off+i])
	}
}

// mismatch is the first index at which a and b differ, or -1.
func mismatch(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func testReadConcurrently(t *testing.T, src blockdev.Source, content []byte) {
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 2))
			for range 50 {
				off := rng.IntN(len(content))
				p := make([]byte, rng.IntN(len(content)-off+1))
				if _, err := src.ReadAt(p, int64(off)); err != nil || mismatch(p, content[off:][:len(p)]) >= 0 {
					t.Errorf("read of %d bytes at %d is wrong (%v)", len(p), off, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// outside are ranges that are not within a disk of size bytes.
func outside(size int64) [][2]int64 {
	return [][2]int64{{-1, 1}, {-1, 0}, {size, 1}, {size - 1, 2}, {size + 1, 0}, {1<<63 - 1, 1}, {-1 << 63, 1}}
}

func testReadOutOfRange(t *testing.T, src blockdev.Source, _ []byte) {
	for _, r := range outside(src.Size()) {
		_, err := src.ReadAt(make([]byte, r[1]), r[0])
		wantKind(t, "read", r, err, blockdev.KindOutOfRange)
		n := 0
		for _, err := range src.Extents(r[0], r[1]) {
			wantKind(t, "extents", r, err, blockdev.KindOutOfRange)
			n++
		}
		if n != 1 {
			t.Errorf("extents of %d bytes at %d: %d of them, want an error and no more", r[1], r[0], n)
		}
	}
}

func wantKind(t testing.TB, op string, r [2]int64, err error, want blockdev.Kind) {
	t.Helper()
	var e *blockdev.Error
	if !errors.As(err, &e) || e.Kind != want {
		t.Errorf("%s of %d bytes at %d: got %v, want a blockdev.Error: %v", op, r[1], r[0], err, want)
	}
}

func testExtents(t *testing.T, src blockdev.Source, content []byte) {
	size := len(content)
	wantExtents(t, src, content, 0, size)
	wantExtents(t, src, content, 0, 0)
	wantExtents(t, src, content, size, 0)
	rng := rand.New(rand.NewPCG(1, 3))
	for range 50 {
		off := rng.IntN(size)
		wantExtents(t, src, content, off, rng.IntN(size-off+1))
	}
}

// wantExtents wants a map without gaps that calls nothing zero that is not.
func wantExtents(t testing.TB, src blockdev.Source, content []byte, off, n int) {
	t.Helper()
	at := int64(off)
	for e, err := range src.Extents(int64(off), int64(n)) {
		switch {
		case err != nil:
			t.Fatalf("extents of %d bytes at %d: %v", n, off, err)
		case e.Off != at || e.Len <= 0 || e.End() > int64(off+n):
			t.Fatalf("extents of %d bytes at %d: %v follows byte %d", n, off, e, at)
		case e.Kind > blockdev.Hole:
			t.Fatalf("extents of %d bytes at %d: %v", n, off, e)
		case e.Kind.ReadsZero() && !isZero(content[e.Off:e.End()]):
			t.Fatalf("extents of %d bytes at %d: %v is not zero", n, off, e)
		}
		at = e.End()
	}
	if at != int64(off+n) {
		t.Fatalf("extents of %d bytes at %d end at %d", n, off, at)
	}
}

func isZero(p []byte) bool { return !slices.ContainsFunc(p, func(b byte) bool { return b != 0 }) }

// testExtentsStop: the range function panics when a source goes on after false.
func testExtentsStop(t *testing.T, src blockdev.Source, _ []byte) {
	for e := range src.Extents(0, src.Size()) {
		if e.Off != 0 {
			t.Errorf("the first extent is %v", e)
		}
		break
	}
}
