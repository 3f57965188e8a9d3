package iscsi

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// transferKeys is one way to move data-out.
type transferKeys struct {
	initialR2T, immediateData string
	first, burst, r2ts        int
}

func (k transferKeys) pairs() []string {
	return []string{"InitialR2T=" + k.initialR2T, "ImmediateData=" + k.immediateData, fmt.Sprint("FirstBurstLength=", k.first),
		fmt.Sprint("MaxBurstLength=", k.burst), fmt.Sprint("MaxOutstandingR2T=", k.r2ts)}
}

func allTransferKeys() (all []transferKeys) {
	for _, r2t := range []string{"Yes", "No"} {
		for _, immediate := range []string{"Yes", "No"} {
			for _, first := range []int{512, 8192, 65536} {
				for _, burst := range []int{8192, 65536, 1000000} {
					for _, r2ts := range []int{1, 3} {
						all = append(all, transferKeys{r2t, immediate, min(first, burst), burst, r2ts})
					}
				}
			}
		}
	}
	return all
}

// TestWrite: a write in every combination of the keys that say how data-out
// moves, with as much unsolicited data as they allow or with none.
func TestWrite(t *testing.T) {
	s := serveTCP(t)
	lba := uint32(0)
	for i, k := range allTransferKeys() {
		c := s.ready(t, k.pairs()...)
		for _, blocks := range []uint16{1, 17, 300} {
			for _, b := range []blocking{neverBlocks, alwaysBlocks, sometimesBlocks} {
				s.disk.setBlocking(b)
				for _, eager := range []bool{false, true} {
					data := pattern(lba, int(blocks)*blockSize, byte(i))
					w := c.beginWrite(k, lba, data, eager)
					w.run()
					if got := s.disk.content(t, lba, len(data)); !bytes.Equal(got, data) {
						t.Fatalf("%+v, %d blocks, eager %v: the disk has other data", k, blocks, eager)
					}
					lba = (lba + uint32(blocks)) % 100000
				}
			}
		}
		c.expectQuiet()
		c.nc.Close()
	}
}

// writing is a write under way, by the client's book.
type writing struct {
	c     *client
	keys  transferKeys
	data  []byte
	tag   uint32
	asked int // the end of what was sent or asked for
	open  []*packet
	sn    uint32
}

// beginWrite sends a write with all the unsolicited data that is allowed, or
// with none.
func (c *client) beginWrite(k transferKeys, lba uint32, data []byte, eager bool) *writing {
	c.t.Helper()
	w := &writing{c: c, keys: k, data: data}
	p := writeCommand(lba, uint16(len(data)/blockSize))
	first := min(k.first, len(data))
	if eager && k.immediateData == "Yes" {
		w.asked = min(first, 8192)
		p.with(data[:w.asked])
	}
	if eager && k.initialR2T == "No" && w.asked < first {
		p.h[1] &^= flagF
		w.tag = c.request(p)
		c.sequence(w.tag, reservedTag, uint32(w.asked), data[w.asked:first], 3000)
		w.asked = first
		return w
	}
	w.tag = c.request(p)
	return w
}

// run answers R2Ts until the response, and checks both.
func (w *writing) run() {
	t := w.c.t
	t.Helper()
	for {
		p := w.c.receive()
		if w.take(p) {
			return
		}
		if len(w.open) == w.keys.r2ts || w.asked == len(w.data) {
			for _, r := range w.open { // all that may be outstanding are
				w.c.feed(r, w.data, 5000)
			}
			w.open = nil
		}
	}
}

// take takes an answer to the write and reports whether it was the last.
func (w *writing) take(p *packet) (over bool) {
	t := w.c.t
	t.Helper()
	switch {
	case p.tag() != w.tag:
		t.Fatalf("%s for another command", p)
	case p.opcode() == 0x31:
		n := min(len(w.data)-w.asked, w.keys.burst)
		if p.u32(20) == reservedTag || p.u32(36) != w.sn || int(p.u32(40)) != w.asked || int(p.u32(44)) != n || n == 0 || p.flags() != 0x80 {
			t.Fatalf("%+v: R2T %d asks for %d at %d, want R2T %d, %d at %d", w.keys, p.u32(36), p.u32(44), p.u32(40), w.sn, n, w.asked)
		}
		w.sn++
		w.asked += n
		w.open = append(w.open, p)
		if len(w.open) > w.keys.r2ts {
			t.Fatalf("%d R2Ts outstanding, limit %d", len(w.open), w.keys.r2ts)
		}
		return false
	case p.opcode() != 0x21:
		t.Fatalf("%s in a write", p)
	}
	r := result{packet: p}
	w.c.good(r)
	if w.asked != len(w.data) || len(w.open) > 0 || r.flags()&0x06 != 0 || r.u32(36) != w.sn {
		t.Fatalf("%+v: response after %d of %d bytes, %d R2Ts open, flags %#x, ExpDataSN %d", w.keys, w.asked, len(w.data), len(w.open), r.flags(), r.u32(36))
	}
	return true
}

// TestR2TForm: RFC 7143 §11.8: LUN and a transfer tag of its own for each R2T.
func TestR2TForm(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t, "MaxBurstLength=512", "MaxOutstandingR2T=4")
	seen := make(map[uint32]bool)
	for range 300 { // the slots come round
		tag := c.request(writeCommand(0, 4))
		for range 4 {
			p := c.expectFor(opR2T, tag)
			if p.u32(20) == reservedTag || seen[p.u32(20)] && len(seen) < 4 {
				t.Fatalf("transfer tag %#x", p.u32(20))
			}
			if len(seen) == 4 {
				clear(seen)
			}
			seen[p.u32(20)] = true
			c.feed(p, make([]byte, 4*blockSize), 8192)
		}
		c.good(c.finishAfter(tag, 4))
	}
}

// finishAfter receives the response of a write after n R2Ts.
func (c *client) finishAfter(tag uint32, n uint32) result {
	c.t.Helper()
	r := c.expectFor(opSCSIResponse, tag)
	if r.u32(36) != n {
		c.t.Errorf("ExpDataSN %d after %d R2Ts", r.u32(36), n)
	}
	return result{packet: r}
}

// TestWriteResiduals is RFC 7143 §11.4.5 for data-out.
func TestWriteResiduals(t *testing.T) {
	s := serveTCP(t)
	const over, under = 0x04, 0x02
	for _, v := range []struct {
		edtl   int
		blocks uint16
		flag   byte
		count  uint32
	}{
		{512, 1, 0, 0}, {1024, 1, under, 512}, {10000, 2, under, 8976}, {512, 2, over, 512}, {0, 1, over, 512}, {0, 0, 0, 0}, {512, 0, under, 512},
		{200, 1, over, 312},
	} {
		for _, immediate := range []bool{true, false} {
			old := s.disk.fill(t, 0, 8*blockSize)
			c := s.ready(t, "MaxRecvDataSegmentLength=8192")
			data := pattern(0, v.edtl, 0x5a)
			p := command10(flagF|flagW, v.edtl, writeCDB(0, v.blocks))
			if immediate {
				p.with(data[:min(len(data), 8192)])
			}
			r := c.writeAll(p, data)
			n := min(v.edtl, int(v.blocks)*blockSize)
			switch {
			case r.status() == 2 && v.edtl%blockSize != 0 && v.flag == over: // half a block may be refused
				n = 0
			default:
				c.good(r)
				if flag := r.flags() & 0x06; flag != v.flag || r.residual() != v.count {
					t.Errorf("%+v, immediate %v: flags %#x, residual %d", v, immediate, flag, r.residual())
				}
			}
			if got := s.disk.content(t, 0, 8*blockSize); !bytes.Equal(got[:n], data[:n]) || !bytes.Equal(got[n:], old[n:]) {
				t.Errorf("%+v, immediate %v: not just the first %d bytes were written", v, immediate, n)
			}
			c.expectQuiet()
			c.nc.Close()
		}
	}
}

// TestDataOutErrors: data that is not as announced is rejected and spoils its
// command, which ends when the last sequence has come; the connection goes on.
func TestDataOutErrors(t *testing.T) {
	const notEnough, unexpected = 0x0b0c0d, 0x0b0c0c
	block := func(n int) []byte { return pattern(9, n*blockSize, 9) }
	solicited := func(keys ...string) func(c *client) *packet {
		return func(c *client) *packet {
			tag := c.request(writeCommand(10, 4))
			return c.expectFor(opR2T, tag)
		}
	}
	for _, v := range []struct {
		name   string
		keys   []string
		begin  func(c *client) *packet // R2T, or the command
		bad    func(r *packet) *packet
		reason []byte
		rest   func(r *packet) []*packet // ends the sequence
		sense  uint32
	}{
		{"DataSN", nil, solicited(), func(r *packet) *packet { return dataOutPDU(0, r.tag(), r.u32(20), 1, 0, block(1)) }, []byte{9, 4},
			func(r *packet) []*packet { return []*packet{dataOutPDU(flagF, r.tag(), r.u32(20), 2, 512, block(3))} }, notEnough},
		{"DataSN -1", nil, solicited(), func(r *packet) *packet { return dataOutPDU(flagF, r.tag(), r.u32(20), 0xffffffff, 0, block(4)) }, []byte{9, 4}, nil, notEnough},
		{"offset with a gap", nil, solicited(), func(r *packet) *packet { return dataOutPDU(0, r.tag(), r.u32(20), 0, 512, block(1)) }, []byte{9, 4},
			func(r *packet) []*packet { return []*packet{dataOutPDU(flagF, r.tag(), r.u32(20), 1, 1024, block(2))} }, notEnough},
		{"offset again", nil, func(c *client) *packet {
			r := solicited()(c)
			c.send(dataOutPDU(0, r.tag(), r.u32(20), 0, 0, block(1)))
			return r
		}, func(r *packet) *packet { return dataOutPDU(0, r.tag(), r.u32(20), 1, 0, block(1)) }, []byte{9, 4},
			func(r *packet) []*packet { return []*packet{dataOutPDU(flagF, r.tag(), r.u32(20), 2, 512, block(3))} }, notEnough},
		{"too much", nil, solicited(), func(r *packet) *packet { return dataOutPDU(flagF, r.tag(), r.u32(20), 0, 0, block(5)) }, []byte{4, 9}, nil, notEnough},
		{"F early", nil, solicited(), func(r *packet) *packet { return dataOutPDU(flagF, r.tag(), r.u32(20), 0, 0, block(3)) }, []byte{4, 9}, nil, notEnough},
		{"unsolicited data cut short", []string{"InitialR2T=No"}, func(c *client) *packet {
			p := writeCommand(10, 4)
			p.h[1] &^= flagF
			c.request(p)
			return p
		}, func(r *packet) *packet { return dataOutPDU(flagF, r.tag(), reservedTag, 0, 0, block(3)) }, []byte{4, 9}, nil, notEnough},
		{"unsolicited data beyond FirstBurstLength", []string{"InitialR2T=No", "FirstBurstLength=1024"}, func(c *client) *packet {
			p := writeCommand(10, 4)
			p.h[1] &^= flagF
			c.request(p)
			return p
		}, func(r *packet) *packet { return dataOutPDU(flagF, r.tag(), reservedTag, 0, 0, block(4)) }, []byte{4, 9}, nil, notEnough},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := serveTCP(t)
			old := s.disk.fill(t, 0, 100*blockSize)
			c := s.ready(t, v.keys...)
			r := v.begin(c)
			bad := v.bad(r)
			c.send(bad)
			p := c.expect(opReject)
			if why := p.u8(2); why != v.reason[0] && why != v.reason[1] {
				t.Errorf("reject reason %#02x, want one of % x", why, v.reason)
			}
			if want := bad.bytes(false, false)[:48]; !bytes.Equal(p.data, want) {
				t.Errorf("reject carries % x, want % x", p.data, want)
			}
			if v.rest != nil {
				c.expectQuiet() // §11.4.2: not before the sequence is over
				for _, p := range v.rest(r) {
					c.send(p)
				}
			}
			res := result{packet: c.expectFor(opSCSIResponse, r.tag())}
			c.fails(res, v.sense)
			got := s.disk.content(t, 0, 100*blockSize)
			if !bytes.Equal(got[:10*blockSize], old[:10*blockSize]) || !bytes.Equal(got[14*blockSize:], old[14*blockSize:]) {
				t.Error("something was written outside the command's range")
			}
			c.good(c.writeAll(writeCommand(10, 4), block(4)))
		})
	}

	t.Run("wrong transfer tag", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		tag := c.request(writeCommand(10, 4))
		r := c.expectFor(opR2T, tag)
		for _, ttt := range []uint32{r.u32(20) + 1, reservedTag, 0} {
			bad := dataOutPDU(flagF, tag, ttt, 0, 0, block(4))
			c.send(bad)
			c.expectReject(9, bad)
		}
		c.feed(r, block(4), 8192) // a Reject does not end the task (§7.3)
		c.good(c.finishAfter(tag, 1))
	})
	t.Run("no such command", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		c.send(dataOutPDU(flagF, 0xdead, 5, 0, 0, block(1)))
		c.expectQuiet()
	})
	t.Run("for a read", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		g := s.disk.hold("read")
		tag := c.request(readCommand(0, 1))
		g.wait(t)
		bad := dataOutPDU(flagF, tag, reservedTag, 0, 0, block(1))
		c.send(bad)
		c.expectReject(9, bad)
		g.release()
		c.good(c.finish(tag))
	})
	t.Run("immediate data that is not allowed", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t, "ImmediateData=No")
		c.fails(c.run(writeCommand(10, 1).with(block(1))), unexpected)
		c.good(c.writeAll(writeCommand(10, 1), block(1)))
	})
	t.Run("immediate data beyond FirstBurstLength", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t, "FirstBurstLength=512")
		c.fails(c.run(writeCommand(10, 4).with(block(2))), notEnough)
	})
	t.Run("immediate data beyond the expected length", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		c.fails(c.run(command10(flagF|flagW, 512, writeCDB(10, 2)).with(block(2))), notEnough)
	})
	t.Run("unsolicited data that is not allowed", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t) // InitialR2T=Yes
		p := writeCommand(10, 4)
		p.h[1] &^= flagF
		tag := c.request(p)
		c.send(dataOutPDU(flagF, tag, reservedTag, 0, 0, block(4)))
		c.fails(result{packet: c.expectFor(opSCSIResponse, tag)}, unexpected)
	})
	t.Run("a command that fails takes its unsolicited data", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t, "InitialR2T=No")
		p := writeCommand(testSize/blockSize, 4)
		p.h[1] &^= flagF
		tag := c.request(p.with(block(1)))
		c.expectQuiet() // §11.4.2: the response waits for F
		c.send(dataOutPDU(flagF, tag, reservedTag, 0, 512, block(3)))
		c.fails(result{packet: c.expectFor(opSCSIResponse, tag)}, 0x052100)
	})
	t.Run("zero-length Data-Out", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		tag := c.request(writeCommand(10, 2))
		r := c.expectFor(opR2T, tag)
		c.send(dataOutPDU(0, tag, r.u32(20), 0, 0, nil))
		c.send(dataOutPDU(0, tag, r.u32(20), 1, 0, block(1)))
		c.send(dataOutPDU(0, tag, r.u32(20), 2, 512, nil))
		c.send(dataOutPDU(flagF, tag, r.u32(20), 3, 512, block(1)))
		c.good(c.finishAfter(tag, 1))
	})
}

// TestDataOutPressure: writes of much more than may be asked for at a time, to
// a disk that holds them up: what waits in memory stays within bounds, and
// everything ends when the disk goes on.
func TestDataOutPressure(t *testing.T) {
	s := serveTCP(t)
	k := transferKeys{"Yes", "No", 512, 1 << 20, 4}
	c := s.ready(t, k.pairs()...)
	g := s.disk.hold("write")
	const writes, size = 4, 6 << 20
	open := make(map[uint32]*writing)
	for i := range writes {
		lba := uint32(i * size / blockSize)
		w := c.beginWrite(k, lba, pattern(lba, size, byte(i)), false)
		open[w.tag] = w
	}
	asked := 0
	released := time.AfterFunc(200*time.Millisecond, g.release)
	defer released.Stop()
	for len(open) > 0 {
		p := c.receive()
		w := open[p.tag()]
		if w == nil {
			t.Fatalf("%s for nothing that is open", p)
		}
		if w.take(p) {
			delete(open, p.tag())
			continue
		}
		select {
		case <-g.open:
		default:
			if asked += int(p.u32(44)); asked > maxSolicited+(1<<20) {
				t.Fatalf("%d bytes asked for while the disk takes nothing, limit %d", asked, maxSolicited)
			}
		}
		c.feed(w.open[0], w.data, 200000)
		w.open = w.open[1:]
	}
	for i := range writes {
		lba := uint32(i * size / blockSize)
		if !bytes.Equal(s.disk.content(t, lba, size), pattern(lba, size, byte(i))) {
			t.Errorf("write %d: the disk has other data", i)
		}
	}
	c.expectQuiet()
}
