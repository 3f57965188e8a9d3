package nbd

import "github.com/containerdisk/containerdisk/blockdev"

// failure is why a request is answered with an error, and the words that go
// with it where the reply has room for them.
type failure struct {
	errno errno
	text  string
}

// failureOf is how an error of the device looks to a client. The words are the
// kind's and not the error's, which may name files of this machine.
func failureOf(err error) *failure {
	k := blockdev.KindOf(err)
	return &failure{errnoOf(k), k.String()}
}

// errnoOf is the error value of a kind, "Error values".
func errnoOf(k blockdev.Kind) errno {
	switch k {
	case blockdev.KindIO, blockdev.KindCorrupt:
		return eIO
	case blockdev.KindNoSpace:
		return eNoSpc
	case blockdev.KindOutOfRange:
		return eInval
	case blockdev.KindReadOnly:
		return ePerm
	case blockdev.KindUnsupported:
		return eNotSup
	case blockdev.KindClosed:
		return eShutdown
	}
	return eIO
}

// What the gate refuses, and how.
var (
	errUnknownCommand = &failure{eInval, "unknown command"}
	errFlags          = &failure{eInval, "flag that the command does not have"}
	errReadOnly       = &failure{ePerm, "the export is read-only"}
	errPastEnd        = &failure{eInval, "beyond the end of the export"}
	errWritePastEnd   = &failure{eNoSpc, "beyond the end of the export"}
	errTooLong        = &failure{eInval, "longer than the maximum block size"}
	errNoContext      = &failure{eInval, "no metadata context was negotiated"}
	errNoLength       = &failure{eInval, "no length"}
	errFlushRange     = &failure{eInval, "a flush has no range"}
	errNotFast        = &failure{eNotSup, "not faster than writing zeros"}
	errNotOffered     = &failure{eInval, "the export does not offer the command"}
)
