package scsi

import (
	"slices"

	"github.com/containerdisk/containerdisk/internal/be"
)

// PERSISTENT RESERVE OUT, SPC. Each service action is a row.
const (
	reserveOutScope         = 2 // SCOPE and TYPE
	reserveOutLength be.U32 = 5

	reserveOutRegister       = 0x00
	reserveOutRegisterIgnore = 0x06
	reserveOutRegisterMove   = 0x07
)

// The parameter list, of 24 bytes but for TransportIDs.
const (
	reserveKey       be.U64 = 0
	reserveNewKey    be.U64 = 8 // SERVICE ACTION RESERVATION KEY
	reserveListFlags        = 20
	flagSpecIPT             = 0x08
	flagAllTgPt             = 0x04
	flagAPTPL               = 0x01
	reserveIDs       be.U32 = 24 // length of the TransportIDs, with SPEC_I_PT
	reserveListID           = 28
	reserveList             = 24
)

// The parameter list of REGISTER AND MOVE.
const (
	moveFlags         = 17
	flagUnreg         = 0x02
	movePort   be.U16 = 18
	moveIDs    be.U32 = 20
	moveListID        = 24
)

// maxReserveList is the longest parameter list: it has room for 32 TransportIDs
// of the longest names, or 100 of usual ones.
const maxReserveList = 8 << 10

// relativePort is the relative target port identifier of the one target port.
const relativePort = 1

func (t *Task) beginReserveOut() error {
	if t.lun.holder.Load() != nil {
		return errConflict
	}
	n := reserveOutLength.Get(t.cdb[:])
	if n < reserveList || n > maxReserveList {
		return errListLength
	}
	return t.expect(int(n))
}

// changeReserved is the frame of all service actions: the key that the nexus
// has must be known, but to REGISTER AND IGNORE EXISTING KEY.
func (t *Task) changeReserved(f func(c *change, list []byte) error) ([]*itl, error) {
	list, err := t.list()
	if err != nil {
		return nil, err
	}
	by := t.from.initiator
	return t.lun.changeReservations(by, func(c *change) error {
		if action := t.cdb[1] & maskAction; action != reserveOutRegisterIgnore {
			have := uint64(0)
			if g := c.find(by); g != nil {
				have = g.key
			}
			if have != reserveKey.Get(list) || have == 0 && action != reserveOutRegister {
				return errConflict
			}
		}
		if action := t.cdb[1] & maskAction; action != reserveOutRegisterMove && len(list) != reserveList &&
			list[reserveListFlags]&flagSpecIPT == 0 {
			return errListLength
		}
		return f(c, list)
	})
}

// checkPersist sets what APTPL asks for; without a store that may only be 0.
func (t *Task) checkPersist(c *change, flags byte, at int) error {
	c.persist = flags&flagAPTPL != 0
	if c.persist && t.lun.store == nil {
		return invalidList(at, 0)
	}
	return nil
}

// registerKey is REGISTER and REGISTER AND IGNORE EXISTING KEY.
func (t *Task) registerKey() error {
	_, err := t.changeReserved(func(c *change, list []byte) error {
		flags, key := list[reserveListFlags], reserveNewKey.Get(list)
		known := c.find(c.by) != nil
		if flags&flagSpecIPT != 0 && (known || t.cdb[1]&maskAction == reserveOutRegisterIgnore) {
			return invalidList(reserveListFlags, 3)
		}
		if err := t.checkPersist(c, flags, reserveListFlags); err != nil {
			return err
		}
		if key == 0 {
			if known {
				c.unregister(c.by)
				c.generation++
			}
			return nil
		}
		ports := []string{c.by}
		if flags&flagSpecIPT != 0 {
			more, err := t.specified(c, list)
			if err != nil {
				return err
			}
			ports = append(ports, more...)
		}
		for _, port := range ports {
			if err := c.register(registration{port, key, flags&flagAllTgPt != 0}); err != nil {
				return err
			}
		}
		c.generation++
		return nil
	})
	return err
}

// specified are the ports in the TransportIDs of REGISTER, none of which may be
// registered before.
func (t *Task) specified(c *change, list []byte) (ports []string, err error) {
	if len(list) < reserveListID || int64(reserveIDs.Get(list)) != int64(len(list)-reserveListID) {
		return nil, errListLength
	}
	for rest := list[reserveListID:]; len(rest) > 0; {
		at := len(list) - len(rest)
		id, next, ok := takeTransportID(rest)
		if !ok {
			return nil, invalidList(at, wholeByte)
		}
		found := t.lun.ports(id)
		if len(found) == 0 || slices.ContainsFunc(found, func(p string) bool { return c.find(p) != nil }) {
			return nil, invalidList(at, wholeByte)
		}
		ports, rest = append(ports, found...), next
	}
	return ports, nil
}

// scopeAndType are those of the CDB, which must be ones that exist.
func (t *Task) scopeAndType() (reservationType, error) {
	kind := reservationType(t.cdb[reserveOutScope] & 0x0f)
	switch {
	case t.cdb[reserveOutScope]>>4 != 0: // LU_SCOPE
		return 0, invalidCDB(reserveOutScope, 7)
	case !kind.exists():
		return 0, invalidCDB(reserveOutScope, 3)
	}
	return kind, nil
}

func (t *Task) reservePersistent() error {
	_, err := t.changeReserved(func(c *change, _ []byte) error {
		kind, err := t.scopeAndType()
		switch {
		case err != nil:
			return err
		case c.kind == noReservation:
			c.reserve(kind, c.by)
		case !c.holds(c.by) || c.kind != kind:
			return errConflict
		}
		return nil
	})
	return err
}

func (t *Task) releasePersistent() error {
	_, err := t.changeReserved(func(c *change, _ []byte) error {
		switch {
		case !c.holds(c.by):
			return nil
		case t.cdb[reserveOutScope] != byte(c.kind):
			return errInvalidRelease
		}
		if c.kind.admitsRegistered() {
			c.notify(codeReservationsReleased)
		}
		c.release()
		return nil
	})
	return err
}

func (t *Task) clearPersistent() error {
	_, err := t.changeReserved(func(c *change, _ []byte) error {
		c.notify(codeReservationsPreempted)
		c.registered = nil
		c.release()
		c.generation++
		return nil
	})
	return err
}

// preemptPersistent is PREEMPT.
func (t *Task) preemptPersistent() error {
	_, err := t.preempt()
	return err
}

// preemptAndAbort ends the tasks of those preempted, before the command does.
// Theirs that were cleared are told like those of CLEAR TASK SET.
func (t *Task) preemptAndAbort() error {
	ends, err := t.preempt()
	if err != nil {
		return err
	}
	t.lun.clear(ends, t.itl)
	return nil
}

func (t *Task) preempt() ([]*itl, error) {
	return t.changeReserved(func(c *change, list []byte) error {
		key := reserveNewKey.Get(list)
		takes := c.heldBy(key)
		switch {
		case key == 0 && !takes:
			return invalidList(int(reserveNewKey), wholeByte)
		case key != 0 && !c.hasKey(key):
			return errConflict
		}
		kind := noReservation
		if takes {
			var err error
			if kind, err = t.scopeAndType(); err != nil {
				return err
			}
		}
		c.preempt(func(g registration) bool { return key == 0 || g.key == key }, kind)
		c.generation++
		return nil
	})
}

// registerAndMove gives the reservation of this nexus to another.
func (t *Task) registerAndMove() error {
	_, err := t.changeReserved(func(c *change, list []byte) error {
		switch {
		case c.kind == noReservation:
			return invalidCDB(1, 4)
		case c.kind.allHold() || !c.holds(c.by):
			return errConflict
		case reserveNewKey.Get(list) == 0:
			return invalidList(int(reserveNewKey), wholeByte)
		case movePort.Get(list) != relativePort:
			return invalidList(int(movePort), wholeByte)
		case int64(moveIDs.Get(list)) != int64(len(list)-moveListID):
			return errListLength
		}
		id, rest, ok := takeTransportID(list[moveListID:])
		if !ok || len(rest) > 0 || !id.port || id.name == c.by {
			return invalidList(moveListID, wholeByte)
		}
		if err := t.checkPersist(c, list[moveFlags], moveFlags); err != nil {
			return err
		}
		if err := c.register(registration{port: id.name, key: reserveNewKey.Get(list)}); err != nil {
			return err
		}
		c.reserve(c.kind, id.name)
		if list[moveFlags]&flagUnreg != 0 {
			c.unregister(c.by)
		}
		c.generation++
		return nil
	})
	return err
}
