package iscsi

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestNop(t *testing.T) {
	s := serveTCP(t)
	for _, keys := range [][]string{nil, digestKeys, {"MaxRecvDataSegmentLength=512"}} {
		c := s.ready(t, keys...)
		for _, n := range []int{0, 1, 4, 511, 512, 513, 8192} {
			for _, now := range []bool{false, true} {
				p := newPacket(0x00, 0x80).set32(20, reservedTag).set64(8, 3<<48).with(pattern(1, n, 1))
				if now {
					p.immediate()
				}
				tag := c.request(p)
				r := c.expectFor(opNopIn, tag)
				want := p.data
				if len(keys) == 1 {
					want = want[:min(n, 512)] // §11.18.2: no more than the initiator takes
				}
				if r.u32(20) != reservedTag || r.flags() != 0x80 || !bytes.Equal(r.data, want) {
					t.Errorf("%d bytes: %s", n, r)
				}
			}
		}
		// One with the reserved tag wants no answer.
		c.send(newPacket(0x40, 0x80).itt(reservedTag).set32(20, reservedTag).cmdSN(c.nextCmdSN))
		c.expectQuiet()
	}
}

// TestKeeper: an initiator without a sign of life is pinged, and given up when
// it does not answer.
func TestKeeper(t *testing.T) {
	idle := func(o *Options) { o.Idle = 20 * time.Second }
	t.Run("alive", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := servePipe(t, idle)
			c := s.ready(t)
			for range 5 {
				p, err := c.tryReceive(2 * time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				if p.opcode() != 0x20 || p.tag() != reservedTag || p.u32(20) == reservedTag || len(p.data) != 0 || p.flags() != 0x80 {
					t.Fatalf("%s, want a ping", p)
				}
				time.Sleep(time.Second)
				c.send(newPacket(0x40, 0x80).itt(reservedTag).set32(20, p.u32(20)).set64(8, binary64(p.h[8:])).cmdSN(c.nextCmdSN))
			}
			c.good(c.testUnitReady())
		})
	})
	t.Run("dead", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := servePipe(t, idle)
			c := s.ready(t)
			start := time.Now()
			p, err := c.tryReceive(2 * time.Minute)
			if err != nil || p.opcode() != 0x20 {
				t.Fatalf("%v, %v; want a ping", p, err)
			}
			if d := time.Since(start); d < 20*time.Second || d > 40*time.Second {
				t.Errorf("pinged after %v", d)
			}
			if p, err = c.tryReceive(10 * time.Minute); err == nil {
				t.Fatalf("%s, want to be given up", p)
			}
			if d := time.Since(start); d < 30*time.Second || d > 70*time.Second {
				t.Errorf("given up after %v, want 40 s or little more", d)
			}
			synctest.Wait()
			if st := s.Stats(); st.Sessions != 0 || st.Connections != 0 {
				t.Errorf("%+v", st)
			}
		})
	})
	t.Run("takes nothing", func(t *testing.T) {
		// Over a pipe that nobody reads from, a write never ends.
		synctest.Test(t, func(t *testing.T) {
			s := servePipe(t, idle)
			c := s.ready(t)
			stalled := make(chan struct{})
			defer close(stalled)
			c.stalled.Store(&stalled)
			over := make(chan struct{})
			go func() {
				defer close(over)
				c.nc.Write(readCommand(0, 2048).itt(77).cmdSN(c.nextCmdSN).bytes(false, false))
			}()
			time.Sleep(3 * time.Minute)
			if st := s.Stats(); st.Sessions != 0 {
				t.Errorf("%+v after three minutes", st)
			}
			<-over
		})
	})
	t.Run("a command that takes long", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := servePipe(t, idle)
			c := s.ready(t)
			g := s.disk.hold("read")
			tag := c.request(readCommand(0, 1))
			<-g.arrived
			for range 6 { // two minutes and more
				p, err := c.tryReceive(2 * time.Minute)
				if err != nil || p.opcode() != 0x20 {
					t.Fatalf("%v, %v; want a ping", p, err)
				}
				c.send(newPacket(0x40, 0x80).itt(reservedTag).set32(20, p.u32(20)).cmdSN(c.nextCmdSN))
			}
			g.release()
			c.good(c.finish(tag))
		})
	})
}

func binary64(b []byte) uint64 {
	var v uint64
	for _, x := range b[:8] {
		v = v<<8 | uint64(x)
	}
	return v
}

func TestLogout(t *testing.T) {
	for _, v := range []struct {
		reason   byte
		cid      uint16
		response byte
		closed   bool
	}{
		{0, 0, 0, true}, {0, 99, 0, true}, {1, 7, 0, true}, {1, 8, 1, false}, {2, 7, 2, false},
	} {
		for _, now := range []bool{true, false} {
			t.Run(fmt.Sprintf("reason %d, CID %d, immediate %v", v.reason, v.cid, now), func(t *testing.T) {
				s := serveTCP(t)
				c := s.ready(t)
				p := newPacket(0x06, 0x80|v.reason).set16(20, v.cid)
				if now {
					p.immediate()
				}
				r := c.expectFor(opLogoutResp, c.request(p))
				if r.u8(2) != v.response || r.flags() != 0x80 {
					t.Errorf("%s: response %d, want %d", r, r.u8(2), v.response)
				}
				if !v.closed {
					c.good(c.testUnitReady())
					return
				}
				c.expectClosed()
				waitFor(t, "the session to end", func() bool { return s.Stats().Sessions == 0 })
				s.ready(t)
			})
		}
	}
	t.Run("reserved reason", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		p := newPacket(0x46, 0x83)
		c.request(p)
		if r := c.expect(opReject); r.u8(2) != 4 && r.u8(2) != 9 {
			t.Errorf("reason %#02x", r.u8(2))
		}
		c.good(c.testUnitReady())
	})
	t.Run("with commands under way", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		g := s.disk.hold("read")
		c.request(readCommand(0, 1))
		g.wait(t)
		c.request(writeCommand(0, 1))
		c.expect(opR2T)
		tag := c.request(newPacket(0x46, 0x80))
		if r := c.expectFor(opLogoutResp, tag); r.u8(2) != 0 {
			t.Errorf("response %d", r.u8(2))
		}
		c.expectClosed()
		g.release()
		waitFor(t, "the session to end", func() bool { return s.Stats().Sessions == 0 })
	})
}

// TestOddRequests: what makes no sense is rejected, and the connection goes on.
func TestOddRequests(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	for _, v := range []struct {
		name   string
		p      *packet
		reason byte
	}{
		{"Status SNACK", newPacket(0x10, 0x81).itt(reservedTag), 3},
		{"Data SNACK", newPacket(0x10, 0x80).itt(0x77), 3},
		{"DataACK SNACK", newPacket(0x10, 0x82).itt(reservedTag), 3},
		{"R-Data SNACK", newPacket(0x10, 0x83).itt(0x77), 3},
		{"a vendor's opcode", newPacket(0x1c, 0x80).itt(0x77), 5},
		{"a reserved opcode", newPacket(0x0a, 0x80).itt(0x77).with([]byte("data")), 5},
		{"a target's opcode", newPacket(0x21, 0x80).itt(0x77), 5},
		{"the last opcode", newPacket(0x3f, 0x80).itt(0x77), 5},
		{"an opcode with AHS", func() *packet { p := newPacket(0x0b, 0x80).itt(0x77); p.ahs = []byte{0, 5, 2, 0, 1, 2, 3, 4}; return p }(), 5},
	} {
		t.Run(v.name, func(t *testing.T) {
			c.t = t
			c.send(v.p)
			c.expectReject(v.reason, v.p)
			c.good(c.testUnitReady())
		})
	}
	c.t = t
	t.Run("a tag in use", func(t *testing.T) {
		g := s.disk.hold("read")
		defer g.release()
		c := s.dial(t)
		c.isid[5]++
		c.loginReady()
		tag := c.request(readCommand(0, 1))
		g.wait(t)
		p := readCommand(1, 1).itt(tag)
		c.request(p)
		c.expectReject(7, p)
		g.release()
		c.good(c.finish(tag))
	})
	t.Run("the reserved tag", func(t *testing.T) {
		p := readCommand(1, 1).itt(reservedTag)
		c.request(p)
		c.expectReject(9, p)
		c.good(c.testUnitReady())
	})
	t.Run("AHS", func(t *testing.T) {
		p := readCommand(3, 2)
		p.ahs = []byte{0, 5, 2, 0, 0, 0, 2, 0, 0, 1, 0x30, 0}
		want := s.disk.fill(t, 3, 2*blockSize)
		if r := c.good(c.run(p)); !bytes.Equal(r.data, want) {
			t.Error("a read with AHS has other data")
		}
		w := writeCommand(3, 1).with(pattern(3, blockSize, 77))
		w.ahs = make([]byte, 255*4)
		c.good(c.run(w))
		if !bytes.Equal(s.disk.content(t, 3, blockSize), w.data) {
			t.Error("a write with AHS wrote other data")
		}
	})
	t.Run("data with a command that takes none", func(t *testing.T) {
		c.good(c.run(readCommand(3, 1).with([]byte("what for?"))))
	})
	t.Run("login in the full feature phase", func(t *testing.T) {
		c.send(c.loginPDU(operationalToFull, c.names()...))
		c.expectClosed()
	})
	t.Run("a data segment too long", func(t *testing.T) {
		c := s.ready(t)
		c.sendBytes(newPacket(0x40, 0x80).with(make([]byte, ourMaxRecvSegment+1)).bytes(false, false)[:48])
		c.expectClosed()
	})
}

// TestDiscovery: RFC 7143 §4.3: text requests, logout with reason 0, and
// nothing else.
func TestDiscovery(t *testing.T) {
	s := serveTCP(t)
	c := s.dial(t)
	c.finishLogin(c.succeed(operationalToFull, c.discoveryNames()...))
	for _, p := range []*packet{readCommand(0, 1), writeCommand(0, 1).with(make([]byte, 512)), newPacket(0x00, 0x80).set32(20, reservedTag).with([]byte("x")), newPacket(0x02, 0x85),
		newPacket(0x42, 0x81), newPacket(0x06, 0x81), newPacket(0x06, 0x82)} {
		c.request(p)
		if r := c.expect(opReject); !bytes.Equal(r.data, p.bytes(false, false)[:48]) {
			t.Errorf("%s for %s", r, p)
		}
	}
	for _, p := range []*packet{newPacket(0x05, 0x80).itt(5).set32(20, reservedTag), newPacket(0x10, 0x81).itt(reservedTag), newPacket(0x1d, 0x80)} {
		c.send(p)
		if r := c.expect(opReject); !bytes.Equal(r.data, p.bytes(false, false)[:48]) {
			t.Errorf("%s for %s", r, p)
		}
	}
	tag := c.request(newPacket(0x04, 0x80).set32(20, reservedTag).with(text("SendTargets=All")))
	if r := c.expectFor(opTextResponse, tag); r.value("TargetName") != testTarget {
		t.Errorf("%q", r.pairs())
	}
	if st := s.Stats(); st.Sessions != 0 || st.Connections != 1 {
		t.Errorf("%+v", st)
	}
	c.expectFor(opLogoutResp, c.request(newPacket(0x06, 0x80)))
	c.expectClosed()
}
