//go:build linux

// Command nbdlink attaches /dev/nbd0 of a guest to an export, and attaches it
// again whenever the connection is lost: the kernel keeps requests waiting in
// the meantime. nbd-client cannot ask the kernel for that.
//
//	nbdlink HOST:PORT
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel's interface: linux/nbd-netlink.h.
const (
	cmdConnect     = 1
	cmdReconfigure = 3

	attrIndex       = 1
	attrSize        = 2
	attrBlockSize   = 3
	attrTimeout     = 4
	attrServerFlags = 5
	attrSockets     = 7
	attrDeadConn    = 8
	sockItem        = 1
	sockFD          = 1
)

const (
	patience     = 120 // seconds that requests wait for another connection
	replyTimeout = 5   // seconds until one that was under way is sent again
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "nbdlink:", err)
		os.Exit(1)
	}
}

func run(address string) error {
	nl, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC)
	if err != nil {
		return err
	}
	family, err := familyOf(nl, "nbd")
	if err != nil {
		return err
	}
	for command := byte(cmdConnect); ; command = cmdReconfigure {
		nc, size, flags := dial(address)
		f, err := nc.(*net.TCPConn).File() // blocking, as the kernel wants it
		if err != nil {
			return err
		}
		attrs := attr(attrIndex, u32(0))
		if command == cmdConnect {
			attrs = append(attrs, attr(attrSize, u64(size))...)
			attrs = append(attrs, attr(attrBlockSize, u64(512))...)
			attrs = append(attrs, attr(attrServerFlags, u64(uint64(flags)))...)
		}
		attrs = append(attrs, attr(attrTimeout, u64(replyTimeout))...)
		attrs = append(attrs, attr(attrDeadConn, u64(patience))...)
		attrs = append(attrs, attr(attrSockets, attr(sockItem, attr(sockFD, u32(uint32(f.Fd())))))...)
		if _, err := call(nl, family, command, attrs); err != nil {
			return fmt.Errorf("command %d: %w", command, err)
		}
		fmt.Println("linked")
		hungUp(f)
		if err := errors.Join(f.Close(), nc.Close()); err != nil {
			return err
		}
	}
}

// hungUp returns when the connection is lost. What comes before is the kernel's.
func hungUp(f *os.File) {
	for {
		p := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLRDHUP}}
		_, _ = unix.Poll(p, 1000)
		if p[0].Revents != 0 {
			return
		}
	}
}

// dial tries until it has an export, "EXPORT_NAME".
func dial(address string) (nc net.Conn, size uint64, flags uint16) {
	for {
		nc, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err == nil {
			if size, flags, err = enter(nc); err == nil {
				return nc, size, flags
			}
			nc.Close()
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func enter(nc net.Conn) (size uint64, flags uint16, err error) {
	b := make([]byte, 18)
	if _, err := io.ReadFull(nc, b); err != nil {
		return 0, 0, err
	}
	// Fixed newstyle without zeroes, then EXPORT_NAME of the default export.
	if _, err := nc.Write(append([]byte{0, 0, 0, 3}, "IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00"...)); err != nil {
		return 0, 0, err
	}
	b = b[:10]
	_, err = io.ReadFull(nc, b)
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint16(b[8:]), err
}

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
func u64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// attr is a netlink attribute, padded.
func attr(kind uint16, data []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	return append(b, make([]byte, -len(b)&3)...)
}

// familyOf asks for the number of a generic netlink family.
func familyOf(nl int, name string) (uint16, error) {
	attrs, err := call(nl, unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, attr(unix.CTRL_ATTR_FAMILY_NAME, append([]byte(name), 0)))
	for len(attrs) >= 4 && err == nil {
		n := int(binary.NativeEndian.Uint16(attrs))
		if binary.NativeEndian.Uint16(attrs[2:]) == unix.CTRL_ATTR_FAMILY_ID {
			return binary.NativeEndian.Uint16(attrs[4:]), nil
		}
		attrs = attrs[min(len(attrs), (n+3)&^3):]
	}
	return 0, errors.Join(err, fmt.Errorf("the kernel has no %s", name))
}

// call sends a command, and gives the attributes of the first message that
// comes before the acknowledgement.
func call(nl int, family uint16, command byte, attrs []byte) (reply []byte, err error) {
	b := u32(uint32(unix.NLMSG_HDRLEN + unix.GENL_HDRLEN + len(attrs)))
	b = binary.NativeEndian.AppendUint16(b, family)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(b, u64(1)...) // sequence number, and our address: the kernel's choice
	b = append(append(b, command, 1, 0, 0), attrs...)
	if err := unix.Sendto(nl, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	for buf := make([]byte, 64<<10); ; {
		n, _, err := unix.Recvfrom(nl, buf, 0)
		if err != nil {
			return nil, err
		}
		for m := buf[:n]; len(m) >= unix.NLMSG_HDRLEN; {
			size := int(binary.NativeEndian.Uint32(m))
			if binary.NativeEndian.Uint16(m[4:]) == unix.NLMSG_ERROR {
				if code := int32(binary.NativeEndian.Uint32(m[unix.NLMSG_HDRLEN:])); code != 0 {
					return nil, unix.Errno(-code)
				}
				return reply, nil
			}
			reply = append(reply, m[unix.NLMSG_HDRLEN+unix.GENL_HDRLEN:size]...)
			m = m[min(len(m), (size+3)&^3):]
		}
	}
}
