package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Owner is who has a disk, for the error that others get. It has no part in the
// lock itself.
type Owner struct {
	PID     int       `json:"pid"`
	Host    string    `json:"host"` // in a pod, the pod's name
	Started time.Time `json:"started"`
	Boot    string    `json:"boot"` // the kernel's boot id at the time
}

func (o Owner) String() string {
	return fmt.Sprintf("process %d on %s since %s", o.PID, o.Host, o.Started.Format(time.RFC3339))
}

// Self is the Owner that this process is.
func Self(bootID string) Owner {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	return Owner{PID: os.Getpid(), Host: host, Started: time.Now().Truncate(time.Second), Boot: bootID}
}

// InUseError is what the second of two gets.
type InUseError struct {
	Path  string
	Owner string // in words; "" if it is not known
}

func (e *InUseError) Error() string {
	who := e.Owner
	if who == "" {
		who = "another process"
	}
	return fmt.Sprintf("%s is in use by %s: two servers must not have the same disk; stop that one first", e.Path, who)
}

// lock is how a file is locked.
type lock int

const (
	alone  lock = unix.LOCK_EX // nobody else
	shared lock = unix.LOCK_SH // with others that only read
)

// patience is how long we wait for a lock: somebody who only looks whether it
// is free holds it for a moment.
const (
	patience = 250 * time.Millisecond
	retry    = 10 * time.Millisecond
)

// take locks f, the file that the operator knows as path. The lock lives as
// long as f is open.
func take(f *os.File, path string, how lock, read func(*os.File) (Owner, bool)) error {
	err := tryLock(f, how)
	for end := time.Now().Add(patience); errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(end); {
		time.Sleep(retry)
		err = tryLock(f, how)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		e := &InUseError{Path: path}
		if o, ok := read(f); ok {
			e.Owner = o.String()
		}
		return e
	}
	return fmt.Errorf("%s: the file system cannot lock: %w", path, err)
}

func tryLock(f *os.File, how lock) error {
	return ignoringEINTR(func() error { return unix.Flock(int(f.Fd()), int(how)|unix.LOCK_NB) })
}

// maxRecord bounds what is read of an owner's record, bytes.
const maxRecord = 4096

// parseOwner reads a record. What follows it is what was left of a longer one.
func parseOwner(b string) (Owner, bool) {
	var o Owner
	err := json.NewDecoder(strings.NewReader(b)).Decode(&o)
	return o, err == nil && o.PID != 0
}

// readRecord reads the record that is a file's content.
func readRecord(f *os.File) (Owner, bool) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxRecord))
	if err != nil {
		return Owner{}, false
	}
	return parseOwner(string(b))
}

// writeRecord makes o a file's content.
func writeRecord(f *os.File, o Owner) error {
	b, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(b)))
}

// The record of a file that is the disk itself cannot be its content. It is an
// extended attribute, where the file system has those.
const ownerAttr = "user.containerdisk.owner"

func readOwnerAttr(f *os.File) (Owner, bool) {
	var b [maxRecord]byte
	n, err := unix.Fgetxattr(int(f.Fd()), ownerAttr, b[:])
	if err != nil {
		return Owner{}, false
	}
	return parseOwner(string(b[:n]))
}

// writeOwnerAttr leaves the record where it can: it only makes an error better.
func writeOwnerAttr(f *os.File, o Owner) {
	if b, err := json.Marshal(o); err == nil {
		_ = unix.Fsetxattr(int(f.Fd()), ownerAttr, b, 0)
	}
}

func ignoringEINTR(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
