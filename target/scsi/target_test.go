package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

func TestLUNField(t *testing.T) {
	for _, c := range []struct {
		field  uint64
		number uint64
		ok     bool
	}{
		{0, 0, true},
		{1 << 48, 1, true},
		{0x00ff << 48, 255, true},
		{0x4001 << 48, 1, true}, // flat space
		{0x7fff << 48, maxLUN, true},
		{0x0101 << 48, 0, false}, // bus 1
		{0x8001 << 48, 0, false}, // logical unit addressing
		{0xc101 << 48, 0, false}, // well known
		{1<<48 | 1, 0, false},    // further levels
		{1<<48 | 1<<32, 0, false},
	} {
		if number, ok := lunNumber(c.field); number != c.number || ok != c.ok {
			t.Errorf("%#016x: got %d, %v, want %d, %v", c.field, number, ok, c.number, c.ok)
		}
	}
	for _, n := range []uint64{0, 1, 255, 256, maxLUN} {
		if got, ok := lunNumber(lunField(n)); got != n || !ok {
			t.Errorf("%d: becomes %#x, that is %d, %v", n, lunField(n), got, ok)
		}
	}
}

// Logical units beyond the index are found as well, and listed in order.
func TestManyLogicalUnits(t *testing.T) {
	units := map[uint64]*LUN{}
	for _, n := range []uint64{300, 0, 255, 256} {
		d := newTestDisk(16)
		d.b[0] = byte(n)
		units[n] = NewLUN(d, LUNOptions{Identity: testIdentity()})
	}
	n := NewTarget(testName, units).NewNexus(firstClient)
	var want []byte
	want = append(want, 0, 0, 0, 32, 0, 0, 0, 0)
	for _, number := range []uint64{0, 255, 256, 300} {
		want = binary.BigEndian.AppendUint64(want, lunField(number))
		do(n, lunField(number), tur, nil)
		if r := do(n, lunField(number), read0, nil); r.String() != "good" || r.in[0] != byte(number) {
			t.Errorf("LUN %d: %v", number, r)
		}
	}
	if r := do(n, 0, cdb(0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0), nil); !bytes.Equal(r.in, want) {
		t.Errorf("REPORT LUNS: got % x, want % x", r.in, want)
	}
	n.Close()
	for number, l := range units {
		if len(l.nexuses()) != 0 {
			t.Errorf("LUN %d still knows the nexus", number)
		}
	}
}

// A serial number or vendor with what does not belong into an ASCII field.
func TestText(t *testing.T) {
	if got := appendText(nil, "a\x00\xffz", 6); string(got) != "a  z  " {
		t.Errorf("got %q", got)
	}
	if got := appendText(nil, "abcdefgh", 4); string(got) != "abcd" {
		t.Errorf("got %q", got)
	}
}

func TestNewLUNRefusesOddBlocks(t *testing.T) {
	for _, size := range []int{1, 513, 1024, 8192} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("blocks of %d bytes are taken", size)
				}
			}()
			NewLUN(newTestDisk(8), LUNOptions{BlockSize: size})
		}()
	}
}

func TestStats(t *testing.T) {
	x := newBench(t, nil)
	x.want(t, "good", cdb(0x28, 0, 0, 0, 0, 0, 0, 0, 8), nil)
	x.want(t, "good", cdb(0x28), nil) // no blocks: not counted
	x.want(t, "good", write0, block(3))
	x.want(t, "good", cdb(0x35), nil)
	x.want(t, "05/21/00", cdb(0x28, 0, 0xff), nil)
	got := fmt.Sprintf("%+v", x.lun.Stats())
	want := fmt.Sprintf("%+v", Stats{Reads: 1, Writes: 1, ReadBytes: 4096, WriteBytes: 512, Flushes: 1})
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// hugeDisk is a disk of 2^33 blocks and a half, in which each byte is the low
// byte of its block's number.
type hugeDisk struct{ *testDisk }

const hugeBlocks = 1 << 33

func (hugeDisk) Size() int64 { return hugeBlocks*512 + 256 }

func (hugeDisk) TryReadAt(p []byte, off int64) error {
	for i := range p {
		p[i] = byte((off + int64(i)) >> 9)
	}
	return nil
}

func TestBeyond32Bits(t *testing.T) {
	l := NewLUN(hugeDisk{newTestDisk(8)}, LUNOptions{Identity: testIdentity()})
	n := NewTarget(testName, map[uint64]*LUN{1: l}).NewNexus(firstClient)
	do(n, lun1, tur, nil)
	for _, c := range []struct {
		name string
		cdb  *CDB
		want string
		in   []byte // how the data-in begins
	}{
		{"READ CAPACITY (10)", cdb(0x25), "good", []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0}},
		{"READ CAPACITY (16)", cdb(0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32), "good", []byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0}},
		{"MODE SENSE (6)", cdb(0x1a, 0, 0x08, 0, 12), "good", []byte{31, 0, 0x10, 8, 0xff, 0xff, 0xff, 0xff, 0, 0, 2, 0}},
		{"the last block", cdb(0x88, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1), "good", []byte{0xff}},
		{"a block in the middle", cdb(0x88, 0, 0, 0, 0, 1, 0, 0, 0, 0x42, 0, 0, 0, 1), "good", []byte{0x42}},
		{"half a block more", cdb(0x88, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1), "05/21/00", nil},
	} {
		r := do(n, lun1, c.cdb, nil)
		if r.String() != c.want || !bytes.HasPrefix(r.in, c.in) {
			t.Errorf("%s: got %v % x, want %s % x", c.name, r, r.in[:min(len(r.in), 16)], c.want, c.in)
		}
	}
}

// What the Block Limits VPD page promises is what is taken, and no block more.
func TestLimits(t *testing.T) {
	l := NewLUN(hugeDisk{newTestDisk(8)}, LUNOptions{Identity: testIdentity()})
	n := NewTarget(testName, map[uint64]*LUN{1: l}).NewNexus(firstClient)
	do(n, lun1, tur, nil)
	b0 := do(n, lun1, cdb(0x12, 1, 0xb0, 0, 64), nil).in
	transfer := binary.BigEndian.Uint32(b0[8:])
	for _, opcode := range []byte{0x88, 0x8a, 0x8b, 0x8e, 0x8f} {
		for _, more := range []uint32{0, 1} {
			c := cdb(opcode)
			if opcode == 0x8f {
				c[1] = bytchkData
			}
			cdb16Length.Put(c[:], transfer+more)
			task := &Task{}
			task.Begin(n, lun1, c)
			r := result{status: task.Status(), sense: task.Sense()}
			if want := []string{"good", "05/24/00"}[more]; r.String() != want || more == 1 && r.sense[17] != 10 {
				t.Errorf("%02x of %d blocks: got %v % x, want %s", opcode, transfer+more, r, r.sense, want)
			}
			task.Abort()
		}
	}
	blocks, descriptors := binary.BigEndian.Uint32(b0[20:]), binary.BigEndian.Uint32(b0[24:])
	for _, c := range []struct {
		name   string
		blocks []uint32 // of each descriptor
		want   string
	}{
		{"descriptors", make([]uint32, descriptors), "good"},
		{"one more descriptor", make([]uint32, descriptors+1), "05/26/00"},
		{"one block too many", []uint32{blocks - 1, 2}, "05/26/00"},
		{"more than 32 bits of blocks", []uint32{1 << 31, 1 << 31, 1}, "05/26/00"},
	} {
		list := unmapList(c.blocks)
		r := do(n, lun1, cdb(0x42, 0, 0, 0, 0, 0, 0, byte(len(list)>>8), byte(len(list))), list)
		if r.String() != c.want {
			t.Errorf("UNMAP, %s: got %v, want %s", c.name, r, c.want)
		}
	}
}

// unmapList is a parameter list of UNMAP with descriptors at LBA 0.
func unmapList(blocks []uint32) []byte {
	list := make([]byte, 8, 8+16*len(blocks))
	for _, n := range blocks {
		list = append(list, make([]byte, 16)...)
		binary.BigEndian.PutUint32(list[len(list)-8:], n)
	}
	binary.BigEndian.PutUint16(list, uint16(len(list)-2))
	binary.BigEndian.PutUint16(list[2:], uint16(len(list)-8))
	return list
}
