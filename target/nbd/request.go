package nbd

import "math"

// request is a request of the transmission phase. Its offset and length are
// within the disk once refuse has let it pass.
type request struct {
	cookie uint64
	cmd    command
	flags  commandFlags
	off    int64 // bytes
	n      int64 // bytes
	farOff bool  // the offset is beyond what an int64 holds
}

// parseRequest reads the header, which has reqLen bytes.
func parseRequest(b []byte) request {
	b = b[:reqLen]
	off := reqOffset.Get(b)
	return request{
		cookie: reqCookie.Get(b),
		cmd:    command(reqType.Get(b)),
		flags:  commandFlags(reqFlags.Get(b)),
		off:    int64(off & math.MaxInt64),
		n:      int64(reqLength.Get(b)),
		farOff: off > math.MaxInt64,
	}
}

func (r *request) has(f commandFlags) bool { return r.flags&f != 0 }

// traits are what the gate needs to know of a command.
type traits uint8

const (
	modifies   traits = 1 << iota // refused on a read-only export
	hasPayload                    // the length is bound by maxPayload
	wantsRange                    // offset and length are a range of the disk
)

// commandRow is one command: which flags it takes besides FUA, which is legal
// on every command and means nothing where nothing is written.
type commandRow struct {
	flags  commandFlags
	traits traits
	run    func(*conn, *request)
}

// commands are all but DISC, which ends the loop.
var commands = [...]commandRow{
	cmdRead:        {flagDF, wantsRange | hasPayload, (*conn).read},
	cmdWrite:       {0, wantsRange | hasPayload | modifies, (*conn).beginWrite},
	cmdFlush:       {0, 0, (*conn).flushDisk},
	cmdTrim:        {0, wantsRange | modifies, (*conn).trim},
	cmdCache:       {0, wantsRange, (*conn).cache},
	cmdWriteZeroes: {flagNoHole | flagFastZero, wantsRange | modifies, (*conn).writeZeroes},
	cmdBlockStatus: {flagReqOne, wantsRange, (*conn).blockStatus},
}

// refuse says why a request is not carried out, or nil. It is the gate: what
// is behind it trusts the request.
func (c *conn) refuse(r *request) *failure {
	if int(r.cmd) >= len(commands) || commands[r.cmd].run == nil {
		return errUnknownCommand
	}
	row := &commands[r.cmd]
	switch {
	case r.flags&^(row.flags|flagFUA) != 0, r.has(flagDF) && !c.structured:
		return errFlags
	case row.traits&modifies != 0 && c.export.readOnly:
		return errReadOnly
	case row.traits&hasPayload != 0 && r.n > maxPayload:
		return errTooLong
	case row.traits&wantsRange != 0 && (r.farOff || r.off > c.export.size || r.n > c.export.size-r.off):
		if r.cmd == cmdWrite || r.cmd == cmdWriteZeroes {
			return errWritePastEnd
		}
		return errPastEnd
	}
	return c.refuseSpecial(r)
}

// refuseSpecial has the rules that only one command has.
func (c *conn) refuseSpecial(r *request) *failure {
	switch {
	case r.cmd == cmdFlush && (r.off != 0 || r.n != 0 || r.farOff):
		return errFlushRange
	case r.cmd == cmdTrim && !c.export.caps.Discard:
		return errNotOffered
	case r.has(flagFastZero) && (!c.export.caps.FastZero || r.has(flagNoHole)):
		// Whether space can be set aside fast, a device does not tell.
		return errNotFast
	case r.cmd == cmdBlockStatus && c.contexts == 0:
		return errNoContext
	case r.cmd == cmdBlockStatus && r.n == 0:
		return errNoLength
	}
	return nil
}
