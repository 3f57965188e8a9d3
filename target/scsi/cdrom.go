package scsi

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/internal/be"
)

// A CD/DVD drive with a disc in it: the commands of MMC-6 that initiators ask of
// a drive that only reads. The disc is one session with one data track. Where a
// command is in SPC or SBC as well, its row is the disk's.
//
// The disc can be ejected, as installers do when they are done: the drive is not
// ready then until it is loaded again, or reset, which is what the power switch
// of a virtual machine comes to. Nobody else can put another disc into it.

// DeviceType is what a logical unit is.
type DeviceType uint8

const (
	Disk  DeviceType = iota // SBC: direct access block device
	CDROM                   // MMC: a CD/DVD drive, with blocks of 2048 bytes, never written to
)

const (
	discBlock = 2048 // bytes
	// maxCD is how many blocks a CD may have: 80 minutes. What is larger is a
	// DVD.
	maxCD           = 80 * 60 * framesPerSecond
	framesPerSecond = 75
	leadIn          = 150 // frames before LBA 0
)

// drive is the state of a CD/DVD drive besides what every logical unit has.
type drive struct {
	ejected atomic.Bool

	mu       sync.Mutex    // guards prevents
	prevents map[*itl]bool // who does not want the disc to be ejected
}

// prevented reports whether anybody who is there keeps the disc in.
func (d *drive) prevented() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.prevents) > 0
}

func (d *drive) prevent(i *itl, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !on {
		delete(d.prevents, i)
		return
	}
	if d.prevents == nil {
		d.prevents = make(map[*itl]bool)
	}
	d.prevents[i] = true
}

// reset is what a reset does to the drive.
func (d *drive) reset() {
	d.ejected.Store(false)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.prevents = nil
}

// medium is the refusal of a command that needs a disc, where there is none. A
// logical unit that is no drive always has its medium.
func (d *drive) medium() error {
	if d != nil && d.ejected.Load() {
		return errNoMedium
	}
	return nil
}

// isDVD reports whether the disc is too large for a CD.
func (l *LUN) isDVD() bool { return l.blocks > maxCD }

// newDriveTable returns the table of a drive.
func newDriveTable() *table {
	own := driveRows()
	has := map[byte]bool{}
	for _, row := range own {
		has[row.opcode] = true
	}
	t := &table{}
	for _, row := range rows() {
		if !has[row.opcode] && sharedWithDrive(row) {
			own = append(own, row)
		}
	}
	sortRows(own)
	for _, row := range own {
		if row.move == nil {
			row.move = (*Task).moveList
		}
		t.add(&row)
	}
	return t
}

// sortRows sorts rows by operation code and service action.
func sortRows(rows []command) {
	slices.SortStableFunc(rows, func(a, b command) int {
		return cmp.Or(cmp.Compare(a.opcode, b.opcode), cmp.Compare(a.action, b.action))
	})
}

// sharedWithDrive reports whether a disk's command is a drive's as it is.
func sharedWithDrive(row command) bool {
	switch row.opcode {
	case 0x00, 0x03, 0x12, 0x1a, 0x25, 0x28, 0x5a, 0xa0, 0xa8:
		return true
	case 0xa3:
		return row.action == 0x0c || row.action == 0x0d
	}
	return false
}

// driveRows are the commands of MMC, in the order of their operation codes.
func driveRows() []command {
	return []command{
		{0x1b, noAction, "START STOP UNIT", 0, conflictUnlessStart,
			"\x01\x00\x00\xf7\x04", nil, (*Task).beginStartStopDisc, nil, nil, (*Task).startStopDisc},
		{0x1e, noAction, "PREVENT ALLOW MEDIUM REMOVAL", 0, conflictUnlessAllow,
			"\x00\x00\x00\x03\x04", nil, (*Task).preventAllowDisc, nil, nil, nil},
		{0x43, noAction, "READ TOC/PMA/ATIP", medium, conflictRead,
			"\x02\x0f\x00\x00\x00\xff\xff\xff\x04", nil, (*Task).readTOC, nil, nil, nil},
		{0x46, noAction, "GET CONFIGURATION", passesAttention, conflictNone,
			"\x03\xff\xff\x00\x00\x00\xff\xff\x04", nil, (*Task).getConfiguration, nil, nil, nil},
		{0x4a, noAction, "GET EVENT STATUS NOTIFICATION", passesAttention, conflictNone,
			"\x01\x00\x00\xff\x00\x00\xff\xff\x04", nil, (*Task).getEventStatus, nil, nil, nil},
		{0x51, noAction, "READ DISC INFORMATION", medium, conflictRead,
			"\x07\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).readDiscInformation, nil, nil, nil},
		{0x52, noAction, "READ TRACK INFORMATION", medium, conflictRead,
			"\x03\xff\xff\xff\xff\x00\xff\xff\x04", nil, (*Task).readTrackInformation, nil, nil, nil},
		{0xad, noAction, "READ DISC STRUCTURE", medium, conflictRead,
			"\x0f\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).readDiscStructure, nil, nil, nil},
		{0xbb, noAction, "SET CD SPEED", 0, conflictNone,
			"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04", nil, nil, nil, nil, nil},
		{0xbd, noAction, "MECHANISM STATUS", 0, conflictRead,
			"\x00\x00\x00\x00\x00\x00\x00\xff\xff\x00\x04", nil, (*Task).mechanismStatus, nil, nil, nil},
	}
}

// beginStartStopDisc refuses to eject a disc that somebody keeps in, and power
// conditions, which a drive that is no machine does not have.
func (t *Task) beginStartStopDisc() error {
	flags := t.cdb[startStopFlags]
	switch {
	case flags&startStopCondition != 0:
		return invalidCDB(startStopFlags, 7)
	case flags&startStopLoadEject != 0 && flags&startStopStart == 0 && t.lun.cd.prevented():
		return errRemovalPrevented
	}
	return nil
}

// startStopDisc loads or ejects the disc; that it spins or not is all the same.
func (t *Task) startStopDisc() error {
	flags, was := t.cdb[startStopFlags], t.lun.cd.ejected.Load()
	if flags&startStopLoadEject == 0 {
		return nil
	}
	if t.lun.cd.ejected.Store(flags&startStopStart == 0); was && flags&startStopStart != 0 {
		for _, i := range t.lun.nexuses() {
			i.raise(codeMediumChanged) // MMC "Unit attention": a disc was put in
		}
	}
	return nil
}

func (t *Task) preventAllowDisc() error {
	if t.cdb[preventFlags]&maskPrevent > 1 { // persistent prevent: there is no event to ask for the disc
		return invalidCDB(preventFlags, 1)
	}
	t.lun.cd.prevent(t.itl, t.cdb[preventFlags]&maskPrevent != 0)
	return nil
}

// GET EVENT STATUS NOTIFICATION CDB, MMC.
const (
	eventFlags             = 1
	eventPolled            = 0x01
	eventClasses           = 4
	eventAllocation be.U16 = 7

	eventClassMedia = 4
	eventNone       = 0x80 // NEA: no event of the classes that were asked for
	mediaNoChange   = 0x00
	mediaPresent    = 0x02
	mediaTrayOpen   = 0x01
)

// getEventStatus tells whether there is a disc. Changes come as unit attentions.
func (t *Task) getEventStatus() error {
	if t.cdb[eventFlags]&eventPolled == 0 { // asynchronous operation
		return invalidCDB(eventFlags, 0)
	}
	const supported = 1 << eventClassMedia
	if t.cdb[eventClasses]&supported == 0 {
		t.data = append(t.data, 0, 2, eventNone, supported)
		return t.reply(uint32(eventAllocation.Get(t.cdb[:])))
	}
	status := byte(mediaPresent)
	if t.lun.cd.ejected.Load() {
		status = mediaTrayOpen
	}
	t.data = append(t.data, 0, 6, eventClassMedia, supported, mediaNoChange, status, 0, 0)
	return t.reply(uint32(eventAllocation.Get(t.cdb[:])))
}

const mechanismAllocation be.U16 = 8

// mechanismStatus is MMC "MECHANISM STATUS Command": no changer, no slots.
func (t *Task) mechanismStatus() error {
	door := byte(0)
	if t.lun.cd.ejected.Load() {
		door = 0x10
	}
	t.data = append(t.data, 0, door, 0, 0, 0, 0, 0, 0)
	return t.reply(uint32(mechanismAllocation.Get(t.cdb[:])))
}

// driveModePages are the mode pages of a drive, in ascending order. None can be
// changed.
func driveModePages() []modePage {
	return []modePage{
		{code: pageRecovery, body: appendRecoveryPage},
		{code: pageExceptions, body: appendExceptionsPage},
		{code: pageCapabilities, body: appendCapabilitiesPage},
	}
}

const pageCapabilities = 0x2a

// MMC "MM Capabilities and Mechanical Status Page".
func appendCapabilitiesPage(b []byte, _ modeBits) []byte {
	const speed, buffer = 8467, 512 // kB/s, which is 48 times a CD's; KiB
	b = append(b, pageCapabilities, 20,
		0x3b, // reads DVD-RAM, DVD-R, DVD-ROM, CD-RW, CD-R
		0x00, // writes nothing
		0x70, // multi-session, mode 2 form 2, form 1
		0x00, // no CD-DA
		0x29, // loading mechanism: tray; can eject, can lock
		0x00)
	b = binary.BigEndian.AppendUint16(b, speed) // maximum
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint16(b, buffer)
	b = binary.BigEndian.AppendUint16(b, speed) // current
	return append(b, 0, 0, 0, 0, 0, 0)
}
