package scsi

import (
	"encoding/binary"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// While the disk is being formatted other commands are told so, and how far it
// is; INQUIRY, REPORT LUNS and REQUEST SENSE answer.
func TestFormatInProgress(t *testing.T) {
	x := newBench(t, nil)
	writes := 0
	x.disk.hook = func(op string) {
		if op != "write" {
			return
		}
		if writes++; writes != 5 { // of eight steps
			return
		}
		hook := x.disk.hook
		x.disk.hook = nil
		for _, c := range []*CDB{tur, read0, write0, reserve, cdb(0x04), cdb(0x1a, 0, 0x3f, 0, 255)} {
			if r := do(x.b, lun1, c, nil); r.String() != "02/04/04" {
				t.Errorf("% x: got %v", c[:], r)
			}
		}
		for _, c := range []*CDB{inq, luns} {
			wantFrom(t, x.b, "good", c, nil)
		}
		r := wantFrom(t, x.b, "good", sense, nil)
		if got := binary.BigEndian.Uint16(r.in[16:]); r.in[2] != 2 || r.in[15] != 0x80 || got != 0x7fff {
			t.Errorf("REQUEST SENSE % x: want half of it done", r.in)
		}
		x.disk.hook = hook
	}
	x.want(t, "good", cdb(0x04, 0x10), []byte{0, 0x88, 0, 0, 0, 1, 0, 1, 0xee})
	if writes != testBlocks*512/step {
		t.Errorf("%d writes", writes)
	}
	if x.disk.count("flush") != 1 {
		t.Error("not flushed")
	}
	wantFrom(t, x.b, "good", tur, nil)
}

// A format that the disk fails or somebody aborts is over.
func TestFormatEnds(t *testing.T) {
	x := newBench(t, nil)
	x.disk.fail["zero"] = &blockdev.Error{Op: "zero", Kind: blockdev.KindNoSpace}
	x.want(t, "07/27/07", cdb(0x04), nil)
	x.want(t, "good", tur, nil)
	delete(x.disk.fail, "zero")
	task := &Task{}
	task.Begin(x.a, lun1, cdb(0x04))
	x.b.LogicalUnitReset(lun1)
	task.Finish()
	if !task.Aborted() || x.disk.count("zero") != 1 {
		t.Errorf("aborted %v after %d steps", task.Aborted(), x.disk.count("zero"))
	}
	x.want(t, "06/29/03", tur, nil)
	x.want(t, "good", tur, nil)
}

// The list is as long as the initiator says, up to the limit.
func TestFormatTakesWhatIsAnnounced(t *testing.T) {
	x := newBench(t, nil)
	task := &Task{}
	for _, c := range []struct{ announced, want int64 }{{0, 0}, {4, 4}, {11, 11}, {1 << 20, 8 + 4 + 512}} {
		task.Begin(x.a, lun1, cdb(0x04, 0x10))
		task.Announce(c.announced)
		if task.Out() != c.want {
			t.Errorf("announced %d: takes %d, want %d", c.announced, task.Out(), c.want)
		}
		task.Abort()
	}
}
