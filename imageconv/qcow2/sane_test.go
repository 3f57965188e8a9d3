package qcow2

import (
	"bytes"
	"context"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// openSmall opens a file in memory that holds a disk of at most 32 MiB.
func openSmall(file []byte) (blockdev.Source, error) {
	return Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 32 << 20})
}

// checkSane wants what must hold for any file, bounded memory included.
func checkSane(t testing.TB, file []byte) {
	t.Helper()
	r, ok := imagetest.CheckSane(t, openSmall, file).(*Reader)
	if !ok {
		return
	}
	if n := r.tables.Len() * int(r.geo.page); n > tableMemory {
		t.Fatalf("%d bytes of tables are kept", n)
	}
	if n := r.clusters.Len() * int(r.geo.cluster); n > clusterMemory {
		t.Fatalf("%d bytes of clusters are kept", n)
	}
	for s, err := range r.Snapshots() {
		if err != nil {
			imagetest.WantError(t, err)
		}
		if len(s.ID)+len(s.Name) > len(file) {
			t.Fatalf("names of %d bytes in a file of %d", len(s.ID)+len(s.Name), len(file))
		}
	}
	h, err := r.Check(context.Background())
	if err != nil {
		imagetest.WantError(t, err)
	}
	if h.Used > h.Clusters || len(h.Findings) > maxFindings {
		t.Fatalf("a check finds %+v", h)
	}
}

func TestBitFlips(t *testing.T) { imagetest.BitFlips(t, checkSane) }

func TestTruncation(t *testing.T) { imagetest.Truncations(t, openSmall, checkSane) }

// TestIncompatibleBits sets each bit of incompatible_features: only the dirty
// bit may stand besides what the image has.
func TestIncompatibleBits(t *testing.T) {
	for _, v := range imagetest.LoadVectors(t) {
		if v.Expect != "ok" || v.File[7] != 3 {
			continue
		}
		for bit := 1; bit < 64; bit++ {
			at := int(hdrIncompatible) + 7 - bit/8
			if v.File[at]>>(bit%8)&1 != 0 {
				continue
			}
			v.File[at] ^= 1 << (bit % 8)
			if _, err := open(v.File); err == nil {
				t.Errorf("%s: opened with incompatible bit %d set", v.Name, bit)
			}
			v.File[at] ^= 1 << (bit % 8)
		}
	}
}

// FuzzOpenRead holds checkSane's word against arbitrary files.
func FuzzOpenRead(f *testing.F) {
	for _, v := range imagetest.LoadVectors(f) {
		if len(v.File) <= 8<<10 {
			f.Add(v.File)
		}
	}
	f.Fuzz(func(t *testing.T, file []byte) { checkSane(t, file) })
}
