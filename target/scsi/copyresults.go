package scsi

import (
	"encoding/binary"
	"math"
	"slices"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/internal/be"
)

// RECEIVE COPY RESULTS, SPC: what came of the copies of an I_T_L nexus, which
// go by the list identifiers that it gave them. Each service action is a row.
const (
	resultsListID            = 2
	resultsAllocation be.U32 = 10
)

// maxResults is how many copies are remembered, and so how many with a list
// identifier may go on at a time.
const maxResults = 16

// copyResult is one copy.
type copyResult struct {
	id       byte
	kept     bool
	segments atomic.Uint32 // done
	bytes    atomic.Int64  // done
	state    atomic.Uint32 // copyRunning …
	sense    []byte        // final once the state is copyFailed
}

// COPY STATUS.
const (
	copyRunning = 0
	copyDone    = 1
	copyFailed  = 2
)

// beginResult remembers a copy that begins. An older one of the same identifier
// is forgotten, and must be over.
func (i *itl) beginResult(id byte, keeps bool) (*copyResult, error) {
	r := &copyResult{id: id, kept: keeps}
	if !keeps {
		return r, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	old := slices.IndexFunc(i.copies, func(r *copyResult) bool { return r.id == id })
	if old < 0 && len(i.copies) == maxResults {
		if old = slices.IndexFunc(i.copies, func(r *copyResult) bool { return r.state.Load() != copyRunning }); old < 0 {
			return nil, statusError(Busy)
		}
	}
	if old >= 0 {
		if i.copies[old].state.Load() == copyRunning {
			return nil, fault{key: keyIllegalRequest, code: codeInProgress}
		}
		i.copies = slices.Delete(i.copies, old, old+1)
	}
	i.copies = append(i.copies, r)
	return r, nil
}

// endResult notes the end of a copy.
func (i *itl) endResult(r *copyResult, err error) {
	if err == nil {
		r.state.Store(copyDone)
		return
	}
	if f, ok := err.(fault); ok { //nolint:errorlint // copyAll returns the fault itself
		r.sense = f.appendTo(nil, fixedFormat)
	}
	r.state.Store(copyFailed)
}

// forgetCopies is what a logical unit reset does to the results.
func (i *itl) forgetCopies() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.copies = slices.DeleteFunc(i.copies, func(r *copyResult) bool { return r.state.Load() != copyRunning })
}

// result finds the copy that the CDB names.
func (t *Task) result() (*copyResult, error) {
	t.itl.mu.Lock()
	defer t.itl.mu.Unlock()
	for _, r := range t.itl.copies {
		if r.id == t.cdb[resultsListID] {
			return r, nil
		}
	}
	return nil, invalidCDB(resultsListID, wholeByte)
}

// replyResults replies with AVAILABLE DATA, the length of what follows, before
// b.
func (t *Task) replyResults(b []byte) error {
	t.data = append(binary.BigEndian.AppendUint32(t.data, uint32(len(b))), b...)
	return t.reply(resultsAllocation.Get(t.cdb[:]))
}

func (t *Task) copyStatus() error {
	r, err := t.result()
	if err != nil {
		return err
	}
	units, count := byte(0), r.bytes.Load() // bytes
	if count > math.MaxUint32 {
		units, count = 1, count>>10 // KiB
	}
	b := []byte{byte(r.state.Load())} // no held data
	b = binary.BigEndian.AppendUint16(b, uint16(r.segments.Load()))
	b = append(b, units)
	return t.replyResults(binary.BigEndian.AppendUint32(b, uint32(count)))
}

// receiveData has nothing: no segment of ours holds data for the initiator.
func (t *Task) receiveData() error {
	if _, err := t.result(); err != nil {
		return err
	}
	return t.replyResults(nil)
}

func (t *Task) failedSegment() error {
	r, err := t.result()
	switch {
	case err != nil:
		return err
	case r.state.Load() != copyFailed || len(r.sense) == 0:
		return t.replyResults(nil)
	}
	b := append(make([]byte, 52), byte(CheckCondition), 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.sense)))
	return t.replyResults(append(b, r.sense...))
}

func (t *Task) operatingParameters() error {
	b := []byte{0x01, 0, 0, 0} // SNLID: copies without list identifiers
	b = binary.BigEndian.AppendUint16(b, maxCSCDs)
	b = binary.BigEndian.AppendUint16(b, maxSegments)
	b = binary.BigEndian.AppendUint32(b, maxCopyDescriptor)
	b = append(b, make([]byte, 16)...) // segment length: not limited; no inline data, held data, streams
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint16(b, maxResults) // TOTAL CONCURRENT COPIES
	b = append(b, maxResults,
		0, 0, 0, // granularity of data: bytes
		0, 0, 0)
	codes := copyDescriptors()
	b = append(b, byte(len(codes)))
	return t.replyResults(append(b, codes...))
}

// SPC "Third-party Copy VPD page": descriptors by ascending type, each padded
// to a multiple of four.
func (l *LUN) thirdPartyCopy(b []byte) []byte {
	var commands []byte
	for opcode, actions := range l.table.actions {
		if opcode != opcodeCopy && opcode != opcodeCopyResults {
			continue
		}
		at := len(commands)
		commands = append(commands, byte(opcode), 0)
		for action, row := range actions {
			if row != nil {
				commands = append(commands, byte(action))
				commands[at+1]++
			}
		}
	}
	b = appendCopyDescriptor(b, 0x0001, append([]byte{byte(len(commands))}, commands...)) // Supported Commands

	d := binary.BigEndian.AppendUint16([]byte{0, 0, 0, 0}, maxCSCDs)
	d = binary.BigEndian.AppendUint16(d, maxSegments)
	d = binary.BigEndian.AppendUint32(d, maxCopyDescriptor)
	b = appendCopyDescriptor(b, 0x0004, append(d, make([]byte, 16)...)) // Parameter Data: no inline data

	codes := copyDescriptors()
	b = appendCopyDescriptor(b, 0x0008, append([]byte{byte(len(codes))}, codes...)) // Supported Descriptors
	b = appendCopyDescriptor(b, 0x000c, []byte{0, 2, cscdManager >> 8, cscdManager & 0xff})

	d = binary.BigEndian.AppendUint32(nil, maxResults) // General Copy Operations
	d = binary.BigEndian.AppendUint32(d, maxResults)
	b = appendCopyDescriptor(b, 0x8001, append(d, make([]byte, 24)...)) // no limit of a segment; bytes
	return appendCopyDescriptor(b, 0xc001, make([]byte, 28))            // Held Data: none
}

const (
	opcodeCopy        = 0x83
	opcodeCopyResults = 0x84
)

func appendCopyDescriptor(b []byte, kind uint16, d []byte) []byte {
	d = append(d, make([]byte, -len(d)&3)...)
	b = binary.BigEndian.AppendUint16(b, kind)
	b = binary.BigEndian.AppendUint16(b, uint16(len(d)))
	return append(b, d...)
}
