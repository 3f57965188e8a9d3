package client

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"
)

// ISCSI is a session over iSCSI with one command under way at a time. It sends
// the first bytes of a write with the command and the rest when it is asked to.
type ISCSI struct {
	nc                 net.Conn
	cmdSN, statSN, tag uint32
}

const (
	immediate = 8192 // what every target takes as MaxRecvDataSegmentLength, RFC 7143 §13.12

	loginRequest, scsiCommand, dataOut                = 0x43, 0x01, 0x05
	scsiResponse, loginResponse, dataIn, readyToWrite = 0x21, 0x23, 0x25, 0x31
)

var sessions atomic.Uint32

// DialISCSI logs in to a target without CHAP and makes sure of its LUN 1.
func DialISCSI(address, target string) (*ISCSI, error) {
	nc, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	c := &ISCSI{nc: nc, cmdSN: 1}
	if err := c.login(target); err != nil {
		nc.Close()
		return nil, fmt.Errorf("login: %w", err)
	}
	for range 4 { // unit attentions
		if err = c.command(turCDB(), nil, nil); err == nil {
			return c, nil
		}
	}
	nc.Close()
	return nil, err
}

func (c *ISCSI) login(target string) error {
	var h [48]byte
	h[0], h[1] = loginRequest, 0x87 // from operational negotiation to full feature phase
	n := sessions.Add(1)
	h[8] = 0x80 // ISID of the random kind
	binary.BigEndian.PutUint32(h[9:], n)
	binary.BigEndian.PutUint32(h[24:], c.cmdSN)
	text := strings.Join([]string{
		fmt.Sprintf("InitiatorName=iqn.2026-01.test:client-%d", n), "TargetName=" + target, "SessionType=Normal",
		"InitialR2T=Yes", "ImmediateData=Yes", "MaxRecvDataSegmentLength=1048576", "MaxBurstLength=1048576", "",
	}, "\x00")
	if err := c.send(&h, []byte(text)); err != nil {
		return err
	}
	h, _, err := c.receive()
	if err == nil && (h[0] != loginResponse || h[36] != 0 || h[1]&0x83 != 0x83) {
		err = fmt.Errorf("answered with % x", h)
	}
	c.statSN = binary.BigEndian.Uint32(h[24:]) + 1
	return err
}

func (c *ISCSI) send(h *[48]byte, data []byte) error {
	h[5], h[6], h[7] = byte(len(data)>>16), byte(len(data)>>8), byte(len(data))
	c.nc.SetDeadline(time.Now().Add(ReplyLimit))
	b := append(append(make([]byte, 0, 48+len(data)+3), h[:]...), data...)
	_, err := c.nc.Write(append(b, make([]byte, -len(data)&3)...))
	return err
}

func (c *ISCSI) receive() (h [48]byte, data []byte, err error) {
	if _, err = io.ReadFull(c.nc, h[:]); err != nil {
		return h, nil, err
	}
	n := int(h[5])<<16 | int(h[6])<<8 | int(h[7])
	data = make([]byte, (n+3)&^3)
	_, err = io.ReadFull(c.nc, data)
	return h, data[:n], err
}

// command runs a CDB: send goes out, receive is filled.
func (c *ISCSI) command(cdb [16]byte, send, receive []byte) error {
	var h [48]byte
	c.tag++
	h[0], h[1] = scsiCommand, 0x81 // final, simple task
	if len(send) > 0 {
		h[1] |= 0x20
	}
	if len(receive) > 0 {
		h[1] |= 0x40
	}
	h[9] = 1 // LUN
	binary.BigEndian.PutUint32(h[16:], c.tag)
	binary.BigEndian.PutUint32(h[20:], uint32(len(send)+len(receive)))
	binary.BigEndian.PutUint32(h[24:], c.cmdSN)
	binary.BigEndian.PutUint32(h[28:], c.statSN)
	copy(h[32:], cdb[:])
	c.cmdSN++
	if err := c.send(&h, send[:min(len(send), immediate)]); err != nil {
		return err
	}
	for {
		h, data, err := c.receive()
		if err != nil {
			return err
		}
		switch h[0] {
		case readyToWrite:
			if err := c.grant(&h, send); err != nil {
				return err
			}
		case dataIn:
			copy(receive[binary.BigEndian.Uint32(h[40:]):], data)
			if h[1]&1 == 0 { // without status
				continue
			}
			c.statSN = binary.BigEndian.Uint32(h[24:]) + 1
			return nil
		case scsiResponse:
			c.statSN = binary.BigEndian.Uint32(h[24:]) + 1
			if h[3] != 0 {
				return Answer{fmt.Sprintf("SCSI command % x: status %#x, sense % x", cdb, h[3], data)}
			}
			return nil
		default:
			return fmt.Errorf("a PDU of type %#x", h[0])
		}
	}
}

// grant sends the data that an R2T asks for, in pieces of a size that every
// target takes.
func (c *ISCSI) grant(r2t *[48]byte, all []byte) error {
	off, n := binary.BigEndian.Uint32(r2t[40:]), binary.BigEndian.Uint32(r2t[44:])
	for sn := uint32(0); n > 0; sn++ {
		k := min(n, immediate)
		var h [48]byte
		h[0] = dataOut
		if k == n {
			h[1] = 0x80
		}
		copy(h[8:24], r2t[8:24]) // LUN, both tags
		binary.BigEndian.PutUint32(h[28:], c.statSN)
		binary.BigEndian.PutUint32(h[36:], sn)
		binary.BigEndian.PutUint32(h[40:], off)
		if err := c.send(&h, all[off:off+k]); err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

func turCDB() [16]byte { return [16]byte{} }

// rw10 is the CDB of a ten-byte command on a range of bytes.
func rw10(op, flags byte, off, n int64) (cdb [16]byte) {
	cdb[0], cdb[1] = op, flags
	binary.BigEndian.PutUint32(cdb[2:], uint32(off/SectorSize))
	binary.BigEndian.PutUint16(cdb[7:], uint16(n/SectorSize))
	return cdb
}

func (c *ISCSI) Read(off int64, p []byte) error {
	return c.command(rw10(0x28, 0, off, int64(len(p))), nil, p)
}

func (c *ISCSI) Write(off int64, p []byte, how Durability) error {
	var fua byte
	if how == ThroughCache {
		fua = 8
	}
	return c.command(rw10(0x2a, fua, off, int64(len(p))), p, nil)
}

// zero is WRITE SAME (10) of a block of zeros, with UNMAP now and then.
func (c *ISCSI) Zero(off, n int64, how Durability) error {
	var unmap byte
	if off%3 == 0 {
		unmap = 8
	}
	if err := c.command(rw10(0x41, unmap, off, n), make([]byte, SectorSize), nil); err != nil || how != ThroughCache {
		return err
	}
	return c.Flush()
}

// trim is UNMAP with one descriptor.
func (c *ISCSI) Trim(off, n int64) error {
	p := make([]byte, 24)
	p[1], p[3] = 22, 16
	binary.BigEndian.PutUint64(p[8:], uint64(off/SectorSize))
	binary.BigEndian.PutUint32(p[16:], uint32(n/SectorSize))
	return c.command([16]byte{0x42, 8: 24}, p, nil)
}

func (c *ISCSI) Flush() error { return c.command([16]byte{0x35}, nil, nil) }

// Close drops the connection.
func (c *ISCSI) Close() error { return c.nc.Close() }
