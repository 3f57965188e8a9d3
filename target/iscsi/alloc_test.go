package iscsi

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target/scsi"
)

// sink is a connection that takes everything and gives nothing.
type sink struct {
	took int
	tee  io.Writer // nil, or gets a copy
}

func (s *sink) Write(p []byte) (int, error) {
	s.took += len(p)
	if s.tee != nil {
		return s.tee.Write(p)
	}
	return len(p), nil
}
func (s *sink) Read([]byte) (int, error)         { return 0, io.EOF }
func (s *sink) Close() error                     { return nil }
func (s *sink) LocalAddr() net.Addr              { return pipeAddr{} }
func (s *sink) RemoteAddr() net.Addr             { return pipeAddr{} }
func (s *sink) SetDeadline(time.Time) error      { return nil }
func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }

// loggedIn is a connection in the full feature phase without an initiator: the
// test puts in what would have arrived.
func loggedIn(t testing.TB, p params) (*conn, *sink) {
	t.Helper()
	lun := scsi.NewLUN(blockdev.NewMem(1<<20), scsi.LUNOptions{})
	target := scsi.NewTarget(testTarget, map[uint64]*scsi.LUN{0: lun})
	s := New(Options{Name: testTarget, Target: target})
	t.Cleanup(func() { s.Close() })
	nc := &sink{}
	c := newConn(s, nc)
	nexus := target.NewNexus("iqn.2026-01.test:initiator,i,0x800102030405")
	t.Cleanup(nexus.Close)
	c.sess = &session{nexus: nexus, params: p, conn: c}
	c.sequence.start(1)
	c.enter()
	c.arrive(t, command10(flagF, 0, make([]byte, 16)).itt(1).cmdSN(1).bytes(p.headerDigest, p.dataDigest))
	return c, nc
}

// arrive handles b as one batch.
func (c *conn) arrive(t testing.TB, b []byte) {
	if err := c.tryArrive(b); err != nil {
		t.Fatal(err)
	}
}

func (c *conn) tryArrive(b []byte) error {
	for len(b) > 0 {
		n := copy(c.in.Room(c.in.need), b)
		c.in.Got(n)
		b = b[n:]
		c.mu.Lock()
		err := c.batch()
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// TestNoAllocation: the data path allocates nothing.
func TestNoAllocation(t *testing.T) {
	digests := defaults()
	digests.headerDigest, digests.dataDigest = true, true
	for name, p := range map[string]params{"without digests": defaults(), "with digests": digests} {
		for _, v := range []struct {
			name string
			pdu  *packet
			out  int // bytes of answer
		}{
			{"READ of 4 KiB", readCommand(8, 8), bhsLen + 4096},
			{"WRITE of 4 KiB with immediate data", writeCommand(8, 8).with(pattern(8, 4096, 1)), bhsLen},
			{"TEST UNIT READY", command10(flagF, 0, make([]byte, 16)), bhsLen},
		} {
			t.Run(v.name+" "+name, func(t *testing.T) {
				c, nc := loggedIn(t, p)
				sn := uint32(2)
				v.pdu.itt(0x42)
				b := v.pdu.bytes(p.headerDigest, p.dataDigest)
				out := v.out + lenIf(p.headerDigest) + lenIf(p.dataDigest && v.out > bhsLen)
				again := func() {
					reqCmdSN.Put(b, sn)
					if p.headerDigest {
						putDigest(b[bhsLen:], b[:bhsLen])
					}
					sn++
					before := nc.took
					c.arrive(t, b)
					if nc.took-before != out {
						t.Fatalf("answer of %d bytes, want %d", nc.took-before, out)
					}
				}
				again()
				if n := testing.AllocsPerRun(500, again); n != 0 {
					t.Errorf("%v allocations for each", n)
				}
				if c.expCmdSN != sn || c.maxCmdSN != sn+window-1 {
					t.Errorf("ExpCmdSN %d, MaxCmdSN %d after CmdSN %d", c.expCmdSN, c.maxCmdSN, sn-1)
				}
			})
		}
	}
}

// TestPieces: what waits for the disk takes little more memory than it has
// bytes, in whatever pieces it comes.
func TestPieces(t *testing.T) {
	for _, size := range []int{1, 100, 17000, 100000} {
		s := serveTCP(t)
		c := s.ready(t, "InitialR2T=Yes", "MaxBurstLength=1048576", "MaxOutstandingR2T=1")
		g := s.disk.hold("write")
		const blocks = 256
		data := pattern(0, blocks*blockSize, 1)
		tag := c.request(writeCommand(0, blocks))
		r := c.expectFor(opR2T, tag)
		var all bytes.Buffer
		for at, sn := 0, uint32(0); at < len(data); sn++ {
			n := min(size, len(data)-at)
			flags := byte(0)
			if at+n == len(data) {
				flags = flagF
			}
			all.Write(dataOutPDU(flags, tag, r.u32(20), sn, uint32(at), data[at:at+n]).bytes(false, false))
			at += n
		}
		c.sendBytes(all.Bytes())
		g.wait(t)
		c.expectQuiet()
		waiting, capacity := s.queued()
		if limit := 2*len(data) + 2*ourMaxRecvSegment; capacity > limit || waiting > 16 {
			t.Errorf("%d bytes in pieces of %d wait in %d buffers of %d bytes in all, limit %d", len(data), size, waiting, capacity, limit)
		}
		g.release()
		c.good(c.finishAfter(tag, 1))
		if !bytes.Equal(s.disk.content(t, 0, len(data)), data) {
			t.Errorf("pieces of %d: the disk has other data", size)
		}
	}
}

// queued is the number and capacity of the pieces that wait for the disk.
func (s *testServer) queued() (n, capacity int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sess := range s.sessions {
		c := sess.conn
		c.mu.Lock()
		for i := range c.commands.all {
			for _, p := range c.commands.all[i].out.queue {
				n++
				capacity += cap(p)
			}
		}
		c.mu.Unlock()
	}
	return n, capacity
}

func BenchmarkRead4K(b *testing.B) {
	c, _ := loggedIn(b, defaults())
	p := readCommand(8, 8).itt(0x42).bytes(false, false)
	for i := range b.N {
		reqCmdSN.Put(p, uint32(2+i))
		c.arrive(b, p)
	}
}

func BenchmarkWrite4K(b *testing.B) {
	c, _ := loggedIn(b, defaults())
	p := writeCommand(8, 8).itt(0x42).with(make([]byte, 4096)).bytes(false, false)
	for i := range b.N {
		reqCmdSN.Put(p, uint32(2+i))
		c.arrive(b, p)
	}
}
