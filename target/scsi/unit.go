package scsi

import "github.com/containerdisk/containerdisk/internal/be"

// The state of the logical unit as a whole: REQUEST SENSE, START STOP UNIT,
// PREVENT ALLOW MEDIUM REMOVAL, RESERVE and RELEASE.

// REQUEST SENSE CDB, SPC "REQUEST SENSE command".
const (
	requestSenseFlags      = 1
	requestSenseAllocation = 4
	requestSenseDesc       = 0x01
)

// requestSense reports a pending unit attention and clears it, or else what
// keeps the unit from being ready.
func (t *Task) requestSense() error {
	f := fault{}
	if code, ok := t.itl.take(); ok {
		f = fault{key: keyUnitAttention, code: code}
	} else if o := t.lun.back.operation.Load(); o != nil {
		f = o.condition()
	} else if t.lun.stopped.Load() {
		f = errNeedsStart
	} else if t.lun.cd.medium() != nil {
		f = errNoMedium
	}
	return t.replySense(f)
}

func (t *Task) requestSenseNowhere(uint64) error { return t.replySense(errNoLogicalUnit) }

func (t *Task) replySense(f fault) error {
	format := fixedFormat
	if t.cdb[requestSenseFlags]&requestSenseDesc != 0 {
		format = descriptorFormat
	}
	t.data = f.appendTo(t.data, format)
	return t.reply(uint32(t.cdb[requestSenseAllocation]))
}

// START STOP UNIT CDB, SBC. IMMED may be ignored: to be done later than asked
// for is all it allows.
const (
	startStopFlags     = 4
	startStopCondition = 0xf0 // POWER CONDITION
	startStopNoFlush   = 0x04
	startStopLoadEject = 0x02
	startStopStart     = 0x01
)

func (t *Task) beginStartStop() error {
	flags := t.cdb[startStopFlags]
	switch {
	case flags&startStopCondition != 0: // there are no power conditions
		return invalidCDB(startStopFlags, 7)
	case flags&startStopLoadEject != 0: // the medium is not removable
		return invalidCDB(startStopFlags, 1)
	}
	return nil
}

func (t *Task) startStop() error {
	flags := t.cdb[startStopFlags]
	if flags&startStopStart != 0 {
		t.lun.stopped.Store(false)
		return nil
	}
	if flags&startStopNoFlush == 0 {
		if err := t.flush(); err != nil {
			return err
		}
	}
	t.lun.stopped.Store(true)
	return nil
}

// PREVENT ALLOW MEDIUM REMOVAL CDB, SBC.
const (
	preventFlags = 4
	maskPrevent  = 0x03
)

// preventAllow has nothing to prevent: RMB is 0, so nothing is ever removed.
func (t *Task) preventAllow() error {
	if t.cdb[preventFlags]&maskPrevent > 1 { // obsolete
		return invalidCDB(preventFlags, 1)
	}
	return nil
}

// RESERVE and RELEASE CDBs of 6 and 10 bytes, SPC-2. Third-party and extent
// reservations do not exist here, and these are what the parameter list of
// RESERVE (10) would be for.
const (
	reserveFlags             = 1
	reserveThirdParty        = 0x10
	reserveLongID            = 0x02 // the (10) forms
	reserveExtent            = 0x01
	reserve10Length   be.U16 = 7
)

func (t *Task) checkReserve() error {
	switch flags := t.cdb[reserveFlags]; {
	case flags&reserveThirdParty != 0:
		return invalidCDB(reserveFlags, 4)
	case t.cdb.size() == 10 && flags&reserveLongID != 0:
		return invalidCDB(reserveFlags, 1)
	case t.cdb.size() == 10 && reserve10Length.Get(t.cdb[:]) != 0:
		return invalidCDB(int(reserve10Length), wholeByte)
	case flags&reserveExtent != 0:
		return invalidCDB(reserveFlags, 0)
	}
	return nil
}

// reserve takes the reservation. The gate has seen that nobody else has it,
// but somebody may have been faster.
func (t *Task) reserve() error {
	if err := t.checkReserve(); err != nil {
		return err
	}
	t.lun.changing.Lock()
	defer t.lun.changing.Unlock()
	if done, err := t.underPersistent(); done {
		return err
	}
	if !t.lun.holder.CompareAndSwap(nil, t.from) && t.lun.reservedFor(t.from) {
		return errConflict
	}
	return nil
}

// release gives the reservation back; it is no error not to have it.
func (t *Task) release() error {
	if err := t.checkReserve(); err != nil {
		return err
	}
	if done, err := t.underPersistent(); done {
		return err
	}
	t.lun.release(t.from)
	return nil
}

// underPersistent is what RESERVE and RELEASE come to as soon as a nexus is
// registered for persistent reservations: they conflict, SPC-2 "RESERVE (10)
// command"; but do nothing with good status for a nexus that the reservation
// lets in already, SPC "Exceptions to SPC-2 RESERVE and RELEASE behavior".
func (t *Task) underPersistent() (done bool, err error) {
	r := t.lun.reserved.Load()
	if len(r.registered) == 0 {
		return false, nil
	}
	if r.kind != noReservation && r.admits(t.from.initiator, conflictAll) {
		return true, nil
	}
	return true, errConflict
}
