package iscsi

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// textPDU is a text request that begins a negotiation and ends it.
func textPDU(pairs ...string) *packet {
	return newPacket(0x04, 0x80).set32(20, reservedTag).with(text(pairs...))
}

func TestSendTargets(t *testing.T) {
	s := serveTCP(t)
	normal := s.ready(t)
	discovery := s.dial(t)
	discovery.finishLogin(discovery.succeed(operationalToFull, discovery.discoveryNames()...))
	address := "TargetAddress=" + normal.nc.RemoteAddr().String() + ",1"
	ours := []string{"TargetName=" + testTarget, address}
	for _, v := range []struct {
		c     *client
		value string
		want  []string
	}{
		{discovery, "All", ours},
		{discovery, testTarget, ours},
		{discovery, "iqn.2026-01.test:other", nil},
		{discovery, "", []string{"SendTargets=Reject"}}, // Appendix C: only in a normal session
		{normal, "", ours},
		{normal, testTarget, ours},
		{normal, "All", ours}, // a deliberate deviation
		{normal, "iqn.2026-01.test:other", nil},
	} {
		for _, now := range []bool{true, false} {
			p := textPDU("SendTargets=" + v.value)
			if now {
				p.immediate()
			}
			r := v.c.expectFor(opTextResponse, v.c.request(p))
			if got := r.pairs(); !slices.Equal(got, v.want) {
				t.Errorf("SendTargets=%s, discovery %v: %q, want %q", v.value, v.c == discovery, got, v.want)
			}
			if r.flags() != 0x80 || r.u32(20) != reservedTag {
				t.Errorf("flags %#02x, tag %#x", r.flags(), r.u32(20))
			}
		}
	}
	// What is no name of a target, and what is no such key.
	for _, v := range []string{"SendTargets=Alle", "SendTargets=A", "SendTargets=all"} {
		p := textPDU(v)
		normal.request(p)
		normal.expectReject(4, p)
	}
	for _, v := range []string{"SendTargetsPlease=All", "sENDtARGETS=aLL"} {
		r := normal.expectFor(opTextResponse, normal.request(textPDU(v)))
		if key, _, _ := strings.Cut(v, "="); !slices.Equal(r.pairs(), []string{key + "=NotUnderstood"}) {
			t.Errorf("%s: %q", v, r.pairs())
		}
	}
	p := textPDU("SendTargets=All", "SendTargets=All")
	discovery.request(p)
	discovery.expectReject(4, p)
	discovery.expectFor(opTextResponse, discovery.request(textPDU("SendTargets=All")))
	normal.good(normal.testUnitReady())
}

// TestTextRejects: offences end the negotiation and not the connection.
func TestTextRejects(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	for _, p := range []*packet{
		textPDU("MaxBurstLength=4096"), textPDU("HeaderDigest=None"), textPDU("InitiatorName=iqn.x"), textPDU("AuthMethod=None"),
		textPDU("X-a=1", "X-a=1"), textPDU("MaxRecvDataSegmentLength=4096", "MaxRecvDataSegmentLength=4096"),
		textPDU("MaxRecvDataSegmentLength=Reject"), textPDU().with([]byte("SendTargets=All")), textPDU().with([]byte("what\x00")),
		newPacket(0x04, 0xc0).set32(20, reservedTag).with(text("SendTargets=")), // F and C
	} {
		c.request(p)
		c.expectReject(4, p)
	}
	p := textPDU("SendTargets=").set32(20, 0x1234) // a tag that was never given
	c.request(p)
	if r := c.expect(opReject); r.u8(2) != 9 && r.u8(2) != 4 {
		t.Errorf("reason %#02x", r.u8(2))
	}
	c.good(c.testUnitReady())
}

// TestTextFinal: RFC 7143 §11.10.1 and §11.11.1: a negotiation ends with F=1
// of both; before that the answers carry a transfer tag.
func TestTextFinal(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	p := textPDU("X-a=1")
	p.h[1] = 0
	r := c.expectFor(opTextResponse, c.request(p))
	if r.flags() != 0 || r.u32(20) == reservedTag || r.value("X-a") != "NotUnderstood" {
		t.Fatalf("%s %q", r, r.pairs())
	}
	p = textPDU("X-b=1").itt(p.tag()).set32(20, r.u32(20))
	r = c.expectFor(opTextResponse, c.request(p))
	if r.flags() != 0x80 || r.u32(20) != reservedTag || r.value("X-b") != "NotUnderstood" {
		t.Fatalf("%s %q", r, r.pairs())
	}
	// Another initiator's tag in the same negotiation.
	p = textPDU("X-a=1")
	p.h[1] = 0
	r = c.expectFor(opTextResponse, c.request(p))
	other := textPDU("X-b=1").set32(20, r.u32(20))
	c.request(other)
	c.expectReject(9, other)
	c.expectFor(opTextResponse, c.request(textPDU("X-b=1").itt(p.tag()).set32(20, r.u32(20)))) // it goes on

	// A key again in the same negotiation.
	p = textPDU("X-a=1")
	p.h[1] = 0
	r = c.expectFor(opTextResponse, c.request(p))
	p = textPDU("X-a=1").itt(p.tag()).set32(20, r.u32(20))
	c.request(p)
	c.expectReject(4, p)
}

// TestTextInPieces: text in several requests (C), and answers in several
// responses, each an answer to a request with the tag.
func TestTextInPieces(t *testing.T) {
	s := serveTCP(t)
	t.Run("request", func(t *testing.T) {
		c := s.ready(t)
		all := text("X-"+strings.Repeat("a", 50)+"=1", "SendTargets=", "X-b="+strings.Repeat("v", 300))
		tag := reservedTag
		itt := uint32(0x5555)
		for len(all) > 50 {
			p := newPacket(0x04, 0x40).itt(itt).set32(20, tag).with(all[:49])
			r := c.expectFor(opTextResponse, c.request(p))
			if len(r.data) != 0 || r.flags() != 0 || r.u32(20) == reservedTag {
				t.Fatalf("answer to a piece: %s", r)
			}
			tag, all = r.u32(20), all[49:]
		}
		r := c.expectFor(opTextResponse, c.request(newPacket(0x04, 0x80).itt(itt).set32(20, tag).with(all)))
		if r.flags() != 0x80 || r.value("TargetName") != testTarget || r.value("X-b") != "NotUnderstood" {
			t.Errorf("%s %q", r, r.pairs())
		}
	})
	t.Run("answer", func(t *testing.T) {
		c := s.ready(t, "MaxRecvDataSegmentLength=512")
		var keys []string
		for i := range 50 {
			keys = append(keys, fmt.Sprintf("X-%060d=", i))
		}
		p := textPDU(keys...)
		var answer []byte
		tags := 0
		for {
			r := c.expectFor(opTextResponse, c.request(p))
			answer = append(answer, r.data...)
			if len(r.data) > 512 {
				t.Fatalf("%d bytes, limit 512", len(r.data))
			}
			if r.flags() == 0x80 {
				if r.u32(20) != reservedTag {
					t.Errorf("the last has tag %#x", r.u32(20))
				}
				break
			}
			if r.flags() != 0x40 || r.u32(20) == reservedTag || tags > 20 {
				t.Fatalf("%s after %d", r, tags)
			}
			tags++
			p = newPacket(0x04, 0x80).itt(p.tag()).set32(20, r.u32(20))
		}
		if got := bytes.Count(answer, []byte("=NotUnderstood\x00")); got != len(keys) || tags < 3 {
			t.Errorf("%d keys not understood in %d responses, want %d", got, tags+1, len(keys))
		}
		c.good(c.testUnitReady())
	})
	t.Run("abandoned", func(t *testing.T) {
		// A request with the reserved tag begins anew (§11.10.4).
		c := s.ready(t, "MaxRecvDataSegmentLength=512")
		var keys []string
		for i := range 50 {
			keys = append(keys, fmt.Sprintf("X-%060d=", i))
		}
		old := c.expectFor(opTextResponse, c.request(textPDU(keys...)))
		r := c.expectFor(opTextResponse, c.request(textPDU("X-new=1")))
		if r.flags() != 0x80 || !slices.Equal(r.pairs(), []string{"X-new=NotUnderstood"}) {
			t.Errorf("%s %q", r, r.pairs())
		}
		p := newPacket(0x04, 0x80).set32(20, old.u32(20))
		c.request(p)
		c.expect(opReject)
	})
	t.Run("endless", func(t *testing.T) {
		c := s.ready(t)
		tag := reservedTag
		for i := range 100 {
			c.request(newPacket(0x04, 0x40).itt(0x5555).set32(20, tag).with(make([]byte, 8192)))
			r := c.receive()
			if r.opcode() == 0x3f {
				if i < 6 {
					t.Errorf("rejected after %d requests", i)
				}
				c.good(c.testUnitReady())
				return
			}
			tag = r.u32(20)
		}
		t.Error("text of 800 KiB goes on")
	})
}

// TestSegmentLengthChange: MaxRecvDataSegmentLength may change at any time; it
// counts from the end of the negotiation on, and not at all if that fails
// (RFC 7143 §6.2).
func TestSegmentLengthChange(t *testing.T) {
	s := serveTCP(t)
	s.disk.fill(t, 0, 16*blockSize)
	c := s.ready(t, "MaxRecvDataSegmentLength=2048")
	segment := func(want int) {
		t.Helper()
		tag := c.request(readCommand(0, 16))
		first := c.expectFor(opDataIn, tag)
		if len(first.data) != want {
			t.Errorf("segments of %d bytes, want %d", len(first.data), want)
		}
		for p := first; p.flags()&1 == 0; p = c.expectFor(opDataIn, tag) {
		}
	}
	segment(2048)
	r := c.expectFor(opTextResponse, c.request(textPDU("MaxRecvDataSegmentLength=4096")))
	if len(r.data) != 0 || r.flags() != 0x80 {
		t.Errorf("%s %q", r, r.pairs())
	}
	segment(4096)
	r = c.expectFor(opTextResponse, c.request(textPDU("MaxRecvDataSegmentLength=100")))
	if !slices.Equal(r.pairs(), []string{"MaxRecvDataSegmentLength=Reject"}) {
		t.Errorf("%q", r.pairs())
	}
	segment(4096)

	// Said, and then the negotiation is given up.
	p := textPDU("MaxRecvDataSegmentLength=512")
	p.h[1] = 0
	r = c.expectFor(opTextResponse, c.request(p))
	segment(4096) // not yet
	bad := textPDU("MaxRecvDataSegmentLength=512").itt(p.tag()).set32(20, r.u32(20))
	c.request(bad)
	c.expectReject(4, bad)
	segment(4096)

	p = textPDU("MaxRecvDataSegmentLength=512")
	p.h[1] = 0
	c.expectFor(opTextResponse, c.request(p))
	c.expectFor(opTextResponse, c.request(textPDU("X-a=1")))
	segment(4096)

	p = textPDU("MaxRecvDataSegmentLength=1024")
	p.h[1] = 0
	r = c.expectFor(opTextResponse, c.request(p))
	c.expectFor(opTextResponse, c.request(textPDU().itt(p.tag()).set32(20, r.u32(20))))
	segment(1024)
}
