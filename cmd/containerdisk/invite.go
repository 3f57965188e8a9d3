package main

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/containerdisk/containerdisk/target/nbd"
)

// invite shows a person how to attach a disk, at each door.
func (s *server) invite(w io.Writer, d *disk) {
	fmt.Fprintf(w, "\n%s is ready. From another terminal:\n", d.name)
	for _, dr := range s.doors {
		fmt.Fprintf(w, "\n%s\n", s.commands(dr, d))
	}
	fmt.Fprint(w, "\nCtrl-C stops the server when the clients have left, Ctrl-C twice at once.\n\n")
}

// commands are the lines to type for a disk behind the door.
func (s *server) commands(dr *door, d *disk) string {
	who, at := "", dr.address()
	if dr.wire == wireISCSI && s.cfg.CHAP.Enabled() {
		who = s.cfg.CHAP.Initiator.Name + "%$CHAP_PASSWORD@"
	}
	if a, ok := dr.l.Addr().(*net.TCPAddr); ok {
		at = reachable(unmapped(a.AddrPort())).String()
	}
	if dr.tls == nbd.TLSRequire {
		return s.secureCommands(at, d)
	}
	u := dr.urlFor(s, d, who, at)
	return fmt.Sprintf("  qemu-img info \"%s\"\n"+
		"  qemu-system-x86_64 -m 2G -drive \"file=%s,format=raw,if=virtio\"", u, forDrive(u))
}

// secureCommands are those for NBD over TLS, for which a URL has no place to
// name certificates. DIR is the client's: ca-cert.pem, client-cert.pem,
// client-key.pem.
func (s *server) secureCommands(at string, d *disk) string {
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return "" // an address of ours always has a port
	}
	export := ""
	if len(s.disks) > 1 {
		export = ",export=" + forDrive(d.name)
	}
	creds := "-object tls-creds-x509,id=tls,endpoint=client,dir=DIR"
	where := fmt.Sprintf("driver=nbd,server.type=inet,server.host=%s,server.port=%s,tls-creds=tls%s", host, port, export)
	return fmt.Sprintf("  qemu-img info %s --image-opts \"%s\"\n"+
		"  qemu-system-x86_64 -m 2G %s -blockdev \"%s,node-name=disk\" -device virtio-blk-pci,drive=disk", creds, where, creds, where)
}

// forDrive is text as a value of qemu's -drive, where a comma is doubled.
func forDrive(text string) string { return strings.ReplaceAll(text, ",", ",,") }

// unmapped is an address without the IPv6 notation of IPv4.
func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
