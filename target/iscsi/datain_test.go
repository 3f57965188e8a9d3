package iscsi

import (
	"bytes"
	"fmt"
	"testing"
)

// TestRead: data-in comes in PDUs of the initiator's size, in sequences of
// MaxBurstLength, padded and numbered, and the last one brings the status.
func TestRead(t *testing.T) {
	s := serveTCP(t)
	want := s.disk.fill(t, 100, 300*blockSize)
	for _, v := range []struct {
		keys           []string
		segment, burst int
	}{
		{nil, 8192, 262144},
		{[]string{"MaxRecvDataSegmentLength=512", "MaxBurstLength=512"}, 512, 512},
		{[]string{"MaxRecvDataSegmentLength=1000", "MaxBurstLength=4096"}, 1000, 4096},
		{[]string{"MaxRecvDataSegmentLength=4096", "MaxBurstLength=10000"}, 4096, 10000},
		{[]string{"MaxRecvDataSegmentLength=16777215", "MaxBurstLength=16777215"}, 262144, 1048576},
		{[]string{"MaxRecvDataSegmentLength=515", "HeaderDigest=CRC32C", "DataDigest=CRC32C"}, 515, 262144},
	} {
		for _, b := range []blocking{neverBlocks, alwaysBlocks, sometimesBlocks} {
			t.Run(fmt.Sprint(v.keys, b), func(t *testing.T) {
				s.disk.setBlocking(b)
				c := s.ready(t, v.keys...)
				tag := c.request(readCommand(100, 300))
				got := 0
				for sn := uint32(0); ; sn++ {
					p := c.expectFor(opDataIn, tag)
					n := min(v.segment, v.burst-got%v.burst, len(want)-got)
					if p.u32(36) != sn || p.u32(40) != uint32(got) || len(p.data) != n || !bytes.Equal(p.data, want[got:got+n]) {
						t.Fatalf("Data-In %d at %d of %d bytes, want %d at %d of %d with the disk's content", p.u32(36), p.u32(40), len(p.data), sn, got, n)
					}
					if p.u32(20) != reservedTag {
						t.Errorf("transfer tag %#x", p.u32(20))
					}
					got += n
					final, status := p.flags()&0x80 != 0, p.flags()&0x01 != 0
					if last := got == len(want); final != (last || got%v.burst == 0) || status && !last || p.flags()&0x46 != 0 {
						t.Fatalf("at %d: flags %#02x", got, p.flags())
					}
					if status {
						if p.u8(3) != 0 {
							t.Errorf("status %#x", p.u8(3))
						}
						break
					}
					if got == len(want) {
						if r := c.expectFor(opSCSIResponse, tag); r.u8(3) != 0 || r.u32(36) != sn+1 {
							t.Errorf("status %#02x, ExpDataSN %d after %d", r.u8(3), r.u32(36), sn+1)
						}
						break
					}
				}
				c.expectQuiet()
			})
		}
	}
}

// TestReadPadding: a data segment that is no multiple of four bytes is padded
// with zeros, which no length counts and the data digest covers.
func TestReadPadding(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t, "DataDigest=CRC32C")
	inquiry := make([]byte, 16)
	inquiry[0] = 0x12
	for n := range 37 {
		inquiry[4] = byte(n)
		r := c.good(c.run(command10(flagF|flagR, 255, inquiry)))
		if len(r.data) != n || r.residual() != uint32(255-n) {
			t.Errorf("allocation length %d: %d bytes, residual %d", n, len(r.data), r.residual())
		}
	}
}

// TestReadResiduals is RFC 7143 §11.4.5 for data-in.
func TestReadResiduals(t *testing.T) {
	s := serveTCP(t)
	content := s.disk.fill(t, 0, 4*blockSize)
	c := s.ready(t)
	const over, under = 0x04, 0x02
	for _, v := range []struct {
		edtl   int
		blocks uint16
		flag   byte
		count  uint32
	}{
		{512, 1, 0, 0}, {1024, 2, 0, 0},
		{0, 1, over, 512}, {200, 1, over, 312}, {512, 2, over, 512}, {513, 2, over, 511},
		{1024, 1, under, 512}, {10000, 2, under, 8976}, {512, 0, under, 512}, {0, 0, 0, 0},
	} {
		for _, b := range []blocking{neverBlocks, alwaysBlocks} {
			s.disk.setBlocking(b)
			r := c.good(c.run(command10(flagF|flagR, v.edtl, readCDB(0, v.blocks))))
			want := content[:min(v.edtl, int(v.blocks)*blockSize)]
			if !bytes.Equal(r.data, want) {
				t.Errorf("%+v: %d bytes, want %d", v, len(r.data), len(want))
			}
			if flag := r.flags() & 0x06; flag != v.flag || r.residual() != v.count {
				t.Errorf("%+v: residual flags %#x, count %d", v, flag, r.residual())
			}
		}
	}
	s.disk.setBlocking(neverBlocks)
	// Truncation by the allocation length is no overflow (§11.4.5.2).
	r := c.good(c.run(command10(flagF|flagR, 5, []byte{0x12, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})))
	if r.flags()&0x06 != 0 || len(r.data) != 5 {
		t.Errorf("INQUIRY of 5 bytes: flags %#x, %d bytes", r.flags(), len(r.data))
	}
	// A read whose command says write, or a write that says read: nothing of
	// what is expected moves.
	for _, p := range []*packet{command10(flagF|flagW, 512, readCDB(0, 1)), command10(flagF|flagW, 1024, readCDB(0, 1)),
		command10(flagF|flagR, 512, writeCDB(0, 1))} {
		tag, edtl := c.request(p), p.u32(20)
		r := c.finish(tag)
		if len(r.data) != 0 || r.flags()&0x06 != under || r.residual() != edtl {
			t.Errorf("%s: flags %#x, residual %d, %d bytes", p, r.flags(), r.residual(), len(r.data))
		}
	}
	if got := s.disk.content(t, 0, len(content)); !bytes.Equal(got, content) {
		t.Error("a write without data wrote")
	}
	// A read whose command says write, or neither: nothing can be sent.
	for _, flags := range []byte{flagF | flagW, flagF} {
		r := c.good(c.run(command10(flags, 0, readCDB(0, 1))))
		if len(r.data) != 0 || r.flags()&0x06 != over || r.residual() != 512 {
			t.Errorf("READ with flags %#02x: flags %#x, residual %d, %d bytes", flags, r.flags(), r.residual(), len(r.data))
		}
	}
}

// TestReadErrors: sense data never comes with data-in, and what failed counts
// as not moved.
func TestReadErrors(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	r := c.run(readCommand(testSize/blockSize, 1))
	c.fails(r, 0x052100)
	if r.opcode() != 0x21 || r.flags()&0x06 != 0x02 || r.residual() != 512 {
		t.Errorf("%s: residual %d", r, r.residual())
	}
	r = c.run(command10(flagF|flagR, 512, make([]byte, 16)).set8(32, 0xee))
	c.fails(r, 0x052000)
	r = c.run(readCommand(0, 1).set64(8, 5<<48))
	c.fails(r, 0x052500)
	c.expectQuiet()
}

// TestManyReads: commands that are sent together are all answered, those that
// need not wait at once, and the command window never loses a place.
func TestManyReads(t *testing.T) {
	for _, b := range []blocking{neverBlocks, alwaysBlocks, sometimesBlocks} {
		t.Run(fmt.Sprint(b), func(t *testing.T) {
			s := serveTCP(t)
			want := s.disk.fill(t, 0, 1000*blockSize)
			c := s.ready(t)
			s.disk.setBlocking(b)
			open := make(map[uint32]uint32)
			for sent, done := uint32(0), 0; done < 1000; {
				for ; sent < 1000 && int32(c.maxCmdSN-c.nextCmdSN) >= 0; sent++ {
					open[c.request(readCommand(sent, 1))] = sent
				}
				p := c.receive()
				lba, ok := open[p.tag()]
				if !ok {
					t.Fatalf("%s for nothing that is open", p)
				}
				if p.opcode() == 0x25 {
					if !bytes.Equal(p.data, want[lba*blockSize:][:blockSize]) {
						t.Fatalf("block %d is another", lba)
					}
					if p.flags()&1 == 0 {
						continue
					}
				}
				if p.u8(3) != 0 {
					t.Fatalf("%s", p)
				}
				delete(open, p.tag())
				done++
			}
			if r := c.testUnitReady(); r.maxCmdSN()-r.expCmdSN()+1 != window {
				t.Errorf("window of %d at the end, want %d", r.maxCmdSN()-r.expCmdSN()+1, window)
			}
		})
	}
}

// TestHeldRead: a read that waits for the disk holds up nothing else.
func TestHeldRead(t *testing.T) {
	s := serveTCP(t)
	want := s.disk.fill(t, 0, 64*blockSize)
	c := s.ready(t)
	g := s.disk.hold("read")
	slow := c.request(readCommand(0, 64))
	g.wait(t)
	c.good(c.testUnitReady())
	c.expectQuiet()
	c.good(c.writeAll(writeCommand(500, 1), pattern(500, blockSize, 1)))
	g.release()
	if r := c.good(c.finish(slow)); !bytes.Equal(r.data, want) {
		t.Error("the held read has other data")
	}
}
