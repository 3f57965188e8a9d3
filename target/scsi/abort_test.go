package scsi

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// begin begins a command that must pass the gate.
func begin(t *testing.T, n *Nexus, c *CDB) *Task {
	t.Helper()
	task := &Task{}
	task.Begin(n, lun1, c)
	if task.Status() != Good {
		t.Fatalf("% x: %v % x", c[:], task.Status(), task.Sense())
	}
	return task
}

// What covers a task, and what its later pieces then come to.
func TestWhatIsAborted(t *testing.T) {
	for _, c := range []struct {
		name         string
		act          func(*bench, *Task)
		mine, theirs bool
		attention    string // to the other nexus
	}{
		{"nothing", func(*bench, *Task) {}, false, false, "good"},
		{"ABORT TASK", func(_ *bench, mine *Task) { mine.Abort() }, true, false, "good"},
		{"ABORT TASK SET", func(x *bench, _ *Task) { x.a.AbortTaskSet(lun1) }, true, false, "good"},
		{"ABORT TASK SET by another", func(x *bench, _ *Task) { x.b.AbortTaskSet(lun1) }, false, true, "good"},
		{"CLEAR TASK SET", func(x *bench, _ *Task) { x.a.ClearTaskSet(lun1) }, true, true, "06/2f/00"},
		{"CLEAR TASK SET by another", func(x *bench, _ *Task) { x.b.ClearTaskSet(lun1) }, true, true, "good"},
		{"LOGICAL UNIT RESET", func(x *bench, _ *Task) { x.a.LogicalUnitReset(lun1) }, true, true, "06/29/03"},
		{"TARGET RESET", func(x *bench, _ *Task) { x.b.TargetReset() }, true, true, "06/29/02"},
		{"nexus loss", func(x *bench, _ *Task) { x.a.Close() }, true, false, "good"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, nil)
			before := x.disk.content(0, 4*512)
			mine := begin(t, x.a, sparse(0x2a, 0, 8))
			theirs := begin(t, x.b, cdb(0x2a, 0, 0, 0, 0, 2, 0, 0, 1))
			c.act(x, mine)
			for _, task := range []struct {
				*Task
				lba     int
				aborted bool
			}{{mine, 0, c.mine}, {theirs, 2, c.theirs}} {
				err := task.TryWrite(make([]byte, 512), 0)
				task.Finish()
				if task.Aborted() != task.aborted || (err != nil) != task.aborted {
					t.Errorf("LBA %d: aborted %v, write %v, want aborted %v", task.lba, task.Aborted(), err, task.aborted)
				}
				changed := !bytes.Equal(before[task.lba*512:][:512], x.disk.content(task.lba*512, 512))
				if changed == task.aborted {
					t.Errorf("LBA %d: changed %v, aborted %v", task.lba, changed, task.aborted)
				}
			}
			wantFrom(t, x.b, c.attention, tur, nil)
		})
	}
}

// CLEAR TASK SET tells only those that lost a task.
func TestClearTaskSetOfIdleNexus(t *testing.T) {
	x := newBench(t, nil)
	for _, c := range []*CDB{tur, read0, sense, cdb(0xff)} {
		do(x.b, lun1, c, nil)
	}
	aborted := begin(t, x.b, read0)
	aborted.Abort()
	if r := x.a.ClearTaskSet(lun1); r != FunctionComplete {
		t.Fatal(r)
	}
	wantFrom(t, x.b, "good", tur, nil)
}

// A task that has nothing left but work to do is not begun once aborted.
func TestAbortBeforeFinish(t *testing.T) {
	for _, c := range []*CDB{sparse(0x93, 1, 13), cdb(0x35), sparse(0x2f, 0, 8), cdb(0x1b)} {
		x := newBench(t, nil)
		task := begin(t, x.a, c)
		before := len(x.disk.calls)
		x.a.AbortTaskSet(lun1)
		task.Finish()
		if !task.Aborted() || len(x.disk.calls) != before || x.lun.stopped.Load() {
			t.Errorf("% x: aborted %v, disk %v", c[:], task.Aborted(), x.disk.calls[before:])
		}
	}
}

// A reset returns only when the piece that is on the disk has left it, and one
// that comes meanwhile is refused.
func TestResetWaitsForThePieceOnTheDisk(t *testing.T) {
	x := newBench(t, nil)
	onDisk, goOn := make(chan struct{}), make(chan struct{})
	x.disk.hook = func(op string) {
		if op == "write" {
			close(onDisk)
			<-goOn
		}
	}
	var left, reset atomic.Bool
	task := begin(t, x.a, cdb(0x2a, 0, 0, 0, 0, 0, 0, 0, 2))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := task.Write(make([]byte, 512), 0); err != nil {
			t.Errorf("the piece on the disk: %v", err)
		}
		left.Store(true)
		if err := task.Write(make([]byte, 512), 512); err != ErrFailed {
			t.Errorf("the piece after it: got %v, want %v", err, ErrFailed)
		}
	})
	<-onDisk
	wg.Go(func() {
		x.b.LogicalUnitReset(lun1)
		if !x.disk.mu.TryLock() { // held while the piece is on the disk
			t.Error("the reset has returned with a piece on the disk")
		} else {
			x.disk.mu.Unlock()
		}
		reset.Store(true)
	})
	for !task.Aborted() { // the reset has begun
	}
	other := begin2(x.a)
	if err := other.TryRead(make([]byte, 512), 0); err != ErrWouldBlock {
		t.Errorf("a new task's try meanwhile: got %v, want %v", err, ErrWouldBlock)
	}
	if reset.Load() {
		t.Error("the reset did not wait")
	}
	close(goOn)
	wg.Wait()
	if !left.Load() || !reset.Load() {
		t.Error("not all came to an end")
	}
}

// begin2 begins a READ (10) without a look at its status.
func begin2(n *Nexus) *Task {
	task := &Task{}
	task.Begin(n, lun1, read0)
	return task
}

// Two clients read and write while a third party resets, clears and aborts:
// under the race detector. After a function has returned, no write of a task
// from before it reaches the disk.
func TestResetsAgainstPieces(t *testing.T) {
	x := newBench(t, nil)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i, n := range []*Nexus{x.a, x.b, x.a} {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			task := &Task{}
			buf := make([]byte, 8*512)
			for !stop.Load() {
				c := cdb(0x28, 0, 0, 0, 0, byte(rng.IntN(200)), 0, 0, 8)
				switch rng.IntN(4) {
				case 0:
					c[0] = 0x2a
				case 1:
					c = cdb(0x93, 1, 0, 0, 0, 0, 0, 0, 0, byte(rng.IntN(200)), 0, 0, 0, 8)
				case 2:
					c = cdb(0x89, 0, 0, 0, 0, 0, 0, 0, 0, byte(rng.IntN(200)), 0, 0, 0, 4)
				}
				run(task, n, lun1, c, buf, 512)
			}
		})
	}
	admin := x.target.NewNexus("iqn.2020-01.test:c,i,0x800000000003")
	for i := range 300 {
		switch i % 4 {
		case 0:
			admin.LogicalUnitReset(lun1)
		case 1:
			admin.ClearTaskSet(lun1)
		case 2:
			x.a.AbortTaskSet(lun1)
		case 3:
			n := x.target.NewNexus("iqn.2020-01.test:d,i,0x800000000004")
			do(n, lun1, read0, nil)
			n.Close()
		}
	}
	stop.Store(true)
	wg.Wait()
	for _, n := range []*Nexus{x.a, x.b, admin} {
		if got := n.find(lun1).tasks.Load(); got != 0 {
			t.Errorf("%s: %d tasks left in the task set", n.Initiator(), got)
		}
	}
	if got := len(x.lun.nexuses()); got != 3 {
		t.Errorf("%d nexuses left, want 3", got)
	}
}

// With TAS a task that another nexus aborts ends with TASK ABORTED, and no unit
// attention tells of it once more; one that its own nexus aborts ends silently
// all the same.
func TestTaskAbortedStatus(t *testing.T) {
	for _, c := range []struct {
		name      string
		act       func(*bench)
		silent    bool // of the task of nexus b
		attention string
	}{
		{"CLEAR TASK SET by another", func(x *bench) { x.a.ClearTaskSet(lun1) }, false, "good"},
		{"LOGICAL UNIT RESET by another", func(x *bench) { x.a.LogicalUnitReset(lun1) }, false, "06/29/03"},
		{"TARGET RESET by another", func(x *bench) { x.a.TargetReset() }, false, "06/29/02"},
		{"PREEMPT AND ABORT", func(x *bench) {
			wantPR(t, x.a, "good", 0, 0, 0, keyA)
			wantPR(t, x.a, "good", 5, 0, keyA, keyB)
		}, false, "06/2a/05"},
		{"CLEAR TASK SET", func(x *bench) { x.b.ClearTaskSet(lun1) }, true, "good"},
		{"ABORT TASK SET", func(x *bench) { x.b.AbortTaskSet(lun1) }, true, "good"},
		{"LOGICAL UNIT RESET", func(x *bench) { x.b.LogicalUnitReset(lun1) }, true, "06/29/03"},
		{"CLEAR TASK SET by another, then ABORT TASK SET", func(x *bench) {
			x.a.ClearTaskSet(lun1)
			x.b.AbortTaskSet(lun1)
		}, true, "good"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, nil)
			wantPR(t, x.b, "good", 0, 0, 0, keyB)
			x.lun.mode.Store(uint32(modeTAS))
			task := begin(t, x.b, write0)
			c.act(x)
			if err := task.Write(block(9), 0); err != ErrFailed {
				t.Errorf("write: %v", err)
			}
			task.Finish()
			if task.Aborted() != c.silent || task.Status() != TaskAborted || task.Sense() != nil {
				t.Errorf("aborted %v, %v; want %v, %v", task.Aborted(), task.Status(), c.silent, TaskAborted)
			}
			wantFrom(t, x.b, c.attention, tur, nil)
			wantFrom(t, x.b, "good", tur, nil)
			if r := do(x.b, lun1, read0, nil); r.aborted || !bytes.Equal(r.in, block(0)) {
				t.Errorf("the next command: %v, aborted %v", r, r.aborted)
			}
		})
	}
}

// COMPARE AND WRITE on one block as a counter: no increment is lost between
// nexuses.
func TestCompareAndWriteIsAtomic(t *testing.T) {
	x := newBench(t, nil)
	copy(x.disk.b, make([]byte, 512))
	const each = 200
	var wg sync.WaitGroup
	for _, n := range []*Nexus{x.a, x.b} {
		wg.Go(func() {
			for done := 0; done < each; {
				old := do(n, lun1, read0, nil).in
				out := append(bytes.Clone(old), old...)
				out[512]++
				if out[512] == 0 {
					out[513]++
				}
				switch r := do(n, lun1, sparse(0x89, 0, 13), out); r.String() {
				case "good":
					done++
				case "0e/1d/00":
				default:
					t.Errorf("got %v", r)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := int(x.disk.b[0]) + int(x.disk.b[1])<<8; got != 2*each {
		t.Errorf("counted %d, want %d", got, 2*each)
	}
}

// While COMPARE AND WRITE and ORWRITE have read and not yet written, nobody's
// piece gets onto the disk.
func TestReadModifyWriteIsAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		cdb  *CDB
		out  []byte
	}{
		{"COMPARE AND WRITE", sparse(0x89, 0, 13), append(block(0), block(1)...)},
		{"ORWRITE (16)", sparse(0x8b, 0, 13), block(1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, nil)
			tried := 0
			x.disk.hook = func(op string) {
				x.disk.hook = nil
				if op != "read" {
					t.Errorf("first operation: %s", op)
				}
				for _, n := range []*Nexus{x.a, x.b} {
					tried++
					if err := begin(t, n, write0).TryWrite(block(2), 0); err != ErrWouldBlock {
						t.Errorf("a write meanwhile: got %v, want %v", err, ErrWouldBlock)
					}
				}
			}
			x.want(t, "good", c.cdb, c.out)
			if tried != 2 {
				t.Errorf("%d tries, want 2", tried)
			}
			x.want(t, "good", write0, block(2))
		})
	}
}
