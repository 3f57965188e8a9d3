package scsi

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

var (
	tur     = cdb(0x00)
	read0   = cdb(0x28, 0, 0, 0, 0, 0, 0, 0, 1)
	write0  = cdb(0x2a, 0, 0, 0, 0, 0, 0, 0, 1)
	inq     = cdb(0x12, 0, 0, 0, 36)
	luns    = cdb(0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16)
	sense   = cdb(0x03, 0, 0, 0, 18)
	reserve = cdb(0x16)
	release = cdb(0x17)
)

func TestUnitAttentionQueue(t *testing.T) {
	x := newBench(t, nil)
	n := x.target.NewNexus("iqn.2020-01.test:c,i,0x800000000003")
	for _, c := range []*CDB{inq, luns} { // these pass, and leave it pending
		wantFrom(t, n, "good", c, nil)
	}
	wantFrom(t, n, "05/20/00", cdb(0xff), nil) // an unknown command does not take it
	wantFrom(t, n, "06/29/00", read0, nil)
	wantFrom(t, n, "good", read0, nil)

	n.find(lun1).raise(codeModeChanged)
	n.find(lun1).raise(codeCommandsCleared)
	n.find(lun1).raise(codeModeChanged) // each once
	wantFrom(t, n, "06/2a/01", tur, nil)
	r := wantFrom(t, n, "good", sense, nil) // reports and clears
	if key, code := r.in[2], binary.BigEndian.Uint16(r.in[12:]); key != 6 || code != 0x2f00 {
		t.Errorf("REQUEST SENSE: got key %x code %04x, want 6 2f00", key, code)
	}
	wantFrom(t, n, "good", tur, nil)

	n.find(lun1).raise(codeModeChanged)
	n.LogicalUnitReset(lun1) // makes the others pointless
	wantFrom(t, n, "06/29/03", tur, nil)
	wantFrom(t, n, "good", tur, nil)
}

func TestModeSelectTellsTheOthers(t *testing.T) {
	x := newBench(t, nil)
	page := []byte{0, 0, 0, 0, 0x0a, 0x0a, 0x06, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0}
	x.want(t, "good", cdb(0x15, 0x10, 0, 0, 16), page)
	wantFrom(t, x.b, "06/2a/01", tur, nil)
	wantFrom(t, x.b, "good", tur, nil)
	x.want(t, "good", tur, nil)
	x.want(t, "good", cdb(0x15, 0x10, 0, 0, 16), page) // changes nothing
	wantFrom(t, x.b, "good", tur, nil)
	if r := do(x.b, lun1, cdb(0xff), nil); r.sense[0] != 0x72 {
		t.Errorf("sense data % x: want descriptor format for all", r.sense)
	}
}

func TestResetIsToldToAll(t *testing.T) {
	for _, c := range []struct {
		name  string
		reset func(*Nexus) FunctionResponse
		want  string
	}{
		{"LOGICAL UNIT RESET", func(n *Nexus) FunctionResponse { return n.LogicalUnitReset(lun1) }, "06/29/03"},
		{"TARGET RESET", (*Nexus).TargetReset, "06/29/02"},
		{"TARGET COLD RESET", (*Nexus).ColdReset, "06/29/00"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, nil)
			x.want(t, "good", reserve, nil)
			x.want(t, "good", cdb(0x1b), nil)
			x.lun.changeModes(allModes, allModes, x.a.find(lun1))
			if r := c.reset(x.b); r != FunctionComplete {
				t.Fatalf("got %v", r)
			}
			for _, n := range []*Nexus{x.a, x.b} {
				wantFrom(t, n, c.want, tur, nil)
				wantFrom(t, n, "good", write0, make([]byte, 512)) // reservation, stop, SWP are gone
			}
		})
	}
}

func TestFunctionsWithoutLogicalUnit(t *testing.T) {
	x := newBench(t, nil)
	for name, f := range map[string]func(uint64) FunctionResponse{
		"ABORT TASK SET":     x.a.AbortTaskSet,
		"CLEAR TASK SET":     x.a.ClearTaskSet,
		"LOGICAL UNIT RESET": x.a.LogicalUnitReset,
	} {
		if r := f(noSuchLUN); r != FunctionNoLUN {
			t.Errorf("%s: got %v, want %v", name, r, FunctionNoLUN)
		}
	}
}

func TestReservation(t *testing.T) {
	x := newBench(t, nil)
	x.want(t, "good", reserve, nil)
	x.want(t, "good", reserve, nil) // again
	const conflict = "RESERVATION CONFLICT"
	for _, c := range []*CDB{tur, read0, write0, reserve, cdb(0x1a, 0, 0x3f, 0, 255), cdb(0x9e, 0x10)} {
		if r := do(x.b, lun1, c, nil); r.String() != conflict || r.sense != nil {
			t.Errorf("% x: got %v, sense % x, want %s", c[:], r, r.sense, conflict)
		}
	}
	for _, c := range []*CDB{inq, luns, sense, release} { // RELEASE by another does nothing
		wantFrom(t, x.b, "good", c, nil)
	}
	wantFrom(t, x.b, conflict, tur, nil)
	x.want(t, "good", tur, nil)
	x.want(t, "good", release, nil)
	wantFrom(t, x.b, "good", reserve, nil)
	x.want(t, conflict, tur, nil)
	x.b.Close() // nexus loss
	x.want(t, "good", tur, nil)
}

// A unit attention comes before a reservation conflict, and that before the
// checks of the CDB.
func TestOrderOfTheGate(t *testing.T) {
	x := newBench(t, nil)
	wantFrom(t, x.b, "good", reserve, nil)
	x.a.find(lun1).raise(codeModeChanged)
	bad := cdb(0x2a, 0xe0, 0xff, 0xff, 0xff, 0xff, 0, 0, 1)
	x.want(t, "06/2a/01", bad, nil)
	x.want(t, "RESERVATION CONFLICT", bad, nil)
	wantFrom(t, x.b, "good", release, nil)
	x.lun.stopped.Store(true)
	x.lun.mode.Store(uint32(modeSWP))
	x.want(t, "02/04/02", bad, nil)
	x.lun.stopped.Store(false)
	x.want(t, "07/27/00", bad, nil)
	x.lun.mode.Store(0)
	x.want(t, "05/24/00", bad, nil)
	bad[1] = 0
	x.want(t, "05/21/00", bad, nil)
}

// Whatever modifies the disk is refused by SWP, and nothing else is.
func TestWriteProtectionByRow(t *testing.T) {
	x := newBench(t, nil)
	x.lun.mode.Store(uint32(modeSWP))
	before := x.disk.content(0, testBlocks*512)
	for _, row := range x.lun.table.ordered {
		r := do(x.a, lun1, rowCDB(row), make([]byte, 2<<20))
		if got := r.String() == "07/27/00"; got != (row.flags&modifies != 0) {
			t.Errorf("%s: got %v, modifies %v", row.name, r, !got)
		}
		do(x.a, lun1, cdb(0x1b, 0, 0, 0, 1), nil)
		x.lun.mode.Store(uint32(modeSWP))
	}
	if !bytes.Equal(before, x.disk.content(0, testBlocks*512)) {
		t.Error("the disk has changed")
	}
}

// rowCDB is a CDB for a row with one block or 64 bytes, wherever it counts.
func rowCDB(row *command) *CDB {
	c := cdb(row.opcode)
	if row.action != noAction {
		c[1] = byte(row.action)
	}
	switch {
	case row.opcode == 0x15, row.opcode == 0x55: // MODE SELECT
		c[1] = 0x10
	case row.opcode == 0x89:
		c[cdbCompareCount] = 1
	case row.opcode == 0x56, row.opcode == 0x57: // RESERVE, RELEASE (10): no list
	case row.opcode == 0x1a, row.opcode == 0x5a:
		c[2] = 0x3f
		fallthrough
	default:
		switch c.size() {
		case 6:
			if row.opcode != 0x1b && row.opcode != 0x1e {
				c[4] = 1
			}
		case 10:
			if row.opcode != 0x25 {
				c[8] = 1
			}
		case 12:
			c[9] = 64
			if row.blocks != nil {
				c[9] = 1
			}
		case 16:
			c[13] = 64
			if row.blocks != nil {
				c[13] = 1
			}
		}
	}
	return c
}

// FUA, a write cache that is off, and WRITE AND VERIFY reach the medium before
// the status does; other writes need not.
func TestWhatIsFlushed(t *testing.T) {
	data := make([]byte, 512)
	for _, c := range []struct {
		name string
		cdb  *CDB
		mode modeBits
		want int
	}{
		{"WRITE (10)", write0, 0, 0},
		{"WRITE (10) with FUA", cdb(0x2a, 0x08, 0, 0, 0, 0, 0, 0, 1), 0, 1},
		{"WRITE (10) without cache", write0, modeWriteThrough, 1},
		{"READ (10) without cache", read0, modeWriteThrough, 0},
		{"WRITE AND VERIFY (10)", cdb(0x2e, 0, 0, 0, 0, 0, 0, 0, 1), 0, 1},
		{"WRITE SAME (10) without cache", cdb(0x41, 0, 0, 0, 0, 0, 0, 0, 1), modeWriteThrough, 1},
		{"SYNCHRONIZE CACHE (10)", cdb(0x35), 0, 1},
		{"START STOP UNIT, stop", cdb(0x1b), 0, 1},
		{"START STOP UNIT, stop, NO_FLUSH", cdb(0x1b, 0, 0, 0, 4), 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, nil)
			x.lun.mode.Store(uint32(c.mode))
			x.want(t, "good", c.cdb, data)
			if got := x.disk.count("flush"); got != c.want {
				t.Errorf("got %d flushes, want %d", got, c.want)
			}
		})
	}
}

// Turning the write cache off leaves nothing in it.
func TestCacheOff(t *testing.T) {
	x := newBench(t, nil)
	for _, c := range []struct {
		wce   byte
		flush int // so far
	}{{4, 0}, {0, 1}, {0, 1}, {4, 1}, {0, 2}} {
		page := make([]byte, 24)
		page[4], page[5], page[6] = pageCaching, 18, c.wce
		x.want(t, "good", cdb(0x15, 0x10, 0, 0, 24), page)
		if got := x.disk.count("flush"); got != c.flush {
			t.Errorf("WCE %#x: got %d flushes, want %d", c.wce, got, c.flush)
		}
	}
}

// A read with FUA is of what is on the medium: one flush if something may not
// be there, and no more.
func TestReadFUA(t *testing.T) {
	x := newBench(t, nil)
	fua := cdb(0x28, 0x08, 0, 0, 0, 0, 0, 0, 8)
	for _, c := range []struct {
		name string
		cdb  *CDB
		want int // flushes so far
	}{
		{"first: who had the disk before may have written", fua, 1},
		{"clean", fua, 1},
		{"a write", write0, 1},
		{"dirty", fua, 2},
		{"clean again", fua, 2},
	} {
		x.want(t, "good", c.cdb, make([]byte, 512))
		if got := x.disk.count("flush"); got != c.want {
			t.Errorf("%s: got %d flushes, want %d", c.name, got, c.want)
		}
	}
	x.disk.fail["flush"] = &blockdev.Error{Op: "flush", Kind: blockdev.KindIO}
	x.want(t, "good", write0, make([]byte, 512))
	x.want(t, "03/0c/00", fua, nil)
	x.want(t, "03/0c/00", fua, nil) // still not on the medium
}

// sparse is a CDB with its flags and a one in the byte at a length.
func sparse(opcode, flags byte, length int) *CDB {
	c := cdb(opcode, flags)
	c[length] = 1
	return c
}

// What can wait is not done on the transport's goroutine.
func TestTryDoesNotWait(t *testing.T) {
	x := newBench(t, nil)
	task := &Task{}
	for _, c := range []*CDB{
		cdb(0x35),                         // SYNCHRONIZE CACHE
		cdb(0x2a, 0x08),                   // WRITE with FUA
		cdb(0x42),                         // UNMAP
		sparse(0x93, 1, 13),               // WRITE SAME, NDOB
		cdb(0x2f, 0, 0, 0, 0, 0, 0, 0, 1), // VERIFY
		cdb(0x89),                         // COMPARE AND WRITE
		cdb(0x1b),                         // START STOP UNIT
	} {
		before := len(x.disk.calls)
		task.Begin(x.a, lun1, c)
		if task.Status() != Good {
			t.Fatalf("% x: %v", c[:], task.Status())
		}
		if err := task.TryFinish(); err != ErrWouldBlock {
			t.Errorf("% x: TryFinish: got %v, want %v", c[:], err, ErrWouldBlock)
		}
		if len(x.disk.calls) != before {
			t.Errorf("% x: TryFinish touched the disk: %v", c[:], x.disk.calls[before:])
		}
		task.Finish()
	}
	x.lun.stopped.Store(false)
	p := make([]byte, 512)
	for _, c := range []*CDB{sparse(0x8b, 0, 13), sparse(0x2e, 0, 8), sparse(0x2f, 2, 8)} {
		task.Begin(x.a, lun1, c)
		if err := task.TryWrite(p, 0); err != ErrWouldBlock {
			t.Errorf("% x: TryWrite: got %v, want %v", c[:], err, ErrWouldBlock)
		}
	}
	x.disk.slow = true
	task.Begin(x.a, lun1, cdb(0x28, 0, 0, 0, 0, 9, 0, 0, 1))
	if err := task.TryRead(p, 0); err != ErrWouldBlock {
		t.Errorf("READ: got %v, want %v", err, ErrWouldBlock)
	}
	if err := task.Read(p, 0); err != nil || !bytes.Equal(p, block(9)) {
		t.Errorf("READ after %v: got %v % x", ErrWouldBlock, err, p[:8])
	}
}

// COMPARE AND WRITE and WRITE SAME do nothing if the initiator announces
// another length of data-out than the CDB says; others take what comes.
func TestAnnounce(t *testing.T) {
	x := newBench(t, nil)
	before := x.disk.content(0, testBlocks*512)
	for _, c := range []struct {
		cdb      *CDB
		announce int64
		want     string
		byte     byte // of the field pointer
	}{
		{sparse(0x89, 0, 13), 1024, "good", 0},
		{sparse(0x89, 0, 13), 2048, "05/24/00", 13},
		{sparse(0x89, 0, 13), 0, "05/24/00", 13},
		{cdb(0x89), 2 * 256 * 512, "05/24/00", 13}, // 256 blocks
		{sparse(0x41, 0, 8), 1024, "05/24/00", 7},
		{sparse(0x93, 0, 13), 0, "05/24/00", 10},
		{sparse(0x93, 1, 13), 512, "05/24/00", 10}, // NDOB
		{sparse(0x2a, 0, 8), 0, "good", 0},
		{sparse(0x2a, 0, 8), 2048, "good", 0},
		{cdb(0x28, 0, 0, 0xff), 512, "05/21/00", 0}, // refused before
	} {
		task := &Task{}
		task.Begin(x.a, lun1, c.cdb)
		task.Announce(c.announce)
		r := result{status: task.Status(), sense: task.Sense()}
		if r.String() != c.want {
			t.Errorf("% x announced %d: got %v, want %s", c.cdb[:], c.announce, r, c.want)
		}
		if c.byte != 0 && (r.sense[17] != c.byte || task.Out() != 0) {
			t.Errorf("% x announced %d: sense % x, takes %d", c.cdb[:], c.announce, r.sense, task.Out())
		}
		task.Abort()
	}
	if !bytes.Equal(before, x.disk.content(0, testBlocks*512)) {
		t.Error("the disk has changed")
	}
}
