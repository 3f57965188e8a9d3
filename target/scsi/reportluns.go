package scsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/internal/be"
)

// REPORT LUNS CDB, SPC "REPORT LUNS command".
const (
	reportLUNsSelect            = 2
	reportLUNsAllocation be.U32 = 6
)

// SELECT REPORT.
const (
	reportOrdinary  = 0x00
	reportWellKnown = 0x01
	reportAll       = 0x02
)

func (t *Task) reportLUNs() error {
	var numbers []uint64
	switch t.cdb[reportLUNsSelect] {
	case reportOrdinary, reportAll:
		numbers = t.at.numbers
	case reportWellKnown: // there are none
	default:
		return invalidCDB(reportLUNsSelect, wholeByte)
	}
	b := binary.BigEndian.AppendUint32(t.data, uint32(8*len(numbers)))
	b = append(b, 0, 0, 0, 0)
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, lunField(n))
	}
	t.data = b
	return t.reply(reportLUNsAllocation.Get(t.cdb[:]))
}

// reportLUNsNowhere answers at LUN 0, where initiators ask even if nothing is
// there.
func (t *Task) reportLUNsNowhere(lun uint64) error {
	if number, ok := lunNumber(lun); !ok || number != 0 {
		return errNoLogicalUnit
	}
	return t.reportLUNs()
}
