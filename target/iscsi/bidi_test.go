package iscsi

import (
	"bytes"
	"fmt"
	"testing"
)

// TestBidirectional: a command that says that it reads and writes. No command
// of ours does both, but an initiator may say so: of the data-in counts what the
// AHS expects, RFC 7143 §11.2.2.4 and §11.3.4, and without one nothing is.
func TestBidirectional(t *testing.T) {
	const over, under, readOver, readUnder = 0x04, 0x02, 0x10, 0x08
	s := serveTCP(t)
	content := s.disk.fill(t, 0, 8*blockSize)
	expectIn := func(n uint32) []byte {
		return []byte{0, 1, 0x3f, 0, 0, 5, 2, 0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)} // behind one of another kind
	}
	for _, v := range []struct {
		name     string
		cdb      []byte
		edtl     int
		ahs      []byte
		in       int
		flags    byte
		out, res uint32 // residual counts
	}{
		{"a read", readCDB(0, 2), 0, expectIn(1024), 1024, 0, 0, 0},
		{"a read that brings data", readCDB(0, 2), 512, expectIn(1024), 1024, under, 512, 0},
		{"a read of more than expected", readCDB(0, 2), 512, expectIn(512), 512, under | readOver, 512, 512},
		{"a read of less than expected", readCDB(0, 1), 0, expectIn(2048), 512, readUnder, 0, 1536},
		{"a read without an AHS", readCDB(0, 2), 4096, nil, 0, under | readOver, 4096, 1024},
		{"a read with half an AHS", readCDB(0, 2), 0, []byte{0, 5, 2, 0}, 0, readOver, 0, 1024},
		{"a read with an AHS that goes on", readCDB(0, 2), 0, []byte{0xff, 0xff, 0x3f, 0}, 0, readOver, 0, 1024},
		{"a write", writeCDB(4, 1), 512, expectIn(512), 0, readUnder, 0, 512},
		{"a write of more than there is", writeCDB(4, 2), 512, nil, 0, over, 512, 0},
		{"neither", make([]byte, 16), 512, expectIn(512), 0, under | readUnder, 512, 512},
		{"one that fails", readCDB(testSize/blockSize, 1), 512, expectIn(512), 0, under | readUnder, 512, 512},
	} {
		for _, b := range []blocking{neverBlocks, alwaysBlocks} {
			t.Run(fmt.Sprintf("%s, %d", v.name, b), func(t *testing.T) {
				s.disk.setBlocking(b)
				c := s.ready(t)
				defer c.nc.Close()
				p := command10(flagF|flagR|flagW, v.edtl, v.cdb).with(pattern(4, v.edtl, 3))
				p.ahs = v.ahs
				r := c.run(p)
				if failed := v.name == "one that fails"; (r.status() != 0) != failed {
					t.Fatalf("status %#x, sense %06x", r.status(), r.sense())
				}
				if !bytes.Equal(r.data, content[:v.in]) {
					t.Errorf("%d bytes of data-in, want %d", len(r.data), v.in)
				}
				if r.opcode() != byte(opSCSIResponse) || r.flags() != flagF|v.flags || r.residual() != v.out || r.u32(40) != v.res {
					t.Errorf("%s: flags %#02x, residuals %d and %d, want %#02x, %d and %d", r, r.flags(), r.residual(), r.u32(40), flagF|v.flags, v.out, v.res)
				}
			})
		}
	}
}
