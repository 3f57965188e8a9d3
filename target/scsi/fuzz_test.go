package scsi

import (
	"bytes"
	"path/filepath"
	"runtime"
	"testing"
)

// FuzzCDB: whatever 16 bytes and data-out come, the command ends good, with
// sense data or with a conflict; moves no more than its limits allow; and does
// another nexus no harm but what SCSI says.
func FuzzCDB(f *testing.F) {
	files, err := filepath.Glob("testdata/vectors/*.hex")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d seeds, error %v", len(files), err)
	}
	for _, file := range files {
		_, vectors := parseVectors(f, file)
		for _, v := range vectors {
			f.Add(v.cdb[:], v.out, uint16(444))
		}
	}
	f.Fuzz(func(t *testing.T, b, out []byte, piece uint16) {
		x := newPair(t, nil)
		c := cdb(b[:min(len(b), 16)]...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		task := &Task{}
		r := run(task, x.a, lun1, c, out, int(piece)+256)
		runtime.ReadMemStats(&after)

		if in, out := task.In(), task.Out(); in < 0 || out < 0 || in > testBlocks*512 || out > testBlocks*512 || in > 0 && out > 0 {
			t.Errorf("% x: %d bytes in, %d bytes out", c[:], in, out)
		}
		checkEnd(t, c, r)
		x.settle()
		if c[0] != opcodeCopy && !bytes.Equal(x.disk2.b, numbered()) {
			t.Errorf("% x: the other logical unit has changed", c[:])
		}
		// The harness itself keeps what is read.
		if used := after.TotalAlloc - before.TotalAlloc; used > maxList*8+4*uint64(len(r.in)+len(out)) {
			t.Errorf("% x: %d bytes allocated for %d in, %d out", c[:], used, len(r.in), len(out))
		}
		x.checkOther(t, c)
	})
}

// maxList is the most data-out that a command collects.
const maxList = 2 * maxCompare

func checkEnd(t *testing.T, c *CDB, r result) {
	t.Helper()
	switch r.status {
	case Good, ReservationConflict:
		if r.sense != nil {
			t.Errorf("% x: %v with sense data % x", c[:], r, r.sense)
		}
	case CheckCondition:
		if n := len(r.sense); n < 8 || n > maxSense || n != 8+int(r.sense[7]) {
			t.Errorf("% x: sense data % x", c[:], r.sense)
		}
	default:
		t.Errorf("% x: %v", c[:], r)
	}
	if r.aborted {
		t.Errorf("% x: aborted", c[:])
	}
}

// checkOther looks from the other nexus: a reservation, a stop or changed mode
// parameters are all that may be seen; when these are undone all works.
func (x *bench) checkOther(t *testing.T, c *CDB) {
	t.Helper()
	first := do(x.b, lun1, tur, nil)
	switch first.String() {
	case "good", "06/2a/01", "RESERVATION CONFLICT", "02/04/02":
	default:
		t.Fatalf("% x: the other nexus sees %v", c[:], first)
	}
	if r := x.b.LogicalUnitReset(lun1); r != FunctionComplete {
		t.Fatal(r)
	}
	wantFrom(t, x.b, "06/29/03", tur, nil)
	wantFrom(t, x.b, "good", cdb(0x2a, 0, 0, 0, 0, 1, 0, 0, 1), block(77))
	if r := wantFrom(t, x.b, "good", cdb(0x28, 0, 0, 0, 0, 1, 0, 0, 1), nil); string(r.in) != string(block(77)) {
		t.Errorf("% x: the other nexus reads % x", c[:], r.in[:16])
	}
}
