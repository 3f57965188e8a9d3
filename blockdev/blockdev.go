// Package blockdev says what a disk is to the rest of the program: a read-only
// Source (an image), a writable Device (what a guest sees), the states an
// Extent of either can be in, and the few kinds of Error they may give.
//
// Two devices live here because everything else is built from them: File, a
// raw file or block device, and Mem, a disk in memory. A new device gets
// blockdevtest.Run first.
package blockdev

import (
	"errors"
	"io"
	"iter"
)

// Source is a disk that can be read. Its methods may be called from several
// goroutines at the same time.
type Source interface {
	// ReadAt fills p from byte off on, or fails: a short read always comes
	// with an error. Reading past Size is KindOutOfRange, never io.EOF.
	io.ReaderAt

	// Size is the size of the disk in bytes. It does not change.
	Size() int64

	// Extents yields what [off, off+n) holds: in order, without gaps, clipped
	// to the range, neighbours of one kind joined where that is cheap. An
	// error ends the sequence. The answer is a snapshot: a Device that is
	// written meanwhile may have changed by the time it is used.
	Extents(off, n int64) iter.Seq2[Extent, error]
}

// Device is a disk that can be written as well. Its methods may be called from
// several goroutines at the same time; of overlapping writes in flight any may
// win, sector by sector.
type Device interface {
	Source

	// WriteAt writes all of p at byte off, or fails. What it wrote survives
	// the death of the process, and after a Flush also a loss of power.
	io.WriterAt

	// TryReadAt is ReadAt without waiting: it fills p from what is in memory,
	// or returns ErrWouldBlock, and p is then undefined. A transport calls it
	// where a wait would hold up other requests.
	TryReadAt(p []byte, off int64) error

	// TryWriteAt is WriteAt without waiting for another request's I/O: it
	// hands all of p to the page cache, or returns ErrWouldBlock having
	// changed nothing.
	TryWriteAt(p []byte, off int64) error

	// Zero makes [off, off+n) read as zeros.
	Zero(off, n int64, mode ZeroMode) error

	// Discard tells that the content of [off, off+n) is not needed. Where
	// Caps().DiscardZeroes is set the range reads as zeros afterwards.
	Discard(off, n int64) error

	// Flush returns when everything written before the call is on stable
	// storage. A Flush that failed must not be believed when it is repeated:
	// the device fails all later ones.
	Flush() error

	// Close releases the device; it does not flush. The device must not be in
	// use, and every later call fails.
	Close() error

	// Caps tells what the device can do. It does not change.
	Caps() Caps
}

// ErrWouldBlock is what TryReadAt and TryWriteAt return when the request must
// wait: repeat it with ReadAt or WriteAt where waiting does no harm.
var ErrWouldBlock = errors.New("the request would block")

// Caps are the abilities of a Device. They are values and not optional
// interfaces, so that a wrapper cannot lose one without saying so.
type Caps struct {
	ReadOnly bool // every change is refused with KindReadOnly

	Discard       bool // Discard gives space back
	DiscardZeroes bool // discarded ranges read as zeros
	FastZero      bool // Zero costs much less than writing zeros

	// Granularity is the size in bytes, a power of two, of the pieces in
	// which the device gives space back and reports extents.
	Granularity int
	// PhysicalBlock is the size in bytes, a power of two, of the smallest
	// write that needs no read of what surrounds it.
	PhysicalBlock int
}

// ZeroMode says what Zero may do to the space behind a range.
type ZeroMode uint8

const (
	// ZeroMayUnmap allows Zero to free the space.
	ZeroMayUnmap ZeroMode = iota
	// ZeroKeepAllocated asks that later writes to the range find space.
	ZeroKeepAllocated
)
