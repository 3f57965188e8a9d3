package iscsi

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Task management and the data-out that has been asked for, RFC 7143 §4.2.3.3 a:
// the response comes when all of it is here. An initiator that stops to send it
// is waited for no longer than transferTime.

// waitingFunctions are those that wait.
var waitingFunctions = []taskFunction{tmfAbortTaskSet, tmfClearTaskSet, tmfLUReset, tmfWarmReset, tmfColdReset}

// openWrite begins a write and gives the R2Ts that the target sends at first.
func (c *client) openWrite(lba uint32, blocks uint16, r2ts int) []*packet {
	c.t.Helper()
	tag := c.request(writeCommand(lba, blocks))
	var asked []*packet
	for range r2ts {
		asked = append(asked, c.expectFor(opR2T, tag))
	}
	return asked
}

// TestTransfersThatCome: several writes, whose data comes in any order, a lost
// piece among it. Nothing more is asked for, nothing is written, and the
// response is the next thing after the last sequence.
func TestTransfersThatCome(t *testing.T) {
	for _, f := range waitingFunctions {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			s := serveTCP(t)
			old := s.disk.fill(t, 0, 256*blockSize)
			c := s.ready(t, "MaxBurstLength=8192", "MaxOutstandingR2T=2", "DataDigest=CRC32C")
			a, b := c.openWrite(0, 64, 2), c.openWrite(64, 64, 2)
			q := taskPDU(f, nil)
			c.request(q)
			s.waitAborted(t, c)
			data := pattern(0, 64*blockSize, 7)
			c.expectQuiet()
			c.feed(b[0], data, 3000)
			c.feed(a[0], data, 3000)
			c.expectQuiet()
			c.sendBad(dataOutPDU(flagF, b[1].tag(), b[1].u32(20), 0, b[1].u32(40), data[:b[1].u32(44)]))
			c.expect(opReject)
			c.expectQuiet()
			c.send(dataOutPDU(0, a[1].tag(), a[1].u32(20), 0, a[1].u32(40), data[:100]))
			c.expectQuiet()
			c.send(dataOutPDU(flagF, a[1].tag(), a[1].u32(20), 1, a[1].u32(40)+100, data[100:8192]))
			if r := c.expectFor(opTaskResponse, q.tag()); r.u8(2) != 0 {
				t.Errorf("response %d", r.u8(2))
			}
			if got := s.disk.content(t, 0, 256*blockSize); !bytes.Equal(got, old) {
				t.Error("an aborted write wrote")
			}
		})
	}
}

// TestTransfersThatStop: the response comes transferTime after the last data.
func TestTransfersThatStop(t *testing.T) {
	for _, f := range waitingFunctions {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servePipe(t)
				c := s.ready(t)
				r := c.openWrite(0, 64, 1)[0]
				q := taskPDU(f, nil)
				c.request(q)
				for i := range 3 { // as long as something comes
					time.Sleep(transferTime * 2 / 3)
					c.send(dataOutPDU(0, r.tag(), r.u32(20), uint32(i), uint32(i)*512, make([]byte, 512)))
				}
				start := time.Now()
				p := c.expectFor(opTaskResponse, q.tag())
				if d := time.Since(start); d < transferTime*2/3 || d > 2*transferTime || p.u8(2) != 0 {
					t.Errorf("response %d %v after the last data, want it after %v", p.u8(2), d, transferTime)
				}
				if f == tmfColdReset {
					return // the connection is gone
				}
				c.clearAttention()
				c.send(dataOutPDU(flagF, r.tag(), r.u32(20), 3, 3*512, make([]byte, 61*512))) // late: nobody wants it
				c.good(c.writeAll(writeCommand(0, 64).itt(r.tag()), make([]byte, 64*blockSize)))
			})
		})
	}
}

// TestTransfersOfOthers are not waited for; what comes of them is thrown away.
func TestTransfersOfOthers(t *testing.T) {
	for _, f := range []taskFunction{tmfClearTaskSet, tmfLUReset, tmfWarmReset} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servePipe(t)
				a, b := s.ready(t), s.dial(t)
				b.isid[5]++
				b.loginReady()
				r := a.openWrite(0, 64, 1)[0]
				start := time.Now()
				if got := b.manage(taskPDU(f, nil)); got != 0 || time.Since(start) > 0 {
					t.Errorf("response %d after %v, want 0 at once", got, time.Since(start))
				}
				a.feed(r, pattern(0, 64*blockSize, 1), 8192)
				a.expectQuiet()
				if got := s.disk.content(t, 0, 64*blockSize); !bytes.Equal(got, make([]byte, 64*blockSize)) {
					t.Error("an aborted write wrote")
				}
				a.clearAttention()
				a.good(a.writeAll(writeCommand(0, 64), make([]byte, 64*blockSize)))
			})
		})
	}
}

// TestTransfersOfTheLost: nothing is waited for when the connection is gone.
func TestTransfersOfTheLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipe(t)
		c := s.ready(t)
		c.openWrite(0, 64, 1)
		c.request(taskPDU(tmfLUReset, nil))
		synctest.Wait()
		start := time.Now()
		c.nc.Close()
		synctest.Wait()
		if st := s.Stats(); st.Connections != 0 {
			t.Errorf("%+v at once after the connection was lost", st)
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// TestTransfersWaitForRoom: of a command that waits to ask for more, what was
// asked for is all that is waited for.
func TestTransfersWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := servePipe(t)
		const mebibyte = 1 << 20 / blockSize
		c := s.ready(t, "MaxBurstLength=1048576", "MaxOutstandingR2T=4")
		asked := c.openWrite(0, 4*mebibyte, 4)
		asked = append(asked, c.openWrite(4*mebibyte, 3*mebibyte, 3)...)
		asked = append(asked, c.openWrite(7*mebibyte, 4*mebibyte, 1)...) // may not ask for more yet
		last := c.request(writeCommand(11*mebibyte, 4*mebibyte))         // nor this one for anything
		q := taskPDU(tmfAbortTaskSet, nil)
		c.request(q)
		synctest.Wait() // it is aborted
		start := time.Now()
		for _, r := range asked {
			c.feed(r, make([]byte, 4<<20), 200000)
		}
		if r := c.expectFor(opTaskResponse, q.tag()); r.u8(2) != 0 || time.Since(start) > 0 {
			t.Errorf("response %d after %v", r.u8(2), time.Since(start))
		}
		c.good(c.writeAll(writeCommand(0, 8).itt(last), make([]byte, 8*blockSize)))
	})
}
