package scsi

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

const (
	testName    = "iqn.2017-01.io.kubevirt:wrapper"
	testBlocks  = 4096
	lun1        = uint64(1) << 48
	noSuchLUN   = uint64(7) << 48
	firstClient = "iqn.2020-01.test:a,i,0x800000000001"
	otherClient = "iqn.2020-01.test:b,i,0x800000000002"
)

// bench is a target with one logical unit, number 1, and two nexuses whose
// power-on unit attention is over.
type bench struct {
	disk   *testDisk
	lun    *LUN
	target *Target
	a, b   *Nexus
}

func testIdentity() Identity {
	return Identity{Vendor: "CNTRDISK", Product: "test disk", Revision: "1.0", Serial: "0123456789",
		ID: [16]byte{0xf1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x55}}
}

func newBench(t testing.TB, change func(*testDisk, *LUNOptions)) *bench {
	t.Helper()
	d := newTestDisk(testBlocks)
	o := LUNOptions{Identity: testIdentity()}
	if change != nil {
		change(d, &o)
	}
	l := NewLUN(d, o)
	l.back.least = 0
	t.Cleanup(l.Close)
	target := NewTarget(testName, map[uint64]*LUN{1: l})
	x := &bench{disk: d, lun: l, target: target, a: target.NewNexus(firstClient), b: target.NewNexus(otherClient)}
	for _, n := range []*Nexus{x.a, x.b} {
		if r := do(n, lun1, cdb(0x00), nil); r.String() != "06/29/00" {
			t.Fatalf("first command of a nexus: %v, want 06/29/00", r)
		}
	}
	return x
}

// cdb is a CDB that begins with these bytes.
func cdb(b ...byte) *CDB {
	c := CDB{}
	copy(c[:], b)
	return &c
}

// result is what a command came to.
type result struct {
	status  Status
	sense   []byte
	in      []byte
	aborted bool
}

// String is "good", the name of another status, or key/asc/ascq.
func (r result) String() string {
	switch r.status {
	case Good:
		return "good"
	case CheckCondition:
		key, code := r.keyAndCode()
		return fmt.Sprintf("%02x/%02x/%02x", key, code>>8, code&0xff)
	}
	return r.status.String()
}

func (r result) keyAndCode() (key byte, code uint16) {
	if r.sense[0]&0x7f == 0x72 {
		return r.sense[1], uint16(r.sense[2])<<8 | uint16(r.sense[3])
	}
	return r.sense[2], uint16(r.sense[12])<<8 | uint16(r.sense[13])
}

// do runs a command as a transport would, in pieces of 1000 bytes, each tried
// first without waiting.
func do(n *Nexus, lun uint64, c *CDB, out []byte) result {
	t := &Task{}
	return run(t, n, lun, c, out, 1000)
}

func run(t *Task, n *Nexus, lun uint64, c *CDB, out []byte, piece int) result {
	t.Begin(n, lun, c)
	r := result{}
	if t.Status() == Good {
		r.in = runIn(t, piece)
	}
	if t.Status() == Good {
		runOut(t, out[:min(len(out), int(t.Out()))], piece)
	}
	if t.TryFinish() == ErrWouldBlock {
		t.Finish()
	}
	r.status, r.sense, r.aborted = t.Status(), bytes.Clone(t.Sense()), t.Aborted()
	return r
}

func runIn(t *Task, piece int) []byte {
	in := make([]byte, t.In())
	for at := 0; at < len(in); at += piece {
		p := in[at:min(len(in), at+piece)]
		err := t.TryRead(p, int64(at))
		if err == ErrWouldBlock {
			err = t.Read(p, int64(at))
		}
		if err != nil {
			return in[:at]
		}
	}
	return in
}

func runOut(t *Task, out []byte, piece int) {
	for at := 0; at < len(out); at += piece {
		p := out[at:min(len(out), at+piece)]
		err := t.TryWrite(p, int64(at))
		if err == ErrWouldBlock {
			err = t.Write(p, int64(at))
		}
		if err != nil {
			return
		}
	}
}

// settle waits for the operation that runs, if any.
func (x *bench) settle() {
	if o := x.lun.back.operation.Load(); o != nil {
		<-o.done
	}
}

// want runs a command on nexus a and checks how it ends.
func (x *bench) want(t *testing.T, want string, c *CDB, out []byte) result {
	t.Helper()
	return wantFrom(t, x.a, want, c, out)
}

func wantFrom(t *testing.T, n *Nexus, want string, c *CDB, out []byte) result {
	t.Helper()
	r := do(n, lun1, c, out)
	if r.String() != want {
		t.Fatalf("% x: got %v (sense % x), want %v", c[:], r, r.sense, want)
	}
	return r
}

func readOnlyDisk(_ *testDisk, o *LUNOptions) { o.Access = blockdev.ReadOnly }
