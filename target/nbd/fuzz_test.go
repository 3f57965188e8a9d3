package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target/wire"
)

// FuzzHandshake says anything to a server. Invariants: the server ends or waits
// for more; what it answers are the greeting and well-formed option replies, at
// most one last one for each option; it never says more than the options could
// ask for, nor takes more memory; a client is admitted, and with what, is just
// what a second reading of its words says.
func FuzzHandshake(f *testing.F) {
	flags := []byte{0, 0, 0, 3}
	for _, s := range [][][]byte{
		{optionBytes(optGo, info("", infoName)), requestBytes(cmdRead, 0, 1, 0, 512)},
		{optionBytes(optExportName, nil)},
		{optionBytes(optStructuredReply, nil), optionBytes(optSetMetaContext, contexts("", allocationName, hydrationName)), optionBytes(optGo, info("first"))},
		{optionBytes(optStructuredReply, nil), optionBytes(optSetMetaContext, contexts("first", hydrationName)), optionBytes(optSetMetaContext, contexts("x")), optionBytes(optGo, info(""))},
		{optionBytes(optList, nil), optionBytes(optAbort, nil)},
		{optionBytes(optStartTLS, nil), optionBytes(optInfo, info("x"))},
		{optionBytes(optListMetaContext, contexts("", "base:", "x:y"))},
		{optionBytes(99, []byte("data"))},
	} {
		f.Add(append(bytes.Clone(flags), bytes.Join(s, nil)...))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		admitted := 0
		s := New(Options{
			Exports: []*Export{NewExport("first", blockdev.NewMem(4096), ExportOptions{Description: "a disk"})},
			Admit:   func(string) (func(), error) { admitted++; return func() { admitted-- }, nil },
		})
		defer s.Close()
		nc := &script{in: bytes.NewReader(said)}
		c := newConn(s, nc, TLSOff)
		before := allocated()
		err := c.handshake(t.Context())
		if took := allocated() - before; took > 1<<20+64*uint64(len(said)) {
			t.Errorf("%d bytes of memory for %d said", took, len(said))
		}
		want := understand(said)
		got := understood{err == nil, c.structured, c.contexts}
		if got != want || (c.release != nil) != got.admitted || (admitted == 1) != got.admitted {
			t.Errorf("handshake: %+v (%v), %d admitted, want %+v", got, err, admitted, want)
		}
		if c.in.Cap() > 4*maxOptionData {
			t.Errorf("a buffer of %d bytes", c.in.Cap())
		}
		checkHandshake(t, nc.out.Bytes(), err == nil, said)
	})
}

// allocated is the memory that was ever allocated, bytes.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// understood is what a client has got by its words.
type understood struct {
	admitted, structured bool
	contexts             contextSet
}

// understand is a second reading of the document, for a server with the one
// export "first".
func understand(said []byte) (u understood) {
	if len(said) < 4 || said[0]|said[1]|said[2] != 0 || said[3] > 3 {
		return understood{}
	}
	var structured bool
	var chosen contextSet
	said = said[4:]
	for range maxOptions + optionsPerExport {
		if len(said) < 16 || string(said[:8]) != "IHAVEOPT" {
			break
		}
		opt, n := binary.BigEndian.Uint32(said[8:]), int64(binary.BigEndian.Uint32(said[12:]))
		said = said[16:]
		if n > 65536 || n > int64(len(said)) {
			break
		}
		data := said[:n]
		said = said[n:]
		name, rest, whole := words(data)
		known := whole && (name == "" || name == "first")
		switch opt {
		case 1: // EXPORT_NAME
			if string(data) == "" || string(data) == "first" {
				return understood{true, structured, chosen}
			}
			return understood{}
		case 2: // ABORT
			return understood{}
		case 7: // GO
			if known && len(rest) >= 2 && len(rest) == 2+2*int(binary.BigEndian.Uint16(rest)) {
				return understood{true, structured, chosen}
			}
		case 8: // STRUCTURED_REPLY
			structured = structured || n == 0
		case 10: // SET_META_CONTEXT
			chosen = 0
			if structured && known {
				chosen = choice(rest)
			}
		}
	}
	return understood{}
}

// words cuts a string off.
func words(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", nil, false
	}
	n := int64(binary.BigEndian.Uint32(b))
	if n > 4096 || n > int64(len(b)-4) {
		return "", nil, false
	}
	return string(b[4 : 4+n]), b[4+n:], utf8.Valid(b[4 : 4+n])
}

// choice is what a list of queries selects: nothing if it is malformed.
func choice(b []byte) (s contextSet) {
	if len(b) < 4 {
		return 0
	}
	n := binary.BigEndian.Uint32(b)
	b = b[4:]
	for ; n > 0; n-- {
		q, rest, ok := words(b)
		if !ok {
			return 0
		}
		switch q {
		case "base:allocation":
			s |= 1
		case "containerdisk:hydration":
			s |= 2
		}
		b = rest
	}
	if len(b) > 0 {
		return 0
	}
	return s
}

// checkHandshake reads what a server said.
func checkHandshake(t *testing.T, out []byte, over bool, said []byte) {
	out, ok := bytes.CutPrefix(out, []byte("NBDMAGICIHAVEOPT\x00\x03"))
	if !ok {
		t.Fatal("no greeting")
	}
	lasts, total := 0, len(out)
	for len(out) >= repHdrLen && repMagic.Get(out) == magicReply {
		n := int(repLen.Get(out))
		if n > len(out)-repHdrLen {
			t.Fatalf("a reply of %d bytes is cut", n)
		}
		if rep := optionReply(repType.Get(out)); rep == repAck || rep>>31 == 1 {
			lasts++
		}
		out = out[repHdrLen+n:]
	}
	if len(out) > 0 && (!over || len(out) != 10 && len(out) != 134) {
		t.Errorf("% x behind the replies", out)
	}
	if most := len(said) / optHdrLen; lasts > most || total > 200*(most+1) {
		t.Errorf("%d last replies, %d bytes for %d options", lasts, total, most)
	}
}

// script is a client that has said all that it will say.
type script struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (s *script) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error) { return s.out.Write(p) }
func (s *script) Close() error                { return nil }
func (s *script) SetDeadline(time.Time) error { return nil }
func (s *script) LocalAddr() net.Addr         { return &net.UnixAddr{} }
func (s *script) RemoteAddr() net.Addr        { return &net.UnixAddr{} }

// FuzzTransmission sends any requests. Invariants: every whole request before
// DISC gets one reply and no other does; it is well formed, and succeeds just
// when the document lets it; what is read is what was written; nothing outside
// the disk is asked of the device; memory stays bound.
func FuzzTransmission(f *testing.F) {
	for _, s := range [][][]byte{
		{requestBytes(cmdRead, 0, 1, 0, 512), requestBytes(cmdDisc, 0, 2, 0, 0), requestBytes(cmdRead, 0, 3, 0, 512)},
		{requestBytes(cmdWrite, flagFUA, 1, 100, 3, 1, 2, 3), requestBytes(cmdRead, flagDF, 2, 99, 8), requestBytes(cmdRead, 0, 3, 0, 4096)},
		{requestBytes(cmdTrim, 0, 1, 0, 4096), requestBytes(cmdWriteZeroes, flagNoHole, 2, 0, 512), requestBytes(cmdFlush, 0, 3, 0, 0)},
		{requestBytes(cmdBlockStatus, flagReqOne, 1, 0, 65536), requestBytes(cmdCache, 0, 2, 0, 4096)},
		{requestBytes(cmdWrite, 0, 1, 1<<40, 5, 1, 2, 3, 4, 5), requestBytes(77, 0xffff, 2, 1<<63, 1)},
		{requestBytes(cmdRead, 0, 1, 0, 0), requestBytes(cmdWrite, 0, 2, 0, 0)},
		{requestBytes(cmdWrite, 0, 1, 10, 4, 9, 9, 9, 9), requestBytes(cmdTrim, 0, 2, 12, 1), requestBytes(cmdWrite, 0, 3, 11, 1, 8), requestBytes(cmdRead, 0, 4, 0, 65536)},
	} {
		for every := range uint8(3) {
			f.Add(bytes.Join(s, nil), true, every)
			f.Add(bytes.Join(s, nil), false, every)
		}
	}
	f.Fuzz(func(t *testing.T, said []byte, structured bool, every uint8) {
		dev := &waiting{Device: blockdev.NewMem(fuzzSize), every: int(every % 4)}
		s := New(Options{Exports: []*Export{NewExport("x", capable{&strict{Device: dev, t: t}, allCaps}, ExportOptions{})}})
		defer s.Close()
		nc := &script{in: bytes.NewReader(said)}
		c := newConn(s, nc, TLSOff)
		c.export, c.structured = s.o.Exports[0], structured
		if structured {
			c.contexts = allContexts
		}
		before := allocated()
		err := c.transmit()
		c.waitWorkers()
		want := requestsIn(said, structured)
		if took := allocated() - before; took > 4<<20+8*uint64(nc.out.Len())+uint64(want.n)*(wire.PieceSize+fuzzSize) {
			t.Errorf("%d bytes of memory for %d requests", took, want.n)
		}
		if ended := errors.Is(err, io.EOF) || errors.Is(err, errDisconnect); !ended && !want.garbage || ended && want.garbage {
			t.Errorf("transmit: %v, garbage: %v", err, want.garbage)
		}
		if c.in.Cap() > 2*wire.InMost {
			t.Errorf("a buffer of %d bytes", c.in.Cap())
		}
		want.ordered = dev.every == 0
		want.checkReplies(t, nc.out.Bytes(), structured)
		end := make([]byte, fuzzSize)
		if _, err := dev.Device.ReadAt(end, 0); err != nil {
			t.Fatal(err)
		}
		want.checkContent(t, end, 0, want.n)
	})
}

// fuzzSize is the size of the fuzzed disk, bytes. It begins as zeros.
const fuzzSize = 64 << 10

// strict fails the test when a request gets past the gate that should not.
type strict struct {
	blockdev.Device
	t *testing.T
}

func (d *strict) ReadAt(p []byte, off int64) (int, error) {
	d.within("read", off, int64(len(p)))
	return d.Device.ReadAt(p, off)
}

func (d *strict) TryReadAt(p []byte, off int64) error {
	d.within("read", off, int64(len(p)))
	return d.Device.TryReadAt(p, off)
}

func (d *strict) WriteAt(p []byte, off int64) (int, error) {
	d.within("write", off, int64(len(p)))
	return d.Device.WriteAt(p, off)
}

func (d *strict) TryWriteAt(p []byte, off int64) error {
	d.within("write", off, int64(len(p)))
	return d.Device.TryWriteAt(p, off)
}

func (d *strict) Zero(off, n int64, m blockdev.ZeroMode) error {
	d.within("zero", off, n)
	return d.Device.Zero(off, n, m)
}

func (d *strict) Discard(off, n int64) error {
	d.within("discard", off, n)
	return d.Device.Discard(off, n)
}

func (d *strict) within(op string, off, n int64) {
	if err := blockdev.CheckRange(op, off, n, d.Size()); err != nil {
		d.t.Error(err)
	}
}

// conversation is what a client's bytes amount to.
type conversation struct {
	reqs    map[uint64][]*said // by cookie; several may have the same
	n       int                // requests
	garbage bool               // it ends in what is no request
	changes []change           // in the order in which they were sent
	ordered bool               // reads and writes happen in that order
}

// said is a request and how it should end.
type said struct {
	pending
	place int  // in the conversation
	ok    bool // it succeeds
	data  []byte
}

// change is a write, or zeros, which may come at any time after they are sent.
type change struct {
	place int
	off   int64
	n     int64
	data  []byte // nil: zeros
}

// allowed are the flags that each command takes, by the document.
var allowed = map[command]commandFlags{
	cmdRead: flagFUA | flagDF, cmdWrite: flagFUA, cmdFlush: flagFUA, cmdTrim: flagFUA, cmdCache: flagFUA,
	cmdWriteZeroes: flagFUA | flagNoHole | flagFastZero, cmdBlockStatus: flagFUA | flagReqOne,
}

// succeeds tells what should come of a request.
func succeeds(p pending, flags commandFlags, structured bool) bool {
	may, known := allowed[p.cmd]
	if !structured {
		may &^= flagDF
	}
	within := p.off <= fuzzSize && uint64(p.n) <= fuzzSize-p.off
	switch {
	case !known, flags&^may != 0:
		return false
	case p.cmd == cmdFlush:
		return p.off == 0 && p.n == 0
	case p.cmd == cmdBlockStatus:
		return within && structured && p.n > 0
	case p.cmd == cmdWriteZeroes && flags&flagFastZero != 0:
		return within && flags&flagNoHole == 0
	}
	return within
}

func requestsIn(b []byte, structured bool) *conversation {
	c := &conversation{reqs: map[uint64][]*said{}}
	for len(b) >= reqLen {
		if binary.BigEndian.Uint32(b) != magicRequest {
			c.garbage = true
			return c
		}
		cookie, flags := binary.BigEndian.Uint64(b[8:]), commandFlags(binary.BigEndian.Uint16(b[4:]))
		p := pending{command(binary.BigEndian.Uint16(b[6:])), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:])}
		b = b[reqLen:]
		r := &said{pending: p, place: c.n, ok: succeeds(p, flags, structured)}
		if p.cmd == cmdDisc {
			return c
		}
		var payload []byte
		if p.cmd == cmdWrite {
			if int64(p.n) > int64(len(b)) {
				return c // cut off: no reply, and nothing of so short a write is on the disk
			}
			payload, b = b[:p.n], b[p.n:]
		}
		if r.ok && (p.cmd == cmdWrite || p.cmd == cmdTrim || p.cmd == cmdWriteZeroes) {
			c.changes = append(c.changes, change{c.n, int64(p.off), int64(p.n), payload})
		}
		c.n++
		c.reqs[cookie] = append(c.reqs[cookie], r)
	}
	return c
}

// checkContent compares p, the disk from off on as it is after the first place
// requests. Where reads and writes keep their order a byte is what was written
// there last; otherwise it is what any write wrote there. Zeros may come in
// between at any time.
func (c *conversation) checkContent(t *testing.T, p []byte, off int64, place int) {
	t.Helper()
	if !c.ordered {
		place = c.n
	}
	want, mayBeZero, wrote := make([]byte, len(p)), make([]bool, len(p)), make([]bool, len(p))
	for _, x := range c.changes {
		if x.place > place {
			break
		}
		for at := max(x.off, off); at < min(x.off+x.n, off+int64(len(p))); at++ {
			j := at - off
			if x.data == nil {
				mayBeZero[j] = true
				continue
			}
			want[j] = x.data[at-x.off]
			wrote[j] = wrote[j] || want[j] == p[j]
		}
	}
	for j, b := range p {
		if b != want[j] && !(b == 0 && (mayBeZero[j] || !c.ordered)) && !(wrote[j] && !c.ordered) {
			t.Fatalf("byte %d is %#x, want %#x (or zero: %v)", off+int64(j), b, want[j], mayBeZero[j])
		}
	}
}

// checkReplies counts one reply for each request, and looks into it.
func (c *conversation) checkReplies(t *testing.T, out []byte, structured bool) {
	for _, rs := range c.reqs {
		if len(rs) > 1 {
			return // whose reply is whose cannot be told
		}
	}
	for len(out) > 0 {
		if len(out) < simpleLen {
			t.Fatalf("% x behind the replies", out)
		}
		cookie := binary.BigEndian.Uint64(out[8:])
		rs := c.reqs[cookie]
		if len(rs) == 0 {
			t.Fatalf("a reply for %#x, which is not waited for", cookie)
		}
		n, done := c.checkReply(t, rs[0], out, structured)
		out = out[n:]
		if done {
			delete(c.reqs, cookie)
		}
	}
	for cookie, rs := range c.reqs {
		t.Errorf("no reply for %#x: %+v", cookie, rs[0].pending)
	}
}

// checkReply checks one reply, or a chunk of one, and gives its length.
func (c *conversation) checkReply(t *testing.T, r *said, out []byte, structured bool) (n int, done bool) {
	t.Helper()
	switch magic := binary.BigEndian.Uint32(out); {
	case magic == magicSimple && !(structured && (r.cmd == cmdRead || r.cmd == cmdBlockStatus)):
		n, done = simpleLen, true
		if ok := binary.BigEndian.Uint32(out[4:]) == 0; ok != r.ok {
			t.Fatalf("%+v: error %d, want success: %v", r.pending, binary.BigEndian.Uint32(out[4:]), r.ok)
		}
		if r.ok && r.cmd == cmdRead {
			n += int(r.n)
			r.data = out[simpleLen:min(n, len(out))]
		}
	case magic == magicChunk && structured && len(out) >= chunkHdrLen:
		n = chunkHdrLen + int(chunkLength.Get(out))
		done = chunkFlags.Get(out)&chunkFlagDone != 0
	default:
		t.Fatalf("%+v: % x is no reply", r.pending, out[:4])
	}
	if n > len(out) {
		t.Fatalf("a reply of %d bytes is cut", n)
	}
	if binary.BigEndian.Uint32(out) == magicChunk {
		c.checkChunk(t, r, out[:n], done)
	}
	if done && r.ok && r.cmd == cmdRead {
		if len(r.data) != int(r.n) {
			t.Fatalf("%+v: %d bytes of data", r.pending, len(r.data))
		}
		c.checkContent(t, r.data, int64(r.off), r.place)
	}
	return n, done
}

// checkChunk takes the data of a chunk.
func (c *conversation) checkChunk(t *testing.T, r *said, b []byte, done bool) {
	t.Helper()
	kind := chunkType(chunkKind.Get(b))
	if (kind == chunkError) == r.ok || kind == chunkError && !done {
		t.Fatalf("%+v: chunk of type %d, want success: %v", r.pending, kind, r.ok)
	}
	switch kind {
	case chunkOffsetData, chunkOffsetHole:
		if at := binary.BigEndian.Uint64(b[20:]); r.cmd != cmdRead || at != r.off+uint64(len(r.data)) {
			t.Fatalf("%+v: data at %d behind %d bytes", r.pending, at, len(r.data))
		}
		if kind == chunkOffsetData {
			r.data = append(r.data, b[28:]...)
		} else {
			r.data = append(r.data, make([]byte, binary.BigEndian.Uint32(b[28:]))...)
		}
	case chunkBlockStatus:
		if r.cmd != cmdBlockStatus || (len(b)-24)%8 != 0 || len(b) == 24 {
			t.Fatalf("%+v: a status of %d bytes", r.pending, len(b))
		}
	case chunkNone, chunkError:
	default:
		t.Fatalf("chunk of type %d", kind)
	}
}
