package iscsi

import (
	"github.com/containerdisk/containerdisk/target/scsi"
	"github.com/containerdisk/containerdisk/target/wire"
)

// maxSolicited bounds the data-out of one connection that is asked for or
// waits for the disk, bytes; beyond it R2Ts wait. With a disk that keeps up,
// nothing ever waits for it.
const maxSolicited = 8 << 20

// dataOutState is how far the data-out of a command has come. The data of a
// command comes in order, as we negotiate it: unsolicited data first, then the
// sequences that R2Ts asked for, one after the other.
type dataOutState struct {
	got         int64 // bytes that came, wanted or not
	asked       int64 // the end of what may come: R2Ts so far, or the unsolicited data
	unsolicited bool  // the sequence that comes was not asked for
	broken      bool  // the data is not as announced: what comes is thrown away
	fault       error // why, until the task can be told
	sn          uint32
	waiting     bool // in conn.waiting

	r2ts     [ourMaxR2T]sequenceOut // those outstanding, the oldest first
	nr2ts    int
	nextTag  uint16
	queue    [][]byte // pieces that wait for the worker
	queuedAt int64    // where the first of them belongs
	held     int64    // bytes counted in conn.solicited
}

// sequenceOut is what one R2T asked for.
type sequenceOut struct {
	ttt uint32
	end int64 // offset behind its last byte
}

func (d *dataOutState) reset() { *d = dataOutState{nextTag: d.nextTag, queue: d.queue[:0]} }

// discard frees what waits and returns how much it counted.
func (d *dataOutState) discard() int64 {
	for _, b := range d.queue {
		wire.FreePiece(b)
	}
	d.queue = d.queue[:0]
	held := d.held
	d.held = 0
	return held
}

// spoil fails a command for what is wrong with its data. The rest of the data
// still comes, and the response waits for it, §11.4.2.
func (cmd *command) spoil(fault error) {
	cmd.out.broken = true
	if cmd.out.fault == nil {
		cmd.out.fault = fault
	}
}

// failed reports whether the command takes no more data. While a worker has
// the task, only the worker knows what came of it.
func (cmd *command) failed() bool {
	return cmd.out.broken || cmd.task.Aborted() || !cmd.busy && cmd.task.Status() != scsi.Good
}

// dataOutLen is how many bytes the command takes: no more than the initiator
// has.
func (cmd *command) dataOutLen() int64 { return min(cmd.task.Out(), int64(cmd.edtl)) }

// beginDataOut takes the immediate data of a command that writes and asks for
// the rest, as §4.2.4.2 and §13.10 to §13.14 allow.
func (c *conn) beginDataOut(cmd *command, final bool, immediate []byte) error {
	o := &cmd.out
	switch {
	case len(immediate) > 0 && !c.params.immediateData, !final && c.params.initialR2T:
		cmd.spoil(scsi.ErrUnexpectedData)
	case len(immediate) > int(min(c.params.firstBurst, cmd.edtl)):
		cmd.spoil(scsi.ErrDataAmount)
	}
	c.store(cmd, immediate)
	o.got = int64(len(immediate))
	o.asked = o.got
	if !final {
		o.unsolicited = true
		o.asked = int64(min(c.params.firstBurst, cmd.edtl))
		return nil
	}
	c.goOn(cmd)
	return nil
}

// goOn asks for the data that is still wanted, and proceeds when all of it is
// here and with the disk.
func (c *conn) goOn(cmd *command) {
	o := &cmd.out
	if o.unsolicited {
		return
	}
	c.solicit(cmd)
	if o.nr2ts > 0 || o.waiting || cmd.busy {
		return
	}
	if o.fault != nil {
		cmd.task.Fail(o.fault)
	}
	c.proceed(cmd)
}

// solicit sends the R2Ts that may be sent, §11.8.
func (c *conn) solicit(cmd *command) {
	o := &cmd.out
	for o.nr2ts < int(c.params.maxR2T) && o.asked < cmd.dataOutLen() && !cmd.failed() {
		n := min(cmd.dataOutLen()-o.asked, int64(c.params.maxBurst))
		if !c.maySolicit(n) {
			if !o.waiting {
				o.waiting = true
				c.waiting = append(c.waiting, cmd)
			}
			return
		}
		c.solicited += n
		o.held += n
		c.sendR2T(cmd, n)
	}
}

// maySolicit reports whether n more bytes may be asked for. Alone, a command
// always may.
func (c *conn) maySolicit(n int64) bool {
	return c.solicited == 0 || c.solicited+n <= maxSolicited
}

// settle counts n bytes of data-out as done with.
func (c *conn) settle(cmd *command, n int) {
	k := min(int64(n), cmd.out.held)
	cmd.out.held -= k
	c.solicited -= k
}

func (c *conn) sendR2T(cmd *command, n int64) {
	o := &cmd.out
	o.nextTag++
	s := sequenceOut{ttt: uint32(cmd.slot)<<24 | uint32(cmd.generation&0xff)<<16 | uint32(o.nextTag), end: o.asked + n}
	if s.ttt == reservedTag {
		s.ttt--
	}
	h, _ := c.out.reserve(0)
	r2t{lun: cmd.lun, itt: cmd.itt, ttt: s.ttt, sn: cmd.dataSN, offset: uint32(o.asked), length: uint32(n)}.header(h)
	c.commit(statShow)
	cmd.dataSN++
	o.r2ts[o.nr2ts] = s
	o.nr2ts++
	o.asked = s.end
}

// solicitWaiting lets those ask that had to wait.
func (c *conn) solicitWaiting() {
	for len(c.waiting) > 0 {
		cmd := c.waiting[0]
		// A slot that has another command by now may be called once too often.
		if cmd.out.waiting && !c.maySolicit(int64(c.params.maxBurst)) {
			return
		}
		c.waiting = c.waiting[1:]
		if cmd.out.waiting {
			cmd.out.waiting = false
			c.goOn(cmd)
		}
	}
}

// dataOut takes a Data-Out, §11.7.
func (c *conn) dataOut(h dataOut, data []byte) error {
	if c.holdData(h, data, dataWhole) {
		return nil
	}
	cmd := c.sequenceOf(h)
	if cmd == nil {
		return nil
	}
	if why := cmd.out.check(h, len(data)); why != 0 {
		c.reject(why, pdu{BHS: h.BHS})
		cmd.spoil(scsi.ErrDataAmount)
	}
	c.store(cmd, data)
	c.received(cmd, h, len(data))
	return nil
}

// lostData counts a Data-Out whose data was not what was sent; the command
// ends in a check condition after its last sequence, §7.8.
func (c *conn) lostData(h dataOut, data []byte) {
	if c.holdData(h, data, dataLost) {
		return
	}
	if cmd := c.sequenceOf(h); cmd != nil {
		cmd.spoil(scsi.ErrDataCRC)
		c.received(cmd, h, len(data))
	}
}

// received counts a Data-Out, and goes on when it was the last of its sequence.
func (c *conn) received(cmd *command, h dataOut, n int) {
	o := &cmd.out
	o.got += int64(n)
	o.sn++
	if cmd.task.Aborted() {
		c.late++
	}
	if !h.final() {
		return
	}
	o.sn = 0
	if o.unsolicited {
		o.unsolicited = false
	} else {
		copy(o.r2ts[:], o.r2ts[1:o.nr2ts])
		o.nr2ts--
	}
	c.goOn(cmd)
}

// sequenceOf returns the command whose current sequence the Data-Out belongs
// to. Data for a command that is not there any more is thrown away: the
// initiator may not have heard of its end. A wrong transfer tag is rejected.
func (c *conn) sequenceOf(h dataOut) *command {
	if c.commands == nil {
		c.reject(rejectProtocol, pdu{BHS: h.BHS}) // a discovery session, §4.3
		return nil
	}
	cmd := c.commands.find(h.itt())
	switch {
	case cmd == nil:
		return nil
	case h.ttt() == reservedTag && cmd.out.unsolicited:
		return cmd
	case cmd.out.nr2ts > 0 && cmd.out.r2ts[0].ttt == h.ttt() && !cmd.out.unsolicited:
		return cmd
	}
	c.reject(rejectInvalidField, pdu{BHS: h.BHS})
	return nil
}

// check says what is wrong with a Data-Out in the current sequence.
func (o *dataOutState) check(h dataOut, n int) rejectReason {
	end := o.asked
	if o.nr2ts > 0 {
		end = o.r2ts[0].end
	}
	switch {
	case o.broken:
		return 0 // said already
	case h.sn() != o.sn, int64(h.offset()) != o.got:
		return rejectInvalidField
	case int64(n) > end-o.got, h.final() && o.got+int64(n) != end:
		return rejectProtocol
	}
	return 0
}

// store writes a piece of data-out that belongs at out.got, as far as the
// command wants it, or gives a copy of it to a worker.
func (c *conn) store(cmd *command, data []byte) {
	o := &cmd.out
	want := cmd.dataOutLen() - o.got
	if want <= 0 || len(data) == 0 || cmd.failed() {
		c.settle(cmd, len(data))
		return
	}
	data = data[:min(int64(len(data)), want)]
	if !cmd.busy && cmd.task.TryWrite(data, o.got) != scsi.ErrWouldBlock {
		c.settle(cmd, len(data))
		return // written, or the task has failed
	}
	if len(o.queue) == 0 {
		o.queuedAt = o.got
	}
	o.enqueue(data)
	if !cmd.busy {
		c.away(cmd, (*conn).writeAway)
	}
}

// enqueue copies data behind what waits for the worker. The first piece is the
// worker's already; behind it small pieces gather in one buffer, so that they
// take no more memory, nor time, than their bytes are worth.
func (o *dataOutState) enqueue(data []byte) {
	last := len(o.queue) - 1
	switch {
	case last < 0:
		o.queue = append(o.queue, wire.CopyPiece(data))
	case last > 0 && cap(o.queue[last])-len(o.queue[last]) >= len(data):
		o.queue[last] = append(o.queue[last], data...)
	default:
		o.queue = append(o.queue, append(wire.Piece()[:0], data...))
	}
}
