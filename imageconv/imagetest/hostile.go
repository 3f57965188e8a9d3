package imagetest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
)

// MaxTime is how long a small file may keep us busy, with the fuzzer's
// instrumentation on a slow machine.
const MaxTime = 5 * time.Second

// CheckSane opens an arbitrary file and wants what must hold for any: errors
// are of the right type, extents leave no gaps, what they call zeros reads as
// zeros, and a read in pieces gives what one read gives. It returns the open
// image, or nil, so that the caller can look at its memory.
func CheckSane(t testing.TB, open Open, file []byte) blockdev.Source {
	t.Helper()
	begin := time.Now()
	src, err := open(file)
	if err != nil {
		WantError(t, err)
		return nil
	}
	var off int64
	seen := 0
	for e, err := range src.Extents(0, src.Size()) {
		if err != nil {
			WantError(t, err)
			break
		}
		if e.Off != off || e.Len <= 0 || e.End() > src.Size() {
			t.Fatalf("extent %v of a disk of %d bytes follows %d", e, src.Size(), off)
		}
		off = e.End()
		checkExtent(t, src, e)
		if seen++; seen == 100 {
			break
		}
	}
	checkPieces(t, src)
	if d := time.Since(begin); d > MaxTime {
		t.Fatalf("a file of %d bytes took %v", len(file), d)
	}
	return src
}

// WantError wants an error that a Source may give.
func WantError(t testing.TB, err error) {
	t.Helper()
	var e *blockdev.Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v of type %T, want a blockdev.Error", err, err)
	}
}

// checkExtent reads both ends of an extent.
func checkExtent(t testing.TB, src blockdev.Source, e blockdev.Extent) {
	t.Helper()
	const most = 16 << 10
	for _, off := range []int64{e.Off, max(e.Off, e.End()-most)} {
		p := bytes.Repeat([]byte{0xa5}, int(min(most, e.End()-off)))
		n, err := src.ReadAt(p, off)
		switch {
		case err != nil && e.Kind.ReadsZero():
			t.Fatalf("%v: read at %d: %v", e, off, err)
		case err != nil:
			WantError(t, err)
		case n != len(p):
			t.Fatalf("%v: read of %d bytes at %d: %d", e, len(p), off, n)
		case e.Kind.ReadsZero() && len(bytes.Trim(p, "\x00")) > 0:
			t.Fatalf("%v is not zero at %d", e, off)
		}
	}
}

// checkPieces reads the beginning of the disk at once and in pieces.
func checkPieces(t testing.TB, src blockdev.Source) {
	t.Helper()
	whole := make([]byte, min(src.Size(), 8<<10))
	if _, err := src.ReadAt(whole, 0); err != nil {
		WantError(t, err)
		return
	}
	for off := 0; off < len(whole); off += 700 {
		p := make([]byte, min(700, len(whole)-off))
		if _, err := src.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, whole[off:][:len(p)]) {
			t.Fatalf("read of %d bytes at %d (%v) differs from one read of all", len(p), off, err)
		}
	}
}

// BitFlips flips every bit of the header and tables of every good vector. check
// is CheckSane, and what else must hold.
func BitFlips(t *testing.T, check func(t testing.TB, file []byte)) {
	for _, v := range LoadVectors(t) {
		if v.Expect != "ok" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) { FlipBits(t, v.File, v.Meta, check) })
	}
}

// FlipBits flips every bit of the bytes at those offsets, one at a time.
func FlipBits(t *testing.T, file []byte, at []int, check func(t testing.TB, file []byte)) {
	t.Helper()
	for _, at := range at {
		for bit := range 8 {
			file[at] ^= 1 << bit
			check(t, file)
			file[at] ^= 1 << bit
		}
		if t.Failed() {
			t.Fatalf("with byte %#x changed", at)
		}
	}
}

// Truncations cuts every good vector at many lengths: what is still read is
// right.
func Truncations(t *testing.T, open Open, check func(t testing.TB, file []byte)) {
	for _, v := range LoadVectors(t) {
		if v.Expect != "ok" {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			for n := len(v.File); n >= 0; n -= max(1, len(v.File)/250) {
				check(t, v.File[:n])
				if src, err := open(v.File[:n]); err == nil {
					checkRight(t, src, v.Disk, n)
				}
			}
		})
	}
}

// checkRight wants each sector to be right or not to be read.
func checkRight(t *testing.T, src blockdev.Source, disk []byte, n int) {
	t.Helper()
	p := make([]byte, 512)
	for off := 0; off < len(disk); off += 512 {
		p = p[:min(512, len(disk)-off)]
		if _, err := src.ReadAt(p, int64(off)); err == nil && !bytes.Equal(p, disk[off:][:len(p)]) {
			t.Fatalf("file cut at %d: wrong bytes at %d", n, off)
		}
	}
}
