package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
)

// overwriteOnce is an OVERWRITE with one pass of 0xaa.
var (
	overwriteOnce = cdb(0x48, 0x01, 0, 0, 0, 0, 0, 0, 5)
	overwriteList = []byte{1, 0, 0, 1, 0xaa}
	blockErase    = cdb(0x48, 0x02)
	exitFailure   = cdb(0x48, 0x1f)
	immed         = byte(sanitizeImmed)
	ause          = byte(sanitizeAUSE)
)

// with is a CDB with more bits in byte 1.
func with(c *CDB, flags byte) *CDB {
	d := *c
	d[1] |= flags
	return &d
}

// held is a disk whose n-th write stops until goOn is closed.
func held(x *bench, n int) (reached, goOn chan struct{}) {
	reached, goOn = make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	x.disk.hook = func(op string) {
		if op != "write" {
			return
		}
		mu.Lock()
		n--
		stop := n == 0
		mu.Unlock()
		if stop {
			close(reached)
			<-goOn
		}
	}
	return reached, goOn
}

// Whatever happens to the command and its nexus, the sanitizing goes on, and
// nothing else gets at the disk until it is over.
func TestSanitizeCannotBeStopped(t *testing.T) {
	x := newBench(t, nil)
	late := begin(t, x.b, cdb(0x2a, 0, 0, 0, 0, 3, 0, 0, 1))
	reached, goOn := held(x, 5) // of eight steps
	x.want(t, "good", with(overwriteOnce, immed), overwriteList)
	<-reached
	r := x.want(t, "good", sense, nil)
	if part := binary.BigEndian.Uint16(r.in[16:]); r.in[2] != 2 || r.in[12] != 0x04 || r.in[13] != 0x1b || r.in[15] != 0x80 || part != 0x7fff {
		t.Errorf("REQUEST SENSE % x: want half of it done", r.in)
	}
	for _, c := range []*CDB{tur, read0, write0, blockErase, overwriteOnce, exitFailure, cdb(0x04), cdb(0x1b, 0, 0, 0, 1)} {
		wantFrom(t, x.b, "02/04/1b", c, overwriteList)
	}
	for _, c := range []*CDB{inq, luns} {
		wantFrom(t, x.b, "good", c, nil)
	}
	if err := late.Write(block(9), 0); err != ErrFailed {
		t.Errorf("a write from before: %v", err)
	}
	x.a.AbortTaskSet(lun1)
	x.b.LogicalUnitReset(lun1)
	x.b.TargetReset()
	x.a.Close()
	wantFrom(t, x.b, "06/29/02", tur, nil)
	wantFrom(t, x.b, "02/04/1b", tur, nil)
	close(goOn)
	x.settle()
	wantFrom(t, x.b, "good", tur, nil)
	if got := x.disk.content(0, testBlocks*512); !bytes.Equal(got, bytes.Repeat([]byte{0xaa}, len(got))) {
		t.Error("not all is overwritten")
	}
	if x.disk.count("flush") != 1 {
		t.Error("not flushed")
	}
}

// A command that waits for its sanitizing ends when it is aborted.
func TestSanitizeWaitIsAborted(t *testing.T) {
	x := newBench(t, nil)
	reached, goOn := held(x, 2)
	task := begin(t, x.a, overwriteOnce)
	if err := task.Write(overwriteList, 0); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		task.Finish()
	}()
	<-reached
	task.Abort()
	<-over
	if !task.Aborted() {
		t.Error("not aborted")
	}
	wantFrom(t, x.b, "02/04/1b", tur, nil)
	close(goOn)
	x.settle()
	wantFrom(t, x.b, "good", tur, nil)
}

// An OVERWRITE takes its time, a BLOCK ERASE does not.
func TestOverwriteTime(t *testing.T) {
	x := newBench(t, nil)
	x.lun.back.least = 200 * time.Millisecond
	for _, c := range []struct {
		cdb  *CDB
		long bool
	}{{overwriteOnce, true}, {blockErase, false}} {
		begun := time.Now()
		x.want(t, "good", c.cdb, overwriteList)
		if took := time.Since(begun); (took >= x.lun.back.least) != c.long {
			t.Errorf("% x took %v", c.cdb[:2], took)
		}
	}
}

// After a failure nothing but SANITIZE does anything, until one succeeds or,
// where that was allowed, the initiator gives up.
func TestSanitizeFails(t *testing.T) {
	broken := &blockdev.Error{Op: "write", Off: 5 * 512, Kind: blockdev.KindIO}
	for _, c := range []struct {
		name       string
		flags      byte
		exit       string
		afterwards string
	}{
		{"restricted", 0, "05/24/00", "03/31/03"},
		{"unrestricted", ause, "good", "good"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, nil)
			x.disk.fail["write"] = broken
			x.want(t, "03/0c/00", with(overwriteOnce, c.flags), overwriteList)
			for _, c := range []*CDB{tur, read0, write0, cdb(0x04), cdb(0x1a, 0, 0x3f, 0, 255)} {
				wantFrom(t, x.b, "03/31/03", c, nil)
			}
			if r := wantFrom(t, x.b, "good", sense, nil); r.in[2] != 3 || r.in[12] != 0x31 || r.in[13] != 0x03 {
				t.Errorf("REQUEST SENSE % x", r.in)
			}
			x.b.LogicalUnitReset(lun1) // does not help
			do(x.a, lun1, tur, nil)
			do(x.b, lun1, tur, nil)
			x.want(t, "03/31/03", tur, nil)
			if c.flags == 0 {
				x.want(t, "05/24/00", with(blockErase, ause), nil)
			}
			x.want(t, c.exit, exitFailure, nil)
			x.want(t, c.afterwards, tur, nil)
			x.want(t, "good", blockErase, nil)
			x.want(t, "good", read0, nil)
		})
	}
}

// sanitizing is a bench with a store whose disk is being overwritten; end lets
// the process end in the middle of it.
func sanitizing(t *testing.T, s *testStore, before func(*bench)) (x *bench, end func()) {
	t.Helper()
	x = newBench(t, func(_ *testDisk, o *LUNOptions) { o.Store = s })
	before(x)
	reached, goOn := held(x, 3)
	x.want(t, "good", with(overwriteOnce, immed), overwriteList)
	<-reached
	return x, func() {
		var wg sync.WaitGroup
		wg.Go(x.lun.Close)
		for closed := false; !closed; {
			select {
			case <-x.lun.back.stop:
				closed = true
			case <-time.After(time.Millisecond):
			}
		}
		close(goOn)
		wg.Wait()
	}
}

// A sanitizing goes on after a restart, also if something else was saved
// meanwhile by commands that began before it.
func TestSanitizeSurvivesRestart(t *testing.T) {
	register, list := prout(0, 0, 0, keyA, flagAPTPL)
	page := []byte{0, 0, 0, 0, 0x0a, 0x0a, 0x06, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0}
	for _, c := range []struct {
		name string
		cdb  *CDB
		list []byte
	}{{"nothing", tur, nil}, {"reservations", register, list}, {"mode pages", cdb(0x15, 0x11, 0, 0, 16), page}} {
		t.Run(c.name, func(t *testing.T) {
			s, saving := &testStore{}, &Task{}
			x, end := sanitizing(t, s, func(x *bench) { saving.Begin(x.b, lun1, c.cdb) })
			if len(c.list) > 0 {
				if err := saving.Write(c.list, 0); err != nil {
					t.Fatal(err)
				}
			}
			if saving.Finish(); saving.Status() != Good {
				t.Fatalf("%v % x", saving.Status(), saving.Sense())
			}
			end()
			x.goesOnAfterRestart(t, s)
		})
	}
}

func (x *bench) goesOnAfterRestart(t *testing.T, s *testStore) {
	t.Helper()
	if got := x.disk.content(testBlocks*512-512, 512); bytes.Equal(got, bytes.Repeat([]byte{0xaa}, 512)) {
		t.Fatal("it was over before the restart")
	}
	x = restart(t, s)
	x.settle()
	if got := x.disk.content(0, testBlocks*512); !bytes.Equal(got, bytes.Repeat([]byte{0xaa}, len(got))) {
		t.Error("not all is overwritten")
	}
	x.want(t, "good", tur, nil)
	x = restart(t, s)
	if x.lun.back.operation.Load() != nil {
		t.Error("it began again")
	}
}

// A write that is on the disk when the sanitizing begins is over before it does
// anything: it would come back to a disk that is said to be sanitized.
func TestSanitizeWaitsForThePieceOnTheDisk(t *testing.T) {
	x := newBench(t, nil)
	onDisk, goOn, zeroed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	x.disk.hook = func(op string) {
		switch op {
		case "write":
			close(onDisk)
			<-goOn
		case "zero":
			close(zeroed)
		}
	}
	task := begin(t, x.b, write0)
	var wg sync.WaitGroup
	wg.Go(func() { _ = task.Write(block(9), 0) })
	<-onDisk
	x.want(t, "good", with(blockErase, immed), nil)
	select {
	case <-zeroed:
		t.Error("it did not wait")
	case <-time.After(30 * time.Millisecond):
	}
	close(goOn)
	wg.Wait()
	x.settle()
	if !bytes.Equal(x.disk.content(0, 512), make([]byte, 512)) {
		t.Error("something is left")
	}
}

// A failure survives as well.
func TestSanitizeFailureSurvivesRestart(t *testing.T) {
	s := &testStore{}
	x := newBench(t, func(d *testDisk, o *LUNOptions) {
		d.fail["zero"] = &blockdev.Error{Op: "zero", Kind: blockdev.KindNoSpace}
		o.Store = s
	})
	x.want(t, "07/27/07", with(blockErase, ause), nil)
	x = restart(t, s)
	x.want(t, "03/31/03", tur, nil)
	x.want(t, "good", exitFailure, nil)
	x.want(t, "good", tur, nil)
	if x = restart(t, s); x.lun.back.operation.Load() != nil {
		t.Error("the failure came back")
	}
}

// What cannot be remembered is not begun.
func TestSanitizeNeedsItsStore(t *testing.T) {
	s := &testStore{}
	x := newBench(t, func(_ *testDisk, o *LUNOptions) { o.Store = s })
	s.fail = errors.New("no space")
	x.want(t, "04/44/00", blockErase, nil)
	x.want(t, "good", read0, nil)
	if x.disk.count("zero") != 0 {
		t.Error("it was begun")
	}
}

// A disk with a pending operation is not served write-protected, nor with
// other blocks.
func TestRestoreOperation(t *testing.T) {
	for _, c := range []struct {
		name string
		text string
		o    LUNOptions
	}{
		{"write-protected", `{"version":1,"operation":{"sanitize":true}}`, LUNOptions{Access: blockdev.ReadOnly}},
		{"other blocks", `{"version":1,"operation":{"pattern":"AAA="}}`, LUNOptions{}},
		{"format that failed", `{"version":1,"operation":{"failed":true}}`, LUNOptions{}},
		{"passes", `{"version":1,"operation":{"sanitize":true,"passes":32}}`, LUNOptions{}},
	} {
		c.o.Store = &testStore{b: []byte(c.text)}
		if err := NewLUN(blockdev.NewMem(1<<20), c.o).Restore(); err == nil {
			t.Errorf("%s: restored", c.name)
		}
	}
}
