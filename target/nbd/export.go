package nbd

import (
	"iter"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Export is a disk that clients can ask for by its name.
type Export struct {
	name        string
	description string
	dev         blockdev.Device
	size        int64
	caps        blockdev.Caps
	readOnly    bool
	hydration   func(off, n int64) iter.Seq2[int64, bool]
	stats       counters
}

// ExportOptions say how a disk is exported.
type ExportOptions struct {
	Description string // for people
	Access      blockdev.Access

	// Hydration yields which parts of [off, off+n) the disk has itself by now,
	// and which still come from the image below it: the lengths in bytes, in
	// order, without gaps, and whether the disk has it. Nil: it has everything.
	// It must not wait. Clients see it as the context containerdisk:hydration.
	Hydration func(off, n int64) iter.Seq2[int64, bool]
}

// NewExport exports dev, which stays the caller's to close.
func NewExport(name string, dev blockdev.Device, o ExportOptions) *Export {
	caps := dev.Caps()
	return &Export{
		name:        name,
		description: o.Description,
		dev:         dev,
		size:        dev.Size(),
		caps:        caps,
		readOnly:    caps.ReadOnly || o.Access == blockdev.ReadOnly,
		hydration:   o.Hydration,
	}
}

// Name is the name by which clients ask for the export.
func (e *Export) Name() string { return e.name }

// flags are the transmission flags. SEND_DF may only be there when structured
// replies were negotiated.
func (e *Export) flags(structured bool) uint16 {
	f := flagHasFlags | flagSendFlush | flagSendFUA | flagCanMultiConn | flagSendCache
	if structured {
		f |= flagSendDF
	}
	if e.readOnly {
		return f | flagReadOnly
	}
	f |= flagSendWriteZeroes | flagSendFastZero
	if e.caps.Discard {
		f |= flagSendTrim
	}
	return f
}

// Flush brings to stable storage what was written.
func (e *Export) Flush() error {
	e.stats.flushes.Add(1)
	if err := e.dev.Flush(); err != nil {
		e.stats.errors.Add(1)
		return err
	}
	return nil
}

// counters are what Stats tells.
type counters struct {
	reads, writes, readBytes, writeBytes, flushes, errors atomic.Uint64
}

// ExportStats are an export's counters.
type ExportStats struct {
	Reads, Writes         uint64
	ReadBytes, WriteBytes uint64
	Flushes               uint64
	Errors                uint64 // of the device, not of the request
}

// Stats returns the counters as they are now.
func (e *Export) Stats() ExportStats {
	return ExportStats{
		Reads:      e.stats.reads.Load(),
		Writes:     e.stats.writes.Load(),
		ReadBytes:  e.stats.readBytes.Load(),
		WriteBytes: e.stats.writeBytes.Load(),
		Flushes:    e.stats.flushes.Load(),
		Errors:     e.stats.errors.Load(),
	}
}
