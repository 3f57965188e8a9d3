package iscsi

import "testing"

// TestPublishedDeviations: Microsoft publishes where its target departs from
// the RFC ("iSCSI Target Implementation Notes", Windows Server 2012). Ours does
// in none of these.
func TestPublishedDeviations(t *testing.T) {
	done := 0
	for _, d := range deviations {
		if t.Run(d.name, func(t *testing.T) {
			s := serveTCP(t)
			d.test(t, s, s.ready(t, "InitialR2T=No", "FirstBurstLength=1024"))
		}) {
			done++
		}
	}
	t.Logf("%d of %d published deviations are not ours", done, len(deviations))
}

// withoutF says that data comes behind the command.
func withoutF(p *packet) *packet { p.h[1] &^= flagF; return p }

var deviations = []struct {
	name string
	test func(t *testing.T, s *testServer, c *client)
}{
	{"excess immediate data accepted", func(t *testing.T, s *testServer, c *client) {
		c.fails(c.run(writeCommand(0, 4).with(make([]byte, 3*blockSize))), 0x0b0c0d)
	}},
	{"wrong amount of data accepted", func(t *testing.T, s *testServer, c *client) {
		r := c.expectFor(opR2T, c.request(writeCommand(0, 4)))
		c.send(dataOutPDU(flagF, r.tag(), r.u32(20), 0, 0, make([]byte, 3*blockSize)))
		c.expect(opReject)
		c.fails(c.finishAfter(r.tag(), 1), 0x0b0c0d)
	}},
	{"unexpected unsolicited data accepted", func(t *testing.T, s *testServer, _ *client) {
		c := s.ready(t, "InitialR2T=Yes")
		tag := c.request(withoutF(writeCommand(0, 1)))
		c.send(dataOutPDU(flagF, tag, reservedTag, 0, 0, make([]byte, blockSize)))
		c.fails(c.finish(tag), 0x0b0c0c)
	}},
	{"Text F and transfer tag not looked at", func(t *testing.T, s *testServer, c *client) {
		wrong := textPDU("SendTargets=").set32(20, 7)
		c.request(wrong)
		c.expectReject(9, wrong)
		if r := c.expectFor(opTextResponse, c.request(withoutF(textPDU("X-com.example.a=1")))); r.flags() != 0 || r.u32(20) == reservedTag {
			t.Errorf("%s in answer to a request without F", r)
		}
	}},
	{"Text in a normal session disconnects", func(t *testing.T, s *testServer, c *client) {
		c.expectFor(opTextResponse, c.request(textPDU("SendTargets=")))
		c.good(c.testUnitReady())
	}},
	{"C disconnects", func(t *testing.T, s *testServer, c *client) {
		c.expectFor(opTextResponse, c.request(newPacket(0x04, 0x40).set32(20, reservedTag).with([]byte("SendTar"))))
		c.good(c.testUnitReady())
		again := s.dial(t)
		again.isid[5]++
		again.succeed(inOperationalStage|loginMore, again.names()...)
		again.finishLogin(again.succeed(operationalToFull))
	}},
	{"TSIH in the first login response", func(t *testing.T, s *testServer, _ *client) {
		c := s.dial(t)
		c.isid[5]++
		if r := c.succeed(inOperationalStage, c.names()...); r.u16(14) != 0 {
			t.Errorf("TSIH %d", r.u16(14))
		}
		c.finishLogin(c.succeed(operationalToFull))
	}},
	{"duplicate CmdSN accepted", func(t *testing.T, s *testServer, c *client) {
		q := command10(flagF, 0, make([]byte, 16))
		c.good(c.run(q))
		c.send(q)
		c.expectQuiet()
	}},
	{"TMF for a nonexistent task complete", func(t *testing.T, s *testServer, c *client) {
		if got := c.manage(taskPDU(tmfAbortTask, nil).set32(20, 0x999).set32(32, c.nextCmdSN-50)); got != 1 {
			t.Errorf("response %d, want 1: there is no such task", got)
		}
	}},
	{"wrong logout reason or CID accepted", func(t *testing.T, s *testServer, c *client) {
		unhLogout(1, 8, 1)(t, s, c)
		wrong := newPacket(0x06, 0x85)
		c.request(wrong)
		c.expectReject(4, wrong)
		c.good(c.testUnitReady())
	}},
	{"TargetPortalGroupTag=NotUnderstood accepted", func(t *testing.T, s *testServer, _ *client) {
		c := s.dial(t)
		c.isid[5]++
		c.succeed(inOperationalStage, c.names()...)
		c.failLogin(statusInitiatorError, operationalToFull, "TargetPortalGroupTag=NotUnderstood")
	}},
	{"renegotiation accepted", func(t *testing.T, s *testServer, c *client) {
		for _, pairs := range [][]string{{"MaxRecvDataSegmentLength=4096", "MaxRecvDataSegmentLength=4096"}, {"InitialR2T=Yes"}} {
			q := textPDU(pairs...)
			c.request(q)
			c.expectReject(4, q)
		}
		again := s.dial(t)
		again.isid[5]++
		again.succeed(inOperationalStage, append(again.names(), "InitialR2T=No")...)
		again.failLogin(statusInitiatorError, operationalToFull, "InitialR2T=No")
	}},
	{"Reject StatSN wrong", func(t *testing.T, s *testServer, c *client) {
		want := c.expStatSN
		c.send(newPacket(0x1c, 0x80).itt(0x77))
		if r := c.expect(opReject); r.statSN() != want || c.good(c.testUnitReady()).statSN() != want+1 {
			t.Errorf("StatSN %#x, want %#x and one more for the next", r.statSN(), want)
		}
	}},
	{"unknown keys with C ignored", func(t *testing.T, s *testServer, c *client) {
		q := newPacket(0x04, 0x40).set32(20, reservedTag).with([]byte("X-com.exam"))
		r := c.expectFor(opTextResponse, c.request(q))
		rest := newPacket(0x04, 0x80).itt(q.tag()).set32(20, r.u32(20)).with([]byte("ple.a=1\x00"))
		if r := c.expectFor(opTextResponse, c.request(rest)); r.value("X-com.example.a") != valNotUnderstood {
			t.Errorf("%q", r.pairs())
		}
	}},
}
