package iscsi

// nopOut answers a ping, RFC 7143 §11.18. One with the reserved tag wants no
// answer: it is itself the answer to ours, or confirms a StatSN.
func (c *conn) nopOut(h nopOut, data []byte) {
	if h.itt() == reservedTag {
		return
	}
	n := min(len(data), int(c.params.maxSend))
	r, p := c.out.reserve(n)
	nopIn{lun: h.lun(), itt: h.itt(), ttt: reservedTag, n: n}.header(r)
	copy(p, data)
	c.commit(statAdvance)
}

// ping asks whether the initiator is there, §11.19. conn.mu is held.
func (c *conn) ping() {
	if c.commands == nil {
		return // a discovery session knows no NOP
	}
	h, _ := c.out.reserve(0)
	nopIn{itt: reservedTag, ttt: pingTag}.header(h)
	c.commit(statShow)
	c.send()
}

// tellWindow sends a NOP-In that wants no answer, §11.19: the numbers in it are
// what it is for.
func (c *conn) tellWindow() {
	h, _ := c.out.reserve(0)
	nopIn{itt: reservedTag, ttt: reservedTag}.header(h)
	c.commit(statShow)
}

// pingTag is the transfer tag of our pings. There is one under way at most,
// and who answers is alive, whatever the tag.
const pingTag = 0x70696e67

// logout ends the session, §11.14. With one connection a session it makes no
// difference whether the connection or the session is meant.
func (c *conn) logout(h logoutRequest, p pdu) error {
	r := logoutReply{itt: h.itt(), response: logoutDone}
	switch {
	case h.reason() > logoutRecovery, c.sess.discovery && h.reason() != logoutSession:
		c.reject(rejectProtocol, p)
		return nil
	case h.reason() == logoutConnection && h.cid() != c.cid:
		r.response = logoutNoCID
	case h.reason() == logoutRecovery:
		r.response = logoutNoRecovery
	}
	rh, _ := c.out.reserve(0)
	r.header(rh)
	c.commit(statAdvance)
	if r.response != logoutDone {
		return nil
	}
	c.flush()
	c.nc.Close() // a worker has nothing to add
	return errLogout
}

// reject tells that p was discarded, §11.17. It carries p's header.
func (c *conn) reject(why rejectReason, p pdu) {
	c.log.Debug("reject", "pdu", p.opcode().String(), "reason", why.String())
	n := min(bhsLen+len(p.ahs), int(c.params.maxSend))
	h, data := c.out.reserve(n)
	reject{reason: why, n: n}.header(h)
	copy(data[copy(data, p.BHS[:]):], p.ahs)
	c.commit(statAdvance)
}
