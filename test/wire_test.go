//go:build e2e

package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A raw iSCSI initiator, made to break the rules: it knows no more of RFC 7143
// than it takes to say something wrong at a chosen place.

const (
	opNop, opCommand, opTask, opLogin, opText, opDataOut, opLogout, opSNACK = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10

	immediate = 0x40 // byte 0
	final     = 0x80 // byte 1
	reads     = 0x40 // byte 1 of a SCSI command
	writes    = 0x20
	noTag     = 0xffffffff

	// Byte 1 of a login request: transit, or to be continued; from and to.
	transit, continued             = 0x80, 0x40
	security, operational, fullFFP = 0, 1, 3
)

// header is a basic header segment, RFC 7143 §11.2.1.
type header [48]byte

func head(opcode, flags byte) header { return header{opcode, flags} }

func (h header) u32(offset int, v uint32) header {
	binary.BigEndian.PutUint32(h[offset:], v)
	return h
}

func (h header) bytes(offset int, b ...byte) header {
	copy(h[offset:], b)
	return h
}

func (h header) tag(v uint32) header  { return h.u32(16, v) }
func (h header) disk() header         { return h.bytes(8, 0, lun) }
func (h header) length(n int) header  { return h.bytes(5, byte(n>>16), byte(n>>8), byte(n)) }
func (h header) cdb(b ...byte) header { return h.bytes(32, b...) }

// wire is a connection to the server.
type wire struct {
	t *testing.T
	net.Conn
	cmdSN   uint32 // for the next command
	statSN  uint32 // expected next
	session uint16 // number of the session, part of its ISID
}

var sessions atomic.Uint32

func dial(t *testing.T, s *server) *wire {
	t.Helper()
	nc, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return &wire{t: t, Conn: nc, cmdSN: 1, session: uint16(sessions.Add(1))}
}

// raw sends bytes. The server may well have closed by now.
func (w *wire) raw(b []byte) *wire {
	w.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_, err := w.Write(b)
	if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		w.t.Log("the server takes no more")
	}
	return w
}

// send sends a PDU with its true data length.
func (w *wire) send(h header, data []byte) *wire {
	h = h.length(len(data))
	return w.raw(append(append(h[:], data...), make([]byte, -len(data)&3)...))
}

// numbered sends a request with the next command number.
func (w *wire) numbered(h header, data []byte) *wire {
	w.send(h.u32(24, w.cmdSN).u32(28, w.statSN), data)
	w.cmdSN++
	return w
}

// loginRequest is the header of one between two stages.
func (w *wire) loginRequest(flags, from, to byte) header {
	h := head(opLogin|immediate, flags|from<<2|to)
	h = h.bytes(8, 0x80, 0, 0, byte(w.session>>8), byte(w.session), 0) // ISID, "random" format
	return h.u32(24, w.cmdSN)
}

// keys joins keys and values as login text has them.
func keys(kv ...string) []byte {
	return []byte(strings.Join(kv, "\x00") + "\x00")
}

// names are the keys that every first login request has.
func (w *wire) names(s *server) []string {
	return []string{
		fmt.Sprintf("InitiatorName=iqn.2026-01.test:hostile-%d", w.session),
		"TargetName=" + s.name, "SessionType=Normal",
	}
}

// login opens a session without CHAP.
func (w *wire) login(s *server) *wire {
	w.t.Helper()
	w.send(w.loginRequest(transit, operational, fullFFP), keys(append(w.names(s),
		"InitialR2T=Yes", "ImmediateData=Yes", "MaxRecvDataSegmentLength=262144")...))
	h, _, err := w.receive(5 * time.Second)
	if err != nil || h[0] != opLogin|0x20 || h[36] != 0 || h[1]&transit == 0 {
		w.t.Fatalf("login: % x, %v", h, err)
	}
	return w.attend()
}

// attend hears, by TEST UNIT READY, that the power was on: the unit attention
// of every new session, which would be the answer to the next command.
func (w *wire) attend() *wire {
	w.t.Helper()
	w.numbered(head(opCommand, final).disk().tag(1), nil)
	if h, _, err := w.receive(5 * time.Second); err != nil || describe(h) != "status:02" {
		w.t.Fatalf("TEST UNIT READY: % x, %v", h, err)
	}
	return w
}

func (w *wire) receive(limit time.Duration) (h header, data []byte, err error) {
	w.SetReadDeadline(time.Now().Add(limit))
	if _, err = io.ReadFull(w, h[:]); err != nil {
		return h, nil, err
	}
	n := int(h[5])<<16 | int(h[6])<<8 | int(h[7])
	data = make([]byte, n+(-n&3))
	if _, err = io.ReadFull(w, data); err != nil {
		return h, nil, err
	}
	w.statSN = binary.BigEndian.Uint32(h[24:]) + 1
	return h, data[:n], nil
}

// outcome tells what comes back until the server closes or has been silent for
// a while: "login:0200 closed", "reject:04 silent", "status:02 silent". The
// silence is longer where it is not what is wanted: the machine may be busy.
func (w *wire) outcome(want *regexp.Regexp) string {
	const silence, patience = 300 * time.Millisecond, 5 * time.Second
	var all []string
	for begin := time.Now(); ; {
		h, _, err := w.receive(silence)
		silent := strings.Join(append(all, "silent"), " ")
		switch {
		case err == nil && len(all) < 8:
			all = append(all, describe(h))
		case err == nil: // enough is known
		case !errors.Is(err, os.ErrDeadlineExceeded): // EOF or a reset
			return strings.Join(append(all, "closed"), " ")
		case want.MatchString(silent), time.Since(begin) > patience:
			return silent
		}
	}
}

// check fails the test unless what comes back is as wanted.
func (w *wire) check(want string) {
	w.t.Helper()
	if got := w.outcome(regexp.MustCompile(want)); !regexp.MustCompile(want).MatchString(got) {
		w.t.Errorf("it ended with %q, want %s", got, want)
	}
}

func describe(h header) string {
	switch h[0] & 0x3f {
	case 0x20:
		return "nop"
	case 0x21:
		return fmt.Sprintf("status:%02x", h[3])
	case 0x22:
		return fmt.Sprintf("task:%02x", h[2])
	case 0x23:
		return fmt.Sprintf("login:%02x%02x", h[36], h[37])
	case 0x24:
		return "text"
	case 0x25:
		return "data"
	case 0x26:
		return fmt.Sprintf("logout:%02x", h[2])
	case 0x31:
		return "r2t"
	case 0x32:
		return fmt.Sprintf("async:%02x", h[36])
	case 0x3f:
		return fmt.Sprintf("reject:%02x", h[2])
	}
	return fmt.Sprintf("opcode:%02x", h[0])
}
