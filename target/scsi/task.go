package scsi

import (
	"errors"
	"sync/atomic"
)

// ErrFailed is what the methods of a Task that move data return once the task
// has failed or was aborted; Status and Sense tell more.
var ErrFailed = errors.New("the task has failed")

// Task is one command on its way through the device server. The zero value is
// ready; the transport owns it and may use it again once it is over. Its
// methods are called by one goroutine at a time, except Abort.
//
// A task that ends with good status and moves user data allocates nothing.
type Task struct {
	cdb  CDB
	itl  *itl // nil: no such logical unit
	lun  *LUN // of itl, or nil
	at   *Target
	from *Nexus
	row  *command

	x       transfer // of commands that name a range of blocks
	in, out int64
	moved   int64 // bytes of data-out that came
	force   bool  // what is written must be on the medium when the task ends

	// data is the reply of a command that builds one, or what has come of
	// a parameter list. The buffer stays with the task.
	data []byte

	status   Status
	over     bool // the status is final
	sense    [maxSense]byte
	senseLen int

	epoch   uint64      // of itl at Begin
	counted atomic.Bool // in itl.tasks
	aborted atomic.Bool // by Abort
}

// maxKept is the size in bytes of the largest buffer that a task keeps for the
// next command.
const maxKept = 4 << 10

// patience says whether a call may wait.
type patience uint8

const (
	mayWait patience = iota
	mustNotWait
)

// Begin starts the command cdb of nexus n. lun is the eight-byte LUN field as a
// big-endian number. A command that is refused ends here: Status tells, In and
// Out are 0.
func (t *Task) Begin(n *Nexus, lun uint64, cdb *CDB) {
	t.leave()
	t.cdb = *cdb
	t.from, t.at = n, n.target
	t.itl, t.lun, t.row = n.find(lun), nil, nil
	t.in, t.out, t.moved, t.force = 0, 0, 0, false
	t.status, t.over, t.senseLen = Good, false, 0
	t.aborted.Store(false)
	if cap(t.data) > maxKept {
		t.data = nil
	}
	t.data = t.data[:0]

	var err error
	if t.itl == nil {
		err = t.beginNowhere(lun)
	} else {
		t.lun = t.itl.lun
		t.epoch = t.itl.epoch.Load()
		t.counted.Store(true)
		t.itl.tasks.Add(1)
		err = t.gate()
	}
	if err != nil {
		t.in, t.out = 0, 0
		t.fail(err)
	}
}

// Announce tells how many bytes of data-out the initiator says it has for the
// command, after Begin and before any data. Of most commands the number does not
// matter here: the transport reports the difference as a residual. COMPARE AND
// WRITE and WRITE SAME are refused if it is not what the CDB makes them take:
// what the initiator meant is not what the CDB says, and the one would be told
// that it has swapped 256 blocks (the count has one byte, and is 0 then), the
// other that it has written something else than it has.
//
// The CDB of FORMAT UNIT does not say how much comes, so that is for the
// initiator to say.
func (t *Task) Announce(out int64) {
	if !t.over && t.row.flags&takesAnnounced != 0 {
		t.out = min(t.out, out)
	}
	if !t.over && t.row.flags&exactData != 0 && out != t.out {
		t.in, t.out = 0, 0
		t.fail(invalidCDB(int(t.x.length), wholeByte))
	}
}

// In is the number of bytes that the command sends to the initiator.
func (t *Task) In() int64 { return t.in }

// Out is the number of bytes that the command takes from the initiator.
func (t *Task) Out() int64 { return t.out }

// Read fills p with bytes [at, at+len(p)) of the data-in.
func (t *Task) Read(p []byte, at int64) error { return t.read(p, at, mayWait) }

// TryRead is Read where that needs no waiting, or else ErrWouldBlock: repeat it
// with Read.
func (t *Task) TryRead(p []byte, at int64) error { return t.read(p, at, mustNotWait) }

func (t *Task) read(p []byte, at int64, w patience) error {
	switch {
	case t.over:
		return ErrFailed
	case at < 0 || int64(len(p)) > t.in-at:
		return t.settle(errInternal) // the transport's mistake
	}
	return t.settle(t.row.move(t, p, at, w))
}

// Write takes bytes [at, at+len(p)) of the data-out. The pieces come in order;
// fewer bytes than Out is what an initiator does that promised less.
func (t *Task) Write(p []byte, at int64) error { return t.write(p, at, mayWait) }

// TryWrite is Write where that needs no waiting, or else ErrWouldBlock: repeat
// it with Write.
func (t *Task) TryWrite(p []byte, at int64) error { return t.write(p, at, mustNotWait) }

func (t *Task) write(p []byte, at int64, w patience) error {
	switch {
	case t.over:
		return ErrFailed
	case at != t.moved || int64(len(p)) > t.out-at:
		return t.settle(errInternal) // the transport's mistake
	}
	err := t.settle(t.row.move(t, p, at, w))
	if err == nil {
		t.moved += int64(len(p))
	}
	return err
}

// settle ends the task with an error of one of its steps, unless that only
// asks for patience.
func (t *Task) settle(err error) error {
	if err == nil || err == ErrWouldBlock {
		return err
	}
	t.fail(err)
	return ErrFailed
}

// Finish does what is left once all data has moved, or will not. It may be
// called again, and then does nothing.
func (t *Task) Finish() { _ = t.finish(mayWait) }

// TryFinish is Finish where that needs no waiting. Otherwise it does nothing
// and returns ErrWouldBlock: call Finish.
func (t *Task) TryFinish() error { return t.finish(mustNotWait) }

func (t *Task) finish(w patience) error {
	if t.over {
		return nil
	}
	if t.row.finish != nil || t.mustFlush() {
		if w == mustNotWait {
			return ErrWouldBlock
		}
		if err := t.finishRow(); err != nil {
			t.fail(err)
			return nil
		}
	}
	t.count()
	t.end()
	return nil
}

// finishRow does what the command has left, and brings to the medium what it
// promised to.
func (t *Task) finishRow() error {
	if t.row.finish != nil {
		if !t.current() {
			return errAborted
		}
		if err := t.row.finish(t); err != nil {
			return err
		}
	}
	if t.mustFlush() {
		return t.flush()
	}
	return nil
}

// mustFlush reports whether what the command wrote must be on the medium
// before it ends: it said so (FUA), or there is no write cache (WCE is 0).
func (t *Task) mustFlush() bool {
	if t.row.flags&modifies == 0 || t.lun == nil {
		return false
	}
	return t.force || t.lun.modes()&modeWriteThrough != 0
}

// Status is how the task ended; Good as long as it has not.
func (t *Task) Status() Status { return t.status }

// Sense is the sense data: nil unless Status is CheckCondition. It is valid
// until the next Begin.
func (t *Task) Sense() []byte {
	if t.status != CheckCondition {
		return nil
	}
	return t.sense[:t.senseLen]
}

// Aborted reports whether a task management function, a reset or the end of
// the nexus covers the task: no response is sent then. A task that another
// nexus aborts while TAS is set is not one of these: it fails with TASK ABORTED
// in its next step.
func (t *Task) Aborted() bool {
	return !t.current() && (t.aborted.Load() || t.epoch < t.itl.quiet.Load() || t.epoch >= t.itl.told.Load())
}

// Abort is the task management function ABORT TASK. It does not wait: the task
// is gone when the method that runs, if any, has returned. It may be called by
// any goroutine.
func (t *Task) Abort() {
	t.aborted.Store(true)
	t.leave()
}

// current reports whether nobody has aborted the task.
func (t *Task) current() bool {
	return !t.aborted.Load() && (t.itl == nil || t.itl.epoch.Load() == t.epoch)
}

// leave takes the task out of the task set.
func (t *Task) leave() {
	if t.counted.Load() && t.counted.CompareAndSwap(true, false) {
		t.itl.tasks.Add(-1)
	}
}

func (t *Task) end() {
	t.over = true
	t.leave()
}

// fail ends the task with the status and sense data that err stands for.
func (t *Task) fail(err error) {
	t.end()
	if s := statusError(0); errors.As(err, &s) {
		t.status = Status(s)
		return
	}
	f := fault{}
	if !errors.As(err, &f) {
		// A bug: errors of the disk are translated where the range is known.
		f = errInternal
	}
	t.status = CheckCondition
	t.senseLen = len(f.appendTo(t.sense[:0], t.senseFormat()))
}

func (t *Task) senseFormat() senseFormat {
	if t.lun != nil && t.lun.modes()&modeDescriptorSense != 0 {
		return descriptorFormat
	}
	return fixedFormat
}

// count counts a task with good status that moved user data.
func (t *Task) count() {
	switch {
	case t.row.flags&readsData != 0 && t.in > 0:
		t.lun.stats.reads.Add(1)
	case t.row.flags&writesData != 0 && t.moved > 0:
		t.lun.stats.writes.Add(1)
	}
}
