package scsi

import "slices"

// command is a row of the table: all that the gate, the task and REPORT
// SUPPORTED OPERATION CODES know of a command.
type command struct {
	opcode byte
	action int8 // service action, or noAction
	name   string
	flags  flags
	// conflict is what a persistent reservation of another has against it.
	conflict conflict

	// usage is CDB USAGE DATA, SPC "One command parameter data": the bits of
	// the CDB, from byte 1 on, that we look at. The bits of the service
	// action are in it.
	usage string

	// blocks decodes the range of blocks that the command names, for the
	// gate to check, or is nil.
	blocks func(*CDB) transfer
	// begin refuses what is wrong with the CDB and sets up the data: in and
	// out, or a reply. May be nil. It must not wait.
	begin func(*Task) error
	// nowhere is begin where there is no logical unit; nil if the command
	// needs one.
	nowhere func(*Task, uint64) error
	// move moves a piece of data, or returns ErrWouldBlock. Where it is nil
	// the data is a reply or a parameter list in Task.data.
	move func(*Task, []byte, int64, patience) error
	// finish does what is left when the data has moved. It may wait. May be
	// nil.
	finish func(*Task) error
}

const noAction = -1

// flags are what the rules of the gate want to know.
type flags uint16

const (
	modifies          flags = 1 << iota // refused if write protected
	medium                              // needs a unit that is not stopped
	passesAttention                     // goes on with a unit attention pending
	passesReservation                   // goes on under another's reservation
	passesFailure                       // goes on after a SANITIZE that failed
	needsThin                           // exists only where blocks can be given back
	needsWritable                       // exists only where the disk can be changed at all
	readsData                           // data-in is user data, and counted
	writesData                          // data-out is user data, and counted
	exactData                           // refused if the initiator announces another length of data-out
	takesAnnounced                      // data-out is as long as the initiator announces, up to a limit
)

// provisioning tells whether a table is for a disk that can be changed, and can
// give blocks back.
type provisioning uint8

const (
	unchangeable provisioning = iota
	fullyProvisioned
	hasThin
)

const (
	readRow   = medium | readsData
	writeRow  = medium | writesData | modifies
	changeRow = medium | modifies
	// FORMAT UNIT and SANITIZE are for a disk that is stopped, too: the
	// operation needs no START.
	sanitizeRow = modifies | passesFailure | needsWritable
)

// rows are the commands, in the order of their operation codes. CDB usage: in
// byte 1 of the block commands the protection bits are looked at to be refused,
// and DPO (10h) is taken, as there is no cache of ours that it could advise.
// The last byte is CONTROL with NACA.
func rows() []command { return slices.Concat(rows6(), rows10(), rows16(), rows12()) }

// rows6 are those with CDBs of six bytes.
func rows6() []command {
	return []command{
		{0x00, noAction, "TEST UNIT READY", medium, conflictNone,
			"\x00\x00\x00\x00\x04", nil, nil, nil, nil, nil},
		{0x03, noAction, "REQUEST SENSE", passesAttention | passesReservation, conflictNone,
			"\x01\x00\x00\xff\x04", nil, (*Task).requestSense, (*Task).requestSenseNowhere, nil, nil},
		{0x04, noAction, "FORMAT UNIT", changeRow | takesAnnounced, conflictAll,
			"\xff\x00\x00\x00\x04", nil, (*Task).beginFormat, nil, nil, (*Task).format},
		{0x08, noAction, "READ (6)", readRow, conflictRead,
			"\x1f\xff\xff\xff\x04", (*CDB).transfer6, (*Task).beginRead, nil, (*Task).readPiece, nil},
		{0x0a, noAction, "WRITE (6)", writeRow, conflictAll,
			"\x1f\xff\xff\xff\x04", (*CDB).transfer6, (*Task).beginWrite, nil, (*Task).writePiece, nil},
		{0x12, noAction, "INQUIRY", passesAttention | passesReservation, conflictNone,
			"\x01\xff\xff\xff\x04", nil, (*Task).inquiry, (*Task).inquiryNowhere, nil, nil},
		{0x15, noAction, "MODE SELECT (6)", 0, conflictAll,
			"\x11\x00\x00\xff\x04", nil, (*Task).beginModeSelect6, nil, nil, (*Task).modeSelect},
		{0x16, noAction, "RESERVE (6)", 0, conflictNone,
			"\x11\x00\x00\x00\x04", nil, (*Task).reserve, nil, nil, nil},
		{0x17, noAction, "RELEASE (6)", passesReservation, conflictNone,
			"\x11\x00\x00\x00\x04", nil, (*Task).release, nil, nil, nil},
		{0x1a, noAction, "MODE SENSE (6)", 0, conflictRead,
			"\x08\xff\xff\xff\x04", nil, (*Task).modeSense6, nil, nil, nil},
		{0x1b, noAction, "START STOP UNIT", 0, conflictUnlessStart,
			"\x01\x00\x00\xf7\x04", nil, (*Task).beginStartStop, nil, nil, (*Task).startStop},
		{0x1c, noAction, "RECEIVE DIAGNOSTIC RESULTS", 0, conflictAll,
			"\x01\xff\xff\xff\x04", nil, (*Task).receiveDiagnostic, nil, nil, nil},
		{0x1d, noAction, "SEND DIAGNOSTIC", 0, conflictAll,
			"\xf7\x00\xff\xff\x04", nil, (*Task).beginDiagnostic, nil, nil, (*Task).diagnostic},
		{0x1e, noAction, "PREVENT ALLOW MEDIUM REMOVAL", 0, conflictUnlessAllow,
			"\x00\x00\x00\x03\x04", nil, (*Task).preventAllow, nil, nil, nil},
	}
}

// rows10 are those with CDBs of ten bytes.
func rows10() []command {
	return []command{
		{0x25, noAction, "READ CAPACITY (10)", 0, conflictNone,
			"\x00\xff\xff\xff\xff\x00\x00\x01\x04", nil, (*Task).readCapacity10, nil, nil, nil},
		{0x28, noAction, "READ (10)", readRow, conflictRead,
			"\xf8\xff\xff\xff\xff\x00\xff\xff\x04", (*CDB).transfer10, (*Task).beginRead, nil, (*Task).readPiece, nil},
		{0x2a, noAction, "WRITE (10)", writeRow, conflictAll,
			"\xf8\xff\xff\xff\xff\x00\xff\xff\x04", (*CDB).transfer10, (*Task).beginWrite, nil, (*Task).writePiece, nil},
		{0x2e, noAction, "WRITE AND VERIFY (10)", writeRow, conflictAll,
			"\xf6\xff\xff\xff\xff\x00\xff\xff\x04", (*CDB).transfer10, (*Task).beginWriteVerify, nil, (*Task).writeVerifyPiece, nil},
		{0x2f, noAction, "VERIFY (10)", medium, conflictRead,
			"\xf6\xff\xff\xff\xff\x00\xff\xff\x04", (*CDB).transfer10, (*Task).beginVerify, nil, (*Task).verifyPiece, (*Task).verify},
		{0x34, noAction, "PRE-FETCH (10)", medium, conflictRead,
			"\x02\xff\xff\xff\xff\x00\xff\xff\x04", (*CDB).transfer10, nil, nil, nil, nil},
		{0x35, noAction, "SYNCHRONIZE CACHE (10)", medium, conflictAll,
			"\x02\xff\xff\xff\xff\x00\xff\xff\x04", (*CDB).transfer10, nil, nil, nil, (*Task).flush},
		{0x37, noAction, "READ DEFECT DATA (10)", medium, conflictRead,
			"\x00\x1f\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).readDefects10, nil, nil, nil},
		{0x41, noAction, "WRITE SAME (10)", changeRow | exactData, conflictAll,
			"\xfe\xff\xff\xff\xff\x00\xff\xff\x04", (*CDB).transfer10, (*Task).beginWriteSame10, nil, nil, (*Task).writeSame},
		{0x42, noAction, "UNMAP", changeRow | needsThin, conflictAll,
			"\x01\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).beginUnmap, nil, nil, (*Task).unmap},
		{0x48, 0x01, "SANITIZE, OVERWRITE", sanitizeRow, conflictAll,
			"\xff\xff\xff\xff\xff\xff\xff\xff\x04", nil, (*Task).beginOverwrite, nil, nil, (*Task).overwrite},
		{0x48, 0x02, "SANITIZE, BLOCK ERASE", sanitizeRow | needsThin, conflictAll,
			"\xff\xff\xff\xff\xff\xff\xff\xff\x04", nil, (*Task).beginSanitize, nil, nil, (*Task).blockErase},
		{0x48, 0x1f, "SANITIZE, EXIT FAILURE MODE", passesFailure | needsWritable, conflictAll,
			"\xff\xff\xff\xff\xff\xff\xff\xff\x04", nil, (*Task).beginSanitize, nil, nil, (*Task).exitFailureMode},
		{0x4d, noAction, "LOG SENSE", passesReservation, conflictNone,
			"\x03\xff\xff\x00\xff\xff\xff\xff\x04", nil, (*Task).logSense, nil, nil, nil},
		{0x55, noAction, "MODE SELECT (10)", 0, conflictAll,
			"\x11\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).beginModeSelect10, nil, nil, (*Task).modeSelect},
		{0x56, noAction, "RESERVE (10)", 0, conflictNone,
			"\x13\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).reserve, nil, nil, nil},
		{0x57, noAction, "RELEASE (10)", passesReservation, conflictNone,
			"\x13\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).release, nil, nil, nil},
		{0x5a, noAction, "MODE SENSE (10)", 0, conflictRead,
			"\x18\xff\xff\x00\x00\x00\xff\xff\x04", nil, (*Task).modeSense10, nil, nil, nil},
		{0x5e, 0x00, "PERSISTENT RESERVE IN, READ KEYS", passesReservation, conflictNone,
			"\x1f\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).readKeys, nil, nil, nil},
		{0x5e, 0x01, "PERSISTENT RESERVE IN, READ RESERVATION", passesReservation, conflictNone,
			"\x1f\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).readReservation, nil, nil, nil},
		{0x5e, 0x02, "PERSISTENT RESERVE IN, REPORT CAPABILITIES", passesReservation, conflictNone,
			"\x1f\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).reportCapabilities, nil, nil, nil},
		{0x5e, 0x03, "PERSISTENT RESERVE IN, READ FULL STATUS", passesReservation, conflictNone,
			"\x1f\x00\x00\x00\x00\x00\xff\xff\x04", nil, (*Task).readFullStatus, nil, nil, nil},
		{0x5f, 0x00, "PERSISTENT RESERVE OUT, REGISTER", passesReservation, conflictNone,
			"\x1f\x00\x00\x00\xff\xff\xff\xff\x04", nil, (*Task).beginReserveOut, nil, nil, (*Task).registerKey},
		{0x5f, 0x01, "PERSISTENT RESERVE OUT, RESERVE", passesReservation, conflictNone,
			"\x1f\xff\x00\x00\xff\xff\xff\xff\x04", nil, (*Task).beginReserveOut, nil, nil, (*Task).reservePersistent},
		{0x5f, 0x02, "PERSISTENT RESERVE OUT, RELEASE", passesReservation, conflictNone,
			"\x1f\xff\x00\x00\xff\xff\xff\xff\x04", nil, (*Task).beginReserveOut, nil, nil, (*Task).releasePersistent},
		{0x5f, 0x03, "PERSISTENT RESERVE OUT, CLEAR", passesReservation, conflictNone,
			"\x1f\x00\x00\x00\xff\xff\xff\xff\x04", nil, (*Task).beginReserveOut, nil, nil, (*Task).clearPersistent},
		{0x5f, 0x04, "PERSISTENT RESERVE OUT, PREEMPT", passesReservation, conflictNone,
			"\x1f\xff\x00\x00\xff\xff\xff\xff\x04", nil, (*Task).beginReserveOut, nil, nil, (*Task).preemptPersistent},
		{0x5f, 0x05, "PERSISTENT RESERVE OUT, PREEMPT AND ABORT", passesReservation, conflictNone,
			"\x1f\xff\x00\x00\xff\xff\xff\xff\x04", nil, (*Task).beginReserveOut, nil, nil, (*Task).preemptAndAbort},
		{0x5f, 0x06, "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY", passesReservation, conflictNone,
			"\x1f\x00\x00\x00\xff\xff\xff\xff\x04", nil, (*Task).beginReserveOut, nil, nil, (*Task).registerKey},
		{0x5f, 0x07, "PERSISTENT RESERVE OUT, REGISTER AND MOVE", passesReservation, conflictNone,
			"\x1f\x00\x00\x00\xff\xff\xff\xff\x04", nil, (*Task).beginReserveOut, nil, nil, (*Task).registerAndMove},
	}
}

// rows16 are those with CDBs of sixteen bytes.
func rows16() []command {
	return []command{
		{0x83, 0x00, "EXTENDED COPY (LID1)", 0, conflictAll,
			"\x1f\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).beginCopy, nil, nil, (*Task).copySegments},
		{0x84, 0x00, "RECEIVE COPY RESULTS, COPY STATUS", 0, conflictAll,
			"\x1f\xff\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).copyStatus, nil, nil, nil},
		{0x84, 0x01, "RECEIVE COPY RESULTS, RECEIVE DATA", 0, conflictAll,
			"\x1f\xff\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).receiveData, nil, nil, nil},
		{0x84, 0x03, "RECEIVE COPY RESULTS, OPERATING PARAMETERS", 0, conflictAll,
			"\x1f\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).operatingParameters, nil, nil, nil},
		{0x84, 0x04, "RECEIVE COPY RESULTS, FAILED SEGMENT DETAILS", 0, conflictAll,
			"\x1f\xff\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).failedSegment, nil, nil, nil},
		{0x88, noAction, "READ (16)", readRow, conflictRead,
			"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer16, (*Task).beginRead, nil, (*Task).readPiece, nil},
		{0x89, noAction, "COMPARE AND WRITE", changeRow | exactData, conflictAll,
			"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\xff\x00\x04", (*CDB).compareAndWrite, (*Task).beginCompareAndWrite, nil, nil, (*Task).compareAndWrite},
		{0x8a, noAction, "WRITE (16)", writeRow, conflictAll,
			"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer16, (*Task).beginWrite, nil, (*Task).writePiece, nil},
		{0x8b, noAction, "ORWRITE (16)", writeRow, conflictAll,
			"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer16, (*Task).beginWrite, nil, (*Task).orPiece, nil},
		{0x8e, noAction, "WRITE AND VERIFY (16)", writeRow, conflictAll,
			"\xf6\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer16, (*Task).beginWriteVerify, nil, (*Task).writeVerifyPiece, nil},
		{0x8f, noAction, "VERIFY (16)", medium, conflictRead,
			"\xf6\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer16, (*Task).beginVerify, nil, (*Task).verifyPiece, (*Task).verify},
		{0x90, noAction, "PRE-FETCH (16)", medium, conflictRead,
			"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer16, nil, nil, nil, nil},
		{0x91, noAction, "SYNCHRONIZE CACHE (16)", medium, conflictAll,
			"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer16, nil, nil, nil, (*Task).flush},
		{0x93, noAction, "WRITE SAME (16)", changeRow | exactData, conflictAll,
			"\xf9\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer16, (*Task).beginWriteSame16, nil, nil, (*Task).writeSame},
		{0x9e, 0x10, "READ CAPACITY (16)", 0, conflictNone,
			"\x1f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x04", nil, (*Task).readCapacity16, nil, nil, nil},
		{0x9e, 0x12, "GET LBA STATUS", medium, conflictRead,
			"\x1f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", nil, (*Task).lbaStatus, nil, nil, nil},
	}
}

// rows12 are those with CDBs of twelve bytes.
func rows12() []command {
	return []command{
		{0xa0, noAction, "REPORT LUNS", passesAttention | passesReservation, conflictNone,
			"\x00\xff\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).reportLUNs, (*Task).reportLUNsNowhere, nil, nil},
		{0xa3, 0x0a, "REPORT TARGET PORT GROUPS", passesReservation, conflictNone,
			"\xff\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).reportTargetPortGroups, nil, nil, nil},
		{0xa3, 0x0c, "REPORT SUPPORTED OPERATION CODES", 0, conflictRead,
			"\x1f\x87\xff\xff\xff\xff\xff\xff\xff\x00\x04", nil, (*Task).reportOpcodes, nil, nil, nil},
		{0xa3, 0x0d, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS", 0, conflictRead,
			"\x1f\x80\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).reportFunctions, nil, nil, nil},
		{0xa8, noAction, "READ (12)", readRow, conflictRead,
			"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer12, (*Task).beginRead, nil, (*Task).readPiece, nil},
		{0xaa, noAction, "WRITE (12)", writeRow, conflictAll,
			"\xf8\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer12, (*Task).beginWrite, nil, (*Task).writePiece, nil},
		{0xae, noAction, "WRITE AND VERIFY (12)", writeRow, conflictAll,
			"\xf6\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer12, (*Task).beginWriteVerify, nil, (*Task).writeVerifyPiece, nil},
		{0xaf, noAction, "VERIFY (12)", medium, conflictRead,
			"\xf6\xff\xff\xff\xff\xff\xff\xff\xff\x00\x04", (*CDB).transfer12, (*Task).beginVerify, nil, (*Task).verifyPiece, (*Task).verify},
		{0xb7, noAction, "READ DEFECT DATA (12)", medium, conflictRead,
			"\x1f\x00\x00\x00\x00\xff\xff\xff\xff\x00\x04", nil, (*Task).readDefects12, nil, nil, nil},
	}
}

// table finds the row of a command.
type table struct {
	byOpcode [256]*command    // nil also where actions has the opcode
	actions  [256]*actionRows // of the opcodes with service actions
	ordered  []*command
}

// actionRows are the commands of one operation code by service action.
type actionRows [maskAction + 1]*command

// The service action is in the low bits of byte 1 in the groups that have it
// here (PERSISTENT RESERVE IN and OUT, SERVICE ACTION IN (16), MAINTENANCE IN).
const maskAction = 0x1f

// newTable returns the table of the commands that a disk of that provisioning
// has. It is built for each user rather than once for all, so that what lists
// it (REPORT SUPPORTED OPERATION CODES) can be a row of it.
func newTable(p provisioning) *table {
	t := &table{}
	for _, row := range rows() {
		if row.flags&needsThin != 0 && p != hasThin || row.flags&needsWritable != 0 && p == unchangeable {
			continue
		}
		if row.move == nil {
			row.move = (*Task).moveList
		}
		t.add(&row)
	}
	return t
}

func (t *table) add(row *command) {
	t.ordered = append(t.ordered, row)
	if row.action == noAction {
		t.byOpcode[row.opcode] = row
		return
	}
	if t.actions[row.opcode] == nil {
		t.actions[row.opcode] = new(actionRows)
	}
	t.actions[row.opcode][row.action] = row
}

// find returns the row of a command, or the reason why there is none: an
// unknown service action of a known opcode is an invalid field.
func (t *table) find(c *CDB) (*command, error) {
	if row := t.byOpcode[c[0]]; row != nil {
		return row, nil
	}
	if actions := t.actions[c[0]]; actions != nil {
		if row := actions[c[1]&maskAction]; row != nil {
			return row, nil
		}
		return nil, invalidCDB(1, 4)
	}
	return nil, errInvalidOpcode
}
