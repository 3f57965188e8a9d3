package scsi

import "github.com/containerdisk/containerdisk/internal/be"

// READ DEFECT DATA (10) and (12) CDBs, SBC. There are no defects, in whatever
// format.
const (
	defects10Flags             = 2
	defects10Allocation be.U16 = 7
	defects12Flags             = 1
	defects12Allocation be.U32 = 6

	// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT, which the answer has in
	// the same places: both lists are there, and empty.
	maskDefectFlags  = 0x1f
	maskDefectFormat = 0x07
	formatLastDefect = 0x05 // physical sector; 110b is vendor specific
)

func (t *Task) readDefects10() error {
	flags, err := t.defectFlags(defects10Flags)
	if err != nil {
		return err
	}
	t.data = append(t.data, 0, flags, 0, 0)
	return t.reply(uint32(defects10Allocation.Get(t.cdb[:])))
}

func (t *Task) readDefects12() error {
	flags, err := t.defectFlags(defects12Flags)
	if err != nil {
		return err
	}
	t.data = append(t.data, 0, flags, 0, 0, 0, 0, 0, 0) // GENERATION CODE 0: not supported
	return t.reply(defects12Allocation.Get(t.cdb[:]))
}

func (t *Task) defectFlags(at int) (byte, error) {
	flags := t.cdb[at] & maskDefectFlags
	if flags&maskDefectFormat > formatLastDefect {
		return 0, invalidCDB(at, 2)
	}
	return flags, nil
}
