package vhd

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// numbered returns a disk that no offset error can hide in: every 8 bytes carry
// their own offset.
func numbered(size int) []byte {
	b := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		binary.BigEndian.PutUint64(b[i:], uint64(i)|1<<56)
	}
	return b
}

// newFooter returns a footer of a disk of that size, sealed.
func newFooter(kind Type, size int64) footer {
	f := make(footer, footerSize)
	copy(f, footerCookie)
	footerVersion.Put(f, 0x10000)
	footerDataOffset.Put(f, noDataOffset)
	if kind != Fixed {
		footerDataOffset.Put(f, footerSize)
	}
	copy(f[footerCreator:], "win ")
	footerCurrentSize.Put(f, uint64(size))
	footerType.Put(f, uint32(kind))
	f.seal()
	return f
}

func (f footer) seal() { footerChecksum.Put(f, checksum(f, int(footerChecksum))) }

func buildFixed(disk []byte) []byte {
	return append(bytes.Clone(disk), newFooter(Fixed, int64(len(disk)))...)
}

// Where buildDynamic puts things.
const (
	builtHeader = footerSize
	builtBAT    = footerSize + dynamicSize
)

// buildDynamic makes an image of the disk, with its blocks in random order. A
// block of zeros is not in the file, and a sector of zeros has no bit set and
// something else where its data would be.
func buildDynamic(disk []byte, block int) []byte {
	count := (len(disk) + block - 1) / block
	h := Header{BlockSize: int64(block)}
	out := newFooter(Dynamic, int64(len(disk)))
	out = append(out, newDynamicHeader(count, block)...)
	bat := len(out)
	out = append(out, bytes.Repeat([]byte{0xff}, (count*batEntryLen+sectorSize-1)&^(sectorSize-1))...)
	for _, i := range rand.New(rand.NewPCG(7, 7)).Perm(count) {
		data := make([]byte, block)
		copy(data, disk[i*block:])
		if isZero(data) {
			continue
		}
		binary.BigEndian.PutUint32(out[bat+i*batEntryLen:], uint32(len(out)/sectorSize))
		bitmap := make([]byte, h.bitmapSize())
		for s := 0; s < block; s += sectorSize {
			if sector := data[s:][:sectorSize]; isZero(sector) {
				copy(sector, bytes.Repeat([]byte("junk"), sectorSize/4))
			} else {
				bitmap[s/sectorSize/8] |= 0x80 >> (s / sectorSize % 8)
			}
		}
		out = append(append(out, bitmap...), data...)
	}
	return append(out, out[:footerSize]...)
}

func newDynamicHeader(entries, block int) []byte {
	b := make([]byte, dynamicSize)
	copy(b, dynamicCookie)
	dynamicTableOffset.Put(b, builtBAT)
	dynamicVersion.Put(b, 0x10000)
	dynamicTableEntries.Put(b, uint32(entries))
	dynamicBlockSize.Put(b, uint32(block))
	sealDynamic(b)
	return b
}

func sealDynamic(b []byte) { dynamicChecksum.Put(b, checksum(b, int(dynamicChecksum))) }

func isZero(p []byte) bool { return len(bytes.Trim(p, "\x00")) == 0 }

// smallDynamic is a disk of a block and a half more than three, with holes and
// sectors of zeros, and its image.
func smallDynamic() (disk, file []byte) {
	disk = numbered(4*minBlock + minBlock/2 + sectorSize)
	clear(disk[minBlock : 3*minBlock])
	for _, s := range []int{0, 5, 6, 7, 8, 30, 127} {
		clear(disk[s*sectorSize:][:sectorSize])
	}
	return disk, buildDynamic(disk, minBlock)
}

func open(file []byte) (*Reader, error) {
	return Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
}

// realImages are those in testdata, made by other programs, by name.
func realImages(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.vhd.gz")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no images found (%v)", err)
	}
	all := make(map[string][]byte)
	for _, path := range paths {
		packed, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		z, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			t.Fatal(err)
		}
		file, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".vhd.gz")] = file
	}
	return all
}
