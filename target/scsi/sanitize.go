package scsi

import "github.com/containerdisk/containerdisk/internal/be"

// SANITIZE, SBC: OVERWRITE writes the pattern over every block of the disk, as
// often as is asked for, each time to the medium; BLOCK ERASE makes zeros of
// every block and gives the space back; EXIT FAILURE MODE gives up. There is no
// encryption below us whose key could be forgotten, so no CRYPTOGRAPHIC ERASE.
//
// What the disk itself keeps of its blocks is out of our reach: the image that
// it was made of, copies that a file system below makes.
const (
	sanitizeFlags           = 1
	sanitizeImmed           = 0x80
	sanitizeZNR             = 0x40 // zoned disks
	sanitizeAUSE            = 0x20
	sanitizeReserved        = 2 // to 6
	sanitizeLength   be.U16 = 7

	// The parameter list of OVERWRITE.
	overwriteFlags            = 0
	overwriteInvert           = 0x80
	overwriteTest             = 0x60
	maskOverwriteCount        = 0x1f
	overwritePattern   be.U16 = 2 // INITIALIZATION PATTERN LENGTH
	overwriteHeader           = 4
)

// checkSanitize is what the service actions refuse alike. A SANITIZE that
// failed without AUSE keeps later ones to that.
func (t *Task) checkSanitize() error {
	for at := sanitizeReserved; at < int(sanitizeLength); at++ {
		if t.cdb[at] != 0 {
			return invalidCDB(at, wholeByte)
		}
	}
	switch flags := t.cdb[sanitizeFlags]; {
	case flags&sanitizeZNR != 0:
		return invalidCDB(sanitizeFlags, 6)
	case flags&sanitizeAUSE != 0 && !t.mayExitFailure():
		return invalidCDB(sanitizeFlags, 5)
	}
	return nil
}

// mayExitFailure reports whether no SANITIZE has failed that must be repeated.
func (t *Task) mayExitFailure() bool {
	o := t.lun.back.operation.Load()
	return o == nil || !o.failed.Load() || o.plan.Unrestricted
}

func (t *Task) beginOverwrite() error {
	if err := t.checkSanitize(); err != nil {
		return err
	}
	n := int(sanitizeLength.Get(t.cdb[:]))
	if n <= overwriteHeader || n > overwriteHeader+t.lun.blockSize() {
		return invalidCDB(int(sanitizeLength), wholeByte)
	}
	return t.expect(n)
}

// beginSanitize is for the service actions without a parameter list.
func (t *Task) beginSanitize() error {
	if err := t.checkSanitize(); err != nil {
		return err
	}
	if sanitizeLength.Get(t.cdb[:]) != 0 {
		return invalidCDB(int(sanitizeLength), wholeByte)
	}
	return nil
}

func (t *Task) overwrite() error {
	list, err := t.list()
	if err != nil {
		return err
	}
	flags, n := list[overwriteFlags], int(overwritePattern.Get(list))
	count := int(flags & maskOverwriteCount)
	switch {
	case flags&overwriteTest != 0:
		return invalidList(overwriteFlags, 6)
	case count == 0:
		return invalidList(overwriteFlags, 4)
	case n == 0 || n > len(list)-overwriteHeader:
		return invalidList(int(overwritePattern), wholeByte)
	}
	return t.sanitize(operationPlan{
		Pattern: t.lun.patternBlock(list[overwriteHeader:][:n]),
		Passes:  count,
		Invert:  flags&overwriteInvert != 0,
	})
}

func (t *Task) blockErase() error { return t.sanitize(operationPlan{}) }

func (t *Task) sanitize(plan operationPlan) error {
	plan.Sanitize = true
	plan.Unrestricted = t.cdb[sanitizeFlags]&sanitizeAUSE != 0
	o, err := t.lun.beginOperation(plan)
	if err != nil || t.cdb[sanitizeFlags]&sanitizeImmed != 0 {
		return err
	}
	return t.await(o)
}

// exitFailureMode makes the disk usable after a SANITIZE that failed, if that
// one allowed it. It is no error if none has.
func (t *Task) exitFailureMode() error {
	l := t.lun
	l.changing.Lock()
	defer l.changing.Unlock()
	o := l.back.operation.Load()
	switch {
	case o == nil:
		return nil
	case !o.failed.Load():
		return o.running()
	case !o.plan.Unrestricted:
		return invalidCDB(sanitizeFlags, 4)
	}
	if l.store != nil {
		if err := l.save(l.reserved.Load(), modeBits(l.saved.Load()), nil); err != nil {
			return errInternal
		}
	}
	l.back.operation.Store(nil)
	return nil
}
