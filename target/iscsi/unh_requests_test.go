package iscsi

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

var unhRequests = []unhCase{
	{"FFP_11_1", "TASK REASSIGN", func(t *testing.T, s *testServer, c *client) {
		if got := c.manage(taskPDU(tmfTaskReassign, nil).set32(20, 0x999)); got != 4 {
			t.Errorf("response %d, want 4: not supported at this recovery level", got)
		}
	}},
	{"FFP_11_2", "ABORT TASK of a task that is not there", func(t *testing.T, s *testServer, c *client) {
		each(t, map[string]struct {
			sn   uint32
			want byte
		}{
			"outside the window":                      {c.nextCmdSN - 50, 1},
			"inside the window, sent after the abort": {c.nextCmdSN + 5, 1},
		}, func(t *testing.T, v struct {
			sn   uint32
			want byte
		}) {
			if got := c.manage(taskPDU(tmfAbortTask, nil).set32(20, 0x999).set32(32, v.sn)); got != v.want {
				t.Errorf("response %d, want %d", got, v.want)
			}
		})
	}},
	{"FFP_11_3", "ABORT TASK of a task", func(t *testing.T, s *testServer, c *client) {
		q := writeCommand(0, 8)
		c.expectFor(opR2T, c.request(q))
		if got := c.manage(taskPDU(tmfAbortTask, q)); got != 0 {
			t.Errorf("response %d, want 0", got)
		}
		c.expectQuiet() // no response of its own
	}},
	{"FFP_11_4", "TARGET WARM RESET", func(t *testing.T, s *testServer, c *client) {
		if got := c.manage(taskPDU(tmfWarmReset, nil)); got != 0 {
			t.Errorf("response %d, want 0", got)
		}
		c.fails(c.testUnitReady(), 0x062902)
		c.good(c.testUnitReady())
	}},
	{"FFP_11_5", "TARGET COLD RESET", func(t *testing.T, s *testServer, c *client) {
		if got := c.manage(taskPDU(tmfColdReset, nil)); got != 0 {
			t.Errorf("response %d, want 0", got)
		}
		c.expectClosed()
	}},
	{"FFP_12_1", "Data/R2T SNACK", unhSNACK(0)},
	{"FFP_12_2", "Status SNACK", unhSNACK(1)},
	{"FFP_12_3", "DataACK", unhSNACK(2)},
	{"FFP_12_4", "R-Data SNACK", unhSNACK(3)},
	{"FFP_13_1", "logout that closes the session", unhLogout(0, 7, 0)},
	{"FFP_13_2", "logout that closes the connection", func(t *testing.T, s *testServer, c *client) {
		unhLogout(1, 8, 1)(t, s, c) // not this one
		unhLogout(1, 7, 0)(t, s, c)
	}},
	{"FFP_13_3", "logout for recovery", unhLogout(2, 7, 2)},
	{"FFP_14_1", "the form of a Reject", func(t *testing.T, s *testServer, c *client) {
		q := newPacket(0x1c, 0x80).itt(0x77)
		c.send(q)
		c.expectReject(5, q)
	}},
	{"FFP_14_2", "a Reject counts in StatSN", func(t *testing.T, s *testServer, c *client) {
		want := c.expStatSN
		c.send(newPacket(0x1c, 0x80).itt(0x77))
		if r := c.expect(opReject); r.statSN() != want || c.good(c.testUnitReady()).statSN() != want+1 {
			t.Errorf("StatSN %#x, want %#x and one more for the next", r.statSN(), want)
		}
	}},
	{"FFP_14_3", "the response waits for F behind what was rejected", func(t *testing.T, s *testServer, c *client) {
		r := c.expectFor(opR2T, c.request(writeCommand(0, 4)))
		bad := dataOutPDU(0, r.tag(), r.u32(20), 5, 0, make([]byte, blockSize))
		c.send(bad)
		c.expectReject(9, bad)
		c.expectQuiet()
		c.send(dataOutPDU(flagF, r.tag(), r.u32(20), 6, blockSize, make([]byte, 3*blockSize)))
		c.fails(c.finishAfter(r.tag(), 1), 0x0b0c0d)
	}},
	{"FFP_15_1", "NOP-Out as a ping", func(t *testing.T, s *testServer, c *client) {
		each(t, map[string]*packet{
			"15.1.1 immediate": newPacket(0x40, 0x80), "15.1.2 not immediate": newPacket(0x00, 0x80),
		}, func(t *testing.T, q *packet) {
			data := pattern(0, 3000, 1) // more than we take in a PDU
			p := c.expectFor(opNopIn, c.request(q.set32(20, reservedTag).with(data)))
			if !bytes.Equal(p.data, data[:2048]) || p.u32(20) != reservedTag {
				t.Errorf("%d bytes back, transfer tag %#x", len(p.data), p.u32(20))
			}
		})
	}},
	{"FFP_15_2", "NOP-Out that wants no answer", func(t *testing.T, s *testServer, c *client) {
		want := c.expStatSN
		c.send(newPacket(0x40, 0x80).itt(reservedTag).set32(20, reservedTag).cmdSN(c.nextCmdSN))
		c.expectQuiet()
		if c.expStatSN != want+1 {
			t.Errorf("StatSN went from %#x to %#x", want, c.expStatSN)
		}
	}},
	{"FFP_15_3", "the target's own ping", func(t *testing.T, _ *testServer, _ *client) {
		synctest.Test(t, func(t *testing.T) {
			c := servePipe(t).ready(t)
			p, err := c.tryReceive(2 * time.Minute)
			if err != nil || p.opcode() != byte(opNopIn) || p.tag() != reservedTag || p.u32(20) == reservedTag {
				t.Fatalf("%v, %v; want a ping", p, err)
			}
			c.send(newPacket(0x40, 0x80).itt(reservedTag).set32(20, p.u32(20)).cmdSN(c.nextCmdSN))
			c.good(c.testUnitReady())
		})
	}},
	{"FFP_16_1", "residual underflow", func(t *testing.T, s *testServer, c *client) {
		each(t, map[string]*packet{
			"read": command10(flagF|flagR, 3*blockSize, readCDB(0, 1)), "write": command10(flagF|flagW, 3*blockSize, writeCDB(0, 1)).with(make([]byte, 3*blockSize)),
		}, func(t *testing.T, q *packet) {
			if r := c.good(c.run(q)); r.flags()&0x06 != 0x02 || r.residual() != 2*blockSize {
				t.Errorf("flags %#02x, residual %d", r.flags(), r.residual())
			}
		})
	}},
	{"FFP_16_2", "residual overflow", func(t *testing.T, s *testServer, c *client) {
		each(t, map[string]*packet{
			"read": command10(flagF|flagR, blockSize, readCDB(0, 3)), "write": command10(flagF|flagW, blockSize, writeCDB(0, 3)).with(make([]byte, blockSize)),
		}, func(t *testing.T, q *packet) {
			if r := c.good(c.run(q)); r.flags()&0x06 != 0x04 || r.residual() != 2*blockSize {
				t.Errorf("flags %#02x, residual %d", r.flags(), r.residual())
			}
		})
	}},
	{"FFP_16_3", "unsolicited data by InitialR2T and ImmediateData", func(t *testing.T, s *testServer, _ *client) {
		each(t, unsolicited(), func(t *testing.T, k transferKeys) {
			c := s.ready(t, k.pairs()...)
			for _, blocks := range []int{1, 16, 100} {
				data := pattern(0, blocks*blockSize, 3)
				c.beginWrite(k, 0, data, true).run()
				if got := s.disk.content(t, 0, len(data)); !bytes.Equal(got, data) {
					t.Errorf("%d blocks: other data", blocks)
				}
			}
			c.nc.Close()
		})
	}},
	{"FFP_16_4", "a write again is dropped without a word", func(t *testing.T, s *testServer, c *client) {
		q := writeCommand(40, 1).with(pattern(40, blockSize, 1))
		c.good(c.run(q))
		again := *q
		again.data = pattern(40, blockSize, 2)
		c.send(&again)
		c.expectQuiet()
		if !bytes.Equal(s.disk.content(t, 40, blockSize), q.data) {
			t.Error("it was written")
		}
	}},
	{"FFP_16_5", "an operation code that there is not", func(t *testing.T, s *testServer, c *client) {
		c.fails(c.run(command10(flagF, 0, append([]byte{0xff}, make([]byte, 15)...))), 0x052000)
	}},
	{"FFP_17_1", "Text: F", func(t *testing.T, s *testServer, c *client) {
		q := textPDU("X-com.example.a=1")
		q.h[1] = 0
		if r := c.expectFor(opTextResponse, c.request(q)); r.flags() != 0 || r.u32(20) == reservedTag {
			t.Errorf("%s; want F off, as we have more to say", r)
		}
		if r := c.expectFor(opTextResponse, c.request(textPDU("X-com.example.b=1"))); r.flags() != flagF || r.u32(20) != reservedTag {
			t.Errorf("%s; want F on and the tag reserved", r)
		}
	}},
	{"FFP_17_2", "Text: transfer tag", func(t *testing.T, s *testServer, c *client) {
		q := textPDU("X-com.example.a=1").set32(20, 0x1234)
		c.request(q)
		c.expectReject(9, q)
	}},
	{"FFP_17_3", "SendTargets", func(t *testing.T, s *testServer, normal *client) {
		d := s.dial(t)
		d.isid[5]++
		d.finishLogin(d.succeed(operationalToFull, d.discoveryNames()...))
		each(t, map[string]struct {
			c           *client
			value, want string
		}{
			"17.3.1 All in a discovery session": {d, "All", testTarget}, "17.3.2 a name in a discovery session": {d, testTarget, testTarget},
			"17.3.3 All in a normal session": {normal, "All", testTarget}, // docs/adr/0006
			"17.3.4 nothing":                 {normal, "", testTarget}, "17.3.5 another's name": {normal, "iqn.2026-01.test:other", ""},
		}, func(t *testing.T, v struct {
			c           *client
			value, want string
		}) {
			if r := v.c.expectFor(opTextResponse, v.c.request(textPDU("SendTargets="+v.value))); r.value("TargetName") != v.want {
				t.Errorf("%q, want %q", r.pairs(), v.want)
			}
		})
	}},
	{"FFP_17_4", "MaxRecvDataSegmentLength in a discovery session, valid by RFC 7143", func(t *testing.T, s *testServer, _ *client) {
		d := s.dial(t)
		d.isid[5]++
		r := d.finishLogin(d.succeed(operationalToFull, append(d.discoveryNames(), "MaxRecvDataSegmentLength=8192")...))
		if v, ok := r.lookup("MaxRecvDataSegmentLength"); ok && v == valIrrelevant {
			t.Error("it is irrelevant")
		}
	}},
	{"FFP_17_5", "logout of a discovery session for another reason than its end", func(t *testing.T, s *testServer, _ *client) {
		d := s.dial(t)
		d.isid[5]++
		d.finishLogin(d.succeed(operationalToFull, d.discoveryNames()...))
		for _, reason := range []byte{1, 2} {
			q := newPacket(0x06, 0x80|reason)
			d.request(q)
			d.expectReject(4, q) // RFC 7143 §4.3
		}
		d.expectFor(opLogoutResp, d.request(newPacket(0x06, 0x80)))
		d.expectClosed()
	}},
	{"FFP_17_6", "the initiator's tag of a negotiation", func(t *testing.T, s *testServer, c *client) {
		q := textPDU("X-com.example.a=1")
		q.h[1] = 0
		r := c.expectFor(opTextResponse, c.request(q))
		other := textPDU("X-com.example.b=1").set32(20, r.u32(20))
		c.request(other) // with another tag
		c.expectReject(9, other)
		c.expectFor(opTextResponse, c.request(textPDU("X-com.example.b=1").itt(q.tag()).set32(20, r.u32(20))))
	}},
	{"FFP_17_7", "a key is negotiated once", func(t *testing.T, s *testServer, c *client) {
		q := textPDU("MaxRecvDataSegmentLength=4096", "MaxRecvDataSegmentLength=4096")
		c.request(q)
		c.expectReject(4, q)
		if p := c.expectFor(opDataIn, c.request(readCommand(0, 20))); len(p.data) != 2048 {
			t.Errorf("segments of %d bytes now; nothing of the negotiation may count", len(p.data))
		}
	}},
	{"FFP_17_8", "a negotiation begun anew, and text in several PDUs", func(t *testing.T, s *testServer, c *client) {
		t.Run("17.8.1 begun anew", func(t *testing.T) {
			q := textPDU("MaxRecvDataSegmentLength=4096")
			q.h[1] = 0
			r := c.expectFor(opTextResponse, c.request(q))
			if got := c.expectFor(opTextResponse, c.request(textPDU("SendTargets="))); got.value("TargetName") != testTarget {
				t.Errorf("%q", got.pairs())
			}
			late := textPDU().itt(q.tag()).set32(20, r.u32(20))
			c.request(late)
			c.expectReject(9, late)
		})
		t.Run("17.8.2 C", func(t *testing.T) {
			q := newPacket(0x04, 0x40).set32(20, reservedTag).with([]byte("SendTar"))
			r := c.expectFor(opTextResponse, c.request(q))
			if len(r.data) > 0 || r.flags() != 0 {
				t.Errorf("%s, %q; want an empty answer to a piece", r, r.data)
			}
			rest := newPacket(0x04, 0x80).itt(q.tag()).set32(20, r.u32(20)).with([]byte("gets=\x00"))
			if r := c.expectFor(opTextResponse, c.request(rest)); r.value("TargetName") != testTarget {
				t.Errorf("%q", r.pairs())
			}
		})
	}},
	{"FFP_18_1", "header digests", unhDigest("HeaderDigest=CRC32C", "DataDigest=None")},
	{"FFP_18_2", "data digests", unhDigest("HeaderDigest=None", "DataDigest=CRC32C")},
	{"FFP_19_1", "nothing is expected to move", func(t *testing.T, s *testServer, c *client) {
		each(t, map[string]*packet{
			"read": command10(flagF|flagR, 0, readCDB(0, 1)), "write": command10(flagF|flagW, 0, writeCDB(0, 1)),
		}, func(t *testing.T, q *packet) {
			if r := c.good(c.run(q)); len(r.data) > 0 || r.flags()&0x06 != 0x04 || r.residual() != blockSize {
				t.Errorf("%d bytes, flags %#02x, residual %d", len(r.data), r.flags(), r.residual())
			}
		})
	}},
}

// unhSNACK: at recovery level 0 there is nothing to send again.
func unhSNACK(kind byte) func(*testing.T, *testServer, *client) {
	return func(t *testing.T, s *testServer, c *client) {
		q := newPacket(0x10, 0x80|kind).itt(reservedTag)
		c.send(q)
		c.expectReject(3, q)
		c.good(c.testUnitReady())
	}
}

func unhLogout(reason byte, cid uint16, want byte) func(*testing.T, *testServer, *client) {
	return func(t *testing.T, s *testServer, c *client) {
		t.Helper()
		if r := c.expectFor(opLogoutResp, c.request(newPacket(0x06, 0x80|reason).set16(20, cid))); r.u8(2) != want {
			t.Errorf("response %d, want %d", r.u8(2), want)
		}
		if want == 0 {
			c.expectClosed()
			return
		}
		c.good(c.testUnitReady())
	}
}

// unhDigest moves data both ways under the digests, which the client checks,
// and then has one damaged.
func unhDigest(keys ...string) func(*testing.T, *testServer, *client) {
	return func(t *testing.T, s *testServer, _ *client) {
		c := s.ready(t, keys...)
		data := pattern(3, 9*blockSize, 4)
		c.good(c.writeAll(writeCommand(3, 9), data))
		if r := c.good(c.run(readCommand(3, 9))); !bytes.Equal(r.data, data) {
			t.Error("other data")
		}
		q := newPacket(0x00, 0x80).set32(20, reservedTag).with([]byte("damaged"))
		if c.headerDigest {
			b := c.damagedHeader(q)
			c.sendBytes(b)
			c.expectClosed()
			return
		}
		c.number(q, func() { c.sendBad(q) })
		c.expectReject(2, q)
	}
}

// damagedHeader is q with a bit of its header turned over on the way.
func (c *client) damagedHeader(q *packet) []byte {
	b := q.bytes(c.headerDigest, c.dataDigest)
	b[33] ^= 1
	return b
}
