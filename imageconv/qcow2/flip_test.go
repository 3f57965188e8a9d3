package qcow2

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// TestFlipsOfRealImages flips every bit of all that is not data, in images that
// qemu-img and we have made. The format has no checksums, so that a flip can
// lead to another place in the file. But then a check finds it, or else it is
// one of those that make another good image: the size, the zero flag, the
// compressed flag, and where in its cluster of the file a compressed one begins.
func TestFlipsOfRealImages(t *testing.T) {
	images := map[string][]byte{}
	for name, o := range writeOptions() {
		o.ClusterBits = 9
		images[name] = written(t, blockdev.MemOf(mixed(24<<10+512, 11)), o)
	}
	qemu, err := os.ReadFile("../testdata/small.qcow2")
	if err != nil {
		t.Fatal(err)
	}
	images["qemu-img"] = qemu
	for name, file := range images {
		t.Run(name, func(t *testing.T) {
			want := readAll(t, file)
			other := goodFlips(file)
			tally := map[string]int{}
			for _, at := range metadata(t, file) {
				for bit := range 8 {
					file[at] ^= 1 << bit
					verdict := flipped(t, file, want)
					file[at] ^= 1 << bit
					tally[verdict]++
					if verdict == "silent" && !other[[2]int{at, bit}] {
						t.Errorf("bit %d of byte %#x: other data, no error, and a check finds nothing", bit, at)
					}
				}
			}
			t.Logf("flips: %v", tally)
			if tally["error"] < 1000 || tally["right"] < 1000 {
				t.Errorf("flips: %v", tally)
			}
		})
	}
}

// flipped is what a flip has led to.
func flipped(t *testing.T, file, want []byte) string {
	t.Helper()
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 20})
	if err != nil {
		imagetest.WantError(t, err)
		return "error"
	}
	got := make([]byte, r.Size())
	if _, err := r.ReadAt(got, 0); err != nil {
		imagetest.WantError(t, err)
		return "error"
	}
	if bytes.Equal(got, want) {
		return "right"
	}
	h, err := r.Check(t.Context())
	if err != nil || h.Corruptions > 0 || h.Leaks > 0 {
		return "found"
	}
	return "silent"
}

func readAll(t *testing.T, file []byte) []byte {
	t.Helper()
	src, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, src.Size())
	if _, err := src.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// l2TablesOf is where the L2 tables of the active disk are.
func l2TablesOf(file []byte) []int {
	var all []int
	for i := range int(hdrL1Size.Get(file)) {
		if off := l1Entry(binary.BigEndian.Uint64(file[int(hdrL1Offset.Get(file))+i*8:])).offset(); off != 0 {
			all = append(all, int(off))
		}
	}
	return all
}

// goodFlips are the bits, by byte, that make another good image.
func goodFlips(file []byte) map[[2]int]bool {
	good := map[[2]int]bool{}
	for at := int(hdrSize); at < int(hdrSize)+8; at++ {
		for bit := range 8 {
			good[[2]int{at, bit}] = true
		}
	}
	bits := int(hdrClusterBits.Get(file))
	for _, table := range l2TablesOf(file) {
		for at := table; at+8 <= table+1<<bits && at+8 <= len(file); at += 8 {
			good[[2]int{at + 7, 0}] = true // zero
			good[[2]int{at, 6}] = true     // compressed
			if !l2Entry(binary.BigEndian.Uint64(file[at:])).compressed() {
				continue
			}
			for bit := range bits {
				good[[2]int{at + 7 - bit/8, bit % 8}] = true
			}
		}
	}
	return good
}

// metadata are the bytes of the header, the L1 and L2 tables, the refcounts and
// the snapshot table. Of long tables the beginning is enough.
func metadata(t *testing.T, file []byte) []int {
	t.Helper()
	const most = 512
	add := func(all []int, off, n int) []int {
		for at := off; at < min(off+min(n, most), len(file)); at++ {
			all = append(all, at)
		}
		return all
	}
	cluster := 1 << hdrClusterBits.Get(file)
	all := add(nil, 0, cluster)
	all = add(all, int(hdrL1Offset.Get(file)), int(hdrL1Size.Get(file))*8)
	for _, table := range l2TablesOf(file) {
		all = add(all, table, cluster)
	}
	refs := int(hdrRefcountOffset.Get(file))
	all = add(all, refs, 16)
	all = add(all, int(binary.BigEndian.Uint64(file[refs:])), 128)
	if hdrSnapshots.Get(file) > 0 {
		all = add(all, int(hdrSnapshotOffset.Get(file)), cluster)
	}
	return all
}
