package scsi

import (
	"encoding/binary"
	"iter"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// hollowDisk is a disk of many terabytes that is one hole.
type hollowDisk struct {
	*testDisk
	size int64
}

func (d hollowDisk) Size() int64 { return d.size }

func (d hollowDisk) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		yield(blockdev.Extent{Off: off, Len: n, Kind: blockdev.Hole}, nil)
	}
}

// One descriptor tells of a hole as large as it can, from block to block. Its
// number of blocks has 32 bits.
func TestStatusOfHollowDisk(t *testing.T) {
	for _, c := range []struct {
		size, lba, least, most int64
	}{
		{3 << 30, 0, 3 << 21, 3 << 21},
		{3 << 30, 5, 3<<21 - 5, 3<<21 - 5},
		{8 << 40, 0, 1 << 21, 1<<32 - 1},
	} {
		l := NewLUN(hollowDisk{newTestDisk(8), c.size}, LUNOptions{Identity: testIdentity()})
		n := NewTarget(testName, map[uint64]*LUN{1: l}).NewNexus(firstClient)
		do(n, lun1, tur, nil)
		r := do(n, lun1, cdb(0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, byte(c.lba), 0, 0, 1, 0), nil)
		if r.status != Good || len(r.in) != 24 {
			t.Fatalf("%v % x", r, r.in)
		}
		if got := int64(binary.BigEndian.Uint32(r.in[16:])); got < c.least || got > c.most {
			t.Errorf("%d bytes, LBA %d: %d blocks, want %d to %d", c.size, c.lba, got, c.least, c.most)
		}
	}
}
