package overlay

import (
	"fmt"

	"github.com/containerdisk/containerdisk/blockdev"
)

// MismatchError says that a map belongs to another disk than the one at hand.
type MismatchError struct {
	File      string // the map's
	Field     string // of Header
	Have, Got any    // what the map says, and what there is
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%s belongs to another disk: its %s is %v, and this one's is %v; "+
		"serve it with the image and the settings that it was made with, or, if all that was written to it may be lost, delete the disk's state",
		e.File, e.Field, e.Have, e.Got)
}

// DamagedError says that a map contradicts itself, so that it is not known any
// more which part of the disk is in the store. It is never a reason to begin
// with an empty one: that would show the image where the guest has written.
type DamagedError struct {
	File string // the map's
	Part string // of the file
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the cluster map %s is damaged: %s: %v; what was written to the disk can not be told from its image without it: "+
		"restore the map and its store from a backup, or, if all that was written may be lost, delete the disk's state",
		e.File, e.Part, e.Err)
}

func (e *DamagedError) Unwrap() error { return e.Err }

func opError(op string, off, n int64, kind blockdev.Kind, err error) error {
	return &blockdev.Error{Op: op, Off: off, Len: n, Kind: kind, Err: err}
}

// fatalError is one after which the disk must not be changed any more: what it
// would acknowledge could be lost.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }
