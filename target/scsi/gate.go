package scsi

// gate refuses what can be refused before data moves, in this order, and calls
// the command's own begin at the end. Each rule that holds for several commands
// stands here once and looks at the row.
func (t *Task) gate() error {
	row, err := t.lun.table.find(&t.cdb)
	if err != nil {
		return err
	}
	t.row = row
	if err := t.checkControl(); err != nil {
		return err
	}
	if row.flags&passesAttention == 0 {
		if code, ok := t.itl.take(); ok {
			return fault{key: keyUnitAttention, code: code}
		}
	}
	if err := t.itl.admit(row.flags, row.conflict.of(&t.cdb)); err != nil {
		return err
	}
	if err := t.checkBlocks(); err != nil {
		return err
	}
	if row.begin == nil {
		return nil
	}
	return row.begin(t)
}

// admit refuses what this nexus may not do to the logical unit as it is now, for
// a command with these flags that is of this class to a reservation.
func (i *itl) admit(flags flags, c conflict) error {
	if err := i.checkReservations(flags, c); err != nil {
		return err
	}
	if err := i.lun.back.operation.Load().refusal(flags); err != nil {
		return err
	}
	if flags&medium != 0 && i.lun.stopped.Load() {
		return errNeedsStart
	}
	if flags&medium != 0 {
		if err := i.lun.cd.medium(); err != nil {
			return err
		}
	}
	if flags&modifies != 0 && i.lun.protected() {
		return errProtected
	}
	return nil
}

// checkControl refuses NACA: there is no auto contingent allegiance here (SPC
// "Standard INQUIRY data": NORMACA is 0).
func (t *Task) checkControl() error {
	if at := t.cdb.size() - 1; t.cdb[at]&controlNACA != 0 {
		return invalidCDB(at, 2)
	}
	return nil
}

// checkBlocks decodes and checks the range of blocks of the command, if it
// names one. The flags of these commands are alike in that the top three bits
// ask for protection information, which our blocks do not have.
func (t *Task) checkBlocks() error {
	if t.row.blocks == nil {
		return nil
	}
	t.x = t.row.blocks(&t.cdb)
	if t.x.flags&maskProtect != 0 {
		return invalidCDB(cdbFlags, 7)
	}
	return t.lun.checkRange(t.x.lba, uint64(t.x.blocks))
}

// protected reports whether the logical unit may not be changed: never, or not
// now (SWP of the control mode page).
func (l *LUN) protected() bool { return l.caps.ReadOnly || l.modes()&modeSWP != 0 }

// beginNowhere is the gate where there is no logical unit: INQUIRY, REQUEST
// SENSE and REPORT LUNS answer there, SAM "Incorrect logical unit numbers".
func (t *Task) beginNowhere(lun uint64) error {
	row, err := t.at.table.find(&t.cdb)
	if err != nil || row.nowhere == nil {
		return errNoLogicalUnit
	}
	t.row = row
	if err := t.checkControl(); err != nil {
		return err
	}
	return row.nowhere(t, lun)
}
