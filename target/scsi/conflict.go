package scsi

// Reservations keep commands away: RESERVE (6) and RESERVE (10) of SPC-2, which
// keep out all but their holder, and persistent reservations, which keep out by
// what a command does. The gate asks once; what a command is to a persistent
// reservation is in its row.

// conflict is how a command fares under a persistent reservation of somebody
// else: SPC "Commands that are allowed in the presence of various reservations"
// and the table of that name in SBC.
type conflict uint8

const (
	// conflictAll is for commands that change something, or that have no line
	// in the tables: refused unless the nexus is a holder, or registered and
	// the type lets registered ones in.
	conflictAll conflict = iota
	// conflictRead is for commands that only look: refused under Exclusive
	// Access as above, let in under Write Exclusive.
	conflictRead
	// conflictNone is for commands that always pass, and for those that have
	// rules of their own and follow them in begin or finish.
	conflictNone
	// START STOP UNIT passes when it starts.
	conflictUnlessStart
	// PREVENT ALLOW MEDIUM REMOVAL passes when it allows.
	conflictUnlessAllow
)

// of is the class of one command of the row: that of two depends on the CDB.
func (c conflict) of(cdb *CDB) conflict {
	switch {
	case c == conflictUnlessStart && cdb[startStopFlags]&(startStopCondition|startStopStart) == startStopStart,
		c == conflictUnlessAllow && cdb[preventFlags]&maskPrevent == 0:
		return conflictNone
	case c >= conflictUnlessStart:
		return conflictAll
	}
	return c
}

// checkReservations refuses what somebody else's reservation keeps out.
func (i *itl) checkReservations(flags flags, c conflict) error {
	if flags&passesReservation == 0 && i.lun.reservedFor(i.nexus) {
		return errConflict
	}
	if r := i.lun.reserved.Load(); r.kind != noReservation && !r.admits(i.nexus.initiator, c) {
		return errConflict
	}
	return nil
}

// reservedFor reports whether somebody other than n made RESERVE.
func (l *LUN) reservedFor(n *Nexus) bool {
	h := l.holder.Load()
	return h != nil && h != n
}

// admits reports whether a command of that class may come from a port.
func (r *reservations) admits(port string, c conflict) bool {
	switch {
	case c == conflictNone, c == conflictRead && !r.kind.excludesReads():
		return true
	case r.kind.admitsRegistered():
		return r.find(port) != nil
	}
	return r.holder == port
}
