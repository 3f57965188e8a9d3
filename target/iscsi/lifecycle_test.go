package iscsi

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// TestClose: initiators are told that their session is dropped, and nothing of
// the server is left.
func TestClose(t *testing.T) {
	s := serveTCP(t)
	a, b := s.ready(t), s.dial(t)
	b.isid[5]++
	b.loginReady()
	discovery := s.dial(t)
	discovery.finishLogin(discovery.succeed(operationalToFull, discovery.discoveryNames()...))
	half := s.dial(t)
	half.isid[5] = 77
	half.succeed(inOperationalStage, half.names()...)
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	for _, c := range []*client{a, b} {
		p := c.expect(opAsync)
		if p.u8(36) != 3 && p.u8(36) != 2 || p.tag() != reservedTag || p.flags() != 0x80 {
			t.Errorf("%s, event %d", p, p.u8(36))
		}
		c.expectClosed()
	}
	discovery.expectClosed() // dropped without a word, §7.4.3
	half.expectClosed()
	if st := s.Stats(); st.Connections != 0 || st.Sessions != 0 {
		t.Errorf("%+v", st)
	}
	if _, err := s.connect(); err == nil {
		t.Error("a closed server takes connections")
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close again: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); !errors.Is(err, ErrClosed) {
		t.Errorf("Serve after Close: %v", err)
	}
	if err := l.Close(); err == nil {
		t.Error("the listener was left open")
	}
}

// TestCloseTogether: a second signal may close what is shutting down.
func TestCloseTogether(t *testing.T) {
	s := serveTCP(t)
	for i := range 5 {
		c := s.dial(t)
		c.isid[5] = byte(i)
		c.loginReady()
	}
	over := make(chan error, 4)
	go func() { over <- s.Shutdown(contextWithin(t, time.Minute)) }()
	for range 3 {
		go func() { over <- s.Close() }()
	}
	for range 4 {
		if err := <-over; err != nil {
			t.Errorf("%v", err)
		}
	}
	if st := s.Stats(); st.Connections != 0 {
		t.Errorf("%+v", st)
	}
}

// TestCloseWaits: Close returns when no request is at the disk any more.
func TestCloseWaits(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	g := s.disk.hold("write")
	c.request(writeCommand(0, 1).with(pattern(0, blockSize, 1)))
	g.wait(t)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	select {
	case <-closed:
		t.Fatal("Close returned while a write was at the disk")
	case <-time.After(50 * time.Millisecond):
	}
	g.release()
	if err := <-closed; err != nil {
		t.Errorf("Close: %v", err)
	}
	if st := s.Stats(); st.Connections != 0 {
		t.Errorf("%+v", st)
	}
}

// TestCloseStalled: initiators that take nothing do not hold up the end, nor
// add up.
func TestCloseStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipe(t)
		stalled := make(chan struct{})
		defer close(stalled)
		for i := range 20 {
			c := s.dial(t)
			c.isid[5] = byte(i)
			c.loginReady()
			c.stalled.Store(&stalled)
			c.send(newPacket(0x40, 0x80).itt(reservedTag).set32(20, reservedTag))
			tag := newPacket(0x40, 0x80).itt(5).set32(20, reservedTag)
			c.send(tag) // the answer stalls the client
		}
		synctest.Wait()
		start := time.Now()
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(start); d > 2*dismissTime {
			t.Errorf("Close took %v", d)
		}
	})
}

// TestShutdown: those known may stay and come back, others are turned away,
// and the end comes with the last one's logout.
func TestShutdown(t *testing.T) {
	s := serveTCP(t)
	a := s.ready(t)
	over := make(chan error, 1)
	go func() { over <- s.Shutdown(contextWithin(t, time.Minute)) }()
	waitFor(t, "the server to drain", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.draining })
	a.good(a.testUnitReady())

	stranger := s.dial(t)
	stranger.initiator = "iqn.2026-01.test:stranger"
	stranger.failLogin(statusUnavailable, operationalToFull, stranger.names()...)

	again := s.dial(t) // takes the place of its own session
	again.loginReady()
	a.expectClosed()
	second := s.dial(t)
	second.isid[5]++
	second.loginReady()
	again.expectFor(opLogoutResp, again.request(newPacket(0x46, 0x80)))
	again.expectClosed()
	second.good(second.testUnitReady())
	select {
	case err := <-over:
		t.Fatalf("Shutdown returned %v with a session left", err)
	default:
	}
	second.expectFor(opLogoutResp, second.request(newPacket(0x46, 0x80)))
	second.expectClosed()
	if err := <-over; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownDeadline(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	err := s.Shutdown(contextWithin(t, 20*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	for _, event := range []asyncEvent{asyncLogout, asyncDropSession} {
		if p := c.expect(opAsync); p.u8(36) != byte(event) {
			t.Errorf("event %d, want %d", p.u8(36), event)
		}
	}
	c.expectClosed()
}

// TestShutdownWaitsForTheLost: an initiator whose connection breaks may come
// back, and is not waited for without end.
func TestShutdownWaitsForTheLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipe(t)
		a := s.ready(t)
		a.nc.Close() // before the shutdown begins
		synctest.Wait()
		over := make(chan error, 1)
		go func() { over <- s.Shutdown(contextWithin(t, time.Minute)) }()
		time.Sleep(returnTime - time.Second)
		again := s.dial(t)
		again.loginReady()
		time.Sleep(2 * returnTime)
		again.good(again.testUnitReady())
		again.nc.Close() // while it lasts
		start := time.Now()
		if err := <-over; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if d := time.Since(start); d != returnTime {
			t.Errorf("it waited %v for one that does not come, want %v", d, returnTime)
		}
	})
}

// TestShutdownAsksToLogOut: before its time is over, a server asks for it, and
// lets nobody in any more.
func TestShutdownAsksToLogOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipe(t)
		a, b := s.ready(t), s.dial(t)
		b.isid[5]++
		b.loginReady()
		over := make(chan error, 1)
		start := time.Now()
		go func() { over <- s.Shutdown(contextWithin(t, 20*time.Second)) }()
		for _, c := range []*client{a, b} {
			p, err := c.tryReceive(time.Minute)
			if err != nil || p.opcode() != 0x32 || p.u8(36) != 1 || p.u16(42) != uint16(logoutTime/time.Second) {
				t.Fatalf("%v (%v), want a request to log out", p, err)
			}
			if d := time.Since(start); d != 20*time.Second-logoutTime {
				t.Errorf("asked after %v", d)
			}
		}
		known := s.dial(t)
		known.isid[5] = 9
		known.failLogin(statusUnavailable, operationalToFull, known.names()...)
		a.good(a.testUnitReady()) // still served
		for _, c := range []*client{a, b} {
			c.expectFor(opLogoutResp, c.request(newPacket(0x46, 0x80)))
			c.expectClosed()
		}
		if err := <-over; err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

// TestLostConnection: what an initiator leaves behind is cleared away,
// whatever it was doing.
func TestLostConnection(t *testing.T) {
	for name, doing := range map[string]func(s *testServer, c *client) *gate{
		"nothing": func(*testServer, *client) *gate { return nil },
		"half a PDU": func(_ *testServer, c *client) *gate {
			c.sendBytes(writeCommand(0, 1).with(make([]byte, 512)).bytes(false, false)[:100])
			return nil
		},
		"a write that waits for data": func(_ *testServer, c *client) *gate {
			c.request(writeCommand(0, 100))
			c.expect(opR2T)
			return nil
		},
		"reads at the disk": func(s *testServer, c *client) *gate {
			g := s.disk.hold("read")
			for range 20 {
				c.request(readCommand(0, 2048))
			}
			g.wait(c.t)
			return g
		},
		"a write at the disk": func(s *testServer, c *client) *gate {
			g := s.disk.hold("write")
			c.request(writeCommand(0, 100))
			r := c.expect(opR2T)
			c.feed(r, make([]byte, 100*blockSize), 4096)
			g.wait(c.t)
			return g
		},
		"a reset that waits": func(s *testServer, c *client) *gate {
			g := s.disk.hold("read")
			c.request(readCommand(0, 1))
			g.wait(c.t)
			c.request(taskPDU(tmfLUReset, nil))
			c.expectQuiet()
			return g
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveTCP(t)
			c := s.ready(t, "InitialR2T=No")
			g := doing(s, c)
			c.nc.Close()
			if g != nil {
				g.release()
			}
			waitFor(t, "the connection to be forgotten", func() bool { st := s.Stats(); return st.Connections == 0 && st.Sessions == 0 })
			s.ready(t)
		})
	}
}

// TestStats counts.
func TestStats(t *testing.T) {
	s := serveTCP(t)
	if st := s.Stats(); st != (Stats{}) {
		t.Errorf("at first: %+v", st)
	}
	c := s.ready(t)
	d := s.dial(t)
	d.finishLogin(d.succeed(operationalToFull, d.discoveryNames()...))
	if st := s.Stats(); st != (Stats{Sessions: 1, Connections: 2, Logins: 1}) {
		t.Errorf("with a session and a discovery session: %+v", st)
	}
	data := pattern(0, 8*blockSize, 1)
	c.good(c.writeAll(writeCommand(0, 8), data))
	if r := c.good(c.run(readCommand(0, 8))); !bytes.Equal(r.data, data) {
		t.Error("read is not what was written")
	}
	if st := s.lun.Stats(); st.Reads != 1 || st.Writes != 1 || st.ReadBytes != 4096 || st.WriteBytes != 4096 {
		t.Errorf("unit: %+v", st)
	}
}
