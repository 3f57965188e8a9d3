package scsi

import (
	"bytes"

	"github.com/containerdisk/containerdisk/blockdev"
)

// What touches the disk. Every piece goes through enter and leave of the
// nexus's gate, so that it ends before the response to a task management
// function that aborts it. Errors of the disk become faults here, where the
// range is known.

// errAborted ends a task that somebody has aborted. The status is seen only
// with TAS: otherwise an aborted task has no response.
var errAborted error = statusError(TaskAborted)

// step is the largest piece in bytes that a command without data of its own
// works on at a time: how long an abort waits, and how much memory it takes.
const step = 256 << 10

// zeroStep is the same for zeroing and discarding, which is mostly a matter of
// the file system's maps.
const zeroStep = 64 << 20

// enter is called before a piece touches the disk.
func (t *Task) enter(w patience) error { return t.enterAt(t.itl, w) }

// enterAt is enter for the disk of another logical unit.
func (t *Task) enterAt(i *itl, w patience) error {
	if w == mayWait {
		i.gate.RLock()
	} else if !i.gate.TryRLock() {
		return ErrWouldBlock
	}
	if err := t.mayTouch(i.lun); err != nil {
		i.gate.RUnlock()
		return err
	}
	return nil
}

// mayTouch refuses what comes too late: the task is aborted, or an operation on
// the whole disk has begun since it was let in.
func (t *Task) mayTouch(l *LUN) error {
	if !t.current() {
		return errAborted
	}
	return l.back.operation.Load().refusal(0)
}

func (t *Task) exit() { t.itl.gate.RUnlock() }

// enterAlone is enter for what must not meet any other piece.
func (t *Task) enterAlone() error {
	t.lun.lockAll()
	if err := t.mayTouch(t.lun); err != nil {
		t.lun.unlockAll()
		return err
	}
	return nil
}

func (t *Task) exitAlone() { t.lun.unlockAll() }

// diskError is the fault for an error of the disk, which it counts.
func (l *LUN) diskError(err error, a access, off, n int64) error {
	l.stats.errors.Add(1)
	return l.senseOf(err, a, off, n)
}

// load reads from the disk.
func (t *Task) load(p []byte, off int64, w patience) error {
	var err error
	if w == mayWait {
		_, err = t.lun.disk.ReadAt(p, off)
	} else if err = t.lun.disk.TryReadAt(p, off); err == ErrWouldBlock {
		return err
	}
	if err != nil {
		return t.lun.diskError(err, reading, off, int64(len(p)))
	}
	return nil
}

// store writes to the disk.
func (t *Task) store(p []byte, off int64, w patience) error {
	var err error
	if w == mayWait {
		_, err = t.lun.disk.WriteAt(p, off)
	} else if err = t.lun.disk.TryWriteAt(p, off); err == ErrWouldBlock {
		return err
	}
	t.lun.wrote()
	if err != nil {
		return t.lun.diskError(err, writing, off, int64(len(p)))
	}
	return nil
}

// zero makes a range read as zeros.
func (t *Task) zero(off, n int64, mode blockdev.ZeroMode) error {
	err := t.lun.disk.Zero(off, n, mode)
	t.lun.wrote()
	if err != nil {
		return t.lun.diskError(err, writing, off, n)
	}
	return nil
}

// discard gives a range back.
func (t *Task) discard(off, n int64) error {
	err := t.lun.disk.Discard(off, n)
	t.lun.wrote()
	if err != nil {
		return t.lun.diskError(err, writing, off, n)
	}
	return nil
}

// flush brings everything written before to the medium. It holds no gate: it
// changes nothing, and may take long.
func (t *Task) flush() error {
	if err := t.lun.Flush(); err != nil {
		return t.lun.diskError(err, writing, 0, 0)
	}
	return nil
}

// base is the offset on the disk of the range that the command names.
func (t *Task) base() int64 { return t.lun.offset(t.x.lba) }

// inSteps calls f for [off, off+n) in pieces of at most size bytes, each within
// the gate.
func (t *Task) inSteps(off, n, size int64, f func(off, n int64) error) error {
	for n > 0 {
		k := min(n, size)
		if err := t.enter(mayWait); err != nil {
			return err
		}
		err := f(off, k)
		t.exit()
		if err != nil {
			return err
		}
		off, n = off+k, n-k
	}
	return nil
}

// differ returns the index of the first byte in which a and b, of one length,
// differ, or -1.
func differ(a, b []byte) int {
	if bytes.Equal(a, b) {
		return -1
	}
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
