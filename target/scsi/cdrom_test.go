package scsi

import (
	"bytes"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// large is a disk of any size that reads as zeros.
type large struct {
	blockdev.Mem
	size int64
}

func (d *large) Size() int64 { return d.size }

func newDrive(t *testing.T, blocks int64) (*LUN, *Nexus, *Nexus) {
	t.Helper()
	l := NewLUN(&large{size: blocks * discBlock}, LUNOptions{Type: CDROM, Identity: testIdentity()})
	target := NewTarget(testName, map[uint64]*LUN{1: l})
	a, b := target.NewNexus(firstClient), target.NewNexus(otherClient)
	for _, n := range []*Nexus{a, b} {
		wantFrom(t, n, "06/29/00", cdb(0x00), nil)
	}
	return l, a, b
}

// TestDVD: what is too large for a CD is a DVD.
func TestDVD(t *testing.T) {
	_, n, _ := newDrive(t, maxCD)
	if r := wantFrom(t, n, "good", cdb(0x46, 2, 0, 0, 0, 0, 0, 0, 8), nil); r.in[7] != profileCD {
		t.Errorf("80 minutes: profile %#x, want a CD", r.in[7])
	}
	_, n, _ = newDrive(t, maxCD+1)
	r := wantFrom(t, n, "good", cdb(0x46, 1, 0, 0, 0, 0, 0, 0, 255), nil)
	if r.in[7] != profileDVD || !bytes.Contains(r.in, []byte{0, 0x1f, 1, 0}) || bytes.Contains(r.in, []byte{0, 0x1e, 9}) {
		t.Errorf("configuration: % x", r.in)
	}
	r = wantFrom(t, n, "good", cdb(0xad, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff), nil)
	last := firstDataSector + maxCD
	want := []byte{0x08, 0x02, 0, 0, 1, 0x0f, 1, 0, 0, 3, 0, 0, 0, byte(last >> 16), byte(last >> 8), byte(last & 0xff)}
	if len(r.in) != 4+physicalLen || !bytes.Equal(r.in[:16], want) {
		t.Errorf("physical format: %d bytes % x, want % x", len(r.in), r.in[:16], want)
	}
	if r = wantFrom(t, n, "good", cdb(0xad, 0, 0, 0, 0, 0, 0, 1, 0, 255), nil); !bytes.Equal(r.in, []byte{0, 6, 0, 0, 0, 0, 0, 0}) {
		t.Errorf("copyright: % x", r.in)
	}
	for _, c := range []*CDB{cdb(0xad, 1, 0, 0, 0, 0, 0, 0, 0, 255), cdb(0xad, 0, 0, 0, 0, 0, 1, 0, 0, 255), cdb(0xad, 0, 0, 0, 0, 0, 0, 4, 0, 255)} {
		wantFrom(t, n, "05/24/00", c, nil)
	}
}

// TestLargeDisc: what cannot be said is said as far as it can be.
func TestLargeDisc(t *testing.T) {
	_, n, _ := newDrive(t, 1<<33)
	r := wantFrom(t, n, "good", cdb(0x25), nil)
	if !bytes.Equal(r.in[:4], []byte{0xff, 0xff, 0xff, 0xff}) {
		t.Errorf("capacity: % x", r.in)
	}
	r = wantFrom(t, n, "good", cdb(0x43, 2, 0, 0, 0, 0, 0xaa, 0, 12), nil)
	if !bytes.Equal(r.in[8:], []byte{0, 255, 59, 74}) {
		t.Errorf("lead-out: % x", r.in)
	}
	r = wantFrom(t, n, "good", cdb(0xad, 0, 0, 0, 0, 0, 0, 0, 0, 16), nil)
	if !bytes.Equal(r.in[12:16], []byte{0, 0xff, 0xff, 0xff}) {
		t.Errorf("last sector: % x", r.in)
	}
}

// TestPreventBelongsToNexus: one keeps the disc from the other's eject, and no
// longer than it is there itself.
func TestPreventBelongsToNexus(t *testing.T) {
	l, a, b := newDrive(t, 1000)
	eject, load := cdb(0x1b, 0, 0, 0, 2), cdb(0x1b, 0, 0, 0, 3)
	wantFrom(t, a, "good", cdb(0x1e, 0, 0, 0, 1), nil)
	wantFrom(t, b, "05/53/02", eject, nil)
	wantFrom(t, b, "good", cdb(0x1e), nil) // which is not a's to take back
	wantFrom(t, b, "05/53/02", eject, nil)
	wantFrom(t, a, "05/24/00", cdb(0x1e, 0, 0, 0, 2), nil)
	a.Close()
	wantFrom(t, b, "good", eject, nil)
	wantFrom(t, b, "02/3a/02", cdb(0x28, 0, 0, 0, 0, 0, 0, 0, 1), nil)
	wantFrom(t, b, "good", load, nil)
	wantFrom(t, b, "06/28/00", cdb(0x28, 0, 0, 0, 0, 0, 0, 0, 1), nil)
	wantFrom(t, b, "good", load, nil) // it is in already
	wantFrom(t, b, "good", cdb(0x00), nil)

	// A reset is as good as the power switch.
	wantFrom(t, b, "good", eject, nil)
	l.reset(codeLogicalUnitReset, nil)
	wantFrom(t, b, "06/29/03", cdb(0x00), nil)
	wantFrom(t, b, "good", cdb(0x00), nil)
	wantFrom(t, b, "good", cdb(0x1e, 0, 0, 0, 1), nil)
	l.reset(codeLogicalUnitReset, nil)
	wantFrom(t, b, "06/29/03", cdb(0x00), nil)
	wantFrom(t, b, "good", eject, nil)
}

// FuzzDriveCDB: whatever 16 bytes come, a drive ends the command well, and
// nothing is written.
func FuzzDriveCDB(f *testing.F) {
	_, vectors := parseVectors(f, "testdata/vectors/cdrom.hex")
	for _, v := range vectors {
		f.Add(v.cdb[:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x := newBench(t, vectorDisk(t, "cdrom"))
		before := bytes.Clone(x.disk.content(0, testBlocks*512))
		c := cdb(b[:min(len(b), 16)]...)
		task := &Task{}
		r := run(task, x.a, lun1, c, make([]byte, 4096), 4096)
		if task.In() < 0 || task.In() > testBlocks*512 || task.Out() != 0 {
			t.Errorf("% x: %d bytes in, %d bytes out", c[:], task.In(), task.Out())
		}
		checkEnd(t, c, r)
		if !bytes.Equal(before, x.disk.content(0, testBlocks*512)) {
			t.Errorf("% x: the disc has changed", c[:])
		}
	})
}
