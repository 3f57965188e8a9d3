package iscsi

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLoginFailures: every way to get a login wrong that needs no
// authentication, and the status of RFC 7143 §11.13.5 that tells of it.
func TestLoginFailures(t *testing.T) {
	s := serveTCP(t)
	long := "iqn.2026-01.test:" + strings.Repeat("x", 223)
	begin := func(c *client) { c.succeed(inOperationalStage, c.names()...) }
	for _, v := range []struct {
		name string
		want status
		talk func(c *client) // ends with the offence
	}{
		{"no InitiatorName", 0x0207, func(c *client) { c.send(c.loginPDU(operationalToFull, "TargetName="+testTarget)) }},
		{"empty InitiatorName", 0x0207, func(c *client) {
			c.send(c.loginPDU(operationalToFull, "InitiatorName=", "TargetName="+testTarget))
		}},
		{"no TargetName", 0x0207, func(c *client) { c.send(c.loginPDU(operationalToFull, "InitiatorName=iqn.a")) }},
		{"no text at all", 0x0207, func(c *client) { c.send(c.loginPDU(operationalToFull)) }},
		{"unknown target", 0x0203, func(c *client) {
			c.send(c.loginPDU(operationalToFull, "InitiatorName=iqn.a", "TargetName=iqn.2026-01.test:other"))
		}},
		{"unknown target in discovery", 0x0203, func(c *client) {
			c.send(c.loginPDU(operationalToFull, "InitiatorName=iqn.a", "TargetName=iqn.b", "SessionType=Discovery"))
		}},
		{"session type", 0x0209, func(c *client) { c.send(c.loginPDU(operationalToFull, "InitiatorName=iqn.a", "SessionType=Odd")) }},
		{"name too long", 0x0200, func(c *client) {
			c.send(c.loginPDU(operationalToFull, "InitiatorName="+long, "TargetName="+testTarget))
		}},
		{"version", 0x0205, func(c *client) { c.send(c.loginPDU(operationalToFull, c.names()...).set8(2, 2).set8(3, 1)) }},
		{"text without NUL", 0x0200, func(c *client) { c.send(c.loginPDU(operationalToFull).with([]byte("InitiatorName=iqn.a"))) }},
		{"text without =", 0x0200, func(c *client) { c.send(c.loginPDU(operationalToFull, "InitiatorName")) }},
		{"InitiatorName twice", 0x0200, func(c *client) {
			c.send(c.loginPDU(operationalToFull, append(c.names(), "InitiatorName="+c.initiator)...))
		}},
		{"reserved stage", 0x0200, func(c *client) { c.send(c.loginPDU(0x08, c.names()...)) }},
		{"login in the full feature phase", 0x0200, func(c *client) { c.send(c.loginPDU(0x0c, c.names()...)) }},
		{"transit to the reserved stage", 0x0200, func(c *client) { c.send(c.loginPDU(0x86, c.names()...)) }},
		{"transit to the same stage", 0x0200, func(c *client) { c.send(c.loginPDU(0x85, c.names()...)) }},
		{"transit back", 0x0200, func(c *client) { c.send(c.loginPDU(0x84, c.names()...)) }},
		{"transit from security to security", 0x0200, func(c *client) { c.send(c.loginPDU(0x80, c.names()...)) }},
		{"T and C", 0x0200, func(c *client) { c.send(c.loginPDU(operationalToFull|loginMore, c.names()...)) }},
		{"no session with the TSIH", 0x020a, func(c *client) { c.tsih = 0x4242; c.send(c.loginPDU(operationalToFull, c.names()...)) }},
		{"key twice", 0x0200, func(c *client) {
			c.send(c.loginPDU(operationalToFull, append(c.names(), "InitialR2T=Yes", "InitialR2T=Yes")...))
		}},
		{"key twice in two requests", 0x0200, func(c *client) {
			c.succeed(inOperationalStage, append(c.names(), "MaxBurstLength=4096")...)
			c.send(c.loginPDU(operationalToFull, "MaxBurstLength=4096"))
		}},
		{"Reject as a proposal", 0x0200, func(c *client) { c.send(c.loginPDU(operationalToFull, append(c.names(), "ImmediateData=Reject")...)) }},
		{"operational key in the security stage", 0x0200, func(c *client) { c.send(c.loginPDU(inSecurityStage, append(c.names(), "InitialR2T=No")...)) }},
		{"AuthMethod in the operational stage", 0x0200, func(c *client) { c.send(c.loginPDU(operationalToFull, append(c.names(), "AuthMethod=None")...)) }},
		{"no common AuthMethod", 0x0201, func(c *client) { c.send(c.loginPDU(toOperational, append(c.names(), "AuthMethod=KRB5,SRP")...)) }},
		{"CHAP keys that nobody asked for", 0x0200, func(c *client) { c.send(c.loginPDU(toOperational, append(c.names(), "CHAP_A=5")...)) }},
		{"InitiatorName late", 0x0200, func(c *client) { begin(c); c.send(c.loginPDU(operationalToFull, "InitiatorName=iqn.b")) }},
		{"TargetName late", 0x0200, func(c *client) { begin(c); c.send(c.loginPDU(operationalToFull, "TargetName="+testTarget)) }},
		{"InitiatorName again", 0x0200, func(c *client) { begin(c); c.send(c.loginPDU(operationalToFull, "InitiatorName="+c.initiator)) }},
		{"InitiatorName changed in the next stage", 0x0200, func(c *client) {
			c.succeed(toOperational, c.names()...)
			c.send(c.loginPDU(operationalToFull, "InitiatorName=iqn.b"))
		}},
		{"InitiatorName twice in the next stage", 0x0200, func(c *client) {
			c.succeed(toOperational, c.names()...)
			c.send(c.loginPDU(operationalToFull, "InitiatorName="+c.initiator, "InitiatorName="+c.initiator))
		}},
		{"InitiatorName late in the next stage", 0x0200, func(c *client) {
			c.succeed(toOperational, c.names()...)
			c.succeed(inOperationalStage)
			c.send(c.loginPDU(operationalToFull, "InitiatorName="+c.initiator))
		}},
		{"InitiatorName again in the security stage", 0x0200, func(c *client) {
			c.succeed(inSecurityStage, c.names()...)
			c.send(c.loginPDU(toFullFeature, "InitiatorName="+c.initiator))
		}},
		{"SessionType new in the next stage", 0x0200, func(c *client) {
			c.succeed(toOperational, c.names()[:2]...)
			c.send(c.loginPDU(operationalToFull, "SessionType=Normal"))
		}},
		{"back to the security stage", 0x0200, func(c *client) { begin(c); c.send(c.loginPDU(toFullFeature)) }},
		{"another ITT", 0x0200, func(c *client) { begin(c); c.send(c.loginPDU(operationalToFull).itt(0x12)) }},
		{"another ISID", 0x0200, func(c *client) { begin(c); c.send(c.loginPDU(operationalToFull).set8(13, 0x66)) }},
		{"another TSIH", 0x0200, func(c *client) { begin(c); c.send(c.loginPDU(operationalToFull).set16(14, 1)) }},
		{"another CID", 0x0200, func(c *client) { begin(c); c.send(c.loginPDU(operationalToFull).set16(20, 1)) }},
		{"another version", 0x0205, func(c *client) { begin(c); c.send(c.loginPDU(operationalToFull).set8(2, 9).set8(3, 9)) }},
		{"stage skipped", 0x0200, func(c *client) {
			c.succeed(inSecurityStage, c.names()...)
			c.send(c.loginPDU(operationalToFull))
		}},
		{"a command during login", 0x020b, func(c *client) { begin(c); c.send(readCommand(0, 1).itt(5)) }},
		{"a NOP-Out during login", 0x020b, func(c *client) { begin(c); c.send(newPacket(0x40, 0x80).itt(5)) }},
		{"a text request during login", 0x020b, func(c *client) { begin(c); c.send(newPacket(0x04, 0x80).itt(5)) }},
		{"a response's opcode during login", 0x020b, func(c *client) { begin(c); c.send(newPacket(0x23, 0x80).itt(5)) }},
		{"too much text", 0x0200, func(c *client) {
			c.succeed(inOperationalStage|loginMore, c.names()...)
			for range 7 {
				c.succeed(inOperationalStage | loginMore).u16(36)
				c.send(c.loginPDU(inOperationalStage | loginMore).with(make([]byte, 8192)))
				if c.expect(opLoginResponse).u16(36) != 0 {
					c.t.Fatal("refused before the limit")
				}
			}
			c.send(c.loginPDU(inOperationalStage | loginMore).with(make([]byte, 8192)))
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			c := s.dial(t)
			c.initiator = "iqn.2026-01.test:" + strings.ReplaceAll(v.name, " ", "-")
			v.talk(c)
			c.expectLoginFailure(v.want)
		})
	}
	if st := s.Stats(); st.Sessions != 0 || st.Logins != 0 {
		t.Errorf("after all these failures: %+v", st)
	}
}

// TestNamesAgain: libiscsi says who it is in both stages, when it has
// credentials that nobody asks for.
func TestNamesAgain(t *testing.T) {
	s := serveTCP(t)
	c := s.dial(t)
	r := c.succeed(toOperational, append(c.names(), "AuthMethod=CHAP,None")...)
	if r.value("AuthMethod") != "None" || r.flags() != toOperational {
		t.Fatalf("%s, %q", r, r.pairs())
	}
	c.finishLogin(c.succeed(operationalToFull, append(c.names(), "HeaderDigest=None")...))
	c.clearAttention()
}

// TestNoLogin: what does not begin with a login is dropped without a word,
// RFC 7143 §6.3.
func TestNoLogin(t *testing.T) {
	s := serveTCP(t)
	for _, p := range []*packet{readCommand(0, 1), newPacket(0x40, 0x80), newPacket(0x04, 0x80), newPacket(0x06, 0x80), newPacket(0x05, 0x80),
		newPacket(0x3f, 0x80), newPacket(0x43, 0x87).with(make([]byte, 9000))} {
		c := s.dial(t)
		c.send(p)
		c.expectClosed()
	}
	c := s.dial(t)
	c.sendBytes([]byte("GET / HTTP/1.1\r\nHost: containerdisk.example\r\nAccept: */*\r\n\r\n"))
	c.expectClosed()
}

// TestLoginStages are the roads through the stages.
func TestLoginStages(t *testing.T) {
	s := serveTCP(t)
	t.Run("one request", func(t *testing.T) {
		c := s.dial(t)
		r := c.login()
		if got := r.value("TargetPortalGroupTag"); got != "1" {
			t.Errorf("TargetPortalGroupTag=%q", got)
		}
		if got := r.value("MaxRecvDataSegmentLength"); got != "262144" {
			t.Errorf("MaxRecvDataSegmentLength=%q", got)
		}
		c.clearAttention()
	})
	t.Run("security to full feature", func(t *testing.T) {
		c := s.dial(t)
		r := c.succeed(toFullFeature, append(c.names(), "AuthMethod=CHAP,None")...)
		if r.flags() != toFullFeature || r.value("AuthMethod") != "None" {
			t.Errorf("flags %#02x, %q", r.flags(), r.pairs())
		}
		if v, ok := r.lookup("MaxRecvDataSegmentLength"); ok {
			t.Errorf("MaxRecvDataSegmentLength=%s in the security stage", v)
		}
		c.finishLogin(r)
		c.clearAttention()
	})
	t.Run("both stages, one step at a time", func(t *testing.T) {
		c := s.dial(t)
		c.initiator += "-steps"
		r := c.succeed(inSecurityStage, c.names()...)
		if r.flags() != inSecurityStage || r.value("TargetPortalGroupTag") != "1" || r.u16(14) != 0 {
			t.Errorf("first: flags %#02x, TSIH %d, %q", r.flags(), r.u16(14), r.pairs())
		}
		if first := r.expCmdSN(); first != c.nextCmdSN {
			t.Errorf("ExpCmdSN %#x, want the login's CmdSN %#x", first, c.nextCmdSN)
		}
		r = c.succeed(inSecurityStage, "AuthMethod=None")
		if r.flags() != inSecurityStage || r.value("AuthMethod") != "None" {
			t.Errorf("second: flags %#02x, %q", r.flags(), r.pairs())
		}
		if _, again := r.lookup("TargetPortalGroupTag"); again {
			t.Error("TargetPortalGroupTag twice")
		}
		if r = c.succeed(toOperational); r.flags() != toOperational || len(r.data) != 0 {
			t.Errorf("third: flags %#02x, %q", r.flags(), r.pairs())
		}
		r = c.succeed(inOperationalStage, "InitialR2T=No", "X-a=b")
		if r.flags() != inOperationalStage || r.value("InitialR2T") != "No" || r.value("X-a") != "NotUnderstood" || r.u16(14) != 0 {
			t.Errorf("fourth: flags %#02x, TSIH %d, %q", r.flags(), r.u16(14), r.pairs())
		}
		r = c.succeed(operationalToFull)
		if _, again := r.lookup("MaxRecvDataSegmentLength"); again {
			t.Error("MaxRecvDataSegmentLength twice")
		}
		if r.u32(28) != c.nextCmdSN {
			t.Errorf("ExpCmdSN %#x: login requests must not advance it from %#x", r.u32(28), c.nextCmdSN)
		}
		c.finishLogin(r)
		c.clearAttention()
	})
	t.Run("names in any case", func(t *testing.T) {
		c := s.dial(t)
		c.finishLogin(c.succeed(operationalToFull, "TargetName="+strings.ToUpper(testTarget), "InitiatorName=iqn.case"))
	})
	t.Run("discovery", func(t *testing.T) {
		c := s.dial(t)
		r := c.finishLogin(c.succeed(operationalToFull, append(c.discoveryNames(), "MaxBurstLength=4096", "ErrorRecoveryLevel=2")...))
		// §6.3.1: for all session types.
		if r.value("TargetPortalGroupTag") != "1" || r.value("MaxBurstLength") != "Irrelevant" || r.value("ErrorRecoveryLevel") != "0" {
			t.Errorf("%q", r.pairs())
		}
	})
}

// TestLoginInPieces: text in several requests, with pairs that are cut
// anywhere, and answers that do not fit in one response.
func TestLoginInPieces(t *testing.T) {
	s := serveTCP(t)
	t.Run("request", func(t *testing.T) {
		c := s.dial(t)
		all := text(append(c.names(), "MaxBurstLength=4096", "X-long="+strings.Repeat("v", 3000))...)
		for len(all) > 200 {
			c.send(c.loginPDU(inOperationalStage | loginMore).with(all[:199]))
			r := c.expect(opLoginResponse)
			if r.u16(36) != 0 || len(r.data) != 0 || r.flags() != inOperationalStage {
				t.Fatalf("answer to a piece: status %#04x, flags %#02x, %q", r.u16(36), r.flags(), r.pairs())
			}
			all = all[199:]
		}
		c.send(c.loginPDU(operationalToFull).with(all))
		r := c.finishLogin(c.expect(opLoginResponse))
		if r.value("MaxBurstLength") != "4096" || r.value("X-long") != "NotUnderstood" || r.value("TargetPortalGroupTag") != "1" {
			t.Errorf("%q", r.pairs())
		}
	})
	for _, asks := range []byte{inOperationalStage, operationalToFull} {
		t.Run(fmt.Sprintf("answer, asked for with flags %#02x", asks), func(t *testing.T) {
			c := s.dial(t)
			c.initiator += fmt.Sprint(asks)
			var keys []string
			for i := range 200 {
				keys = append(keys, fmt.Sprintf("X-%060d=", i))
			}
			want := len(keys)
			c.send(c.loginPDU(inOperationalStage|loginMore, append(c.names(), keys[:100]...)...))
			c.expect(opLoginResponse)
			r := c.succeed(operationalToFull, keys[100:]...)
			var answer []byte
			responses := 1
			for ; r.flags()&loginMore != 0; responses++ {
				if r.flags() != inOperationalStage|loginMore || len(r.data) > 8192 {
					t.Fatalf("a response that goes on has flags %#02x and %d bytes", r.flags(), len(r.data))
				}
				answer = append(answer, r.data...)
				r = c.succeed(asks)
				// §6.3: the T bits of one pair have no bearing on the next pair,
				// and a target never says T of its own.
				if asks&0x80 == 0 && r.flags()&0x80 != 0 {
					t.Fatalf("flags %#02x in answer to %#02x", r.flags(), asks)
				}
			}
			answer = append(answer, r.data...)
			if responses < 2 {
				t.Fatal("the whole answer came in one response")
			}
			if got := strings.Count(string(answer), "=NotUnderstood\x00"); got != want {
				t.Errorf("%d keys not understood, want %d", got, want)
			}
			for range 2 {
				if r.flags()&0x80 == 0 {
					r = c.succeed(operationalToFull)
				}
			}
			c.finishLogin(r)
			c.clearAttention()
		})
	}
	t.Run("text where the rest of the answer is due", func(t *testing.T) {
		c := s.dial(t)
		var keys []string
		for i := range 200 {
			keys = append(keys, fmt.Sprintf("X-%060d=", i))
		}
		c.send(c.loginPDU(inOperationalStage|loginMore, append(c.names(), keys[:100]...)...))
		c.expect(opLoginResponse)
		if r := c.succeed(inOperationalStage, keys[100:]...); r.flags()&loginMore == 0 {
			t.Fatal("the whole answer came in one response")
		}
		c.failLogin(statusInitiatorError, inOperationalStage, "InitialR2T=No")
	})
	t.Run("endless", func(t *testing.T) {
		c := s.dial(t)
		for i := range 200 {
			c.nc.SetWriteDeadline(time.Now().Add(patience))
			if _, err := c.nc.Write(c.loginPDU(inOperationalStage|loginMore, "A=b").bytes(false, false)); err != nil {
				return
			}
			r, err := c.tryReceive(patience)
			if err == nil && r.u16(36) == 0 {
				continue
			}
			if i < 6 {
				t.Errorf("given up after %d requests; six exchanges are to be allowed (§6.2)", i)
			}
			if err != nil || status(r.u16(36)) != statusInitiatorError {
				t.Errorf("%v (%v), want status %#04x", r, err, uint16(statusInitiatorError))
			}
			c.expectClosed()
			return
		}
		t.Error("a login of 200 requests goes on")
	})
}

// TestSessions is the table of RFC 7143 §6.3.1.
func TestSessions(t *testing.T) {
	t.Run("another ISID is another session", func(t *testing.T) {
		s := serveTCP(t)
		a, b := s.ready(t), s.dial(t)
		b.isid[5]++
		b.loginReady()
		if a.tsih == b.tsih {
			t.Errorf("both have TSIH %d", a.tsih)
		}
		a.good(a.testUnitReady())
		if got := s.Stats(); got.Sessions != 2 || got.Logins != 2 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("session reinstatement", func(t *testing.T) {
		s := serveTCP(t)
		a := s.ready(t)
		g := s.disk.hold("read")
		a.request(readCommand(0, 8))
		g.wait(t)
		b := s.dial(t)
		b.send(b.loginPDU(operationalToFull, b.names()...))
		a.expectClosed() // without an answer to the read
		if p, err := b.tryReceive(50 * time.Millisecond); err == nil {
			t.Fatalf("%s while a task of the old session is at the disk", p)
		}
		g.release()
		b.finishLogin(b.expect(opLoginResponse))
		b.clearAttention()
		if got := s.Stats(); got.Sessions != 1 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("a name in capitals is the same name", func(t *testing.T) { // RFC 3722
		s := serveTCP(t)
		a, b := s.ready(t), s.dial(t)
		b.initiator = strings.ToUpper(b.initiator)
		b.loginReady()
		a.expectClosed()
	})
	t.Run("connection reinstatement", func(t *testing.T) {
		s := serveTCP(t)
		a := s.ready(t)
		b := s.dial(t)
		b.tsih = a.tsih
		b.login()
		a.expectClosed()
		if b.tsih != a.tsih {
			t.Errorf("TSIH %d, want that of the session, %d", b.tsih, a.tsih)
		}
		b.clearAttention()
	})
	t.Run("a second connection", func(t *testing.T) {
		s := serveTCP(t)
		a := s.ready(t)
		b := s.dial(t)
		b.tsih, b.cid = a.tsih, a.cid+1
		b.send(b.loginPDU(operationalToFull, b.names()...))
		r := b.expect(opLoginResponse)
		if got := r.u16(36); got != 0x0206 && got != 0x0208 {
			t.Errorf("status %#04x, want 0x0206 or 0x0208", got)
		}
		b.expectClosed()
		a.good(a.testUnitReady())
	})
	t.Run("existing ISID, unknown TSIH", func(t *testing.T) {
		s := serveTCP(t)
		a := s.ready(t)
		b := s.dial(t)
		b.tsih = a.tsih + 1
		b.failLogin(statusNoSession, operationalToFull, b.names()...)
		a.good(a.testUnitReady())
	})
	t.Run("a normal session does not end a discovery session", func(t *testing.T) {
		s := serveTCP(t)
		a := s.dial(t)
		a.finishLogin(a.succeed(operationalToFull, a.discoveryNames()...))
		b := s.ready(t)
		a.request(newPacket(0x04, 0x80).set32(20, 0xffffffff).with(text("SendTargets=All")))
		a.expect(opTextResponse)
		b.good(b.testUnitReady())
	})
	t.Run("many at once with one name", func(t *testing.T) {
		s := serveTCP(t)
		const n = 8
		over := make(chan bool, n)
		for range n {
			c := s.dial(t)
			c.send(c.loginPDU(operationalToFull, c.names()...))
			go func() {
				r, err := c.tryReceive(patience)
				over <- err == nil && r.u16(36) == 0
			}()
		}
		in := 0
		for range n {
			if <-over {
				in++
			}
		}
		if got := s.Stats(); in == 0 || got.Sessions != 1 {
			t.Errorf("%d got in, %+v", in, got)
		}
	})
}

// TestAdmit: who may use the disks is another's decision.
func TestAdmit(t *testing.T) {
	holder := ""
	s := serveTCP(t, func(o *Options) {
		o.Admit = func(initiator string) (func(), error) { // called one at a time
			if holder != "" {
				return nil, errors.New("in use by " + holder)
			}
			holder = initiator
			return func() { holder = "" }, nil
		}
	})
	a := s.ready(t)
	b := s.dial(t)
	b.initiator = "iqn.2026-01.test:second"
	b.failLogin(statusUnavailable, operationalToFull, b.names()...)
	again := s.dial(t) // the holder itself takes its own place
	again.loginReady()
	a.expectClosed()
	d := s.dial(t)
	d.initiator = "iqn.2026-01.test:second"
	d.finishLogin(d.succeed(operationalToFull, d.discoveryNames()...)) // needs no place
	again.request(newPacket(0x46, 0x80))
	again.expect(opLogoutResp)
	again.expectClosed()
	waitFor(t, "the session to be over", func() bool { return s.Stats().Sessions == 0 })
	e := s.dial(t)
	e.initiator = "iqn.2026-01.test:second"
	e.loginReady()
}

func TestMaxSessions(t *testing.T) {
	s := serveTCP(t, func(o *Options) { o.MaxSessions = 2 })
	var last *client
	for i := range 2 {
		d := s.dial(t) // these take no place from the others
		d.isid[5] = byte(i)
		d.finishLogin(d.succeed(operationalToFull, d.discoveryNames()...))
		last = s.dial(t)
		last.isid[5] = byte(i)
		last.loginReady()
	}
	d := s.dial(t)
	d.isid[5] = 9
	d.failLogin(statusNoResources, operationalToFull, d.discoveryNames()...)
	c := s.dial(t)
	c.isid[5] = 9
	c.failLogin(statusNoResources, operationalToFull, c.names()...)
	again := s.dial(t) // one that is there may come again
	again.isid = last.isid
	again.loginReady()
}

// waitFor polls for what happens behind the server's back, without a PDU that
// tells.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestLoginTimeout: a login has its time, however it is spent.
func TestLoginTimeout(t *testing.T) {
	for name, talk := range map[string]func(c *client){
		"silence":         func(*client) {},
		"half a PDU":      func(c *client) { c.sendBytes(make([]byte, 20)) },
		"half a login":    func(c *client) { c.succeed(inOperationalStage, c.names()...) },
		"a byte a second": func(c *client) { drip(c, c.loginPDU(operationalToFull, c.names()...).bytes(false, false)) },
		"never an answer": func(c *client) { c.succeed(inSecurityStage, c.names()...) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servePipe(t, func(o *Options) { o.LoginTimeout = 5 * time.Second })
				start := time.Now()
				c := s.dial(t)
				talk(c)
				c.expectClosed()
				if d := time.Since(start); d < 5*time.Second || d > 6*time.Second {
					t.Errorf("closed after %v, want 5 s", d)
				}
				synctest.Wait()
				if got := s.Stats().Connections; got != 0 {
					t.Errorf("%d connections are left", got)
				}
			})
		})
	}
}

func drip(c *client, b []byte) {
	for i := range b {
		time.Sleep(time.Second)
		if _, err := c.nc.Write(b[i : i+1]); err != nil {
			return
		}
	}
}

// TestFlood: a flood of half-open connections costs the oldest of them their
// place, and a good login gets through.
func TestFlood(t *testing.T) {
	s := serveTCP(t, func(o *Options) { o.MaxLogins = 4 })
	var flood []*client
	for i := range 20 {
		c := s.dial(t)
		flood = append(flood, c)
		waitFor(t, "the connection", func() bool { return s.Stats().Connections == min(i+1, 4) })
		if i == 10 {
			good := s.dial(t)
			good.loginReady()
			good.request(newPacket(0x46, 0x80))
			good.expect(opLogoutResp)
			waitFor(t, "the end of the good one", func() bool { return s.Stats().Sessions == 0 })
			waitFor(t, "its connection's end", func() bool { return s.Stats().Connections <= 4 })
		}
	}
	for _, c := range flood[:16] {
		c.expectClosed()
	}
	c := flood[19] // the youngest is still good for a login
	c.loginReady()
}

// TestFloodSpares: who is logged in is not touched by a flood.
func TestFloodSpares(t *testing.T) {
	s := serveTCP(t, func(o *Options) { o.MaxLogins = 2 })
	c := s.ready(t)
	for range 10 {
		s.dial(t)
	}
	c.good(c.testUnitReady())
	s.ready(t, "InitialR2T=No")
}

func TestUnitAttentionOfANewNexus(t *testing.T) {
	s := serveTCP(t)
	c := s.dial(t)
	c.login()
	c.fails(c.testUnitReady(), 0x062900)
	c.good(c.testUnitReady())
}
