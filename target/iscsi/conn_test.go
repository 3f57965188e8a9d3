package iscsi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// FuzzConnection hands a connection in the full feature phase requests made of
// arbitrary bytes, in part with numbers and tags that fit. It must not panic,
// keep its books, and answer with nothing but whole PDUs of a target.
//
// A request takes 50 bytes of input: its header, what is made to fit in it (a
// bit each), and the length of its data in words.
func FuzzConnection(f *testing.F) {
	const fitCmdSN, fitITT, fitTTT, fitSN, fitOffset, fitSegment = 1, 2, 4, 8, 16, 32
	entry := func(p *packet, fit byte) []byte {
		return append(bytes.Clone(p.h[:]), fit, byte(len(p.data)/4))
	}
	for _, v := range vectors(f, "request-*.hex") {
		f.Add(append(bytes.Clone(v.bytes[:48]), fitCmdSN, 4), false)
	}
	write := command10(flagF|flagW, 1024, writeCDB(1, 2))
	f.Add(append(entry(write, fitCmdSN), entry(dataOutPDU(flagF, 0, 0, 0, 0, make([]byte, 1020)), fitITT|fitTTT|fitSN|fitOffset)...), false)
	f.Add(append(entry(write, fitCmdSN), entry(newPacket(0x42, 0x81), fitITT)...), false)
	f.Add(append(entry(textPDU(), 0), entry(textPDU(), 0)...), true)
	f.Fuzz(func(t *testing.T, in []byte, digests bool) {
		p := defaults()
		p.initialR2T, p.maxR2T, p.maxBurst, p.firstBurst = false, 3, 2048, 1024
		p.headerDigest, p.dataDigest = digests, digests
		c, nc := loggedIn(t, p)
		first := c.statSN
		out := &bytes.Buffer{}
		nc.tee = out
		for ; len(in) >= 50; in = in[50:] {
			q := &packet{h: [48]byte(in)}
			q.h[4] = 0
			fit := in[48]
			c.mu.Lock()
			if fit&fitCmdSN != 0 {
				q.cmdSN(c.expCmdSN)
			}
			if n := len(c.commands.active); n > 0 {
				cmd := &c.commands.all[c.commands.active[int(q.h[19])%n]]
				if fit&fitITT != 0 {
					q.itt(cmd.itt).set32(20, reservedTag)
				}
				if fit&fitTTT != 0 && cmd.out.nr2ts > 0 {
					q.set32(20, cmd.out.r2ts[0].ttt)
				}
				if fit&fitSN != 0 {
					q.set32(36, cmd.out.sn)
				}
				if fit&fitOffset != 0 {
					q.set32(40, uint32(cmd.out.got))
				}
			}
			c.mu.Unlock()
			q.data = make([]byte, int(in[49])*4)
			if fit&fitSegment != 0 {
				q.data = text("SendTargets=All", "MaxRecvDataSegmentLength=600")
			}
			if c.tryArrive(q.bytes(digests, digests)) != nil {
				break
			}
			checkBooks(t, c)
		}
		c.mu.Lock()
		c.abandon()
		c.mu.Unlock()
		c.workers.Wait()
		checkBooks(t, c)
		checkAnswers(t, out.Bytes(), digests, first)
	})
}

// checkBooks holds the invariants of a connection between two batches.
func checkBooks(t *testing.T, c *conn) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.commands
	urgent, held := 0, int64(0)
	for _, slot := range k.active {
		cmd := &k.all[slot]
		if cmd.immediate {
			urgent++
		}
		held += cmd.out.held
		if cmd.out.held < 0 || cmd.out.nr2ts < 0 || cmd.out.nr2ts > int(c.params.maxR2T) {
			t.Fatalf("command %#x: %d bytes held, %d R2Ts", cmd.itt, cmd.out.held, cmd.out.nr2ts)
		}
	}
	if len(k.free)+len(k.active) != slots || urgent != k.urgent || urgent > immediates {
		t.Fatalf("%d slots free, %d in use, %d of them immediate (%d by the book)", len(k.free), len(k.active), urgent, k.urgent)
	}
	if open := int(c.maxCmdSN-c.expCmdSN) + 1; open+len(k.active)-urgent != window {
		t.Fatalf("window open for %d with %d commands under way, want %d in all", open, len(k.active)-urgent, window)
	}
	if held != c.solicited {
		t.Fatalf("%d bytes asked for, %d by the book", held, c.solicited)
	}
	size := 0
	for _, h := range c.held {
		size += len(h.ahs) + len(h.data)
		for _, d := range h.follow {
			size += bhsLen + len(d.data)
		}
	}
	if size != c.heldBytes || size > maxHeld {
		t.Fatalf("%d bytes held back, %d by the book", size, c.heldBytes)
	}
}

// checkAnswers parses what the connection sent, beginning with StatSN stat.
func checkAnswers(t *testing.T, b []byte, digests bool, stat uint32) {
	t.Helper()
	r := &receiver{maxData: ourMaxRecvSegment, headerDigest: digests, dataDigest: digests}
	out, rest, err := feedReceiver(t, r, b, nil)
	if err != nil || rest != 0 {
		t.Fatalf("%d PDUs and %d bytes: %v", len(out), rest, err)
	}
	for i, p := range out {
		op := Opcode(p.header[0])
		sn := binary.BigEndian.Uint32([]byte(p.header[24:]))
		switch op {
		case opDataIn:
			if p.header[1]&dataFlagStatus == 0 {
				continue
			}
		case opR2T:
			continue
		case opNopIn:
			if binary.BigEndian.Uint32([]byte(p.header[16:])) == reservedTag {
				continue
			}
		case opSCSIResponse, opTaskResponse, opTextResponse, opLogoutResp, opReject:
		default:
			t.Fatalf("answer %d is a %s", i, op)
		}
		if p.badData || sn != stat {
			t.Fatalf("answer %d: StatSN %d, want %d; bad data %v", i, sn, stat, p.badData)
		}
		stat++
	}
}

// TestDiskErrors: a disk that fails in the middle of a transfer is told by
// sense data after the data that was good, and the connection goes on.
func TestDiskErrors(t *testing.T) {
	for _, b := range []blocking{neverBlocks, alwaysBlocks} {
		s := serveTCP(t)
		want := s.disk.fill(t, 0, 100*blockSize)
		s.disk.setBlocking(b)
		c := s.ready(t, "MaxRecvDataSegmentLength=4096")
		s.disk.failAt(50 * blockSize)
		r := c.run(readCommand(0, 100))
		if r.status() != 2 || r.sense()>>16 != 3 || len(r.data) != 48*blockSize || !bytes.Equal(r.data, want[:len(r.data)]) {
			t.Errorf("read: status %d, sense %06x after %d bytes", r.status(), r.sense(), len(r.data))
		}
		if r.flags()&0x06 != 0x02 || r.residual() != 52*blockSize {
			t.Errorf("read: flags %#x, residual %d", r.flags(), r.residual())
		}
		r = c.writeAll(writeCommand(0, 100), pattern(0, 100*blockSize, 5))
		if r.status() != 2 || r.sense()>>16 != 3 {
			t.Errorf("write: status %d, sense %06x", r.status(), r.sense())
		}
		s.disk.failAt(-1)
		c.good(c.writeAll(writeCommand(0, 100), pattern(0, 100*blockSize, 6)))
		// SYNCHRONIZE CACHE goes by a worker.
		c.good(c.run(command10(flagF, 0, cdb10(0x35, 0, 0))))
		c.expectQuiet()
	}
}

// failAt makes requests that touch the byte fail; -1: none.
func (d *testDisk) failAt(off int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bad = off
}

// fault is the error of a request for [off, off+n), if it has one.
func (d *testDisk) fault(op string, off int64, n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.bad < off || d.bad >= off+int64(n) {
		return nil
	}
	return &blockdev.Error{Op: op, Off: off, Len: int64(n), Kind: blockdev.KindIO}
}
