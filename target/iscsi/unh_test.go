package iscsi

import (
	"bytes"
	"fmt"
	"testing"
)

// The cases of UNH-IOL's "Full Feature Phase Test Suite for iSCSI Targets" (v0.1
// of 2003, for the drafts of RFC 3720), by their numbers; where RFC 7143 says
// otherwise it is what is tested. What the suite has at a third level, and the
// variants of a case, are subtests of it. The tests named by subject go deeper.

// unhCase is one number of the suite.
type unhCase struct {
	number string // FFP_<group>_<case>
	title  string
	test   func(t *testing.T, s *testServer, c *client)
}

// TestUNH runs every case with a server and a session of its own.
func TestUNH(t *testing.T) {
	passed, all := 0, append(append([]unhCase(nil), unhNumbersAndData...), unhRequests...)
	for _, u := range all {
		if t.Run(u.number, func(t *testing.T) {
			s := serveTCP(t)
			u.test(t, s, s.ready(t, "InitialR2T=No", "MaxBurstLength=8192", "FirstBurstLength=4096", "MaxRecvDataSegmentLength=2048"))
		}) {
			passed++
		} else {
			t.Logf("%s is: %s", u.number, u.title)
		}
	}
	t.Logf("UNH full feature phase: %d of %d numbers pass, 0 not applicable (what recovery level 0 leaves out has to be refused in good order)", passed, len(all))
}

// each runs a test for each name.
func each[T any](t *testing.T, cases map[string]T, test func(t *testing.T, v T)) {
	t.Helper()
	for name, v := range cases {
		t.Run(name, func(t *testing.T) { test(t, v) })
	}
}

var unhNumbersAndData = []unhCase{
	{"FFP_1_1", "CmdSN counts commands, but not immediate ones", func(t *testing.T, s *testServer, c *client) {
		for _, step := range []uint32{1, 0, 1, 0, 0, 1} {
			before, q := c.nextCmdSN, command10(flagF, 0, make([]byte, 16))
			if step == 0 {
				q.immediate()
			}
			if r := c.good(c.run(q)); r.expCmdSN() != before+step {
				t.Errorf("ExpCmdSN %#x after CmdSN %#x, immediate %v", r.expCmdSN(), before, step == 0)
			}
		}
	}},
	{"FFP_1_2", "commands outside the window are ignored", func(t *testing.T, s *testServer, c *client) {
		c.send(command10(flagF, 0, make([]byte, 16)).itt(0xaaaa).cmdSN(c.maxCmdSN + 1))
		c.send(command10(flagF, 0, make([]byte, 16)).itt(0xaaaa).cmdSN(c.nextCmdSN - 2))
		c.expectQuiet()
		c.good(c.testUnitReady())
	}},
	{"FFP_1_3", "duplicates are ignored", func(t *testing.T, s *testServer, c *client) {
		q := command10(flagF, 0, make([]byte, 16))
		c.good(c.run(q))
		c.send(q)
		c.expectQuiet()
	}},
	{"FFP_2_1", "StatSN counts what has a status", func(t *testing.T, s *testServer, c *client) {
		for _, q := range []*packet{readCommand(0, 8), command10(flagF, 0, make([]byte, 16)), readCommand(testSize/blockSize, 1)} {
			before := c.expStatSN
			if r := c.run(q); r.statSN() != before || c.expStatSN != before+1 {
				t.Errorf("StatSN %#x, want %#x and nothing else to count", r.statSN(), before)
			}
		}
		shown := c.expStatSN
		q := writeCommand(0, 32)
		if r := c.expectFor(opR2T, c.request(q)); r.statSN() != shown {
			t.Errorf("an R2T shows StatSN %#x, want %#x", r.statSN(), shown)
		}
	}},
	{"FFP_3_1", "DataSN counts from 0 in each read", func(t *testing.T, s *testServer, c *client) {
		for range 3 {
			if r := c.good(c.run(readCommand(0, 20))); r.u32(36) != 4 {
				t.Errorf("the last of 10240 bytes in PDUs of 2048 is number %d, want 4", r.u32(36))
			}
		}
	}},
	{"FFP_4_1", "R2TSN counts from 0 in each write", func(t *testing.T, s *testServer, c *client) {
		for range 3 {
			tag := c.request(writeCommand(0, 40))
			for want := range uint32(3) {
				r := c.expectFor(opR2T, tag)
				if r.u32(36) != want {
					t.Errorf("R2TSN %d, want %d", r.u32(36), want)
				}
				c.feed(r, make([]byte, 40*blockSize), 8192)
			}
			c.good(c.finishAfter(tag, 3))
		}
	}},
	{"FFP_5_1", "a command again after a data digest error", func(t *testing.T, s *testServer, _ *client) {
		c := s.ready(t, "DataDigest=CRC32C")
		q := writeCommand(5, 1).with(pattern(5, blockSize, 1))
		c.number(q, func() { c.sendBad(q) })
		c.expectReject(2, q)
		if got := s.disk.content(t, 5, blockSize); !bytes.Equal(got, make([]byte, blockSize)) {
			t.Error("damaged data was written")
		}
		c.send(q)
		c.good(c.finish(q.tag()))
		if got := s.disk.content(t, 5, blockSize); !bytes.Equal(got, q.data) {
			t.Error("the disk has other data")
		}
	}},
	{"FFP_6_1", "allegiance: a session has one connection, where its answers come", func(t *testing.T, s *testServer, c *client) {
		second := s.dial(t)
		second.tsih, second.cid = c.tsih, c.cid+1
		second.failLogin(statusTooMany, operationalToFull, second.names()...)
		c.good(c.testUnitReady())
	}},
	{"FFP_7_1", "unsolicited data that was not agreed", func(t *testing.T, s *testServer, _ *client) {
		each(t, map[string]bool{"immediate": true, "in PDUs of its own": false}, func(t *testing.T, immediate bool) {
			c := s.ready(t, "ImmediateData=No", "InitialR2T=Yes")
			q := writeCommand(0, 1)
			if immediate {
				q.with(make([]byte, blockSize))
			} else {
				q.h[1] &^= flagF
			}
			tag := c.request(q)
			if !immediate {
				c.send(dataOutPDU(flagF, tag, reservedTag, 0, 0, make([]byte, blockSize)))
			}
			c.fails(c.finish(tag), 0x0b0c0c)
		})
	}},
	{"FFP_7_2", "the wrong amount of unsolicited data", func(t *testing.T, s *testServer, c *client) {
		each(t, map[string]int{"too little": 1024, "too much": 4608}, func(t *testing.T, n int) {
			c := s.ready(t, "InitialR2T=No", "FirstBurstLength=4096")
			q := writeCommand(0, 16)
			q.h[1] &^= flagF
			tag := c.request(q)
			c.send(dataOutPDU(flagF, tag, reservedTag, 0, 0, make([]byte, n)))
			c.expect(opReject)
			c.fails(c.finish(tag), 0x0b0c0d)
		})
	}},
	{"FFP_8_1", "transfer tag and LUN of an R2T", func(t *testing.T, s *testServer, c *client) {
		r := c.expectFor(opR2T, c.request(writeCommand(0, 8)))
		if r.u32(20) == reservedTag || binary64(r.h[8:]) != 0 {
			t.Errorf("tag %#x, LUN %#x", r.u32(20), binary64(r.h[8:]))
		}
	}},
	{"FFP_8_2", "the transfer tag of Data-In is reserved", func(t *testing.T, s *testServer, c *client) {
		if p := c.expectFor(opDataIn, c.request(readCommand(0, 1))); p.u32(20) != reservedTag || p.flags()&0x40 != 0 {
			t.Errorf("%s asks for an acknowledgement", p)
		}
	}},
	{"FFP_9_1", "S goes with F, at the end", func(t *testing.T, s *testServer, c *client) {
		c.request(readCommand(0, 20))
		for i := range 5 {
			last := i == 4
			if p := c.expect(opDataIn); p.flags()&1 != 0 != last || p.flags()&flagF != 0 != (last || i == 3) { // the burst ends with 3
				t.Errorf("Data-In %d: flags %#02x", i, p.flags())
			}
		}
	}},
	{"FFP_9_2", "no segment is longer than we take", func(t *testing.T, s *testServer, c *client) {
		c.request(readCommand(0, 20))
		for range 5 {
			if p := c.expect(opDataIn); len(p.data) != 2048 {
				t.Errorf("%d bytes, want 2048", len(p.data))
			}
		}
	}},
	{"FFP_9_3", "Data-Out without data", func(t *testing.T, s *testServer, c *client) {
		r := c.expectFor(opR2T, c.request(writeCommand(0, 1)))
		c.send(dataOutPDU(0, r.tag(), r.u32(20), 0, 0, nil))
		c.send(dataOutPDU(flagF, r.tag(), r.u32(20), 1, 0, make([]byte, blockSize)))
		c.good(c.finishAfter(r.tag(), 1))
	}},
	{"FFP_9_4", "segments are padded to words", func(t *testing.T, s *testServer, c *client) {
		for n := range 9 { // the client checks the padding
			if r := c.good(c.run(command10(flagF|flagR, n, []byte{0x12, 0, 0, 0, byte(n), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}))); len(r.data) != n {
				t.Errorf("%d bytes of INQUIRY, want %d", len(r.data), n)
			}
		}
	}},
	{"FFP_9_5", "buffer offsets are in order and without gaps", func(t *testing.T, s *testServer, c *client) {
		want := s.disk.fill(t, 0, 40*blockSize)
		if r := c.good(c.run(readCommand(0, 40))); !bytes.Equal(r.data, want) { // finish checks each offset
			t.Error("other data")
		}
	}},
	{"FFP_10_1", "the form of an R2T", func(t *testing.T, s *testServer, c *client) {
		tag := c.request(writeCommand(0, 40))
		for at := uint32(0); at < 40*blockSize; {
			r := c.expectFor(opR2T, tag)
			if r.u32(40) != at || r.u32(44) == 0 || r.u32(44) > 8192 || r.flags() != flagF || len(r.data) > 0 {
				t.Fatalf("%d bytes at %d, flags %#02x, want up to 8192 at %d", r.u32(44), r.u32(40), r.flags(), at)
			}
			at += r.u32(44)
			c.feed(r, make([]byte, 40*blockSize), 8192)
		}
		c.good(result{packet: c.expectFor(opSCSIResponse, tag)})
	}},
}

// unsolicited are the ways in which data comes without being asked for.
func unsolicited() map[string]transferKeys {
	all := map[string]transferKeys{}
	for _, k := range allTransferKeys() {
		if k.burst == 8192 && k.r2ts == 1 && k.first == 8192 {
			all[fmt.Sprintf("InitialR2T=%s,ImmediateData=%s", k.initialR2T, k.immediateData)] = k
		}
	}
	return all
}
