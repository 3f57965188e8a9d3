package iscsi

import "bytes"

// window is how many commands an initiator may have under way, RFC 7143
// §4.2.2.1. Each has its slot, so there is never a command without one.
const window = 128

// sequence is the numbering of one session's commands and one connection's
// answers.
type sequence struct {
	expCmdSN uint32 // the next command that is to be executed
	maxCmdSN uint32 // the last that may be sent
	told     uint32 // what the initiator knows of maxCmdSN
	statSN   uint32 // the next answer's
}

// start begins a session's numbering with the login's CmdSN, §11.12.8.
func (s *sequence) start(cmdSN uint32) {
	s.expCmdSN = cmdSN
	s.maxCmdSN = cmdSN + window - 1
}

// place is where a command's number stands.
type place uint8

const (
	placeNow     place = iota // it is next
	placeLater                // inside the window, after a gap
	placeOutside              // a duplicate or beyond the window: to be ignored
)

// place compares in serial arithmetic (RFC 1982).
func (s *sequence) place(cmdSN uint32) place {
	switch d := int32(cmdSN - s.expCmdSN); {
	case d == 0 && int32(s.maxCmdSN-cmdSN) >= 0:
		return placeNow
	case d > 0 && int32(s.maxCmdSN-cmdSN) >= 0:
		return placeLater
	}
	return placeOutside
}

// heldPDU is a request that came before its turn, with bytes of its own.
type heldPDU struct {
	header    BHS
	ahs, data []byte
	lost      bool      // the data digest did not match; Data-Out only
	follow    []heldPDU // its unsolicited Data-Out
}

// maxHeld bounds the bytes of requests that wait for a gap to close.
const maxHeld = 4 << 20

// hold keeps a copy of p until the requests before it have come. On one
// connection that happens only after a request was discarded for its digest.
func (c *conn) hold(p pdu) {
	if c.held == nil {
		c.held = make(map[uint32]heldPDU)
	}
	size := len(p.ahs) + len(p.data)
	if _, dup := c.held[p.cmdSN()]; dup || c.heldBytes+size > maxHeld {
		return // as if it had not come: the initiator sends it again
	}
	c.heldBytes += size
	c.held[p.cmdSN()] = heldPDU{header: *p.BHS, ahs: bytes.Clone(p.ahs), data: bytes.Clone(p.data)}
}

// dataFate says whether data-out arrived as it was sent.
type dataFate bool

const (
	dataWhole dataFate = false
	dataLost  dataFate = true
)

// holdData keeps a copy of a Data-Out with the held command that it follows,
// and reports whether there is one.
func (c *conn) holdData(h dataOut, data []byte, fate dataFate) bool {
	for sn, held := range c.held {
		if held.header.opcode() != opSCSICommand || held.header.itt() != h.itt() {
			continue
		}
		if size := bhsLen + len(data); c.heldBytes+size <= maxHeld {
			c.heldBytes += size
			held.follow = append(held.follow, heldPDU{header: *h.BHS, data: bytes.Clone(data), lost: bool(fate)})
			c.held[sn] = held
		} else {
			c.forget(sn) // as if none of it had come
		}
		return true
	}
	return false
}

// forget takes a request off those held.
func (c *conn) forget(sn uint32) {
	h := c.held[sn]
	c.heldBytes -= len(h.ahs) + len(h.data)
	for _, f := range h.follow {
		c.heldBytes -= bhsLen + len(f.data)
	}
	delete(c.held, sn)
}

// unhold returns the held request whose turn it is, if there is one.
func (c *conn) unhold() (heldPDU, bool) {
	h, ok := c.held[c.expCmdSN]
	if ok {
		c.forget(c.expCmdSN)
	}
	return h, ok
}

// handleHeld does what a held request asks for, and takes the data behind it.
func (c *conn) handleHeld(h heldPDU) error {
	if err := c.handle(pdu{BHS: &h.header, ahs: h.ahs, data: h.data}); err != nil {
		return err
	}
	for _, f := range h.follow {
		if f.lost {
			c.lostData(dataOut{&f.header}, f.data)
			continue
		}
		if err := c.dataOut(dataOut{&f.header}, f.data); err != nil {
			return err
		}
	}
	return nil
}

// plug counts the command that an initiator has given up as received, so that
// it is not executed when it comes and those behind it need not wait, §11.6.1.
func (c *conn) plug(sn uint32) {
	if sn == c.expCmdSN {
		c.expCmdSN++
		c.maxCmdSN++
		return
	}
	c.forget(sn)
	h := BHS{bhsOpcode: byte(opNopOut), bhsFlags: flagFinal} // asks for nothing
	bhsITT.Put(h[:], reservedTag)
	reqCmdSN.Put(h[:], sn)
	c.hold(pdu{BHS: &h})
}
