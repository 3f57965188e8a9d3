package scsi

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Nexus is the relation of one initiator port with the target's port: an I_T
// nexus of SAM.
//
// The task management methods may wait for I/O of the tasks that they abort:
// a transport calls them where that holds up nobody else. When they return,
// none of these tasks touches the disk any more, and each reports Aborted.
type Nexus struct {
	target    *Target
	initiator string

	low  [directLUNs]*itl // by logical unit number; never changes
	high map[uint64]*itl  // the same for numbers from directLUNs on
}

// itl is what a logical unit keeps for one nexus: an I_T_L nexus of SAM.
type itl struct {
	nexus *Nexus
	lun   *LUN

	// gate is held for reading by every piece of a task of this nexus while
	// it touches the disk. Who aborts tasks first makes them outdated, then
	// takes and drops the gate: nothing of them is left then. A logical
	// unit's gates together are its exclusive lock (LUN.lockAll). One gate
	// per nexus, and not one per logical unit, so that aborting the tasks of
	// one client does not hold up the others.
	gate  sync.RWMutex
	epoch atomic.Uint64 // a task that began under another epoch is aborted
	tasks atomic.Int64  // in the task set
	told  atomic.Uint64 // tasks from before this epoch end with TASK ABORTED, …
	quiet atomic.Uint64 // … unless they are from before this one, too

	aborting sync.Mutex // held while epoch, told and quiet change

	attentions atomic.Int32 // the length of queue, to be read without mu
	mu         sync.Mutex   // guards queue and copies
	queue      []senseCode  // pending unit attentions, each once
	copies     []*copyResult
}

// NewNexus returns the nexus of an initiator port with the target. initiator
// is the port's name, "iqn…,i,0x<isid>". A power-on unit attention is pending
// for every logical unit.
func (t *Target) NewNexus(initiator string) *Nexus {
	n := &Nexus{target: t, initiator: initiator, high: map[uint64]*itl{}}
	for number, l := range t.luns {
		i := &itl{nexus: n, lun: l}
		i.raise(codePowerOn)
		if number < directLUNs {
			n.low[number] = i
		} else {
			n.high[number] = i
		}
		l.attach(i)
	}
	return n
}

// Initiator is the name of the initiator port.
func (n *Nexus) Initiator() string { return n.initiator }

// find returns the nexus with the logical unit that a LUN field names, or nil.
func (n *Nexus) find(field uint64) *itl {
	number, ok := lunNumber(field)
	switch {
	case !ok:
		return nil
	case number < directLUNs:
		return n.low[number]
	}
	return n.high[number]
}

// all calls f for every logical unit.
func (n *Nexus) all(f func(*itl)) {
	for _, number := range n.target.numbers {
		f(n.find(lunField(number)))
	}
}

// Close is an I_T nexus loss: the tasks are aborted, reservations by RESERVE (6)
// released. The nexus must not be used afterwards.
func (n *Nexus) Close() {
	n.all(func(i *itl) {
		i.abort()
		i.lun.release(n)
		i.lun.detach(i)
	})
}

// AbortTaskSet aborts the tasks of this nexus in a logical unit. lun is the LUN
// field, as in Task.Begin.
func (n *Nexus) AbortTaskSet(lun uint64) FunctionResponse {
	i := n.find(lun)
	if i == nil {
		return FunctionNoLUN
	}
	i.abort()
	return FunctionComplete
}

// ClearTaskSet aborts the tasks of all nexuses in a logical unit; the others
// learn it from a unit attention.
func (n *Nexus) ClearTaskSet(lun uint64) FunctionResponse {
	i := n.find(lun)
	if i == nil {
		return FunctionNoLUN
	}
	i.lun.clear(i.lun.nexuses(), i)
	return FunctionComplete
}

// LogicalUnitReset aborts the tasks of all nexuses in a logical unit and resets
// it; all of them, this one too, learn it from a unit attention.
func (n *Nexus) LogicalUnitReset(lun uint64) FunctionResponse {
	i := n.find(lun)
	if i == nil {
		return FunctionNoLUN
	}
	i.lun.reset(codeLogicalUnitReset, i)
	return FunctionComplete
}

// TargetReset resets every logical unit.
func (n *Nexus) TargetReset() FunctionResponse {
	n.all(func(i *itl) { i.lun.reset(codeTargetReset, i) })
	return FunctionComplete
}

// ColdReset is TARGET COLD RESET: every logical unit is as after a power on.
func (n *Nexus) ColdReset() FunctionResponse {
	n.all(func(i *itl) { i.lun.powerOn(i) })
	return FunctionComplete
}

// abort ends the tasks of the I_T_L nexus and returns when the last piece of
// theirs has left the disk.
func (i *itl) abort() {
	i.outdate(silently)
	i.drain()
}

// farewell says what the initiator hears of tasks that are aborted.
type farewell bool

const (
	silently        farewell = false // no response is sent
	withTaskAborted farewell = true
)

// outdate aborts the tasks that have begun. Pieces of theirs may still be on
// the disk.
func (i *itl) outdate(how farewell) {
	last := &i.quiet
	if how == withTaskAborted {
		last = &i.told
	}
	// The epoch last: who finds it changed finds the reason in place.
	i.aborting.Lock()
	defer i.aborting.Unlock()
	next := i.epoch.Load() + 1
	last.Store(next)
	i.epoch.Store(next)
}

// drain waits until no piece is on the disk that entered before the call.
func (i *itl) drain() {
	i.gate.Lock()
	i.gate.Unlock() //nolint:staticcheck // SA2001: the lock is the wait
}

// raise makes a unit attention pending. One that tells of a reset makes those
// before it pointless (SAM "Unit attention condition").
func (i *itl) raise(c senseCode) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if c>>8 == codePowerOn>>8 {
		i.queue = i.queue[:0]
	}
	if !slices.Contains(i.queue, c) {
		i.queue = append(i.queue, c)
	}
	i.attentions.Store(int32(len(i.queue)))
}

// take removes the oldest unit attention.
func (i *itl) take() (c senseCode, ok bool) {
	if i.attentions.Load() == 0 {
		return 0, false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue) == 0 {
		return 0, false
	}
	c = i.queue[0]
	i.queue = slices.Delete(i.queue, 0, 1)
	i.attentions.Store(int32(len(i.queue)))
	return c, true
}
