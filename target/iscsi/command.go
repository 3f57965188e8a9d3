package iscsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/target/scsi"
)

// scsiCommand begins a command, RFC 7143 §11.3, and goes on with it as far as
// that needs no waiting.
func (c *conn) scsiCommand(h scsiCommand, p pdu) error {
	cmd, why := c.newCommand(h, p.ahs)
	if cmd == nil {
		if !p.immediate() {
			c.maxCmdSN++
		}
		c.reject(why, p)
		return nil
	}
	cmd.task.Begin(c.sess.nexus, cmd.lun, h.cdb())
	cmd.task.Announce(cmd.announced())
	if cmd.writes {
		return c.beginDataOut(cmd, h.final(), p.data)
	}
	c.proceed(cmd)
	return nil
}

// announced is how many bytes of data-out the initiator says that it has.
func (cmd *command) announced() int64 {
	if !cmd.writes {
		return 0
	}
	return int64(cmd.edtl)
}

// newCommand gives the command a slot, or the reason why there is none.
func (c *conn) newCommand(h scsiCommand, ahs []byte) (*command, rejectReason) {
	if h.itt() == reservedTag {
		return nil, rejectInvalidField
	}
	if c.commands.find(h.itt()) != nil {
		return nil, rejectTaskInUse
	}
	cmd := c.commands.take(h.itt(), h.immediate())
	if cmd == nil {
		return nil, rejectImmediates
	}
	cmd.reads, cmd.writes = h.reads(), h.writes()
	cmd.edtl, cmd.edtlIn = h.edtl(), 0
	switch {
	case cmd.isBidirectional():
		cmd.edtlIn = expectedRead(ahs)
	case cmd.reads:
		cmd.edtlIn = cmd.edtl
	}
	cmd.lun = h.lun()
	return cmd, 0
}

// proceed goes on with a command whose data-out, if any, has come: data-in,
// the rest of the work, the response.
func (c *conn) proceed(cmd *command) {
	if cmd.task.Status() == scsi.Good && !c.sendData(cmd) {
		return
	}
	if cmd.task.TryFinish() == scsi.ErrWouldBlock {
		c.away(cmd, (*conn).finishAway)
		return
	}
	c.respond(cmd)
}

// isBidirectional reports whether the initiator has said that the command both
// reads and writes.
func (cmd *command) isBidirectional() bool { return cmd.reads && cmd.writes }

// dataInLen is how many bytes of data-in the command sends: no more than the
// initiator expects.
func (cmd *command) dataInLen() int64 { return min(cmd.task.In(), int64(cmd.edtlIn)) }

// sendData sends the data-in, read straight into the send buffer. It returns
// false when a worker took over: the command must not be touched any more.
func (c *conn) sendData(cmd *command) bool {
	total := cmd.dataInLen()
	for cmd.sent < total {
		n := c.segment(cmd, total)
		h, p := c.out.reserve(n)
		switch err := cmd.task.TryRead(p, cmd.sent); {
		case err == scsi.ErrWouldBlock:
			c.away(cmd, (*conn).readAway)
			return false
		case err != nil:
			return true
		}
		if c.dataIn(h, cmd, n, total) {
			return false
		}
	}
	return true
}

// segment is the length of the next Data-In: it ends with a burst at the
// latest.
func (c *conn) segment(cmd *command, total int64) int {
	burst := int64(c.params.maxBurst)
	return int(min(total-cmd.sent, int64(c.params.maxSend), burst-cmd.sent%burst))
}

// dataIn completes a Data-In whose n bytes of data are in place. The last one
// brings the status along if that is GOOD, and reports so: the command is over
// then. It has no place for the two residuals of a bidirectional command.
func (c *conn) dataIn(h *BHS, cmd *command, n int, total int64) (over bool) {
	d := dataIn{itt: cmd.itt, sn: cmd.dataSN, offset: uint32(cmd.sent), n: n}
	cmd.sent += int64(n)
	cmd.dataSN++
	if cmd.sent%int64(c.params.maxBurst) == 0 {
		d.flags = flagFinal
	}
	stat := statNone
	if cmd.sent == total {
		d.flags = flagFinal
		over = !cmd.isBidirectional() && cmd.task.TryFinish() == nil && cmd.task.Status() == scsi.Good && !cmd.task.Aborted()
	}
	if over {
		flag, count := residual(cmd.edtl, cmd.task.In())
		d.flags |= dataFlagStatus | flag
		d.residual = count
		stat = statAdvance
		c.countDone(cmd)
	}
	d.header(h)
	c.commit(stat)
	if over {
		c.free(cmd)
	}
	return over
}

// respond sends the SCSI Response that ends the command, unless the command
// was aborted: then nothing is said, RFC 7143 §11.5.1.
func (c *conn) respond(cmd *command) {
	c.countDone(cmd)
	if !cmd.task.Aborted() {
		c.sendResponse(cmd)
	}
	c.free(cmd)
}

func (c *conn) sendResponse(cmd *command) {
	sense := cmd.task.Sense()
	n := 0
	if len(sense) > 0 {
		n = 2 + len(sense) // SenseLength goes before, §11.4.7
	}
	r := scsiResponse{itt: cmd.itt, status: cmd.task.Status(), expDataSN: cmd.dataSN}
	r.residualFlag, r.residual = cmd.residual()
	if cmd.isBidirectional() {
		var flag byte
		flag, r.readResidual = cmd.readResidual()
		r.residualFlag |= flag << rspReadFlags
	}
	h, p := c.out.reserve(n)
	r.header(h)
	if n > 0 {
		bhsDataLen.Put(h[:], uint32(n))
		binary.BigEndian.PutUint16(p, uint16(len(sense)))
		copy(p[2:], sense)
	}
	c.commit(statAdvance)
}

// residual compares what the initiator expected with what the command has to
// move, whether or not it was moved, §11.4.5. Of a command that failed nothing
// counts beyond what was moved.
func (cmd *command) residual() (flag byte, count uint32) {
	moves := cmd.task.In() + cmd.task.Out()
	switch wrongWay := cmd.edtl > 0; {
	case cmd.isBidirectional():
		moves = cmd.task.Out()
	case wrongWay && cmd.writes: // a READ that says it writes moves nothing of what is expected
		moves = cmd.task.Out()
	case wrongWay && cmd.reads:
		moves = cmd.task.In()
	}
	if cmd.task.Status() == scsi.CheckCondition {
		moves = min(cmd.sent, int64(cmd.edtl))
		if cmd.isBidirectional() {
			moves = 0
		}
	}
	return residual(cmd.edtl, moves)
}

// readResidual is residual for what a bidirectional command reads.
func (cmd *command) readResidual() (flag byte, count uint32) {
	moves := cmd.task.In()
	if cmd.task.Status() == scsi.CheckCondition {
		moves = cmd.sent
	}
	return residual(cmd.edtlIn, moves)
}

// countDone opens the window for one more command. It goes before the answer,
// whose numbers tell of it.
func (c *conn) countDone(cmd *command) {
	if !cmd.immediate {
		c.maxCmdSN++
	}
}

// free gives back what the command holds, and tells who waits for its end.
func (c *conn) free(cmd *command) {
	waiting, tag := cmd.abortWaiting, cmd.abortTag
	c.solicited -= cmd.out.discard()
	c.commands.give(cmd)
	c.gone.Broadcast()
	if waiting {
		c.taskResponse(tag, scsi.FunctionComplete)
	}
}

// drop ends an aborted command that no worker has, without a word.
func (c *conn) drop(cmd *command) {
	cmd.task.Abort() // takes it out of the task set, whoever aborted it
	c.countDone(cmd)
	c.free(cmd)
}

// abandon ends what waits for an initiator that is gone. Workers find their
// tasks aborted.
func (c *conn) abandon() {
	if c.commands == nil {
		return
	}
	for i := range c.commands.all {
		c.commands.all[i].task.Abort()
	}
	c.ended = true
	c.gone.Broadcast()
}
