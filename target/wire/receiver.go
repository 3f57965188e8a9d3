package wire

import (
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// lingerTime is how long a Receiver that may linger waits in the system call
// before its goroutine is parked, ms.
const lingerTime = 1

// Receiver reads what a connection sends.
//
// On a socket it may linger: wait for a moment in a system call of its own.
// What a busy client sends next is then here with one wake-up of the kernel's;
// parked, a goroutine takes Go's poller, its scheduler and often a second
// thread as well, on a processor that the client may need. Whoever lingers
// keeps others from its processor for that moment, and so may do it only where
// there is one for each.
type Receiver struct {
	nc   net.Conn
	sock syscall.RawConn // nil: nc is no socket

	// Of the read under way. try is made once, so that reading allocates
	// nothing.
	try    func(fd uintptr) bool
	p      []byte
	n      int
	err    error
	linger bool
}

// NewReceiver returns a Receiver of what nc sends.
func NewReceiver(nc net.Conn) *Receiver {
	r := &Receiver{nc: nc}
	if s, ok := nc.(syscall.Conn); ok {
		r.sock, _ = s.SyscallConn() // without it nc.Read does
	}
	r.try = r.tryRead
	return r
}

// Read is nc.Read with a say in how to wait. p is not empty.
func (r *Receiver) Read(p []byte, linger bool) (int, error) {
	if r.sock == nil {
		return r.nc.Read(p)
	}
	r.p, r.n, r.err, r.linger = p, 0, nil, linger
	err := r.sock.Read(r.try)
	r.p = nil
	if err != nil { // closed, or the deadline is over
		return 0, err
	}
	if r.n == 0 && r.err == nil {
		return 0, io.EOF
	}
	return r.n, r.err
}

// tryRead reads, and lingers once if there is nothing. It returns false when
// the goroutine should be parked until there is something.
func (r *Receiver) tryRead(fd uintptr) bool {
	for {
		n, err := unix.Read(int(fd), r.p)
		switch {
		case err == nil:
			r.n = n
			return true
		case err == unix.EINTR:
			continue
		case err != unix.EAGAIN:
			r.err = err
			return true
		case !r.linger:
			return false
		}
		r.linger = false
		wait := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, _ = unix.Poll(wait[:], lingerTime) // the read behind it tells what came of it
	}
}
