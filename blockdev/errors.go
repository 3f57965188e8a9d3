package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Kind is what went wrong, in the few words that a protocol can pass on. How a
// Kind looks to an initiator is scsi.senseOf's business and how it looks to an
// NBD client nbd.errnoOf's; nobody else switches over it.
type Kind uint8

const (
	KindIO          Kind = iota + 1 // the storage below failed
	KindNoSpace                     // no room for the write; there may be later
	KindOutOfRange                  // not within the disk
	KindReadOnly                    // the disk may not be changed
	KindUnsupported                 // the device cannot do this
	KindCorrupt                     // the image contradicts itself
	KindClosed                      // the device is closed or has failed for good
)

func (k Kind) String() string {
	switch k {
	case KindIO:
		return "I/O error"
	case KindNoSpace:
		return "no space left"
	case KindOutOfRange:
		return "out of range"
	case KindReadOnly:
		return "read-only"
	case KindUnsupported:
		return "not supported"
	case KindCorrupt:
		return "corrupt image"
	case KindClosed:
		return "closed"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Error is the one type of error that a Source or Device returns, possibly
// wrapped.
type Error struct {
	Op       string // "read", "write", "zero", "discard", "flush", "map", "open"
	Off, Len int64  // the range in bytes, as far as there is one
	Kind     Kind
	Err      error // the cause, or nil
}

func (e *Error) Error() string {
	s := e.Op
	if e.Len > 0 {
		s += fmt.Sprintf(" of %d bytes at %d", e.Len, e.Off)
	}
	s += ": " + e.Kind.String()
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the Kind of err: that of the Error in its chain, or else what
// the operating system's error number tells, or else KindIO.
func KindOf(err error) Kind {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Kind
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return KindNoSpace
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EPERM):
		return KindReadOnly
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, errors.ErrUnsupported):
		return KindUnsupported
	case errors.Is(err, fs.ErrClosed):
		return KindClosed
	}
	return KindIO
}

// wrap returns err as an *Error that names the operation, or nil.
func wrap(op string, off, n int64, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Off: off, Len: n, Kind: KindOf(err), Err: err}
}

// CheckRange returns a KindOutOfRange error unless [off, off+n) is within a
// disk of the given size in bytes. Nothing in it can overflow.
func CheckRange(op string, off, n, size int64) error {
	if off < 0 || n < 0 || off > size || n > size-off {
		return &Error{Op: op, Off: off, Len: n, Kind: KindOutOfRange,
			Err: fmt.Errorf("the disk has %d bytes", size)}
	}
	return nil
}
