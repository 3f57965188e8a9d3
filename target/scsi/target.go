package scsi

import (
	"fmt"
	"slices"
)

// maxLUN is the highest number that the flat space addressing method can name.
const maxLUN = 1<<14 - 1

// directLUNs is how many logical units a nexus finds by index. Higher numbers
// are found in a map.
const directLUNs = 256

// Target is a SCSI target device with one port and its logical units.
type Target struct {
	name    string
	luns    map[uint64]*LUN // never changes
	numbers []uint64        // of luns, ascending
	table   *table          // for commands to no logical unit
}

// NewTarget returns a target. name is its iSCSI name; luns are by number, 0 to
// 16383. A LUN belongs to one target.
func NewTarget(name string, luns map[uint64]*LUN) *Target {
	t := &Target{name: name, luns: map[uint64]*LUN{}, table: newTable(hasThin)}
	for n, l := range luns {
		if n > maxLUN {
			panic(fmt.Sprintf("scsi: logical unit number %d, limit %d", n, maxLUN))
		}
		l.target = t
		t.luns[n] = l
		t.numbers = append(t.numbers, n)
	}
	slices.Sort(t.numbers)
	return t
}

// lunNumber decodes the LUN field of a transport, SAM "LUN representation":
// single level, peripheral or flat space addressing.
func lunNumber(field uint64) (number uint64, ok bool) {
	switch first := field >> 48; {
	case field<<16 != 0: // further levels
		return 0, false
	case first>>8 == 0: // peripheral device addressing, bus 0
		return first, true
	case first>>14 == 1: // flat space addressing
		return first & maxLUN, true
	}
	return 0, false
}

// lunField is the LUN field for a number.
func lunField(number uint64) uint64 {
	if number < directLUNs {
		return number << 48
	}
	return (1<<14 | number) << 48
}
