package iscsi

import "github.com/containerdisk/containerdisk/target/wire"

// sender gathers the PDUs of one batch of answers. conn.mu guards it.
type sender struct {
	wire.Out
	room []byte // of the PDU that is reserved
	n    int    // bytes of its data

	headerDigest, dataDigest bool
}

// reserve makes room for a PDU with n bytes of data behind the batch, and
// returns the places of its header and of its data, to be filled. The PDU
// becomes part of the batch with commit; a reserve without one leaves nothing.
func (s *sender) reserve(n int) (*BHS, []byte) {
	s.n = n
	at := bhsLen + lenIf(s.headerDigest)
	s.room = s.ReservePayload(at+n+padding(n)+lenIf(s.dataDigest && n > 0), at)
	data := s.room[at:]
	return (*BHS)(s.room), data[:n:n]
}

// commit makes the reserved PDU part of the batch: padding and digests.
func (s *sender) commit() {
	b, end := s.room, bhsLen
	if s.headerDigest {
		putDigest(b[end:], b[:bhsLen])
		end += digestLen
	}
	start := end
	end += s.n
	for range padding(s.n) {
		b[end] = 0
		end++
	}
	if s.dataDigest && s.n > 0 {
		putDigest(b[end:], b[start:end])
		end += digestLen
	}
	s.Commit(end)
}

// statUse says what a PDU does with StatSN, RFC 7143 §4.2.2.2.
type statUse uint8

const (
	statNone    statUse = iota // the field is reserved
	statShow                   // it tells the next number
	statAdvance                // it takes the next number
)

// commit puts the reserved PDU, whose header is filled in but for the numbers,
// into the batch. conn.mu is held.
func (c *conn) commit(stat statUse) {
	h := c.out.room[:bhsLen]
	rspExpCmdSN.Put(h, c.expCmdSN)
	rspMaxCmdSN.Put(h, c.maxCmdSN)
	c.told = c.maxCmdSN
	if stat != statNone {
		rspStatSN.Put(h, c.statSN)
	}
	if stat == statAdvance {
		c.statSN++
	}
	c.out.commit()
	if c.out.Full() {
		c.flush()
	}
}

// flush sends the batch. conn.mu is held: it is what keeps the PDUs whole and
// their numbers in order. An initiator that takes nothing holds up its own
// connection here, until the keeper finds it (server.go).
func (c *conn) flush() {
	if c.out.Empty() {
		return
	}
	c.send()
	c.alive.Store(true)
}

// send is flush for a batch that says nothing of the initiator: what is little
// leaves even when nobody is there.
func (c *conn) send() {
	c.sending.Store(true)
	err := c.out.Flush(c.nc)
	c.sending.Store(false)
	if err != nil && c.broken == nil {
		c.broken = err
		c.nc.Close() // wakes the goroutine that reads
	}
}
