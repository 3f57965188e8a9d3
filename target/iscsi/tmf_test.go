package iscsi

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
)

// taskPDU is an immediate task management request for LUN 0.
func taskPDU(f taskFunction, ref *packet) *packet {
	p := newPacket(0x42, 0x80|byte(f)).set32(20, reservedTag)
	if ref != nil {
		p.set32(20, ref.tag()).set32(32, ref.u32(24))
	}
	return p
}

// manage sends a task management request and receives its response.
func (c *client) manage(p *packet) byte {
	c.t.Helper()
	return c.expectFor(opTaskResponse, c.request(p)).u8(2)
}

func TestTaskResponses(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	gone := command10(flagF, 0, make([]byte, 16))
	c.good(c.run(gone))
	for _, v := range []struct {
		name string
		p    *packet
		want byte
	}{
		{"ABORT TASK of one that is over", taskPDU(tmfAbortTask, gone), 1},
		{"ABORT TASK of one that never was, outside the window", taskPDU(tmfAbortTask, nil).set32(20, 0x999).set32(32, 5), 1},
		{"ABORT TASK SET", taskPDU(tmfAbortTaskSet, nil), 0},
		{"CLEAR ACA", taskPDU(tmfClearACA, nil), 5},
		{"CLEAR TASK SET", taskPDU(tmfClearTaskSet, nil), 0},
		{"TASK REASSIGN", taskPDU(tmfTaskReassign, nil).set32(20, 0x999), 4},
		{"ABORT TASK SET of a unit that is not there", taskPDU(tmfAbortTaskSet, nil).set64(8, 9<<48), 2},
		{"CLEAR TASK SET of a unit that is not there", taskPDU(tmfClearTaskSet, nil).set64(8, 9<<48), 2},
		{"LOGICAL UNIT RESET of a unit that is not there", taskPDU(tmfLUReset, nil).set64(8, 9<<48), 2},
		{"function 9", taskPDU(9, nil), 5},
		{"function 0", taskPDU(0, nil), 5},
		{"function 127", taskPDU(127, nil), 5},
		{"LOGICAL UNIT RESET", taskPDU(tmfLUReset, nil), 0},
		{"TARGET WARM RESET", taskPDU(tmfWarmReset, nil), 0},
	} {
		if got := c.manage(v.p); got != v.want {
			t.Errorf("%s: response %d, want %d", v.name, got, v.want)
		}
		again := *v.p
		again.h[0] &^= 0x40 // not immediate
		again.itt(0)
		if got := c.manage(&again); got != v.want {
			t.Errorf("%s, not immediate: response %d, want %d", v.name, got, v.want)
		}
		c.clearAttention()
	}
	r := c.testUnitReady()
	if r.expCmdSN() != c.nextCmdSN || r.maxCmdSN()-r.expCmdSN()+1 != window {
		t.Errorf("ExpCmdSN %#x, MaxCmdSN %#x in the end", r.expCmdSN(), r.maxCmdSN())
	}
}

// waitAborted waits until all commands of the client's session are aborted:
// functions that wait begin on their own time.
func (s *testServer) waitAborted(t *testing.T, c *client) {
	t.Helper()
	s.mu.Lock()
	sess := s.sessions[sessionKey{c.initiator, c.isid, false}]
	s.mu.Unlock()
	waitFor(t, "the tasks to be aborted", func() bool {
		sess.conn.mu.Lock()
		defer sess.conn.mu.Unlock()
		for _, slot := range sess.conn.commands.active {
			if !sess.conn.commands.all[slot].task.Aborted() {
				return false
			}
		}
		return true
	})
}

// TestAbortHeldRead: the response to an abort comes when the worker is done
// with the disk, and nothing more of the task after it.
func TestAbortHeldRead(t *testing.T) {
	for _, f := range []taskFunction{tmfAbortTask, tmfAbortTaskSet, tmfClearTaskSet, tmfLUReset, tmfWarmReset} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			s := serveTCP(t)
			c := s.ready(t)
			g := s.disk.hold("read")
			p := readCommand(0, 64)
			c.request(p)
			g.wait(t)
			q := taskPDU(f, nil)
			if f == tmfAbortTask {
				q = taskPDU(f, p)
			}
			c.request(q)
			s.waitAborted(t, c)
			c.expectQuiet() // the disk is not done
			if f == tmfAbortTask {
				if got := c.manage(taskPDU(f, p)); got != 255 {
					t.Errorf("a second ABORT TASK meanwhile: response %d, want 255", got)
				}
			}
			g.release()
			for {
				r := c.receive()
				if r.tag() == p.tag() {
					if r.opcode() != 0x25 || r.flags()&1 != 0 {
						t.Fatalf("%s for an aborted task", r)
					}
					continue // data that was on its way
				}
				if r.opcode() != 0x22 || r.tag() != q.tag() || r.u8(2) != 0 {
					t.Fatalf("%s, response %d", r, r.u8(2))
				}
				break
			}
			c.expectQuiet()
			c.clearAttention()
			r := c.testUnitReady()
			if r.maxCmdSN()-r.expCmdSN()+1 != window {
				t.Errorf("window of %d", r.maxCmdSN()-r.expCmdSN()+1)
			}
		})
	}
}

// TestAbortWrite: a write that waits for data-out is aborted. What still comes
// of its data is thrown away, and waited for, §4.2.3.3 a; not so by ABORT TASK.
func TestAbortWrite(t *testing.T) {
	for _, f := range []taskFunction{tmfAbortTask, tmfAbortTaskSet, tmfClearTaskSet, tmfLUReset, tmfWarmReset} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			s := serveTCP(t)
			old := s.disk.fill(t, 0, 64*blockSize)
			c := s.ready(t)
			p := writeCommand(8, 32)
			c.request(p)
			r := c.expectFor(opR2T, p.tag())
			q := taskPDU(f, nil)
			if f == tmfAbortTask {
				q = taskPDU(f, p)
			}
			c.request(q)
			if f != tmfAbortTask {
				s.waitAborted(t, c)
				c.expectQuiet()
				c.feed(r, pattern(1, 32*blockSize, 66), 4096)
			}
			if r := c.expectFor(opTaskResponse, q.tag()); r.u8(2) != 0 {
				t.Fatalf("response %d", r.u8(2))
			}
			if f == tmfAbortTask {
				c.feed(r, pattern(1, 32*blockSize, 66), 4096)
			}
			c.expectQuiet()
			if !bytes.Equal(s.disk.content(t, 0, 64*blockSize), old) {
				t.Error("an aborted write wrote")
			}
			c.clearAttention()
			data := pattern(8, 32*blockSize, 67)
			c.good(c.writeAll(writeCommand(8, 32).itt(p.tag()), data)) // its tag is free again
			if !bytes.Equal(s.disk.content(t, 8, len(data)), data) {
				t.Error("the next write with the tag wrote other data")
			}
		})
	}
}

// TestAbortHeldWrite: a write whose data is at the disk.
func TestAbortHeldWrite(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	g := s.disk.hold("write")
	p := writeCommand(8, 1).with(pattern(8, blockSize, 1))
	c.request(p)
	g.wait(t)
	abort := taskPDU(tmfAbortTask, p)
	c.request(abort)
	c.expectQuiet()
	g.release()
	if r := c.expectFor(opTaskResponse, abort.tag()); r.u8(2) != 0 {
		t.Errorf("response %d", r.u8(2))
	}
	c.expectQuiet()
	c.good(c.writeAll(writeCommand(8, 1), pattern(8, blockSize, 2)))
}

// TestAbortWriteInParts: some of the data is at the disk, and the rest, which
// was asked for, comes later.
func TestAbortWriteInParts(t *testing.T) {
	for _, f := range []taskFunction{tmfAbortTask, tmfAbortTaskSet, tmfLUReset} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			s := serveTCP(t)
			c := s.ready(t, "MaxBurstLength=4096", "MaxOutstandingR2T=4")
			g := s.disk.hold("write")
			p := writeCommand(8, 64)
			c.request(p)
			data := make([]byte, 64*blockSize)
			asked := []*packet{c.expectFor(opR2T, p.tag())}
			for range 3 {
				asked = append(asked, c.expectFor(opR2T, p.tag()))
			}
			c.feed(asked[0], data, 4096)
			asked = append(asked, c.expectFor(opR2T, p.tag()))
			g.wait(t)
			q := taskPDU(f, nil)
			if f == tmfAbortTask {
				q = taskPDU(f, p)
			}
			c.request(q)
			s.waitAborted(t, c)
			c.expectQuiet()
			g.release()
			if f != tmfAbortTask {
				for _, r := range asked[1:] {
					c.expectQuiet()
					c.feed(r, data, 1000)
				}
			}
			if r := c.expectFor(opTaskResponse, q.tag()); r.u8(2) != 0 {
				t.Errorf("response %d", r.u8(2))
			}
			c.clearAttention()
			c.good(c.writeAll(writeCommand(8, 64).itt(p.tag()), data))
		})
	}
}

// TestResetOfOthers: a reset or CLEAR TASK SET of one session ends the tasks of
// the others, which learn of it by a unit attention and a window that opens.
func TestResetOfOthers(t *testing.T) {
	for f, sense := range map[taskFunction]uint32{tmfClearTaskSet: 0x062f00, tmfLUReset: 0x062903, tmfWarmReset: 0x062903} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			s := serveTCP(t)
			a, b := s.ready(t), s.dial(t)
			b.isid[5]++
			b.loginReady()
			g := s.disk.hold("read")
			for range window {
				a.request(readCommand(0, 1))
			}
			for range window {
				g.wait(t)
			}
			q := taskPDU(f, nil)
			b.request(q)
			s.waitAborted(t, a)
			b.expectQuiet()
			g.release()
			if r := b.expectFor(opTaskResponse, q.tag()); r.u8(2) != 0 {
				t.Fatalf("response %d", r.u8(2))
			}
			// The window was shut: it must be told without being asked.
			for a.maxCmdSN != a.nextCmdSN+window-1 {
				p, err := a.tryReceive(patience)
				if err != nil {
					t.Fatalf("MaxCmdSN is %#x, want %#x: %v", a.maxCmdSN, a.nextCmdSN+window-1, err)
				}
				if p.opcode() != 0x20 && p.opcode() != 0x25 || p.opcode() == 0x25 && p.flags()&1 != 0 {
					t.Fatalf("%s for aborted tasks", p)
				}
			}
			if r := a.testUnitReady(); r.status() != 2 || r.sense()&0xffff00 != sense&0xffff00 {
				t.Errorf("the other session: status %d, sense %06x, want %06x", r.status(), r.sense(), sense)
			}
			a.clearAttention()
			b.clearAttention()
		})
	}
}

// TestAbortTaskSetSparesOthers: it is about the tasks of one nexus.
func TestAbortTaskSetSparesOthers(t *testing.T) {
	s := serveTCP(t)
	a, b := s.ready(t), s.dial(t)
	b.isid[5]++
	b.loginReady()
	g := s.disk.hold("read")
	tag := a.request(readCommand(0, 1))
	g.wait(t)
	if got := b.manage(taskPDU(tmfAbortTaskSet, nil)); got != 0 {
		t.Errorf("response %d", got)
	}
	g.release()
	a.good(a.finish(tag))
}

// TestAbortedIsOver: a command that its own session has aborted is not among
// those that another session clears later.
func TestAbortedIsOver(t *testing.T) {
	s := serveTCP(t)
	a, b := s.ready(t, "InitialR2T=No"), s.dial(t)
	b.isid[5]++
	b.loginReady()
	w := writeCommand(0, 64)
	w.h[1] &^= flagF // its data is to follow, and does not
	a.request(w)
	if got := a.manage(taskPDU(tmfAbortTaskSet, nil)); got != 0 {
		t.Errorf("ABORT TASK SET: response %d", got)
	}
	if got := b.manage(taskPDU(tmfClearTaskSet, nil)); got != 0 {
		t.Errorf("CLEAR TASK SET: response %d", got)
	}
	a.good(a.testUnitReady())
}

// TestColdReset: the target treats it as a power-on, RFC 7143 §11.5.1. Nothing
// that was connected is left, and what was reserved or under way is gone.
func TestColdReset(t *testing.T) {
	s := serveTCP(t)
	a, b := s.ready(t), s.dial(t)
	b.isid[5]++
	b.loginReady()
	d := s.dial(t)
	d.finishLogin(d.succeed(operationalToFull, d.discoveryNames()...))
	half := s.dial(t)
	half.succeed(inOperationalStage, half.names()...)
	b.good(b.run(command10(flagF, 0, []byte{0x16}))) // RESERVE (6)
	b.request(writeCommand(0, 64))
	b.expect(opR2T)
	if got := a.manage(taskPDU(tmfColdReset, nil)); got != 0 {
		t.Errorf("response %d", got)
	}
	for _, c := range []*client{a, b, d, half} {
		c.expectClosed()
	}
	waitFor(t, "the connections to be forgotten", func() bool { return s.Stats() == Stats{Logins: 2} })
	again := s.dial(t)
	again.login()
	again.fails(again.testUnitReady(), 0x062900)
	again.good(again.run(command10(flagF, 0, []byte{0x16})))
}

// TestAbortOfTaskRequest: a task management request is not aborted by another.
func TestAbortOfTaskRequest(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	g := s.disk.hold("read")
	p := readCommand(0, 1)
	c.request(p)
	g.wait(t)
	abort, reset := taskPDU(tmfAbortTask, p), taskPDU(tmfLUReset, nil)
	c.request(abort)
	c.request(reset)
	for _, ref := range []*packet{abort, reset} {
		if got := c.manage(taskPDU(tmfAbortTask, ref)); got != 255 {
			t.Errorf("ABORT TASK of %s: response %d, want 255", ref, got)
		}
	}
	g.release()
	for range 2 {
		if r := c.expect(opTaskResponse); r.u8(2) != 0 {
			t.Errorf("response %d", r.u8(2))
		}
	}
}

// TestTaskRequestAcrossGap: an immediate request about a task set waits for
// the commands that were sent before it; one about the target counts them as
// received, RFC 7143 §4.2.3.3 b.
func TestTaskRequestAcrossGap(t *testing.T) {
	for _, f := range []taskFunction{tmfAbortTaskSet, tmfClearTaskSet, tmfLUReset} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			s := serveTCP(t)
			old := s.disk.fill(t, 0, 64*blockSize)
			c := s.ready(t)
			late := writeCommand(0, 64)
			c.number(late.itt(0x777), func() {})
			q := taskPDU(f, nil)
			c.request(q)
			after := command10(flagF, 0, make([]byte, 16)).itt(0x778) // sent behind it, and not covered
			c.request(after)
			c.expectQuiet()
			if got := c.manage(taskPDU(tmfAbortTask, q)); got != 255 {
				t.Errorf("ABORT TASK of the request that waits: response %d, want 255", got)
			}
			c.send(late)
			answered := false
			for !answered {
				switch p := c.receive(); {
				case p.opcode() == 0x22 && p.tag() == q.tag():
					answered = p.u8(2) == 0
				case p.opcode() == 0x31 && p.tag() == late.tag() && !answered:
				case p.opcode() == 0x21 && p.tag() == after.tag():
				default:
					t.Fatalf("%s", p)
				}
			}
			c.clearAttention()
			if !bytes.Equal(s.disk.content(t, 0, 64*blockSize), old) {
				t.Error("the aborted write wrote")
			}
		})
	}
	t.Run("target", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		late := writeCommand(0, 1).with(pattern(0, blockSize, 1)).itt(0x777)
		c.number(late, func() {})
		c.number(newPacket(0x01, flagF), func() {}) // lost as well
		held := command10(flagF, 0, make([]byte, 16))
		c.number(held, func() {})
		c.send(held)
		q := taskPDU(tmfWarmReset, nil)
		tag := c.request(q)
		r := c.expectFor(opTaskResponse, tag)
		if r.u8(2) != 0 || r.expCmdSN() != c.nextCmdSN || r.maxCmdSN()-r.expCmdSN()+1 != window {
			t.Errorf("response %d, ExpCmdSN %#x, MaxCmdSN %#x; the next CmdSN is %#x", r.u8(2), r.expCmdSN(), r.maxCmdSN(), c.nextCmdSN)
		}
		c.send(late)
		c.expectQuiet()
		c.clearAttention()
	})
	t.Run("flood", func(t *testing.T) {
		s := serveTCP(t)
		c := s.ready(t)
		late := command10(flagF, 0, make([]byte, 16))
		c.number(late, func() {})
		for range maxManaging {
			c.request(taskPDU(tmfLUReset, nil))
		}
		if got := c.manage(taskPDU(tmfLUReset, nil)); got != 255 {
			t.Errorf("one too many that wait: response %d, want 255", got)
		}
		c.send(late)
		c.expectFor(opSCSIResponse, late.tag())
		for range maxManaging {
			if r := c.expect(opTaskResponse); r.u8(2) != 0 {
				t.Errorf("response %d", r.u8(2))
			}
		}
	})
}

// TestTaskFlood: requests that have to wait do so in bounded number.
func TestTaskFlood(t *testing.T) {
	s := serveTCP(t)
	c := s.ready(t)
	g := s.disk.hold("read")
	c.request(readCommand(0, 1))
	g.wait(t)
	before := runtime.NumGoroutine()
	const flood = 3000
	for range flood {
		c.request(taskPDU(tmfLUReset, nil))
	}
	tag := c.request(newPacket(0x40, 0x80).set32(20, reservedTag))
	answered, most := 0, 0
	for {
		p := c.receive()
		most = max(most, runtime.NumGoroutine())
		if p.tag() == tag {
			break
		}
		answered++
		if p.opcode() != 0x22 && p.opcode() != 0x3f {
			t.Fatalf("%s", p)
		}
	}
	if most > before+100 {
		t.Errorf("%d goroutines wait for %d requests", most-before, flood)
	}
	g.release()
	for answered < flood {
		if p := c.receive(); p.opcode() == 0x22 || p.opcode() == 0x3f {
			answered++
		}
	}
	c.clearAttention()
}
