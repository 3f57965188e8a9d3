package scsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/internal/be"
)

// PERSISTENT RESERVE IN, SPC. Each service action is a row.
const (
	reserveInAllocation be.U16 = 7
)

// replyReserve replies to PERSISTENT RESERVE IN. SPC-2 reservations and these
// do not go together: while there is one of those, even for its holder, "SPC-2
// RESERVE command".
func (t *Task) replyReserve(b []byte) error {
	if t.lun.holder.Load() != nil {
		return errConflict
	}
	t.data = b
	return t.reply(uint32(reserveInAllocation.Get(t.cdb[:])))
}

// appendReserveHeader appends PRGENERATION and ADDITIONAL LENGTH, which counts
// what is there also where the allocation length cuts it.
func appendReserveHeader(b []byte, r *reservations, length int) []byte {
	b = binary.BigEndian.AppendUint32(b, r.generation)
	return binary.BigEndian.AppendUint32(b, uint32(length))
}

func (t *Task) readKeys() error {
	r := t.lun.reserved.Load()
	b := appendReserveHeader(t.data, r, 8*len(r.registered))
	for _, g := range r.registered {
		b = binary.BigEndian.AppendUint64(b, g.key)
	}
	return t.replyReserve(b)
}

func (t *Task) readReservation() error {
	r := t.lun.reserved.Load()
	if r.kind == noReservation {
		return t.replyReserve(appendReserveHeader(t.data, r, 0))
	}
	key := uint64(0) // where all hold
	if !r.kind.allHold() {
		key = r.find(r.holder).key
	}
	b := appendReserveHeader(t.data, r, 16)
	b = binary.BigEndian.AppendUint64(b, key)
	b = append(b, 0, 0, 0, 0, // obsolete
		0, byte(r.kind), // LU_SCOPE
		0, 0) // obsolete
	return t.replyReserve(b)
}

// REPORT CAPABILITIES.
const (
	capableCRH   = 0x10 // RESERVE and RELEASE answer as SPC's exceptions say
	capableSIP   = 0x08 // SPEC_I_PT
	capableATP   = 0x04 // ALL_TG_PT
	capablePTPL  = 0x01 // APTPL
	capableTypes = 0x80 // TMV
	// ALLOW COMMANDS 011b: TEST UNIT READY passes all reservations; MODE
	// SENSE, READ DEFECT DATA and those that report what is supported pass
	// Write Exclusive.
	capableAllow     = 0x30
	capablePTPLA     = 0x01
	capableTypeMask0 = 0x80 | 0x40 | 0x20 | 0x08 | 0x02
	capableTypeMask1 = 0x01
)

func (t *Task) reportCapabilities() error {
	flags, active := byte(capableCRH|capableSIP|capableATP), byte(capableTypes|capableAllow)
	if t.lun.store != nil {
		flags |= capablePTPL
	}
	if t.lun.reserved.Load().persist {
		active |= capablePTPLA
	}
	return t.replyReserve(append(t.data, 0, 8, flags, active, capableTypeMask0, capableTypeMask1, 0, 0))
}

func (t *Task) readFullStatus() error {
	r := t.lun.reserved.Load()
	start := len(t.data)
	b := appendReserveHeader(t.data, r, 0)
	for _, g := range r.registered {
		b = r.appendFullStatus(b, g)
	}
	binary.BigEndian.PutUint32(b[start+4:], uint32(len(b)-start-8))
	return t.replyReserve(b)
}

// appendFullStatus appends a full status descriptor.
func (r *reservations) appendFullStatus(b []byte, g registration) []byte {
	flags, kind := byte(0), byte(0)
	if g.allPorts {
		flags |= 0x02 // ALL_TG_PT
	}
	if r.holds(g.port) {
		flags, kind = flags|0x01, byte(r.kind) // R_HOLDER
	}
	id := appendTransportID(nil, g.port)
	b = binary.BigEndian.AppendUint64(b, g.key)
	b = append(b, 0, 0, 0, 0, flags, kind, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, relativePort)
	b = binary.BigEndian.AppendUint32(b, uint32(len(id)))
	return append(b, id...)
}
