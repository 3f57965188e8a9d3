package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// NBD is a connection over NBD. It sends one request at a time and takes
// the protocol document's "simple replies".
type NBD struct {
	nc     net.Conn
	cookie uint64
}

// The protocol document, "Request types" and "Command flags".
const (
	nbdRead, nbdWrite, nbdDisc, nbdFlush, nbdTrim, nbdZero = 0, 1, 2, 3, 4, 6
	nbdFUA, nbdNoHole                                      = 1, 2
)

// DialNBD connects to the default export of the server at a Unix socket.
func DialNBD(socket string) (*NBD, error) {
	nc, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	c := &NBD{nc: nc}
	if err := c.handshake(); err != nil {
		nc.Close()
		return nil, fmt.Errorf("handshake: %w", err)
	}
	return c, nil
}

// handshake chooses the default export with NBD_OPT_GO.
func (c *NBD) handshake() error {
	c.nc.SetDeadline(time.Now().Add(ReplyLimit))
	var hello [18]byte
	if _, err := io.ReadFull(c.nc, hello[:]); err != nil {
		return err
	}
	const optGo, repAck = 7, 1
	b := []byte{0, 0, 0, 3} // fixed newstyle, no zeroes
	b = append(b, "IHAVEOPT"...)
	b = binary.BigEndian.AppendUint32(b, optGo)
	b = binary.BigEndian.AppendUint32(b, 6)
	b = append(b, make([]byte, 6)...) // no name, no information asked for
	if _, err := c.nc.Write(b); err != nil {
		return err
	}
	for {
		var h [20]byte
		if _, err := io.ReadFull(c.nc, h[:]); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, c.nc, int64(binary.BigEndian.Uint32(h[16:]))); err != nil {
			return err
		}
		switch kind := binary.BigEndian.Uint32(h[12:]); {
		case kind == repAck:
			return nil
		case kind>>31 != 0:
			return fmt.Errorf("option refused: %#x", kind)
		}
	}
}

func (c *NBD) request(flags, kind uint16, off, n int64, send, receive []byte) error {
	c.cookie++
	b := make([]byte, 0, 28+len(send))
	b = binary.BigEndian.AppendUint32(b, 0x25609513)
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint64(b, c.cookie)
	b = binary.BigEndian.AppendUint64(b, uint64(off))
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	c.nc.SetDeadline(time.Now().Add(ReplyLimit))
	if _, err := c.nc.Write(append(b, send...)); err != nil {
		return err
	}
	var h [16]byte
	if _, err := io.ReadFull(c.nc, h[:]); err != nil {
		return err
	}
	if got := binary.BigEndian.Uint64(h[8:]); got != c.cookie {
		return errors.New("a reply to another request")
	}
	if errno := binary.BigEndian.Uint32(h[4:]); errno != 0 {
		return Answer{fmt.Sprintf("NBD command %d of %d bytes at %d: error %d", kind, n, off, errno)}
	}
	_, err := io.ReadFull(c.nc, receive)
	return err
}

func (c *NBD) Read(off int64, p []byte) error {
	return c.request(0, nbdRead, off, int64(len(p)), nil, p)
}

func (c *NBD) Write(off int64, p []byte, how Durability) error {
	return c.request(nbdFlag(how == ThroughCache, nbdFUA), nbdWrite, off, int64(len(p)), p, nil)
}

func (c *NBD) Zero(off, n int64, how Durability) error {
	return c.request(nbdFlag(how == ThroughCache, nbdFUA)|nbdFlag(off%3 == 0, nbdNoHole), nbdZero, off, n, nil, nil)
}

func (c *NBD) Trim(off, n int64) error { return c.request(0, nbdTrim, off, n, nil, nil) }
func (c *NBD) Flush() error            { return c.request(0, nbdFlush, 0, 0, nil, nil) }

func nbdFlag(set bool, flag uint16) uint16 {
	if set {
		return flag
	}
	return 0
}

// Close drops the connection.
func (c *NBD) Close() error { return c.nc.Close() }
