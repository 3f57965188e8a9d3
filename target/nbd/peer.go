package nbd

import (
	"crypto/tls"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerOf names the client for admission. NBD has no name for a client, and a
// client may open several connections (CAN_MULTI_CONN), which must count as
// one. So a client is
//
//   - on a Unix socket the process at the other end: its user and number, as
//     the kernel tells them. Of a process in another container the kernel may
//     tell no number; then the user is all there is;
//   - on TCP the machine, and with TLS also the name in its certificate. Two
//     programs of one machine are one client there.
//
// Of a certificate peerOf knows nothing: it is asked before TLS.
func peerOf(nc net.Conn) (string, error) {
	switch nc := nc.(type) {
	case *net.UnixConn:
		return processOf(nc)
	case *net.TCPConn:
		return "nbd " + nc.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String(), nil
	}
	return "nbd " + nc.RemoteAddr().String(), nil
}

// named is peer with the name in its certificate, where there is one.
func named(peer string, nc net.Conn) string {
	if t, ok := nc.(*tls.Conn); ok {
		return fmt.Sprintf("%s %q", peer, t.ConnectionState().PeerCertificates[0].Subject)
	}
	return peer
}

// processOf names the process that connected to a Unix socket.
func processOf(nc *net.UnixConn) (string, error) {
	rc, err := nc.SyscallConn()
	if err != nil {
		return "", err
	}
	var cred *unix.Ucred
	var cerr error
	if err := rc.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return "", err
	}
	if cerr != nil {
		return "", fmt.Errorf("who is at the socket: %w", cerr)
	}
	return fmt.Sprintf("nbd process %d of user %d", cred.Pid, cred.Uid), nil
}
