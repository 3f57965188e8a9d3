package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
)

// A scratch directory holds one directory for each run of the program:
//
//	SCRATCH_DIR/containerdisk-XXXXXXXX/lock     locked as long as the run lives
//	                                 /NAME.raw  the disks
//
// The lock is the kernel's (flock), so that it ends with the process however
// that dies, and a pid that is used again fools nobody. A run's directory gets
// its name only when its lock is held: a directory with that name and a free
// lock belongs to a dead run.
const (
	runPrefix = "containerdisk-"
	newPrefix = ".new-containerdisk-" // not locked yet
	lockName  = "lock"
)

// Scratch is the directory of this run. What is in it goes when the run ends.
type Scratch struct {
	dir  string
	lock *os.File
}

// OpenScratch makes a directory for this run in parent and removes those of
// dead runs. What it could not remove is told as stale; that is no reason not
// to start.
func OpenScratch(parent string) (s *Scratch, stale error, err error) {
	stale = sweep(parent)
	dir, err := os.MkdirTemp(parent, newPrefix+"*")
	if err != nil {
		return nil, stale, fmt.Errorf("scratch directory: %w", err)
	}
	s = &Scratch{dir: dir}
	if err := s.claim(parent); err != nil {
		return nil, stale, errors.Join(fmt.Errorf("scratch directory: %w", err), s.Close())
	}
	return s, stale, nil
}

// claim locks the directory and gives it its name.
func (s *Scratch) claim(parent string) error {
	var err error
	if s.lock, err = os.OpenFile(filepath.Join(s.dir, lockName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", s.lock.Name(), err)
	}
	name := runPrefix + strings.TrimPrefix(filepath.Base(s.dir), newPrefix)
	run := filepath.Join(parent, name)
	if err := os.Rename(s.dir, run); err != nil {
		return err
	}
	s.dir = run
	return nil
}

// Create makes a new disk of size bytes, all zeros, sparse.
func (s *Scratch) Create(name string, size int64) (*blockdev.File, error) {
	return blockdev.CreateFile(filepath.Join(s.dir, name+".raw"), size)
}

// Dir is where the disks of this run are.
func (s *Scratch) Dir() string { return s.dir }

// Close removes the directory and all that is in it. The disks must be closed.
func (s *Scratch) Close() error {
	err := os.RemoveAll(s.dir)
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close()) // last, so that no sweep meets us half way
	}
	return err
}

// sweep removes the directories of dead runs.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil // OpenScratch tells what is wrong with it
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), runPrefix) {
			errs = append(errs, removeDead(filepath.Join(parent, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// removeDead removes the run directory dir if it is ours and its lock is free.
func removeDead(dir string) error {
	root, err := os.OpenRoot(dir) // the lock is looked up in dir, whatever links there are
	if err != nil {
		return ignoreForeign(err)
	}
	defer root.Close()
	if st, err := root.Lstat(lockName); err != nil || !st.Mode().IsRegular() {
		return ignoreForeign(err)
	}
	lock, err := root.OpenFile(lockName, os.O_RDWR, 0)
	if err != nil {
		return ignoreForeign(err)
	}
	defer lock.Close()
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil // alive
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// ignoreForeign drops the errors that show that a directory is not ours: it
// has no lock, it belongs to another user, or it went just now.
func ignoreForeign(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}
