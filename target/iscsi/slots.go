package iscsi

import "github.com/containerdisk/containerdisk/target/scsi"

// immediates is how many immediate SCSI commands have a slot beside those
// that the command window allows; one more is rejected.
const immediates = 16

const slots = window + immediates

// commands are the commands of a session that are under way. Most never stay:
// they are executed as they come. The others are looked up by slot (a transfer
// tag names it) or by their tag, among the few there are.
type commands struct {
	all    [slots]command
	free   []uint8 // slots that are free
	active []uint8 // slots in use, in no order
	urgent int     // of them, those of immediate commands
	tags   [slots]uint32
}

func newCommands() *commands {
	t := &commands{free: make([]uint8, 0, slots), active: make([]uint8, 0, slots)}
	for i := range t.all {
		t.all[i].slot = uint8(i)
		t.free = append(t.free, uint8(i))
	}
	return t
}

// find returns the command with the tag, or nil.
func (t *commands) find(itt uint32) *command {
	for _, slot := range t.active {
		if t.tags[slot] == itt {
			return &t.all[slot]
		}
	}
	return nil
}

// take returns a slot for a command, or nil when there are too many immediate
// ones: they take no slot from those that the window promises.
func (t *commands) take(itt uint32, immediate bool) *command {
	n := len(t.free) - 1
	if n < 0 || immediate && t.urgent == immediates {
		return nil
	}
	if immediate {
		t.urgent++
	}
	slot := t.free[n]
	t.free = t.free[:n]
	c := &t.all[slot]
	c.index = uint8(len(t.active))
	t.active = append(t.active, slot)
	t.tags[slot] = itt
	c.itt, c.immediate = itt, immediate
	return c
}

// give gives the slot back. The transfer tags of the command are not valid any
// more, and its next use has others.
func (t *commands) give(c *command) {
	last := t.active[len(t.active)-1]
	t.active[c.index] = last
	t.all[last].index = c.index
	t.active = t.active[:len(t.active)-1]
	t.free = append(t.free, c.slot)
	if c.immediate {
		t.urgent--
	}
	c.reset()
}

// command is one SCSI command under way. conn.mu guards it, but for task while
// busy is set: then the worker has it.
type command struct {
	task scsi.Task

	slot, index uint8
	generation  uint16 // makes the transfer tags of the slot's uses differ
	immediate   bool
	reads       bool
	writes      bool
	busy        bool // a worker has the task
	itt         uint32
	edtl        uint32 // what the initiator expects to move, bytes; to write if it expects both
	edtlIn      uint32 // what it expects to read
	lun         uint64

	// Data-in.
	sent   int64  // bytes
	dataSN uint32 // Data-In and R2T PDUs so far, §11.4.8

	out dataOutState

	// abortTag is the request that waits for the command to be gone.
	abortTag     uint32
	abortWaiting bool
}

// reset makes the slot ready for its next use.
func (c *command) reset() {
	c.immediate, c.reads, c.writes, c.busy, c.abortWaiting = false, false, false, false, false
	c.sent, c.dataSN = 0, 0
	c.out.reset()
	c.generation++
}
