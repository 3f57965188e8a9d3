package scsi

import (
	"encoding/binary"
	"testing"
)

func TestRowsAreInOrder(t *testing.T) {
	last := -1
	for _, row := range append(rows(), driveRows()...) {
		if row.opcode == driveRows()[0].opcode && last > int(row.opcode)<<8 {
			last = -1 // the other list begins
		}
		at := int(row.opcode)<<8 + int(row.action+1)
		if at <= last {
			t.Errorf("%s (%02x) is out of order", row.name, row.opcode)
		}
		last = at
		c := cdb(row.opcode)
		if len(row.usage) != c.size()-1 {
			t.Errorf("%s: CDB usage of %d bytes, want %d", row.name, len(row.usage), c.size()-1)
			continue
		}
		if control := row.usage[len(row.usage)-1]; control != controlNACA {
			t.Errorf("%s: CDB usage of CONTROL %#x, want %#x", row.name, control, controlNACA)
		}
		if row.action != noAction && row.usage[0]&maskAction != maskAction {
			t.Errorf("%s: CDB usage %#x has no service action", row.name, row.usage[0])
		}
		if row.flags&(readsData|writesData) != 0 && row.move == nil {
			t.Errorf("%s: counts data that it does not move", row.name)
		}
	}
}

// What is listed exists, what is not listed does not, for every operation code
// and service action; the list and the single answers agree.
func TestOpcodes(t *testing.T) {
	for _, disk := range []string{"thin", "full", "readonly", "cdrom"} {
		t.Run(disk, func(t *testing.T) {
			x := newBench(t, vectorDisk(t, disk))
			listed := listOpcodes(t, x)
			for opcode := range 256 {
				for action := range 32 {
					x.checkListed(t, listed, byte(opcode), byte(action))
				}
			}
		})
	}
}

// listOpcodes asks for all commands; the keys are operation code and service
// action, and the values whether there is one.
func listOpcodes(t *testing.T, x *bench) map[uint16]bool {
	r := x.want(t, "good", cdb(0xa3, 0x0c, 0x80, 0, 0, 0, 0, 0, 0xff, 0xff), nil)
	list := r.in[4:]
	if n := binary.BigEndian.Uint32(r.in); int(n) != len(list) || len(list)%20 != 0 {
		t.Fatalf("length %d of %d bytes", n, len(list))
	}
	listed := map[uint16]bool{}
	for ; len(list) > 0; list = list[20:] {
		if binary.BigEndian.Uint16(list[8:]) != 0x0a || list[5]&0x02 == 0 {
			t.Errorf("timeouts descriptor % x, flags %#x", list[8:20], list[5])
		}
		listed[uint16(list[0])<<8|binary.BigEndian.Uint16(list[2:])] = list[5]&1 != 0
	}
	return listed
}

func (x *bench) checkListed(t *testing.T, listed map[uint16]bool, opcode, action byte) {
	servactv, isListed := listed[uint16(opcode)<<8|uint16(action)]
	_, any0 := listed[uint16(opcode)<<8]
	option := byte(optionOpcode)
	if servactv {
		option = optionAction
	} else if action != 0 || !any0 && !isListed {
		option = optionOpcodeOr
	}
	one := x.want(t, "good", cdb(0xa3, 0x0c, option, opcode, 0, action, 0, 0, 0, 0xff), nil).in
	if supported := one[1]&7 == supportStandard; supported != isListed {
		t.Errorf("%02x/%02x: support %d, listed %v", opcode, action, one[1], isListed)
	}
	if !isListed && (any0 || action != 0) {
		return
	}
	c := cdb(opcode, action)
	if !servactv {
		c[1] = 0
	}
	r := do(x.a, lun1, c, nil)
	exists := r.String() != "05/20/00"
	if r.String() == "05/24/00" && r.sense[15]&0x40 != 0 && r.sense[17] == 1 && r.sense[15]&0x0f == 0x0c {
		exists = false // no such service action
	}
	if exists != isListed {
		t.Errorf("%02x/%02x: %v, listed %v", opcode, action, r, isListed)
	}
	do(x.a, lun1, cdb(0x1b, 0, 0, 0, 1), nil) // it may have been a stop
	if isListed && one[4] != opcode {
		t.Errorf("%02x/%02x: CDB usage data % x", opcode, action, one[4:])
	}
}
