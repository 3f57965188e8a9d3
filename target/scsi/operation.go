package scsi

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Operations on the whole disk: FORMAT UNIT and SANITIZE.
//
//	none ──begin──▶ running ──▶ none
//	                   │
//	                   └─▶ failed (SANITIZE only) ──▶ running, none
//
// An operation belongs to the logical unit and not to the command that began
// it: with IMMED the command ends at once, and without it only waits. Aborting
// the command, a reset, or the end of the nexus does not end the operation (SBC
// "Sanitize operations"), and where the logical unit has a Store neither does
// the end of the process: Restore takes it up again.
//
// While it runs every other command is told so, and pieces of commands that
// began before are kept from the disk: what comes late would be left on a disk
// that is said to be sanitized.

// operation is one that runs or has failed.
type operation struct {
	plan operationPlan
	busy senseCode     // what others are told while it runs
	done chan struct{} // closed at its end; err and failed are final then

	part   atomic.Uint32 // how far it is, of 65536
	err    error         // a fault, or nil
	failed atomic.Bool   // a SANITIZE that the disk has failed
}

// operationPlan is all that an operation needs to begin again.
type operationPlan struct {
	// Sanitize tells SANITIZE from FORMAT UNIT.
	Sanitize bool `json:"sanitize,omitempty"`
	// Pattern is a block that the disk is filled with; nil for zeros, which
	// need no writing.
	Pattern []byte `json:"pattern,omitempty"`
	Passes  int    `json:"passes,omitempty"`
	Invert  bool   `json:"invert,omitempty"` // the pattern, from pass to pass
	// Unrestricted is AUSE: the initiator may give up a SANITIZE that failed.
	Unrestricted bool `json:"unrestricted,omitempty"`
	// Failed is a SANITIZE that has failed.
	Failed bool `json:"failed,omitempty"`
}

// overwriteTime is the least time that a SANITIZE with OVERWRITE takes. It is
// a matter of hours on the disks it was made for, and initiators reckon with
// that: libiscsi's suite begins one, sleeps three seconds, resets what can be
// reset, logs in anew, and wants to find it running.
const overwriteTime = 7 * time.Second

// background is what a logical unit does when no command waits for it.
type background struct {
	operation atomic.Pointer[operation] // or nil; changes while LUN.changing is held
	running   sync.WaitGroup
	stop      chan struct{} // closed by LUN.Close
	stopping  sync.Once
	least     time.Duration // overwriteTime, but in tests
}

// errStopped ends an operation for the end of the process.
var errStopped = errors.New("the logical unit is closed")

// Close ends what the logical unit does by itself, and is called when nothing
// uses it any more. An operation goes on when the unit is restored.
func (l *LUN) Close() {
	l.back.stopping.Do(func() { close(l.back.stop) })
	l.back.running.Wait()
}

// refusal is what a command is told that the operation keeps away, or nil.
func (o *operation) refusal(flags flags) error {
	switch {
	case o == nil, flags&passesAttention != 0:
		return nil
	case !o.failed.Load():
		return o.running()
	case flags&passesFailure != 0:
		return nil
	}
	return errSanitizeFailed
}

// running is the fault that tells of the operation and of its progress.
func (o *operation) running() fault {
	return fault{key: keyNotReady, code: o.busy,
		field: field{set: true, progress: true, byte: uint16(o.part.Load())}}
}

// condition is what REQUEST SENSE reports of the operation.
func (o *operation) condition() fault {
	if o.failed.Load() {
		return errSanitizeFailed
	}
	return o.running()
}

// beginOperation starts an operation, unless one runs.
func (l *LUN) beginOperation(plan operationPlan) (*operation, error) {
	l.changing.Lock()
	defer l.changing.Unlock()
	if o := l.back.operation.Load(); o != nil && !o.failed.Load() {
		return nil, o.running()
	}
	if l.store != nil {
		if err := l.save(l.reserved.Load(), modeBits(l.saved.Load()), &plan); err != nil {
			return nil, errInternal
		}
	}
	return l.runOperation(plan), nil
}

// runOperation starts the operation. LUN.changing is held, or nobody uses the
// logical unit yet.
func (l *LUN) runOperation(plan operationPlan) *operation {
	o := &operation{plan: plan, busy: codeFormatting, done: make(chan struct{})}
	if plan.Sanitize {
		o.busy = codeSanitizing
	}
	l.back.operation.Store(o)
	l.back.running.Go(func() {
		l.lockAll() // pieces that came before are off the disk
		l.unlockAll()
		l.endOperation(o, l.carryOut(o))
	})
	return o
}

// endOperation puts the end of an operation in place, on stable storage first:
// a SANITIZE that is over must not begin again with the next start.
func (l *LUN) endOperation(o *operation, err error) {
	defer close(o.done)
	if errors.Is(err, errStopped) {
		o.err = errInternal
		return
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	var left *operationPlan
	if err != nil && o.plan.Sanitize {
		failed := o.plan
		failed.Failed, left = true, &failed
	}
	if l.store != nil {
		if saveErr := l.save(l.reserved.Load(), modeBits(l.saved.Load()), left); err == nil && saveErr != nil {
			err = errInternal
		}
	}
	o.err = err
	if left != nil {
		o.failed.Store(true)
		return
	}
	l.back.operation.Store(nil)
}

// carryOut does the work, and returns the fault if the disk fails it.
func (l *LUN) carryOut(o *operation) error {
	err := l.fill(o)
	if err == nil {
		err = l.Flush()
	}
	if err == nil || errors.Is(err, errStopped) {
		return err
	}
	return l.diskError(err, writing, 0, l.offset(l.blocks))
}

// fill writes the pattern as often as is asked for, each time to the medium, or
// makes the disk zeros.
func (l *LUN) fill(o *operation) error {
	begun, all := time.Now(), l.offset(l.blocks)
	if o.plan.Pattern == nil {
		return l.zeroAll(o)
	}
	passes, same := max(o.plan.Passes, 1), repeat(o.plan.Pattern, step)
	for pass := range passes {
		if o.plan.Invert && pass > 0 {
			invert(same)
		}
		for off := int64(0); off < all; {
			n := min(all-off, int64(len(same)))
			if err := l.pause(o, begun, float64(pass)/float64(passes)+float64(off)/float64(all)/float64(passes)); err != nil {
				return err
			}
			if _, err := l.disk.WriteAt(same[:n], off); err != nil {
				return err
			}
			l.wrote()
			off += n
		}
		if pass == passes-1 { // the last one is flushed by carryOut
			break
		}
		if err := l.Flush(); err != nil {
			return err
		}
	}
	return l.pause(o, begun, 1)
}

func (l *LUN) zeroAll(o *operation) error {
	mode, all := l.zeroMode(), l.offset(l.blocks)
	for off := int64(0); off < all; off += zeroStep {
		if err := l.pause(o, time.Time{}, float64(off)/float64(all)); err != nil {
			return err
		}
		if err := l.disk.Zero(off, min(zeroStep, all-off), mode); err != nil {
			return err
		}
		l.wrote()
	}
	return nil
}

// pause notes the progress, holds up an OVERWRITE that is too fast, and ends
// the operation if the logical unit is closed.
func (l *LUN) pause(o *operation, begun time.Time, part float64) error {
	o.part.Store(uint32(part * math.MaxUint16))
	ahead := time.Duration(0)
	if o.plan.Sanitize && !begun.IsZero() {
		ahead = time.Duration(part*float64(l.back.least)) - time.Since(begun)
	}
	select {
	case <-l.back.stop:
		return errStopped
	default:
	}
	if ahead <= 0 {
		return nil
	}
	select {
	case <-l.back.stop:
		return errStopped
	case <-time.After(ahead):
		return nil
	}
}

func invert(b []byte) {
	for i := range b {
		b[i] = ^b[i]
	}
}

// abortPoll is how often a command that waits for an operation looks whether
// somebody has aborted it.
const abortPoll = 20 * time.Millisecond

// await waits for the end of an operation, or of the task.
func (t *Task) await(o *operation) error {
	tick := time.NewTicker(abortPoll)
	defer tick.Stop()
	for {
		select {
		case <-o.done:
			return o.err
		case <-tick.C:
			if !t.current() {
				return errAborted
			}
		}
	}
}

// zeroMode is how zeros get onto the disk where nothing is asked about space.
func (l *LUN) zeroMode() blockdev.ZeroMode {
	if l.unmaps() {
		return blockdev.ZeroMayUnmap
	}
	return blockdev.ZeroKeepAllocated
}
