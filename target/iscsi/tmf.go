package iscsi

import (
	"slices"
	"time"

	"github.com/containerdisk/containerdisk/target/scsi"
)

// taskRequest does a task management function, RFC 7143 §11.5. Those that
// have to wait for tasks do so in a goroutine; their response comes when
// nothing that they aborted touches the disk any more.
func (c *conn) taskRequest(h taskRequest) {
	if c.awaitGap(h) {
		return
	}
	n, lun, itt := c.sess.nexus, h.lun(), h.itt()
	switch h.function() {
	case tmfAbortTask:
		c.abortTask(h)
	case tmfAbortTaskSet:
		c.manage(itt, func() scsi.FunctionResponse { return n.AbortTaskSet(lun) }, nil)
	case tmfClearTaskSet:
		c.manage(itt, func() scsi.FunctionResponse { return n.ClearTaskSet(lun) }, nil)
	case tmfLUReset:
		c.manage(itt, func() scsi.FunctionResponse { return n.LogicalUnitReset(lun) }, nil)
	case tmfWarmReset:
		c.manage(itt, n.TargetReset, nil)
	case tmfColdReset: // a power-on: no connection outlives it, §11.5.1
		c.manage(itt, n.ColdReset, c.srv.hangUp)
	case tmfTaskReassign:
		c.taskResponse(itt, tmfReassignNotGiven)
	case tmfClearACA: // NACA is refused, so there is never one
		c.taskResponse(itt, scsi.FunctionNotSupported)
	default:
		c.taskResponse(itt, scsi.FunctionNotSupported)
	}
}

// awaitGap puts off an immediate request about the task set of a unit until
// the commands that were sent before it have come, §4.2.3.3 b. One about the
// target counts them as received instead.
func (c *conn) awaitGap(h taskRequest) (later bool) {
	ahead := int32(h.cmdSN() - c.expCmdSN)
	if ahead <= 0 || c.place(h.cmdSN()-1) == placeOutside {
		return false
	}
	switch h.function() {
	case tmfAbortTaskSet, tmfClearTaskSet, tmfLUReset:
		if len(c.managing)+len(c.deferred) >= maxManaging {
			c.taskResponse(h.itt(), scsi.FunctionRejected)
			return true
		}
		header := *h.BHS
		c.deferred = append(c.deferred, taskRequest{&header})
		return true
	case tmfWarmReset, tmfColdReset:
		for sn := c.expCmdSN; sn != h.cmdSN(); sn++ {
			c.forget(sn)
		}
		c.maxCmdSN += uint32(ahead)
		c.expCmdSN = h.cmdSN()
	default: // of one task, or of none
	}
	return false
}

// resumeDeferred does the requests whose gap has closed.
func (c *conn) resumeDeferred() {
	for i := 0; i < len(c.deferred); {
		h := c.deferred[i]
		if int32(h.cmdSN()-c.expCmdSN) > 0 {
			i++
			continue
		}
		c.deferred = append(c.deferred[:i], c.deferred[i+1:]...)
		c.taskRequest(h)
	}
}

// abortTask ends one command. Its response follows when the command is gone.
func (c *conn) abortTask(h taskRequest) {
	cmd := c.commands.find(h.refTag())
	switch {
	case c.isManaging(h.refTag()):
		c.taskResponse(h.itt(), scsi.FunctionRejected) // §11.5.1
	case cmd == nil && c.mayComeYet(h):
		// Treated as received and aborted, §11.6.1.
		c.plug(h.refCmdSN())
		c.taskResponse(h.itt(), scsi.FunctionComplete)
	case cmd == nil:
		c.taskResponse(h.itt(), tmfNoTask)
	case cmd.abortWaiting:
		c.taskResponse(h.itt(), scsi.FunctionRejected) // a second request for the same
	default:
		cmd.task.Abort()
		cmd.abortWaiting, cmd.abortTag = true, h.itt()
		if !cmd.busy {
			c.drop(cmd)
		}
	}
}

// mayComeYet reports whether the command that the request names was sent
// before it and has not come, or not been its turn.
func (c *conn) mayComeYet(h taskRequest) bool {
	if held, ok := c.held[h.refCmdSN()]; ok && held.header.itt() != h.refTag() {
		return false
	}
	return c.place(h.refCmdSN()) != placeOutside && int32(h.refCmdSN()-h.cmdSN()) < 0
}

// isManaging reports whether the tag is that of a task management request
// which has not been answered.
func (c *conn) isManaging(itt uint32) bool {
	if slices.Contains(c.managing, itt) {
		return true
	}
	if slices.ContainsFunc(c.deferred, func(h taskRequest) bool { return h.itt() == itt }) {
		return true
	}
	return slices.ContainsFunc(c.commands.active, func(slot uint8) bool {
		cmd := &c.commands.all[slot]
		return cmd.abortWaiting && cmd.abortTag == itt
	})
}

// maxManaging bounds the functions of one connection that wait.
const maxManaging = 8

// manage runs a function that waits, ends the commands it aborted and answers.
// What is to happen after the answer is then, or nil.
func (c *conn) manage(itt uint32, function func() scsi.FunctionResponse, then func()) {
	if len(c.managing) == maxManaging {
		c.taskResponse(itt, scsi.FunctionRejected)
		return
	}
	c.managing = append(c.managing, itt)
	c.workers.Add(1)
	go func() {
		defer c.workers.Done()
		c.managed(itt, function())
		if then != nil {
			then()
		}
	}()
}

// managed waits for the commands that a function aborted, and answers it.
func (c *conn) managed(itt uint32, response scsi.FunctionResponse) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waitForTransfers()
	defer w.timer.Stop()
	for c.dropAborted(w) == someLeft {
		c.gone.Wait()
	}
	i := slices.Index(c.managing, itt)
	c.managing = append(c.managing[:i], c.managing[i+1:]...)
	c.taskResponse(itt, response)
	c.endBatch()
}

// aborted says what is left of aborted commands.
type aborted bool

const (
	noneLeft aborted = false
	someLeft aborted = true
)

// transferTime is how long a function waits for data-out that was asked for,
// from the last of it that came. An initiator sends all of it, §4.2.3.3 a, but
// for some that send none after such a request (Linux' with FastAbort=Yes, its
// default), and take the target for dead 30 s later.
const transferTime = 2 * time.Second

// transferWait is a function's wait for the data-out that R2Ts of the commands
// that it aborted have asked for. conn.mu guards it.
type transferWait struct {
	timer *time.Timer
	seen  uint32 // of conn.late
	over  bool
}

// waitForTransfers begins the wait.
func (c *conn) waitForTransfers() *transferWait {
	w := &transferWait{seen: c.late}
	w.timer = time.AfterFunc(transferTime, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if w.seen != c.late {
			w.seen = c.late
			w.timer.Reset(transferTime)
			return
		}
		w.over = true
		c.gone.Broadcast()
	})
	return w
}

// dropAborted ends the aborted commands that no worker has, once the data-out
// they asked for is here or the wait for it is over. A worker that has one is
// done with the disk and has not said so yet: before it has, the initiator must
// not use the tag again.
func (c *conn) dropAborted(w *transferWait) aborted {
	left := noneLeft
	for i := len(c.commands.active) - 1; i >= 0; i-- {
		cmd := &c.commands.all[c.commands.active[i]]
		switch {
		case !cmd.task.Aborted():
		case cmd.busy, cmd.out.nr2ts > 0 && !w.over && !c.ended:
			left = someLeft
		default:
			c.drop(cmd)
		}
	}
	return left
}

func (c *conn) taskResponse(itt uint32, r scsi.FunctionResponse) {
	h, _ := c.out.reserve(0)
	taskResponse{itt: itt, response: r}.header(h)
	c.commit(statAdvance)
}
