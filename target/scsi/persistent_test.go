package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

const (
	keyA = 0xa0a0
	keyB = 0xb0b0
)

// prout is a PERSISTENT RESERVE OUT of a service action and its parameter list.
func prout(action byte, kind reservationType, key, newKey uint64, flags byte) (*CDB, []byte) {
	list := make([]byte, reserveList)
	reserveKey.Put(list, key)
	reserveNewKey.Put(list, newKey)
	list[reserveListFlags] = flags
	return cdb(0x5f, action, byte(kind), 0, 0, 0, 0, 0, reserveList), list
}

func wantPR(t *testing.T, n *Nexus, want string, action byte, kind reservationType, key, newKey uint64) {
	t.Helper()
	c, list := prout(action, kind, key, newKey, 0)
	wantFrom(t, n, want, c, list)
}

// registered is a bench on which both nexuses are registered and, unless kind
// is 0, the first has a reservation.
func registered(t *testing.T, kind reservationType) *bench {
	t.Helper()
	x := newBench(t, nil)
	wantPR(t, x.a, "good", 0, 0, 0, keyA)
	wantPR(t, x.b, "good", 6, 0, 77, keyB)
	if kind != noReservation {
		wantPR(t, x.a, "good", 1, kind, keyA, 0)
	}
	return x
}

var reservationTypes = []reservationType{1, 3, 5, 6, 7, 8}

// The tables of SPC and SBC, "Commands that are allowed in the presence of
// various reservations", for every row: from a nexus that is not registered,
// and from one that is and does not hold the reservation.
func TestPersistentReservationMatrix(t *testing.T) {
	const conflict = "RESERVATION CONFLICT"
	none := map[byte]bool{0x00: true, 0x03: true, 0x12: true, 0x25: true, 0xa0: true, 0x5e: true, 0x4d: true}
	read := map[byte]bool{0x08: true, 0x28: true, 0xa8: true, 0x88: true, 0x2f: true, 0xaf: true, 0x8f: true,
		0x34: true, 0x90: true, 0x37: true, 0xb7: true, 0x1a: true, 0x5a: true}
	for _, kind := range reservationTypes {
		x := registered(t, kind)
		c := x.target.NewNexus("iqn.2020-01.test:c,i,0x800000000003")
		wantFrom(t, c, "06/29/00", tur, nil)
		for _, row := range x.lun.table.ordered {
			isRead := read[row.opcode] || row.opcode == 0x9e && row.action == 0x12 || row.opcode == 0xa3 && row.action != 0x0a
			isNone := none[row.opcode] || row.opcode == 0x9e && row.action == 0x10 || row.opcode == 0xa3 && row.action == 0x0a
			for name, n := range map[string]*Nexus{"registered": x.b, "unregistered": c} {
				req := rowCDB(row)
				if row.opcode == 0x5f || row.opcode == 0x1b || row.opcode == 0x1e {
					continue // rules of their own, below
				}
				want := !isNone && !(isRead && !kind.excludesReads()) && !(kind >= 5 && n == x.b)
				r := do(n, lun1, req, make([]byte, 2<<20))
				switch row.opcode {
				case 0x16, 0x17, 0x56, 0x57:
					want = !(kind >= 5 && n == x.b)
				}
				if got := r.String() == conflict; got != want {
					t.Errorf("type %d, %s, %s: got %v, conflict %v", kind, row.name, name, r, want)
				}
				do(x.a, lun1, tur, nil) // unit attentions of what was let in
				do(x.b, lun1, tur, nil)
				do(c, lun1, tur, nil)
			}
			if r := do(x.a, lun1, rowCDB(row), make([]byte, 2<<20)); r.String() == conflict {
				if row.opcode != 0x5f {
					t.Errorf("type %d, %s: %v for the holder", kind, row.name, r)
				}
			}
			do(x.a, lun1, cdb(0x1b, 0, 0, 0, 1), nil)
		}
		wantFrom(t, c, "good", cdb(0x1b, 0, 0, 0, 1), nil) // start
		wantFrom(t, c, conflict, cdb(0x1b, 0, 0, 0, 0), nil)
		wantFrom(t, c, "good", cdb(0x1e, 0, 0, 0, 0), nil) // allow
		wantFrom(t, c, conflict, cdb(0x1e, 0, 0, 0, 1), nil)
	}
}

// Who learns what, by service action and type.
func TestPersistentReservationAttentions(t *testing.T) {
	type step struct {
		action       byte
		from         string // a holds the reservation
		kind         reservationType
		key, new     uint64
		toA, toB     string
		kindAfter    reservationType
		holderAfterA bool
		keys         int
	}
	for _, c := range []struct {
		name string
		kind reservationType
		step
	}{
		{"RELEASE of Write Exclusive", 1, step{2, "a", 1, keyA, 0, "good", "good", 0, false, 2}},
		{"RELEASE of Exclusive Access", 3, step{2, "a", 3, keyA, 0, "good", "good", 0, false, 2}},
		{"RELEASE of registrants only", 5, step{2, "a", 5, keyA, 0, "good", "06/2a/04", 0, false, 2}},
		{"RELEASE of all registrants by another of them", 8, step{2, "b", 8, keyB, 0, "06/2a/04", "good", 0, false, 2}},
		{"RELEASE by one who does not hold it", 5, step{2, "b", 5, keyB, 0, "good", "good", 5, true, 2}},
		{"unregister the holder, Exclusive Access", 3, step{0, "a", 0, keyA, 0, "good", "good", 0, false, 1}},
		{"unregister the holder, registrants only", 6, step{0, "a", 0, keyA, 0, "good", "06/2a/04", 0, false, 1}},
		{"unregister one of all", 7, step{0, "a", 0, keyA, 0, "RESERVATION CONFLICT", "good", 7, false, 1}},
		{"unregister another", 5, step{0, "b", 0, keyB, 0, "good", "RESERVATION CONFLICT", 5, true, 1}},
		{"CLEAR", 3, step{3, "b", 0, keyB, 0, "06/2a/03", "good", 0, false, 0}},
		{"PREEMPT the holder", 3, step{4, "b", 1, keyB, keyA, "06/2a/05", "good", 1, false, 1}},
		{"PREEMPT another's registration", 5, step{4, "a", 0, keyA, keyB, "good", "06/2a/05", 5, true, 1}},
		{"PREEMPT all", 7, step{4, "b", 3, keyB, 0, "06/2a/05", "good", 3, false, 1}},
		{"PREEMPT one of all", 7, step{4, "b", 0, keyB, keyA, "06/2a/05", "good", 7, false, 1}},
		{"PREEMPT itself, other type", 5, step{4, "a", 3, keyA, keyA, "good", "06/2a/04", 3, true, 2}},
		{"PREEMPT itself, same type", 5, step{4, "a", 5, keyA, keyA, "good", "good", 5, true, 2}},
		{"PREEMPT AND ABORT the holder", 1, step{5, "b", 6, keyB, keyA, "06/2a/05", "good", 6, false, 1}},
		{"PREEMPT without reservation", 0, step{4, "a", 3, keyA, keyB, "good", "06/2a/05", 0, false, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := registered(t, c.kind)
			before := x.lun.reserved.Load().generation
			n := map[string]*Nexus{"a": x.a, "b": x.b}[c.from]
			wantPR(t, n, "good", c.action, c.step.kind, c.key, c.new)
			// WRITE sees what TEST UNIT READY passes by.
			for _, to := range []struct {
				n    *Nexus
				want string
			}{{x.a, c.toA}, {x.b, c.toB}} {
				if to.want[:2] == "06" {
					wantFrom(t, to.n, to.want, tur, nil)
				}
				wantFrom(t, to.n, "good", tur, nil)
				if to.want == "RESERVATION CONFLICT" {
					wantFrom(t, to.n, to.want, write0, block(0))
				}
			}
			r := x.lun.reserved.Load()
			if r.kind != c.kindAfter || r.kind != 0 && !r.kind.allHold() && (r.holder == firstClient) != c.holderAfterA {
				t.Errorf("reservation of type %d held by %q", r.kind, r.holder)
			}
			if len(r.registered) != c.keys {
				t.Errorf("%d registrations, want %d", len(r.registered), c.keys)
			}
			if grows := c.action != 2; (r.generation == before+1) != grows {
				t.Errorf("generation %d after %d", r.generation, before)
			}
		})
	}
}

// A registration is that of the port, not of a session.
func TestRegistrationOutlivesTheNexus(t *testing.T) {
	x := registered(t, exclusiveAccess)
	x.a.Close()
	wantFrom(t, x.b, "RESERVATION CONFLICT", read0, nil)
	x.b.LogicalUnitReset(lun1)
	wantFrom(t, x.b, "06/29/03", tur, nil)
	wantFrom(t, x.b, "RESERVATION CONFLICT", read0, nil)
	again := x.target.NewNexus(firstClient)
	wantFrom(t, again, "06/29/00", tur, nil)
	wantFrom(t, again, "good", read0, nil)
	wantPR(t, again, "good", 2, exclusiveAccess, keyA, 0)
	wantFrom(t, x.b, "good", read0, nil)
}

// PREEMPT AND ABORT returns when the tasks of those preempted are off the disk.
func TestPreemptAndAbort(t *testing.T) {
	x := registered(t, writeExclusive)
	task := begin(t, x.a, write0)
	own := begin(t, x.b, read0)
	wantPR(t, x.b, "good", 5, writeExclusive, keyB, keyA)
	if !task.Aborted() || own.Aborted() {
		t.Errorf("aborted: preempted %v, preempting %v, want true, false", task.Aborted(), own.Aborted())
	}
	if err := task.Write(block(9), 0); err != ErrFailed {
		t.Errorf("write of an aborted task: %v", err)
	}
	if !bytes.Equal(x.disk.content(0, 512), block(0)) {
		t.Error("it was written")
	}
	wantFrom(t, x.a, "06/2a/05", tur, nil)
	wantFrom(t, x.a, "06/2f/00", tur, nil)
	wantFrom(t, x.a, "RESERVATION CONFLICT", write0, nil)
}

// moveList is the parameter list of REGISTER AND MOVE.
func moveTo(port string, key, newKey uint64, flags byte) (*CDB, []byte) {
	id := appendTransportID(nil, port)
	list := make([]byte, moveListID, moveListID+len(id))
	reserveKey.Put(list, key)
	reserveNewKey.Put(list, newKey)
	list[moveFlags] = flags
	movePort.Put(list, relativePort)
	moveIDs.Put(list, uint32(len(id)))
	list = append(list, id...)
	return cdb(0x5f, 7, 0, 0, 0, 0, 0, 0, byte(len(list))), list
}

func TestRegisterAndMove(t *testing.T) {
	x := registered(t, exclusiveAccess)
	c, list := moveTo(otherClient, keyB, 5, 0)
	wantFrom(t, x.b, "RESERVATION CONFLICT", c, list) // does not hold it
	c, list = moveTo(firstClient, keyA, 5, 0)
	wantFrom(t, x.a, "05/26/00", c, list) // to itself
	c, list = moveTo(otherClient, keyA, 0, 0)
	wantFrom(t, x.a, "05/26/00", c, list) // key 0
	c, list = moveTo(otherClient, keyA, 5, 0)
	list[movePort] = 9
	wantFrom(t, x.a, "05/26/00", c, list) // no such port
	c, list = moveTo(otherClient, keyA, 5, flagUnreg)
	wantFrom(t, x.a, "good", c, list)
	wantFrom(t, x.a, "RESERVATION CONFLICT", read0, nil)
	wantFrom(t, x.b, "good", write0, block(0))
	r := wantFrom(t, x.b, "good", cdb(0x5e, 0, 0, 0, 0, 0, 0, 0, 255), nil)
	if want := []byte{0, 0, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 5}; !bytes.Equal(r.in, want) {
		t.Errorf("keys % x, want % x", r.in, want)
	}

	x = registered(t, exclusiveAccessAllRegistrants)
	c, list = moveTo(otherClient, keyA, 5, 0)
	wantFrom(t, x.a, "RESERVATION CONFLICT", c, list)
}

// An initiator named without a port stands for all its ports that are here.
func TestSpecifiedInitiator(t *testing.T) {
	x := newBench(t, nil)
	id := append([]byte{transportProtocol, 0, 0, 20}, "iqn.2020-01.test:b\x00\x00"...)
	c, list := prout(0, 0, 0, keyA, flagSpecIPT)
	list = binary.BigEndian.AppendUint32(list, uint32(len(id)))
	list = append(list, id...)
	c[8] = byte(len(list))
	x.want(t, "good", c, list)
	if r := x.lun.reserved.Load(); r.find(firstClient) == nil || r.find(otherClient) == nil || len(r.registered) != 2 {
		t.Errorf("registered %v", r.registered)
	}
}

func TestTransportID(t *testing.T) {
	for _, port := range []string{firstClient, "iqn.a,i,0x0123456789ab", "iqn." + string(bytes.Repeat([]byte{'x'}, 219)) + ",i,0x0123456789ab"} {
		b := appendTransportID(nil, port)
		id, rest, ok := takeTransportID(append(b, 1))
		if !ok || id.name != port || !id.port || len(rest) != 1 {
			t.Errorf("%s: got %v, %d bytes left, %v", port, id, len(rest), ok)
		}
		for n := range b {
			if _, _, ok := takeTransportID(b[:n]); ok {
				t.Errorf("%s: %d of %d bytes are taken", port, n, len(b))
			}
		}
	}
	for _, bad := range []string{"\x85\x00\x00\x14iqn.a", "\x45\x00\x00\x14iqn.a", "\x05\x00\x00\x14iqn.a,i,0x012345",
		"\x45\x00\x00\x18iqn.a,i,0x01234567zzzz\x00\x00", "\x05\x00\x00\x14iqn.a\x00b"} {
		if id, _, ok := takeTransportID(append([]byte(bad), make([]byte, 30)...)); ok {
			t.Errorf("%q: taken as %v", bad, id)
		}
	}
}

func TestRegistrationsAreLimited(t *testing.T) {
	x := newBench(t, nil)
	c, list := prout(6, 0, 0, 1, 0)
	for i := range maxRegistrations {
		n := x.target.NewNexus(fmt.Sprintf("iqn.x,i,0x%012x", i))
		do(n, lun1, tur, nil)
		wantFrom(t, n, "good", c, list)
		n.Close()
	}
	x.want(t, "05/55/04", c, list)
}

// SPC-2 reservations and persistent ones exclude each other.
func TestReserve6AndPersistent(t *testing.T) {
	const conflict = "RESERVATION CONFLICT"
	x := newBench(t, nil)
	x.want(t, "good", reserve, nil)
	for _, n := range []*Nexus{x.a, x.b} {
		wantPR(t, n, conflict, 0, 0, 0, keyA)
		wantFrom(t, n, conflict, cdb(0x5e, 0, 0, 0, 0, 0, 0, 0, 8), nil)
	}
	x.want(t, "good", release, nil)
	wantPR(t, x.a, "good", 0, 0, 0, keyA)
	for _, n := range []*Nexus{x.a, x.b} {
		wantFrom(t, n, conflict, reserve, nil)
		wantFrom(t, n, conflict, release, nil)
	}
	wantPR(t, x.a, "good", 1, exclusiveAccess, keyA, 0)
	x.want(t, "good", reserve, nil) // has no effect
	x.want(t, "good", release, nil)
	wantFrom(t, x.b, conflict, reserve, nil)
	if x.lun.holder.Load() != nil {
		t.Error("RESERVE (6) took effect")
	}
}

// testStore is a Store in memory.
type testStore struct {
	mu    sync.Mutex
	b     []byte
	fail  error
	saves int
}

func (s *testStore) Load() ([]byte, error) { return s.b, s.fail }
func (s *testStore) Save(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	s.b = bytes.Clone(b)
	s.saves++
	return nil
}

// restart is a new bench with the disk's reservations from before.
func restart(t *testing.T, s *testStore) *bench {
	t.Helper()
	d := newTestDisk(testBlocks)
	l := NewLUN(d, LUNOptions{Identity: testIdentity(), Store: s})
	l.back.least = 0
	t.Cleanup(l.Close)
	if err := l.Restore(); err != nil {
		t.Fatal(err)
	}
	target := NewTarget(testName, map[uint64]*LUN{1: l})
	x := &bench{disk: d, lun: l, target: target, a: target.NewNexus(firstClient), b: target.NewNexus(otherClient)}
	do(x.a, lun1, tur, nil)
	do(x.b, lun1, tur, nil)
	return x
}

func TestPersistThroughPowerLoss(t *testing.T) {
	s := &testStore{}
	x := restart(t, s)
	if r := x.want(t, "good", cdb(0x5e, 2, 0, 0, 0, 0, 0, 0, 8), nil); r.in[2]&capablePTPL == 0 || r.in[3]&capablePTPLA != 0 {
		t.Errorf("capabilities % x", r.in)
	}
	c, list := prout(0, 0, 0, keyA, flagAPTPL)
	x.want(t, "good", c, list)
	c, list = prout(0, 0, 0, keyB, flagAPTPL|flagAllTgPt)
	wantFrom(t, x.b, "good", c, list)
	wantPR(t, x.b, "good", 1, exclusiveAccessRegistrantsOnly, keyB, 0)
	want := x.lun.reserved.Load()

	x = restart(t, s)
	got := x.lun.reserved.Load()
	if fmt.Sprint(got.registered, got.kind, got.holder, got.persist) != fmt.Sprint(want.registered, want.kind, want.holder, want.persist) {
		t.Errorf("after a restart: %+v, want %+v", got, want)
	}
	if got.generation != 0 {
		t.Errorf("generation %d after power on", got.generation)
	}
	x.want(t, "good", read0, nil)
	c3 := x.target.NewNexus("iqn.2020-01.test:c,i,0x800000000003")
	do(c3, lun1, tur, nil)
	wantFrom(t, c3, "RESERVATION CONFLICT", read0, nil)

	// What cannot be saved does not happen.
	s.fail = errors.New("no space")
	wantPR(t, x.a, "04/44/00", 4, exclusiveAccess, keyA, keyB)
	if x.lun.reserved.Load() != got {
		t.Error("the reservation changed all the same")
	}
	s.fail = nil

	// APTPL 0 forgets with the next restart, and not before.
	c, list = prout(6, 0, 0, keyA, 0)
	x.want(t, "good", c, list)
	wantFrom(t, c3, "RESERVATION CONFLICT", read0, nil)
	saves := s.saves
	wantPR(t, x.a, "good", 4, exclusiveAccess, keyA, keyB)
	if s.saves != saves {
		t.Error("saved without APTPL")
	}
	x = restart(t, s)
	if r := x.lun.reserved.Load(); len(r.registered) != 0 || r.kind != 0 || r.persist {
		t.Errorf("after a restart without APTPL: %+v", r)
	}
}

// A power on ends persistent reservations unless APTPL was asked for, and
// begins PRGENERATION anew; it does so at a running target as well.
func TestColdResetEndsReservations(t *testing.T) {
	for _, aptpl := range []bool{false, true} {
		t.Run(fmt.Sprintf("APTPL %v", aptpl), func(t *testing.T) {
			x := newBench(t, func(_ *testDisk, o *LUNOptions) { o.Store = &testStore{} })
			flags, want := byte(0), "good"
			if aptpl {
				flags, want = flagAPTPL, "RESERVATION CONFLICT"
			}
			c, list := prout(0, 0, 0, keyA, flags)
			x.want(t, "good", c, list)
			wantPR(t, x.a, "good", 1, exclusiveAccess, keyA, 0)
			x.b.LogicalUnitReset(lun1) // is none
			wantFrom(t, x.b, "06/29/03", tur, nil)
			wantFrom(t, x.b, "RESERVATION CONFLICT", read0, nil)
			x.b.ColdReset()
			wantFrom(t, x.b, "06/29/00", tur, nil)
			wantFrom(t, x.b, want, read0, nil)
			if r := x.lun.reserved.Load(); r.generation != 0 || r.persist != aptpl || (len(r.registered) == 1) != aptpl {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestRestoreRefusesWhatCannotBe(t *testing.T) {
	for _, text := range []string{
		"{", "[]", `{"version":2}`, `{"version":1,"more":1}`, `{"version":1} {}`,
		`{"version":1,"registrations":[{"port":"","key":1}]}`,
		`{"version":1,"registrations":[{"port":"a","key":0}]}`,
		`{"version":1,"registrations":[{"port":"a","key":1},{"port":"a","key":2}]}`,
		`{"version":1,"registrations":[{"port":"a","key":1}],"reservation":2,"holder":"a"}`,
		`{"version":1,"registrations":[{"port":"a","key":1}],"reservation":1,"holder":"b"}`,
		`{"version":1,"registrations":[{"port":"a","key":1}],"reservation":1}`,
		`{"version":1,"registrations":[{"port":"a","key":1}],"reservation":7,"holder":"a"}`,
		`{"version":1,"registrations":[{"port":"a","key":1}],"holder":"a"}`,
		`{"version":1,"reservation":7}`,
	} {
		l := NewLUN(blockdev.NewMem(1<<20), LUNOptions{Store: &testStore{b: []byte(text)}})
		if err := l.Restore(); err == nil {
			t.Errorf("%s: taken as %+v", text, l.reserved.Load())
		}
	}
	l := NewLUN(blockdev.NewMem(1<<20), LUNOptions{Store: &testStore{fail: errors.New("no file")}})
	if l.Restore() == nil {
		t.Error("an unreadable store was taken as empty")
	}
}

// Mode parameters that are saved come back after a reset and a restart; those
// that are not do not.
func TestSavedModePages(t *testing.T) {
	s := &testStore{}
	x := restart(t, s)
	page := []byte{0, 0, 0, 0, 0x0a, 0x0a, 0x06, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0}
	x.want(t, "good", cdb(0x15, 0x11, 0, 0, 16), page) // D_SENSE, saved
	page[6], page[8] = 0x02, 0x08
	x.want(t, "good", cdb(0x15, 0x10, 0, 0, 16), page) // SWP instead, not saved
	for pc, want := range map[byte]modeBits{0x00: modeSWP, 0x40: modeSWP | modeDescriptorSense | modeTAS, 0x80: 0, 0xc0: modeDescriptorSense} {
		r := x.want(t, "good", cdb(0x1a, 8, 0x0a|pc, 0, 255), nil)
		if got := parseControlPage(r.in[4:]); got != want || r.in[4] != 0x8a {
			t.Errorf("page control %#x: %v in % x, want %v", pc, got, r.in, want)
		}
	}
	x.a.LogicalUnitReset(lun1)
	if got := x.lun.modes(); got != modeDescriptorSense {
		t.Errorf("after a reset: %v", got)
	}
	if got := restart(t, s).lun.modes(); got != modeDescriptorSense {
		t.Errorf("after a restart: %v", got)
	}
	s.fail = errors.New("no space")
	do(x.a, lun1, tur, nil)
	x.want(t, "04/44/00", cdb(0x15, 0x11, 0, 0, 16), page)
	if got := x.lun.modes(); got != modeDescriptorSense {
		t.Errorf("after a save that failed: %v", got)
	}
}
