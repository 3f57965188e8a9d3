package iscsi

import (
	"net"
	"testing"
)

// TestPortal: SendTargets gives the address by which the initiator has reached
// us, as RFC 7143 §13.8 writes it. What names an interface of our own is of no
// use to an initiator.
func TestPortal(t *testing.T) {
	for _, v := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 3260}, "192.0.2.7:3260,1"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 3261}, "[2001:db8::7]:3261,1"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::7"), Port: 3260, Zone: "eth0"}, "[fe80::7]:3260,1"},
	} {
		if got := portal(v.addr); got != v.want {
			t.Errorf("portal of %s is %s, want %s", v.addr, got, v.want)
		}
	}
}

// TestIPv6 finds the target and logs in over IPv6.
func TestIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	s := start(t, l)
	s.connect = func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) }
	d := s.dial(t)
	d.finishLogin(d.succeed(operationalToFull, d.discoveryNames()...))
	r := d.expectFor(opTextResponse, d.request(textPDU("SendTargets=All")))
	if got, want := r.value("TargetAddress"), l.Addr().String()+",1"; got != want {
		t.Errorf("TargetAddress=%s, want %s", got, want)
	}
	c := s.ready(t)
	c.good(c.writeAll(writeCommand(0, 8), pattern(0, 8*blockSize, 1)))
}
