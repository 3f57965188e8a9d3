package qcow2

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
)

// checkSane opens an arbitrary file and wants what must hold for any: errors
// are of the right type, extents leave no gaps, what they call zeros reads as
// zeros, a read in pieces gives what one read gives, and memory stays bounded.
func checkSane(t testing.TB, file []byte) {
	t.Helper()
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 32 << 20})
	if err != nil {
		wantError(t, err)
		return
	}
	var off int64
	seen := 0
	for e, err := range r.Extents(0, r.Size()) {
		if err != nil {
			wantError(t, err)
			break
		}
		if e.Off != off || e.Len <= 0 || e.End() > r.Size() {
			t.Fatalf("extent %v of a disk of %d bytes follows %d", e, r.Size(), off)
		}
		off = e.End()
		checkExtent(t, r, e)
		if seen++; seen == 100 {
			break
		}
	}
	checkPieces(t, r)
	if n := len(r.tables.blocks) * int(r.geo.page); n > tableMemory {
		t.Fatalf("%d bytes of tables are kept", n)
	}
	if n := len(r.clusters.blocks) * int(r.geo.cluster); n > clusterMemory {
		t.Fatalf("%d bytes of clusters are kept", n)
	}
}

func wantError(t testing.TB, err error) {
	t.Helper()
	var e *blockdev.Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v of type %T, want a blockdev.Error", err, err)
	}
}

// checkExtent reads both ends of an extent.
func checkExtent(t testing.TB, r *Reader, e blockdev.Extent) {
	t.Helper()
	const most = 16 << 10
	for _, off := range []int64{e.Off, max(e.Off, e.End()-most)} {
		p := bytes.Repeat([]byte{0xa5}, int(min(most, e.End()-off)))
		n, err := r.ReadAt(p, off)
		switch {
		case err != nil && e.Kind.ReadsZero():
			t.Fatalf("%v: read at %d: %v", e, off, err)
		case err != nil:
			wantError(t, err)
		case n != len(p):
			t.Fatalf("%v: read of %d bytes at %d: %d", e, len(p), off, n)
		case e.Kind.ReadsZero() && len(bytes.Trim(p, "\x00")) > 0:
			t.Fatalf("%v is not zero at %d", e, off)
		}
	}
}

// checkPieces reads the beginning of the disk at once and in pieces.
func checkPieces(t testing.TB, r *Reader) {
	t.Helper()
	whole := make([]byte, min(r.Size(), 8<<10))
	if _, err := r.ReadAt(whole, 0); err != nil {
		wantError(t, err)
		return
	}
	for off := 0; off < len(whole); off += 700 {
		p := make([]byte, min(700, len(whole)-off))
		if _, err := r.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, whole[off:][:len(p)]) {
			t.Fatalf("read of %d bytes at %d (%v) differs from one read of all", len(p), off, err)
		}
	}
}

// TestBitFlips flips every bit of the header and tables of every good vector.
func TestBitFlips(t *testing.T) {
	for _, v := range loadVectors(t) {
		if v.expect != "ok" {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			for _, at := range v.meta {
				for bit := range 8 {
					v.file[at] ^= 1 << bit
					checkSane(t, v.file)
					v.file[at] ^= 1 << bit
				}
			}
		})
	}
}

// TestTruncation cuts every good vector at many lengths: what is still read is
// right.
func TestTruncation(t *testing.T) {
	for _, v := range loadVectors(t) {
		if v.expect != "ok" {
			continue
		}
		t.Run(v.name, func(t *testing.T) {
			for n := len(v.file); n >= 0; n -= max(1, len(v.file)/250) {
				checkSane(t, v.file[:n])
				r, err := Open(bytes.NewReader(v.file), int64(n), Options{MaxSize: 32 << 20})
				if err != nil {
					continue
				}
				p := make([]byte, 512)
				for off := 0; off < len(v.disk); off += 512 {
					p = p[:min(512, len(v.disk)-off)]
					if _, err := r.ReadAt(p, int64(off)); err == nil && !bytes.Equal(p, v.disk[off:][:len(p)]) {
						t.Fatalf("file cut at %d: wrong bytes at %d", n, off)
					}
				}
			}
		})
	}
}

// TestIncompatibleBits sets each bit of incompatible_features: only the dirty
// bit may stand besides what the image has.
func TestIncompatibleBits(t *testing.T) {
	for _, v := range loadVectors(t) {
		if v.expect != "ok" || v.file[7] != 3 {
			continue
		}
		for bit := 1; bit < 64; bit++ {
			at := int(hdrIncompatible) + 7 - bit/8
			if v.file[at]>>(bit%8)&1 != 0 {
				continue
			}
			v.file[at] ^= 1 << (bit % 8)
			if _, err := v.open(); err == nil {
				t.Errorf("%s: opened with incompatible bit %d set", v.name, bit)
			}
			v.file[at] ^= 1 << (bit % 8)
		}
	}
}

// maxTime is how long a small file may keep us busy, with the fuzzer's
// instrumentation on a slow machine.
const maxTime = 5 * time.Second

// FuzzOpenRead holds checkSane's word against arbitrary files.
func FuzzOpenRead(f *testing.F) {
	for _, v := range loadVectors(f) {
		if len(v.file) <= 8<<10 {
			f.Add(v.file)
		}
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		begin := time.Now()
		checkSane(t, file)
		if d := time.Since(begin); d > maxTime {
			t.Errorf("a file of %d bytes took %v", len(file), d)
		}
	})
}
