package iscsi

import (
	"bytes"
	"fmt"
	"testing"
)

func TestPlace(t *testing.T) {
	for _, exp := range []uint32{0, 1, 100, 0x7fffffff, 0x80000000, 0xffffffff, 0xffffff81, 0xffffff80, 0xffffff7f} {
		var s sequence
		s.start(exp)
		if s.maxCmdSN-exp+1 != window {
			t.Errorf("ExpCmdSN %#x: window of %d, want %d", exp, s.maxCmdSN-exp+1, window)
		}
		for d, want := range map[uint32]place{0: placeNow, 1: placeLater, window - 1: placeLater, window: placeOutside, window + 1: placeOutside,
			0xffffffff: placeOutside, 0xfffffffe: placeOutside, 0x7fffffff: placeOutside, 0x80000000: placeOutside, 0x80000001: placeOutside} {
			if got := s.place(exp + d); got != want {
				t.Errorf("ExpCmdSN %#x, CmdSN %#x: %d, want %d", exp, exp+d, got, want)
			}
		}
		s.maxCmdSN = exp - 1 // closed
		for _, d := range []uint32{0, 1, 0xffffffff} {
			if got := s.place(exp + d); got != placeOutside {
				t.Errorf("window closed at %#x, CmdSN %#x: %d, want outside", exp, exp+d, got)
			}
		}
	}
}

// TestCmdSN: what lies outside the window or has come before is ignored
// without a word, RFC 7143 §4.2.2.1, on either side of the number's end.
func TestCmdSN(t *testing.T) {
	s := serveTCP(t)
	for _, first := range []uint32{0, 1000, 0xfffffffe, 0xffffffff, 0x7ffffffe, 0xffffff7f} {
		t.Run(fmt.Sprintf("%#x", first), func(t *testing.T) {
			c := s.dial(t)
			c.nextCmdSN = first
			c.loginReady()
			for range 4 {
				r := c.testUnitReady()
				if r.expCmdSN() != c.nextCmdSN || r.maxCmdSN() != c.nextCmdSN+window-1 {
					t.Fatalf("ExpCmdSN %#x, MaxCmdSN %#x after CmdSN %#x", r.expCmdSN(), r.maxCmdSN(), c.nextCmdSN-1)
				}
				for _, sn := range []uint32{c.nextCmdSN - 1, c.nextCmdSN - 2, c.maxCmdSN + 1, c.maxCmdSN + 1000, c.nextCmdSN + 1<<31} {
					for _, p := range []*packet{command10(flagF, 0, make([]byte, 16)), newPacket(0x00, 0x80).set32(20, reservedTag),
						newPacket(0x02, 0x85), newPacket(0x04, 0x80).set32(20, reservedTag).with(text("SendTargets="))} {
						c.send(p.itt(0xaaaa).cmdSN(sn))
					}
				}
				c.expectQuiet()
			}
		})
	}
	t.Run("a write again", func(t *testing.T) { // UNH 16.4
		c := s.ready(t)
		p := writeCommand(40, 1).with(pattern(40, blockSize, 1))
		c.good(c.run(p))
		again := *p
		again.data = pattern(40, blockSize, 2)
		c.send(&again)
		c.expectQuiet()
		if !bytes.Equal(s.disk.content(t, 40, blockSize), p.data) {
			t.Error("a duplicate was written")
		}
	})
}

// TestWindow: as many commands as the window says may be under way, and not
// one more; immediate ones beside it.
func TestWindow(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	g := s.disk.hold("read")
	var tags []uint32
	for range window {
		tags = append(tags, c.request(readCommand(0, 1)))
	}
	p := newPacket(0x00, 0x80).immediate().set32(20, reservedTag)
	tag := c.request(p)
	r := c.expectFor(opNopIn, tag)
	if r.expCmdSN() != c.nextCmdSN || r.maxCmdSN() != r.expCmdSN()-1 {
		t.Fatalf("with %d commands under way: ExpCmdSN %#x, MaxCmdSN %#x, want it closed", window, r.expCmdSN(), r.maxCmdSN())
	}
	c.send(readCommand(0, 1).itt(0xbbbb).cmdSN(c.nextCmdSN)) // beyond it
	c.expectQuiet()

	var urgent []uint32
	for range immediates {
		urgent = append(urgent, c.request(command10(flagF|flagR, 512, readCDB(1, 1)).immediate()))
	}
	c.expectQuiet()
	over := readCommand(2, 1).immediate()
	c.request(over)
	c.expectReject(6, over)
	g.release()
	done := make(map[uint32]bool)
	for len(done) < len(tags)+len(urgent) {
		p := c.receive()
		if p.opcode() == 0x21 || p.flags()&1 != 0 {
			done[p.tag()] = true
		}
	}
	r = c.testUnitReady().packet
	if r.maxCmdSN()-r.expCmdSN()+1 != window {
		t.Errorf("window of %d in the end, want %d", r.maxCmdSN()-r.expCmdSN()+1, window)
	}
}

// TestImmediatesSpareTheWindow: immediate commands take no place from those
// that the window promises.
func TestImmediatesSpareTheWindow(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	g := s.disk.hold("read")
	total := 0
	for range immediates {
		c.request(readCommand(0, 1).immediate())
		total++
	}
	for range 10 {
		over := readCommand(2, 1).immediate()
		c.request(over)
		c.expectReject(6, over)
	}
	for range window {
		c.request(readCommand(0, 1))
		total++
	}
	c.expectQuiet()
	g.release()
	for total > 0 {
		if p := c.receive(); p.opcode() == 0x21 || p.flags()&1 != 0 {
			total--
		}
	}
	c.good(c.testUnitReady())
}

// sendBad sends p with its data damaged on the way.
func (c *client) sendBad(p *packet) {
	b := p.bytes(c.headerDigest, c.dataDigest)
	start := 48 + len(p.ahs)
	if c.headerDigest {
		start += 4
	}
	b[start] ^= 0x40
	c.sendBytes(b)
}

var digestKeys = []string{"HeaderDigest=CRC32C", "DataDigest=CRC32C"}

func TestHeaderDigestError(t *testing.T) {
	s := serveTCP(t)
	for _, p := range []*packet{readCommand(0, 1), newPacket(0x40, 0x80).with([]byte("ping")), newPacket(0x05, 0x80)} {
		c := s.ready(t, digestKeys...)
		c.number(p, func() {
			b := p.bytes(true, true)
			b[33] ^= 1
			c.sendBytes(b)
		})
		c.expectClosed()
	}
}

// TestDataDigestError: RFC 7143 §7.8. The PDU is rejected and its number does
// not count; commands behind the gap wait and then run in their order.
func TestDataDigestError(t *testing.T) {
	s := serveTCP(t)
	old := s.disk.fill(t, 0, 16*blockSize)
	t.Run("command", func(t *testing.T) {
		c := s.ready(t, append(digestKeys, "InitialR2T=No")...)
		lost := writeCommand(0, 1).with(pattern(0, blockSize, 1))
		c.number(lost, func() { c.sendBad(lost) })
		r := c.expect(opReject)
		if r.u8(2) != 2 || !bytes.Equal(r.data, lost.bytes(false, false)[:48]) {
			t.Errorf("reason %#02x with % x", r.u8(2), r.data)
		}
		if r.expCmdSN() != lost.u32(24) {
			t.Errorf("ExpCmdSN %#x, want the lost command's %#x", r.expCmdSN(), lost.u32(24))
		}
		read := c.request(readCommand(0, 1))
		second := c.request(writeCommand(1, 1).with(pattern(1, blockSize, 2)))
		ping := c.request(newPacket(0x00, 0x80).set32(20, reservedTag))
		c.expectQuiet()
		if got := s.disk.content(t, 0, 2*blockSize); !bytes.Equal(got, old[:2*blockSize]) {
			t.Error("a command ran before its turn")
		}
		c.send(lost) // again, in good order
		if p := c.expectFor(opSCSIResponse, lost.tag()); p.u8(3) != 0 {
			t.Errorf("%s", p)
		}
		if r := c.good(c.finish(read)); !bytes.Equal(r.data, pattern(0, blockSize, 1)) {
			t.Error("the read behind the gap did not see the write")
		}
		c.good(c.finish(second))
		p := c.expectFor(opNopIn, ping)
		if p.expCmdSN() != c.nextCmdSN || p.maxCmdSN()-p.expCmdSN()+1 != window {
			t.Errorf("ExpCmdSN %#x, MaxCmdSN %#x, want %#x and a window of %d", p.expCmdSN(), p.maxCmdSN(), c.nextCmdSN, window)
		}
	})
	t.Run("a write behind the gap, with unsolicited data", func(t *testing.T) {
		c := s.ready(t, append(digestKeys, "InitialR2T=No")...)
		lost := writeCommand(0, 1).with(pattern(0, blockSize, 1))
		c.number(lost, func() { c.sendBad(lost) })
		c.expect(opReject)
		data := pattern(4, 4*blockSize, 3)
		p := writeCommand(4, 4).with(data[:blockSize])
		p.h[1] &^= flagF
		tag := c.request(p)
		c.send(dataOutPDU(0, tag, reservedTag, 0, blockSize, data[blockSize:2*blockSize]))
		c.send(dataOutPDU(flagF, tag, reservedTag, 1, 2*blockSize, data[2*blockSize:]))
		c.expectQuiet()
		c.send(lost)
		c.good(result{packet: c.expectFor(opSCSIResponse, lost.tag())})
		c.good(result{packet: c.expectFor(opSCSIResponse, tag)})
		if !bytes.Equal(s.disk.content(t, 4, len(data)), data) {
			t.Error("the disk has other data")
		}
	})
	t.Run("Data-Out", func(t *testing.T) {
		c := s.ready(t, digestKeys...)
		tag := c.request(writeCommand(8, 4))
		r := c.expectFor(opR2T, tag)
		data := pattern(8, 4*blockSize, 4)
		c.send(dataOutPDU(0, tag, r.u32(20), 0, 0, data[:blockSize]))
		bad := dataOutPDU(0, tag, r.u32(20), 1, blockSize, data[blockSize:2*blockSize])
		c.sendBad(bad)
		c.expectReject(2, bad)
		c.expectQuiet() // not before F
		c.send(dataOutPDU(flagF, tag, r.u32(20), 2, 2*blockSize, data[2*blockSize:]))
		c.fails(result{packet: c.expectFor(opSCSIResponse, tag)}, 0x0b4705)
		if got := s.disk.content(t, 9, blockSize); !bytes.Equal(got, old[9*blockSize:10*blockSize]) {
			t.Error("damaged data was written")
		}
		c.good(c.writeAll(writeCommand(8, 4), data))
	})
	t.Run("the last Data-Out", func(t *testing.T) {
		c := s.ready(t, digestKeys...)
		tag := c.request(writeCommand(8, 4))
		r := c.expectFor(opR2T, tag)
		bad := dataOutPDU(flagF, tag, r.u32(20), 0, 0, pattern(8, 4*blockSize, 5))
		c.sendBad(bad)
		c.expectReject(2, bad)
		c.fails(result{packet: c.expectFor(opSCSIResponse, tag)}, 0x0b4705)
	})
	t.Run("ping and text", func(t *testing.T) {
		c := s.ready(t, digestKeys...)
		for _, p := range []*packet{newPacket(0x00, 0x80).set32(20, reservedTag).with([]byte("ping")),
			newPacket(0x04, 0x80).set32(20, reservedTag).with(text("SendTargets="))} {
			c.number(p, func() { c.sendBad(p) })
			c.expectReject(2, p)
			c.send(p)
			if r := c.receive(); r.tag() != p.tag() {
				t.Errorf("%s, want the answer to %s", r, p)
			}
		}
		c.good(c.testUnitReady())
	})
	t.Run("aborted instead of sent again", func(t *testing.T) {
		// §11.6.1: a command in the window that did not come is treated as
		// received, so that the gap is closed.
		c := s.ready(t, digestKeys...)
		lost := writeCommand(0, 1).with(pattern(0, blockSize, 7))
		c.number(lost, func() { c.sendBad(lost) })
		c.expect(opReject)
		second := c.request(command10(flagF, 0, make([]byte, 16)))
		c.expectQuiet()
		abort := newPacket(0x42, 0x81).set32(20, lost.tag()).set32(32, lost.u32(24))
		c.request(abort)
		seen := make(map[uint32]byte)
		for range 2 {
			p := c.receive()
			seen[p.tag()] = p.opcode()
		}
		if seen[abort.tag()] != 0x22 || seen[second] != 0x21 {
			t.Errorf("got %v, want the task response and the command behind the gap", seen)
		}
		c.good(c.testUnitReady())
	})
	t.Run("a held command is aborted", func(t *testing.T) {
		before := s.disk.content(t, 12, blockSize)
		c := s.ready(t, append(digestKeys, "InitialR2T=No")...)
		lost := newPacket(0x00, 0x80).set32(20, reservedTag).with([]byte("ping"))
		c.number(lost, func() { c.sendBad(lost) })
		c.expect(opReject)
		held := writeCommand(12, 1).with(pattern(12, blockSize, 99))
		c.request(held)
		abort := newPacket(0x42, 0x81).set32(20, held.tag()).set32(32, held.u32(24))
		c.request(abort)
		if p := c.expectFor(opTaskResponse, abort.tag()); p.u8(2) != 0 {
			t.Errorf("response %d", p.u8(2))
		}
		c.send(lost)
		c.expectFor(opNopIn, lost.tag())
		c.good(c.testUnitReady()) // and nothing of the aborted one before it
		if !bytes.Equal(s.disk.content(t, 12, blockSize), before) {
			t.Error("a command that was aborted was executed")
		}
	})
}

// TestDigests: a session with each combination moves data both ways.
func TestDigests(t *testing.T) {
	s := serveTCP(t)
	for _, header := range []string{"None", "CRC32C"} {
		for _, data := range []string{"None", "CRC32C"} {
			c := s.ready(t, "HeaderDigest="+header, "DataDigest="+data)
			want := pattern(7, 33*blockSize, 3)
			c.good(c.writeAll(writeCommand(7, 33), want))
			if r := c.good(c.run(readCommand(7, 33))); !bytes.Equal(r.data, want) {
				t.Errorf("header %s, data %s: read is not what was written", header, data)
			}
			c.fails(c.run(readCommand(testSize/blockSize, 1)), 0x052100) // sense data is under the digest too
			c.request(newPacket(0x46, 0x80))
			c.expect(opLogoutResp)
			c.expectClosed()
		}
	}
}
