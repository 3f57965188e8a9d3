package vhd

import (
	"bytes"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// checkSane opens an arbitrary file and wants what must hold for any.
func checkSane(t testing.TB, file []byte) {
	t.Helper()
	src := imagetest.CheckSane(t, func(file []byte) (blockdev.Source, error) {
		return Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 64 << 20})
	}, file)
	if r, ok := src.(*Reader); ok && r.tables != nil && r.tables.Kept() > tableMemory {
		t.Fatalf("%d bytes of tables are kept", r.tables.Kept())
	}
}

// wantRightOrError: the image reads as the disk, or not at all.
func wantRightOrError(t *testing.T, file, disk []byte, what string, at int) {
	t.Helper()
	r, err := open(file)
	if err != nil {
		imagetest.WantError(t, err)
		return
	}
	got := make([]byte, r.Size())
	if _, err := r.ReadAt(got, 0); err == nil && !bytes.Equal(got, disk) {
		t.Fatalf("%s at %d: wrong data", what, at)
	}
}

// TestBitFlips flips every bit of the metadata. Footers and header have a
// checksum: a flip there gives right data or an error. Tables have none.
func TestBitFlips(t *testing.T) {
	disk, file := smallDynamic()
	for at := range builtBAT {
		for bit := range 8 {
			file[at] ^= 1 << bit
			wantRightOrError(t, file, disk, "flip", at)
			file[at] ^= 1 << bit
		}
	}
	for at := len(file) - footerSize; at < len(file); at++ { // the copy is good: always read whole
		file[at] ^= 1 << (at % 8)
		wantRightOrError(t, file, disk, "flip", at)
		file[at] ^= 1 << (at % 8)
	}
	for at := builtBAT; at < builtBAT+sectorSize+16; at++ { // and the first bitmap
		for bit := range 8 {
			file[at] ^= 1 << bit
			checkSane(t, file)
			file[at] ^= 1 << bit
		}
	}
}

// TestTruncation cuts images at many lengths: what is still read is right.
func TestTruncation(t *testing.T) {
	disk, file := smallDynamic()
	for n := len(file) - 1; n >= 0; n -= 1009 {
		checkSane(t, file[:n])
		wantRightOrError(t, file[:n], disk, "cut", n)
	}
	for _, file := range realImages(t) {
		for n := len(file); n >= 0; n -= max(1, len(file)/50) {
			checkSane(t, file[:n])
		}
	}
}

// FuzzOpenRead holds checkSane's word against arbitrary files. Checksums are
// made right first, or nothing would get past them.
func FuzzOpenRead(f *testing.F) {
	_, file := smallDynamic()
	f.Add(file[:builtBAT+sectorSize+2*minBlock], true)
	f.Add(file[:builtBAT+sectorSize+minBlock], false)
	f.Add(buildFixed(numbered(4*sectorSize)), true)
	for _, file := range realImages(f) {
		f.Add(file[:min(len(file), 8<<10)], true)
	}
	f.Fuzz(func(t *testing.T, file []byte, seal bool) {
		if seal {
			file = sealAll(bytes.Clone(file))
		}
		checkSane(t, file)
	})
}

// sealAll makes the checksums of what may be footers and a header right.
func sealAll(file []byte) []byte {
	if len(file) < footerSize {
		return file
	}
	footer(file[:footerSize]).seal()
	if at := footerDataOffset.Get(file); at <= uint64(len(file)) && uint64(len(file))-at >= dynamicSize {
		sealDynamic(file[at:][:dynamicSize])
	}
	if last := len(file) - footerSize; last >= footerSize {
		footer(file[last:]).seal()
	}
	return file
}
