package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target/wire"
)

// FuzzHandshake says anything to a server. Invariants: the server ends or waits
// for more; what it answers are the greeting and well-formed option replies, at
// most one last one for each option; it never says more than the options could
// ask for; a client is admitted only by GO or EXPORT_NAME.
func FuzzHandshake(f *testing.F) {
	flags := []byte{0, 0, 0, 3}
	for _, s := range [][][]byte{
		{optionBytes(optGo, info("", infoName)), requestBytes(cmdRead, 0, 1, 0, 512)},
		{optionBytes(optExportName, nil)},
		{optionBytes(optStructuredReply, nil), optionBytes(optSetMetaContext, contexts("", allocationName, hydrationName)), optionBytes(optGo, info("first"))},
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
		err := c.handshake(t.Context())
		if (err == nil) != (admitted == 1) || (c.release != nil) != (admitted == 1) {
			t.Errorf("handshake: %v, %d admitted", err, admitted)
		}
		if c.in.Cap() > 4*maxOptionData {
			t.Errorf("a buffer of %d bytes", c.in.Cap())
		}
		checkHandshake(t, nc.out.Bytes(), err == nil, said)
	})
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

// FuzzTransmission sends any requests. Invariants: every whole request but DISC
// gets one reply, which is well formed; nothing outside the disk is asked of the
// device; memory stays bound.
func FuzzTransmission(f *testing.F) {
	for _, s := range [][][]byte{
		{requestBytes(cmdRead, 0, 1, 0, 512), requestBytes(cmdDisc, 0, 2, 0, 0)},
		{requestBytes(cmdWrite, flagFUA, 1, 100, 3, 1, 2, 3), requestBytes(cmdRead, flagDF, 2, 99, 8)},
		{requestBytes(cmdTrim, 0, 1, 0, 4096), requestBytes(cmdWriteZeroes, flagNoHole, 2, 0, 512), requestBytes(cmdFlush, 0, 3, 0, 0)},
		{requestBytes(cmdBlockStatus, flagReqOne, 1, 0, 65536), requestBytes(cmdCache, 0, 2, 0, 4096)},
		{requestBytes(cmdWrite, 0, 1, 1<<40, 5, 1, 2, 3, 4, 5), requestBytes(77, 0xffff, 2, 1<<63, 1)},
		{requestBytes(cmdRead, 0, 1, 0, 0), requestBytes(cmdWrite, 0, 2, 0, 0)},
	} {
		f.Add(bytes.Join(s, nil), true, uint8(0))
		f.Add(bytes.Join(s, nil), false, uint8(1))
	}
	f.Fuzz(func(t *testing.T, said []byte, structured bool, every uint8) {
		const size = 64 << 10
		s := New(Options{Exports: []*Export{NewExport("x", capable{&strict{Device: &waiting{Device: blockdev.NewMem(size), every: int(every % 4)}, t: t}, allCaps}, ExportOptions{})}})
		defer s.Close()
		nc := &script{in: bytes.NewReader(said)}
		c := newConn(s, nc, TLSOff)
		c.export, c.structured = s.o.Exports[0], structured
		if structured {
			c.contexts = allContexts
		}
		err := c.transmit()
		c.waitWorkers()
		want := requestsIn(said)
		if ended := errors.Is(err, io.EOF) || errors.Is(err, errDisconnect); !ended && !want.garbage || ended && want.garbage {
			t.Errorf("transmit: %v, garbage: %v", err, want.garbage)
		}
		if c.in.Cap() > 2*wire.InMost {
			t.Errorf("a buffer of %d bytes", c.in.Cap())
		}
		checkReplies(t, nc.out.Bytes(), want.reqs, structured)
	})
}

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
	reqs    map[uint64][]pending // by cookie; several may have the same
	garbage bool                 // it ends in what is no request
}

func requestsIn(b []byte) conversation {
	c := conversation{reqs: map[uint64][]pending{}}
	for len(b) >= reqLen {
		if binary.BigEndian.Uint32(b) != magicRequest {
			c.garbage = true
			return c
		}
		cookie := binary.BigEndian.Uint64(b[8:])
		p := pending{command(binary.BigEndian.Uint16(b[6:])), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:])}
		b = b[reqLen:]
		switch p.cmd {
		case cmdDisc:
			return c
		case cmdWrite:
			if int64(p.n) > int64(len(b)) {
				return c // cut off
			}
			b = b[p.n:]
		}
		c.reqs[cookie] = append(c.reqs[cookie], p)
	}
	return c
}

// checkReplies counts one reply for each request.
func checkReplies(t *testing.T, out []byte, reqs map[uint64][]pending, structured bool) {
	for _, ps := range reqs {
		if len(ps) > 1 && !structured {
			return // whose reply is whose cannot be told, nor so how long it is
		}
	}
	for len(out) > 0 {
		if len(out) < simpleLen {
			t.Fatalf("% x behind the replies", out)
		}
		cookie := binary.BigEndian.Uint64(out[8:])
		ps := reqs[cookie]
		if len(ps) == 0 {
			t.Fatalf("a reply for %#x, which is not waited for", cookie)
		}
		var n int
		done := true
		switch binary.BigEndian.Uint32(out) {
		case magicSimple:
			n = simpleLen
			if !structured && binary.BigEndian.Uint32(out[4:]) == 0 {
				if ps[0].cmd == cmdRead {
					n += int(ps[0].n)
				}
			}
		case magicChunk:
			if !structured {
				t.Fatal("a chunk without structured replies")
			}
			n = chunkHdrLen + int(chunkLength.Get(out))
			done = chunkFlags.Get(out)&chunkFlagDone != 0
		default:
			t.Fatalf("% x is no reply", out[:4])
		}
		if n > len(out) {
			t.Fatalf("a reply of %d bytes is cut", n)
		}
		out = out[n:]
		if done {
			reqs[cookie] = ps[1:]
		}
	}
	for cookie, ps := range reqs {
		if len(ps) > 0 {
			t.Errorf("no reply for %#x: %v", cookie, ps)
		}
	}
}
