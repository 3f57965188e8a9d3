package scsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/internal/be"
)

// REPORT SUPPORTED OPERATION CODES CDB, SPC.
const (
	opcodesFlags             = 2 // RCTD and REPORTING OPTIONS
	opcodesRCTD              = 0x80
	maskOptions              = 0x07
	opcodesOpcode            = 3
	opcodesAction     be.U16 = 4
	opcodesAllocation be.U32 = 6
)

// REPORTING OPTIONS.
const (
	optionAll      = 0
	optionOpcode   = 1 // a command without service actions
	optionAction   = 2 // a command with
	optionOpcodeOr = 3 // either
)

// SUPPORT of one command.
const (
	supportNot      = 1
	supportStandard = 3
)

func (t *Task) reportOpcodes() error {
	b, err := t.appendOpcodes(t.data)
	if err != nil {
		return err
	}
	t.data = b
	return t.reply(opcodesAllocation.Get(t.cdb[:]))
}

func (t *Task) appendOpcodes(b []byte) ([]byte, error) {
	flags, opcode, action := t.cdb[opcodesFlags], t.cdb[opcodesOpcode], opcodesAction.Get(t.cdb[:])
	timeouts := timeoutsFor(flags)
	plain, actions := t.lun.table.byOpcode[opcode], t.lun.table.actions[opcode]
	switch flags & maskOptions {
	case optionAll:
		return t.lun.table.appendAll(b, timeouts), nil
	case optionOpcode:
		if actions != nil {
			return nil, invalidCDB(opcodesFlags, 2)
		}
		return appendOne(b, plain, timeouts), nil
	case optionAction:
		if plain != nil {
			return nil, invalidCDB(opcodesFlags, 2)
		}
		return appendOne(b, actions.find(action), timeouts), nil
	case optionOpcodeOr:
		if plain == nil {
			plain = actions.find(action)
		} else if action != 0 {
			plain = nil
		}
		return appendOne(b, plain, timeouts), nil
	}
	return nil, invalidCDB(opcodesFlags, 2)
}

// find returns the row of a service action, or nil.
func (a *actionRows) find(action uint16) *command {
	if a == nil || int(action) >= len(a) {
		return nil
	}
	return a[action]
}

// timeoutsFor is the command timeouts descriptor, if asked for: no time is
// specified.
func timeoutsFor(flags byte) []byte {
	if flags&opcodesRCTD == 0 {
		return nil
	}
	return []byte{0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
}

// appendAll appends SPC "All commands parameter data".
func (t *table) appendAll(b []byte, timeouts []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(t.ordered)*(8+len(timeouts))))
	for _, c := range t.ordered {
		action, flags := uint16(0), byte(0)
		if c.action != noAction {
			action, flags = uint16(c.action), 0x01 // SERVACTV
		}
		if timeouts != nil {
			flags |= 0x02 // CTDP
		}
		b = append(b, c.opcode, 0)
		b = binary.BigEndian.AppendUint16(b, action)
		b = append(b, 0, flags)
		b = binary.BigEndian.AppendUint16(b, uint16(1+len(c.usage))) // CDB LENGTH
		b = append(b, timeouts...)
	}
	return b
}

// appendOne appends SPC "One command parameter data"; c is nil for a command
// that does not exist.
func appendOne(b []byte, c *command, timeouts []byte) []byte {
	if c == nil {
		return append(b, 0, supportNot, 0, 0)
	}
	flags := byte(supportStandard)
	if timeouts != nil {
		flags |= 0x80 // CTDP
	}
	b = append(b, 0, flags)
	b = binary.BigEndian.AppendUint16(b, uint16(1+len(c.usage))) // CDB SIZE
	b = append(b, c.opcode)
	at := len(b)
	b = append(b, c.usage...)
	if c.action != noAction {
		b[at] = b[at]&^maskAction | byte(c.action)
	}
	return append(b, timeouts...)
}

// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS CDB, SPC.
const (
	functionsFlags             = 2
	functionsREPD              = 0x80
	functionsAllocation be.U32 = 6
)

// reportFunctions lists ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL
// UNIT RESET and TARGET RESET.
func (t *Task) reportFunctions() error {
	const functions = 0x80 | 0x40 | 0x10 | 0x08 | 0x02
	t.data = append(t.data, functions, 0, 0, 0)
	if t.cdb[functionsFlags]&functionsREPD != 0 {
		t.data[3] = 12                               // REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS DATA LENGTH
		t.data = append(t.data, make([]byte, 12)...) // no timeouts
	}
	return t.reply(functionsAllocation.Get(t.cdb[:]))
}
