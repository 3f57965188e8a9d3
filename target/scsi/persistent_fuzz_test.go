package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
)

// FuzzReservations: whatever three initiators do about persistent reservations,
// what PERSISTENT RESERVE IN tells of them agrees with itself and with what each
// may do, and what is kept for a restart is what there is.
//
// Four bytes are a step: who; what; the type and APTPL; the two keys.
func FuzzReservations(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0x10, 1, 6, 1, 0x20, 0, 1, 5, 0x01, 1, 4, 3, 0x12})
	f.Add([]byte{0, 0, 0x80, 0x10, 1, 0, 0x80, 0x10, 2, 6, 0, 0x30, 0, 1, 4, 0x01, 1, 5, 0, 0x01, 2, 3, 0, 0x03})
	f.Add([]byte{0, 0, 0x80, 0x10, 0, 1, 1, 0x01, 0, 7, 0x81, 0x21, 0, 9, 0, 0, 1, 2, 1, 0x02})
	f.Add([]byte{0, 0, 0, 0x10, 1, 0, 0, 0x20, 0, 1, 2, 0x01, 0, 0, 0, 0x01, 2, 8, 0, 0, 1, 10, 0, 0})
	f.Add([]byte{0, 0, 0, 0x10, 1, 0, 0, 0x20, 0, 1, 0, 0x01, 2, 0, 0, 0x30})
	f.Fuzz(func(t *testing.T, steps []byte) {
		s := &testStore{}
		x := restart(t, s)
		w := &world{bench: x, nexuses: []*Nexus{x.a, x.b, x.target.NewNexus("iqn.2020-01.test:c,i,0x800000000003")}}
		for ; len(steps) >= 4; steps = steps[4:] {
			w.step(steps[:4])
			w.check(t, s)
			if t.Failed() {
				t.Fatalf("after % x", steps[:4])
			}
		}
	})
}

// world is a bench with three nexuses, and what was seen last.
type world struct {
	*bench
	nexuses    []*Nexus
	generation uint32
}

const (
	stepReset = iota + 8 // after the service actions
	stepColdReset
	stepReconnect
	stepKinds
)

func (w *world) step(b []byte) {
	who, what := int(b[0])%len(w.nexuses), b[1]%stepKinds
	n := w.nexuses[who]
	key, newKey := uint64(b[3]&3), uint64(b[3]>>4&3)
	kind := []reservationType{1, 3, 5, 6, 7, 8, 0, 2}[b[2]&7]
	switch what {
	case stepReset:
		n.LogicalUnitReset(lun1)
	case stepColdReset:
		n.ColdReset()
		w.generation = 0
	case stepReconnect:
		n.Close()
		w.nexuses[who] = w.target.NewNexus(n.initiator)
	case 7:
		c, list := moveTo(w.nexuses[int(b[0]>>4)%len(w.nexuses)].initiator, key, newKey, b[2]>>6&3)
		do(n, lun1, c, list)
	default:
		c, list := prout(what, kind, key, newKey, b[2]>>7)
		do(n, lun1, c, list)
	}
}

// seen is a registration as READ FULL STATUS tells of it.
type seen struct {
	key    uint64
	holder bool
	kind   reservationType
}

func (w *world) check(t *testing.T, s *testStore) {
	t.Helper()
	for _, n := range w.nexuses {
		for do(n, lun1, tur, nil).String()[:2] == "06" { // unit attentions
			continue
		}
	}
	all := w.fullStatus(t)
	w.checkKeys(t, all)
	kind := w.checkReservation(t, all)
	for _, n := range w.nexuses {
		me, registered := all[n.initiator]
		for name, c := range map[string]struct {
			cdb    *CDB
			writes bool
		}{"read": {read0, false}, "write": {write0, true}} {
			let := kind == noReservation || me.holder || registered && kind.admitsRegistered() ||
				!c.writes && (kind == 1 || kind == 5 || kind == 7)
			if r := do(n, lun1, c.cdb, block(0)); (r.status == Good) != let || r.status != Good && r.status != ReservationConflict {
				t.Errorf("%s of %s under type %d: %v, want admitted %v", name, n.initiator, kind, r, let)
			}
		}
	}
	w.checkSaved(t, s)
}

// reserveIn is the parameter data behind its header of PERSISTENT RESERVE IN.
func (w *world) reserveIn(t *testing.T, action byte) []byte {
	t.Helper()
	r := do(w.nexuses[0], lun1, cdb(0x5e, action, 0, 0, 0, 0, 0, 0xff, 0xff), nil)
	if r.status != Good {
		t.Fatalf("PERSISTENT RESERVE IN %d: %v", action, r)
	}
	generation := binary.BigEndian.Uint32(r.in)
	if generation < w.generation {
		t.Errorf("generation %d after %d", generation, w.generation)
	}
	w.generation = generation
	if n := binary.BigEndian.Uint32(r.in[4:]); int(n) != len(r.in)-8 {
		t.Fatalf("PERSISTENT RESERVE IN %d: length %d of % x", action, n, r.in)
	}
	return r.in[8:]
}

func (w *world) fullStatus(t *testing.T) map[string]seen {
	t.Helper()
	all := map[string]seen{}
	for b := w.reserveIn(t, 3); len(b) > 0; {
		n := binary.BigEndian.Uint32(b[20:])
		id, rest, ok := takeTransportID(b[24:][:n])
		if _, twice := all[id.name]; !ok || len(rest) > 0 || twice {
			t.Fatalf("full status % x", b)
		}
		all[id.name] = seen{binary.BigEndian.Uint64(b), b[12]&1 != 0, reservationType(b[13])}
		b = b[24+n:]
	}
	return all
}

func (w *world) checkKeys(t *testing.T, all map[string]seen) {
	t.Helper()
	left := map[uint64]int{}
	for _, g := range all {
		left[g.key]++
	}
	for b := w.reserveIn(t, 0); len(b) > 0; b = b[8:] {
		left[binary.BigEndian.Uint64(b)]--
	}
	for key, n := range left {
		if n != 0 || key == 0 {
			t.Errorf("key %d: %d more in the full status", key, n)
		}
	}
}

func (w *world) checkReservation(t *testing.T, all map[string]seen) (kind reservationType) {
	t.Helper()
	holders, key := 0, uint64(0)
	for _, g := range all {
		if g.holder {
			holders, kind, key = holders+1, g.kind, g.key
		} else if g.kind != 0 {
			t.Errorf("%+v holds nothing", g)
		}
	}
	if kind.allHold() {
		if holders != len(all) {
			t.Errorf("%d of %d hold type %d", holders, len(all), kind)
		}
		key = 0
	} else if holders > 1 {
		t.Errorf("%d hold type %d", holders, kind)
	}
	want := []byte{}
	if holders > 0 {
		want = append(binary.BigEndian.AppendUint64(want, key), 0, 0, 0, 0, 0, byte(kind), 0, 0)
	}
	if b := w.reserveIn(t, 1); !bytes.Equal(b, want) {
		t.Errorf("reservation % x, want % x", b, want)
	}
	return kind
}

// checkSaved compares what a restart would find with what there is.
func (w *world) checkSaved(t *testing.T, s *testStore) {
	t.Helper()
	have, want := &reservations{}, *w.lun.reserved.Load()
	if len(s.b) > 0 {
		var err error
		if have, _, _, err = parseMemory(s.b); err != nil {
			t.Fatalf("saved %s: %v", s.b, err)
		}
	}
	if !want.persist {
		want = reservations{}
	}
	// PRGENERATION is not kept, and that APTPL was asked for says nothing
	// where nobody is registered.
	have.generation, want.generation, have.persist, want.persist = 0, 0, false, false
	if fmt.Sprint(*have) != fmt.Sprint(want) {
		t.Errorf("saved %+v, have %+v", *have, want)
	}
}
