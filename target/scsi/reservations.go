package scsi

import "slices"

// Persistent reservations, SPC "Reservations": what is kept and how it changes.
//
// A registration belongs to an I_T nexus and survives it: it goes by the name
// of the initiator port, as there is one target port. All that is kept is one
// value, reservations, that never changes once it is in LUN.reserved: the gate
// reads it without a lock, and a change makes a new one.

// reservationType is the TYPE of a persistent reservation.
type reservationType uint8

const (
	noReservation                  reservationType = 0
	writeExclusive                 reservationType = 1
	exclusiveAccess                reservationType = 3
	writeExclusiveRegistrantsOnly  reservationType = 5
	exclusiveAccessRegistrantsOnly reservationType = 6
	writeExclusiveAllRegistrants   reservationType = 7
	exclusiveAccessAllRegistrants  reservationType = 8
)

// exists reports whether SPC defines the type.
func (k reservationType) exists() bool {
	return k == writeExclusive || k == exclusiveAccess || k.admitsRegistered() && k <= exclusiveAccessAllRegistrants
}

// admitsRegistered reports whether every registered nexus is let in.
func (k reservationType) admitsRegistered() bool { return k >= writeExclusiveRegistrantsOnly }

// allHold reports whether every registered nexus is a holder.
func (k reservationType) allHold() bool { return k >= writeExclusiveAllRegistrants }

func (k reservationType) excludesReads() bool {
	return k == exclusiveAccess || k == exclusiveAccessRegistrantsOnly || k == exclusiveAccessAllRegistrants
}

// registration is one registered I_T nexus.
type registration struct {
	port     string // name of the initiator port
	key      uint64 // never 0
	allPorts bool   // ALL_TG_PT: a claim on all target ports, of which there is one
}

// reservations are the registrations and the persistent reservation of a
// logical unit.
type reservations struct {
	generation uint32 // PRGENERATION
	persist    bool   // APTPL was 1 the last time it was said
	registered []registration
	kind       reservationType
	holder     string // port; empty where all hold
}

// maxRegistrations is how many a logical unit keeps.
const maxRegistrations = 256

// find returns the registration of a port, or nil.
func (r *reservations) find(port string) *registration {
	for i := range r.registered {
		if r.registered[i].port == port {
			return &r.registered[i]
		}
	}
	return nil
}

// holds reports whether a port is a holder of the reservation.
func (r *reservations) holds(port string) bool {
	switch {
	case r.kind == noReservation:
		return false
	case r.kind.allHold():
		return r.find(port) != nil
	}
	return r.holder == port
}

// heldBy reports whether a key is one that a holder goes by in PREEMPT: 0 for
// all of them.
func (r *reservations) heldBy(key uint64) bool {
	switch {
	case r.kind == noReservation:
		return false
	case r.kind.allHold():
		return key == 0
	}
	return r.find(r.holder).key == key
}

func (r *reservations) hasKey(key uint64) bool {
	return slices.ContainsFunc(r.registered, func(g registration) bool { return g.key == key })
}

// change is reservations on their way to the next state, and what others have
// to be told of that.
type change struct {
	reservations
	by    string // port that changes them, and is told nothing
	tell  []notice
	abort []string // ports whose tasks end
}

// notice is a unit attention for a port.
type notice struct {
	port string
	code senseCode
}

// notify tells all registered nexuses, but the one that makes the change.
func (c *change) notify(code senseCode) {
	for _, g := range c.registered {
		if g.port != c.by {
			c.tell = append(c.tell, notice{g.port, code})
		}
	}
}

// register adds a registration or changes its key.
func (c *change) register(g registration) error {
	if old := c.find(g.port); old != nil {
		*old = g
		return nil
	}
	if len(c.registered) >= maxRegistrations {
		return errNoRegistrations
	}
	c.registered = append(c.registered, g)
	return nil
}

// unregister removes the registration of a port, and the reservation with it
// if that leaves nobody to hold it.
func (c *change) unregister(port string) {
	was := c.kind
	c.remove(func(g registration) bool { return g.port == port })
	if c.kind == noReservation && (was == writeExclusiveRegistrantsOnly || was == exclusiveAccessRegistrantsOnly) {
		c.notify(codeReservationsReleased)
	}
}

// remove removes registrations, and the reservation if nobody is left to hold
// it.
func (c *change) remove(which func(registration) bool) {
	c.registered = slices.DeleteFunc(c.registered, which)
	if c.kind.allHold() && len(c.registered) == 0 || !c.kind.allHold() && c.find(c.holder) == nil {
		c.release()
	}
}

func (c *change) release() { c.kind, c.holder = noReservation, "" }

// reserve makes port the holder of a reservation.
func (c *change) reserve(kind reservationType, port string) {
	c.kind, c.holder = kind, port
	if kind.allHold() {
		c.holder = ""
	}
}

// preempt removes the registrations that which selects and, if it took the
// reservation from its holders, gives it to the port that makes the change.
// That keeps its registration where it gets the reservation.
func (c *change) preempt(which func(registration) bool, kind reservationType) {
	takes, was := kind != noReservation, c.kind
	for _, g := range c.registered {
		if which(g) && g.port != c.by {
			c.tell = append(c.tell, notice{g.port, codeRegistrationsPreempted})
			c.abort = append(c.abort, g.port)
		}
	}
	c.remove(func(g registration) bool { return which(g) && !(takes && g.port == c.by) })
	if !takes {
		return
	}
	if was != kind {
		c.notify(codeReservationsReleased)
	}
	c.reserve(kind, c.by)
}

// changeReservations lets f make the next state and puts it in place, if f
// finds nothing wrong with that and it could be saved. It returns the nexuses
// whose tasks PREEMPT AND ABORT ends.
func (l *LUN) changeReservations(by string, f func(*change) error) ([]*itl, error) {
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.holder.Load() != nil {
		return nil, errConflict
	}
	old := l.reserved.Load()
	c := change{reservations: *old, by: by}
	c.registered = slices.Clone(old.registered)
	if err := f(&c); err != nil {
		return nil, err
	}
	if old.persist || c.persist {
		if err := l.save(&c.reservations, modeBits(l.saved.Load()), l.pending()); err != nil {
			return nil, errInternal
		}
	}
	l.reserved.Store(&c.reservations)
	return l.tell(&c), nil
}

// tell raises the unit attentions of a change and picks the nexuses of the
// ports whose tasks end.
func (l *LUN) tell(c *change) (ends []*itl) {
	if len(c.tell) == 0 && len(c.abort) == 0 {
		return nil
	}
	for _, i := range l.nexuses() {
		for _, n := range c.tell {
			if n.port == i.nexus.initiator {
				i.raise(n.code)
			}
		}
		if slices.Contains(c.abort, i.nexus.initiator) {
			ends = append(ends, i)
		}
	}
	return ends
}
