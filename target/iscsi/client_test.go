package iscsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The client of the tests. It knows the figures of RFC 7143 by itself: offsets
// are written down here and not taken from the package, so that a field in the
// wrong place does not go unnoticed.

// patience is how long a test waits for what must come.
const patience = 10 * time.Second

// packet is a PDU of the client's: sent or received.
type packet struct {
	h         [48]byte
	ahs, data []byte
}

func newPacket(opcode, flags byte) *packet {
	p := &packet{}
	p.h[0], p.h[1] = opcode, flags
	return p
}

func (p *packet) set8(at int, v byte) *packet { p.h[at] = v; return p }
func (p *packet) set16(at int, v uint16) *packet {
	binary.BigEndian.PutUint16(p.h[at:], v)
	return p
}
func (p *packet) set32(at int, v uint32) *packet {
	binary.BigEndian.PutUint32(p.h[at:], v)
	return p
}
func (p *packet) set64(at int, v uint64) *packet {
	binary.BigEndian.PutUint64(p.h[at:], v)
	return p
}
func (p *packet) with(data []byte) *packet { p.data = data; return p }
func (p *packet) itt(v uint32) *packet     { return p.set32(16, v) }
func (p *packet) cmdSN(v uint32) *packet   { return p.set32(24, v) }
func (p *packet) immediate() *packet       { p.h[0] |= 0x40; return p }

func (p *packet) opcode() byte      { return p.h[0] & 0x3f }
func (p *packet) flags() byte       { return p.h[1] }
func (p *packet) u8(at int) byte    { return p.h[at] }
func (p *packet) u16(at int) uint16 { return binary.BigEndian.Uint16(p.h[at:]) }
func (p *packet) u32(at int) uint32 { return binary.BigEndian.Uint32(p.h[at:]) }
func (p *packet) tag() uint32       { return p.u32(16) }
func (p *packet) statSN() uint32    { return p.u32(24) }
func (p *packet) expCmdSN() uint32  { return p.u32(28) }
func (p *packet) maxCmdSN() uint32  { return p.u32(32) }
func (p *packet) pairs() []string   { return splitText(p.data) }
func (p *packet) value(k string) string {
	v, _ := p.lookup(k)
	return v
}

func (p *packet) lookup(k string) (string, bool) {
	for _, s := range p.pairs() {
		if key, v, _ := strings.Cut(s, "="); key == k {
			return v, true
		}
	}
	return "", false
}

func (p *packet) String() string {
	return fmt.Sprintf("%s flags %#02x tag %#x, % x, %d bytes", Opcode(p.opcode()), p.flags(), p.tag(), p.h[:], len(p.data))
}

func splitText(b []byte) []string {
	if len(b) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

func text(pairs ...string) []byte {
	var b []byte
	for _, p := range pairs {
		b = append(append(b, p...), 0)
	}
	return b
}

// bytes is the PDU as it goes on the wire.
func (p *packet) bytes(headerDigest, dataDigest bool) []byte {
	h := p.h
	h[4] = byte(len(p.ahs) / 4)
	n := len(p.data)
	h[5], h[6], h[7] = byte(n>>16), byte(n>>8), byte(n)
	b := append(h[:], p.ahs...)
	if headerDigest {
		b = appendCRC(b, b)
	}
	start := len(b)
	b = append(b, p.data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	if dataDigest && n > 0 {
		b = appendCRC(b, b[start:])
	}
	return b
}

var testCRC = crc32.MakeTable(crc32.Castagnoli)

func appendCRC(b, over []byte) []byte {
	c := crc32.Checksum(over, testCRC)
	return append(b, byte(c), byte(c>>8), byte(c>>16), byte(c>>24))
}

// client is an initiator with one connection.
type client struct {
	t  *testing.T
	nc net.Conn

	headerDigest, dataDigest bool

	isid      [6]byte
	tsih, cid uint16
	initiator string

	nextITT   uint32
	nextCmdSN uint32
	expStatSN uint32
	statKnown bool
	maxCmdSN  uint32
	windows   int                           // NOP-Ins that told of the window
	stalled   atomic.Pointer[chan struct{}] // set: pump stops until it is closed
	pumped    chan struct{}                 // closed when pump has ended

	mu   sync.Mutex // guards the two below
	cond *sync.Cond
	in   []byte
	err  error
}

// dial connects a client to the server.
func (s *testServer) dial(t *testing.T) *client {
	t.Helper()
	nc, err := s.connect()
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, nc)
	t.Cleanup(c.leave)
	return c
}

// newClient takes over a connection, until leave.
func newClient(t *testing.T, nc net.Conn) *client {
	c := &client{t: t, nc: nc, isid: [6]byte{0x80, 1, 2, 3, 4, 5}, cid: 7, initiator: "iqn.2026-01.test:initiator",
		nextITT: 0x1000, nextCmdSN: 0x7fffff00, pumped: make(chan struct{})}
	c.cond = sync.NewCond(&c.mu)
	go func() { defer close(c.pumped); c.pump() }()
	return c
}

// leave closes the connection, and returns when nothing of the client runs.
func (c *client) leave() {
	c.nc.Close()
	<-c.pumped
}

// pump takes in what the server sends, so that neither side ever waits for the
// other to read.
func (c *client) pump() {
	buf := make([]byte, 64<<10)
	for {
		n, err := c.nc.Read(buf)
		if stalled := c.stalled.Load(); stalled != nil {
			<-*stalled
		}
		c.mu.Lock()
		c.in = append(c.in, buf[:n]...)
		c.err = err
		c.cond.Broadcast()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// take returns the next n bytes, or the error that ended the stream before.
func (c *client) take(n int, wait time.Duration) ([]byte, error) {
	late := false
	timer := time.AfterFunc(wait, func() { c.mu.Lock(); late = true; c.cond.Broadcast(); c.mu.Unlock() })
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.in) < n && c.err == nil && !late {
		c.cond.Wait()
	}
	switch {
	case len(c.in) >= n:
		b := bytes.Clone(c.in[:n])
		c.in = c.in[n:]
		return b, nil
	case c.err != nil && len(c.in) > 0:
		return nil, io.ErrUnexpectedEOF
	case c.err != nil:
		return nil, c.err
	}
	return nil, os.ErrDeadlineExceeded
}

func (c *client) sendBytes(b []byte) {
	c.t.Helper()
	c.nc.SetWriteDeadline(time.Now().Add(patience))
	if _, err := c.nc.Write(b); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

// send sends p as it is.
func (c *client) send(p *packet) {
	c.t.Helper()
	c.sendBytes(p.bytes(c.headerDigest, c.dataDigest))
}

// request numbers p as the next request and sends it. It returns its tag.
func (c *client) request(p *packet) uint32 {
	c.t.Helper()
	return c.number(p, func() { c.send(p) })
}

func (c *client) number(p *packet, send func()) uint32 {
	if p.tag() == 0 {
		c.nextITT++
		p.itt(c.nextITT)
	}
	p.cmdSN(c.nextCmdSN).set32(28, c.expStatSN)
	if p.h[0]&0x40 == 0 {
		c.nextCmdSN++
	}
	send()
	return p.tag()
}

// receive returns the next PDU, whose digests and numbers have been checked. A
// NOP-In that only tells of the command window is counted and passed over.
func (c *client) receive() *packet {
	c.t.Helper()
	for {
		p, err := c.tryReceive(patience)
		if err != nil {
			c.t.Fatalf("receive: %v", err)
		}
		if p.opcode() != 0x20 || p.tag() != reservedTag || p.u32(20) != reservedTag {
			return p
		}
		c.windows++
	}
}

func (c *client) tryReceive(wait time.Duration) (*packet, error) {
	c.t.Helper()
	p := &packet{}
	b, err := c.take(48, wait)
	if err != nil {
		return nil, err
	}
	copy(p.h[:], b)
	if p.ahs, err = c.take(int(p.h[4])*4, wait); err != nil {
		return nil, err
	}
	c.digest(c.headerDigest, append(p.h[:], p.ahs...))
	n := int(p.h[5])<<16 | int(p.h[6])<<8 | int(p.h[7])
	if p.data, err = c.take((n+3)&^3, wait); err != nil {
		return nil, err
	}
	c.digest(c.dataDigest && n > 0, p.data)
	for _, b := range p.data[n:] {
		if b != 0 {
			c.t.Errorf("%s: padding is % x", p, p.data[n:])
		}
	}
	p.data = p.data[:n]
	c.checkNumbers(p)
	return p, nil
}

func (c *client) digest(on bool, over []byte) {
	c.t.Helper()
	if !on {
		return
	}
	got, err := c.take(4, patience)
	if want := appendCRC(nil, over); err != nil || !bytes.Equal(got, want) {
		c.t.Fatalf("digest % x, want % x (%v)", got, want, err)
	}
}

// checkNumbers holds what RFC 7143 §4.2.2 says of every PDU of a target.
func (c *client) checkNumbers(p *packet) {
	c.t.Helper()
	if p.opcode() == 0x23 && p.u16(36) != 0 {
		return // numbers are valid only with status class 0
	}
	if int32(p.maxCmdSN()-(p.expCmdSN()-1)) < 0 {
		c.t.Errorf("%s: MaxCmdSN %#x before ExpCmdSN %#x - 1", p, p.maxCmdSN(), p.expCmdSN())
	}
	if c.statKnown && int32(p.maxCmdSN()-c.maxCmdSN) < 0 {
		c.t.Errorf("%s: MaxCmdSN went back from %#x to %#x", p, c.maxCmdSN, p.maxCmdSN())
	}
	c.maxCmdSN = p.maxCmdSN()
	switch op := p.opcode(); {
	case op == 0x25 && p.flags()&0x01 == 0: // Data-In without status
		return
	case op == 0x31 || op == 0x20 && p.tag() == 0xffffffff: // R2T, ping: shows the next number
		if c.statKnown && p.statSN() != c.expStatSN {
			c.t.Errorf("%s: shows StatSN %#x, want %#x", p, p.statSN(), c.expStatSN)
		}
		return
	}
	if c.statKnown && p.statSN() != c.expStatSN {
		c.t.Errorf("%s: StatSN %#x, want %#x", p, p.statSN(), c.expStatSN)
	}
	c.expStatSN, c.statKnown = p.statSN()+1, true
}

// expect receives a PDU, which must be of the kind.
func (c *client) expect(opcode Opcode) *packet {
	c.t.Helper()
	p := c.receive()
	if p.opcode() != byte(opcode) {
		c.t.Fatalf("got %s, want %s", p, opcode)
	}
	return p
}

// expectFor also wants the tag.
func (c *client) expectFor(opcode Opcode, tag uint32) *packet {
	c.t.Helper()
	p := c.expect(opcode)
	if p.tag() != tag {
		c.t.Fatalf("got %s, want tag %#x", p, tag)
	}
	return p
}

// expectReject receives a Reject of p for the reason.
func (c *client) expectReject(reason byte, of *packet) {
	c.t.Helper()
	r := c.expect(opReject)
	if r.u8(2) != reason {
		c.t.Errorf("reject reason %#02x, want %#02x", r.u8(2), reason)
	}
	if r.tag() != 0xffffffff || r.flags() != 0x80 {
		c.t.Errorf("reject: tag %#x, flags %#x", r.tag(), r.flags())
	}
	want := of.bytes(false, false)[:48+len(of.ahs)]
	if !bytes.Equal(r.data, want) {
		c.t.Errorf("reject carries\n% x, want\n% x", r.data, want)
	}
}

// expectClosed wants the connection to end without another PDU.
func (c *client) expectClosed() {
	c.t.Helper()
	p, err := c.tryReceive(patience)
	switch {
	case err == nil:
		c.t.Fatalf("got %s, want the connection closed", p)
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.t.Fatal("the connection is still open")
	case errors.Is(err, io.ErrUnexpectedEOF):
		c.t.Fatal("the connection was closed within a PDU")
	}
}

// expectQuiet wants nothing else to come before the answer to a ping.
func (c *client) expectQuiet() {
	c.t.Helper()
	tag := c.request(newPacket(0x00, 0x80).immediate().set32(20, 0xffffffff))
	c.expectFor(opNopIn, tag)
}

// Login.

// loginPDU is a login request of the client's.
func (c *client) loginPDU(flags byte, pairs ...string) *packet {
	p := newPacket(0x43, flags).itt(0x11).set16(14, c.tsih).set16(20, c.cid).cmdSN(c.nextCmdSN).
		set32(28, c.expStatSN).with(text(pairs...))
	copy(p.h[8:], c.isid[:])
	return p
}

// The flags of login PDUs: a stage, and a transit.
const (
	inSecurityStage    = 0x00
	inOperationalStage = 0x04
	toOperational      = 0x81
	toFullFeature      = 0x83 // from the security stage
	operationalToFull  = 0x87
	loginMore          = 0x40
)

// step sends a login request and receives the response.
func (c *client) step(flags byte, pairs ...string) *packet {
	c.t.Helper()
	c.send(c.loginPDU(flags, pairs...))
	return c.expect(opLoginResponse)
}

// succeed is step with a response that must be of status 0.
func (c *client) succeed(flags byte, pairs ...string) *packet {
	c.t.Helper()
	r := c.step(flags, pairs...)
	if s := r.u16(36); s != 0 {
		c.t.Fatalf("login status %#04x (%s), want success", s, status(s))
	}
	return r
}

// failLogin is step with a response that must be of the status, and end the
// connection.
func (c *client) failLogin(want status, flags byte, pairs ...string) {
	c.t.Helper()
	c.send(c.loginPDU(flags, pairs...))
	c.expectLoginFailure(want)
}

func (c *client) expectLoginFailure(want status) {
	c.t.Helper()
	r := c.expect(opLoginResponse)
	if got := status(r.u16(36)); got != want {
		c.t.Fatalf("login status %#04x (%s), want %#04x (%s)", uint16(got), got, uint16(want), want)
	}
	c.expectClosed()
}

// names are the keys of a first login request.
func (c *client) names() []string {
	return []string{"InitiatorName=" + c.initiator, "TargetName=" + testTarget, "SessionType=Normal"}
}

func (c *client) discoveryNames() []string {
	return []string{"InitiatorName=" + c.initiator, "SessionType=Discovery"}
}

// login logs in without authentication and with the keys, in one request.
func (c *client) login(pairs ...string) *packet {
	c.t.Helper()
	return c.finishLogin(c.succeed(operationalToFull, append(c.names(), pairs...)...))
}

func (c *client) finishLogin(r *packet) *packet {
	c.t.Helper()
	if r.flags() != operationalToFull && r.flags() != toFullFeature {
		c.t.Fatalf("login response flags %#02x, want the full feature phase", r.flags())
	}
	if r.u16(14) == 0 {
		c.t.Error("the final response has TSIH 0")
	}
	c.tsih = r.u16(14)
	c.headerDigest = r.value("HeaderDigest") == "CRC32C"
	c.dataDigest = r.value("DataDigest") == "CRC32C"
	return r
}

// loginReady logs in and takes the unit attention of the new nexus.
func (c *client) loginReady(pairs ...string) *packet {
	c.t.Helper()
	r := c.login(pairs...)
	c.clearAttention()
	return r
}

func (c *client) clearAttention() {
	c.t.Helper()
	for range 8 {
		if c.testUnitReady().status() == 0 {
			return
		}
	}
	c.t.Fatal("the unit is not ready")
}

// SCSI.

const (
	flagF     = 0x80
	flagR     = 0x40
	flagW     = 0x20
	blockSize = 512
)

func cdb10(op byte, lba uint32, blocks uint16) []byte {
	b := make([]byte, 16)
	b[0] = op
	binary.BigEndian.PutUint32(b[2:], lba)
	binary.BigEndian.PutUint16(b[7:], blocks)
	return b
}

func readCDB(lba uint32, blocks uint16) []byte  { return cdb10(0x28, lba, blocks) }
func writeCDB(lba uint32, blocks uint16) []byte { return cdb10(0x2a, lba, blocks) }

// command is a SCSI Command to LUN 0.
func command10(flags byte, edtl int, cdb []byte) *packet {
	p := newPacket(0x01, flags).set32(20, uint32(edtl))
	copy(p.h[32:], cdb)
	return p
}

// readCommand is a READ (10) of whole blocks with the EDTL that goes with it.
func readCommand(lba uint32, blocks uint16) *packet {
	return command10(flagF|flagR, int(blocks)*blockSize, readCDB(lba, blocks))
}

func writeCommand(lba uint32, blocks uint16) *packet {
	return command10(flagF|flagW, int(blocks)*blockSize, writeCDB(lba, blocks))
}

// result is how a command ended.
type result struct {
	*packet
	data []byte // data-in
}

func (r result) status() byte     { return r.u8(3) }
func (r result) residual() uint32 { return r.u32(44) }

// sense is key, ASC and ASCQ as 0xKKAAQQ.
func (r result) sense() uint32 {
	if len(r.packet.data) < 2+14 || r.packet.opcode() != 0x21 {
		return 0
	}
	s := r.packet.data[2:]
	if s[0]&0x7f >= 0x72 {
		return uint32(s[1]&0xf)<<16 | uint32(s[2])<<8 | uint32(s[3])
	}
	return uint32(s[2]&0xf)<<16 | uint32(s[12])<<8 | uint32(s[13])
}

// finish receives the rest of the command with the tag, which is alone on the
// way.
func (c *client) finish(tag uint32) result {
	c.t.Helper()
	var data []byte
	for sn := uint32(0); ; sn++ {
		p := c.receive()
		if p.tag() != tag {
			c.t.Fatalf("got %s, want an answer to %#x", p, tag)
		}
		switch p.opcode() {
		case 0x21:
			if p.u32(36) != sn {
				c.t.Errorf("ExpDataSN %d after %d PDUs", p.u32(36), sn)
			}
			return result{p, data}
		case 0x25:
			if p.u32(36) != sn || p.u32(40) != uint32(len(data)) {
				c.t.Errorf("Data-In %d at %d, want %d at %d", p.u32(36), p.u32(40), sn, len(data))
			}
			data = append(data, p.data...)
			if p.flags()&0x01 != 0 {
				return result{p, data}
			}
		default:
			c.t.Fatalf("got %s in a command", p)
		}
	}
}

// run sends a command that needs no data-out beyond what it carries.
func (c *client) run(p *packet) result {
	c.t.Helper()
	return c.finish(c.request(p))
}

func (c *client) testUnitReady() result {
	c.t.Helper()
	return c.run(command10(flagF, 0, make([]byte, 16)))
}

// good wants a command to have ended well.
func (c *client) good(r result) result {
	c.t.Helper()
	if r.status() != 0 {
		c.t.Fatalf("status %#02x, sense %06x, want GOOD", r.status(), r.sense())
	}
	return r
}

// fails wants CHECK CONDITION with the sense.
func (c *client) fails(r result, sense uint32) {
	c.t.Helper()
	if r.status() != 2 || r.sense() != sense {
		c.t.Fatalf("status %#02x, sense %06x, want CHECK CONDITION with %06x", r.status(), r.sense(), sense)
	}
}

// dataOut is a Data-Out for the tag.
func dataOutPDU(flags byte, tag, ttt, sn, offset uint32, data []byte) *packet {
	return newPacket(0x05, flags).itt(tag).set32(20, ttt).set32(36, sn).set32(40, offset).with(data)
}

// feed answers an R2T with data[offset:][:length] in segments.
func (c *client) feed(r *packet, data []byte, segment int) {
	c.t.Helper()
	c.sequence(r.tag(), r.u32(20), r.u32(40), data[r.u32(40):][:r.u32(44)], segment)
}

// sequence sends one sequence of Data-Out.
func (c *client) sequence(tag, ttt, offset uint32, data []byte, segment int) {
	c.t.Helper()
	for sn := uint32(0); ; sn++ {
		n := min(len(data), segment)
		flags := byte(0)
		if n == len(data) {
			flags = flagF
		}
		c.send(dataOutPDU(flags, tag, ttt, sn, offset, data[:n]))
		data, offset = data[n:], offset+uint32(n)
		if flags != 0 {
			return
		}
	}
}

// writeAll runs a write whose data the server asks for.
func (c *client) writeAll(p *packet, data []byte) result {
	c.t.Helper()
	tag := c.request(p)
	for {
		r := c.receive()
		switch {
		case r.tag() != tag:
			c.t.Fatalf("got %s, want an answer to %#x", r, tag)
		case r.opcode() == 0x31:
			c.feed(r, data, 8192)
		case r.opcode() == 0x21:
			return result{packet: r}
		default:
			c.t.Fatalf("got %s in a write", r)
		}
	}
}

// pattern is n bytes in which every block tells where it is and whose it is.
func pattern(lba uint32, n int, salt byte) []byte {
	b := make([]byte, n)
	for at := 0; at < n; at += blockSize {
		block := lba + uint32(at/blockSize)
		copy(b[at:min(at+blockSize, n)], noise[int(block*131+uint32(salt)*31)%(len(noise)-blockSize):])
		if n-at >= 8 {
			binary.BigEndian.PutUint32(b[at:], block)
			b[at+4] = salt
		}
	}
	return b
}

// noise is what blocks are cut from.
var noise = func() []byte {
	b := make([]byte, 1<<16)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()
