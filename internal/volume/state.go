package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The files of a state.
const (
	lockName   = "lock"   // locked by the owner, whose record is its content
	StoreName  = "disk"   // the store, where it is a file
	MapName    = "map"    // what is in the store
	memoryName = "memory" // what initiators asked to be remembered
	doneName   = "done"   // of a device that is populated: which device
)

// State is the directory of one disk. Its methods may be called from several
// goroutines.
type State struct {
	parent string
	name   string // the final one
	root   *os.Root
	lock   *os.File
	fresh  bool

	mu       sync.Mutex // guards the fields below
	base     string     // name it has now
	anchored bool       // by us: its names are on stable storage
}

// OpenState opens the state with the name in parent, or makes a new one, and
// locks it. A state that was never anchored is believed only in the boot in
// which it was made, and discarded in another: nothing in it was promised.
func OpenState(parent, name string, self Owner) (*State, error) {
	if _, err := sweep(parent, self.Boot); err != nil {
		return nil, err
	}
	for _, base := range []string{name, young(name)} {
		s, err := openDir(parent, name, base, self)
		if s != nil || err != nil {
			return s, err
		}
	}
	return newState(parent, name, self)
}

// hidden is the beginning of all names that a state has on its way.
func hidden(name string) string { return "." + strings.TrimPrefix(name, ".") }

func young(name string) string { return hidden(name) + ".new" }

// openDir opens and locks the directory base. It returns nil where there is
// none.
func openDir(parent, name, base string, self Owner) (*State, error) {
	path := filepath.Join(parent, base)
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !st.IsDir():
		return nil, fmt.Errorf("%s is no directory, and is where the state of the disk belongs: remove it", path)
	case Everybodys(parent) && !ours(st):
		return nil, fmt.Errorf("%s belongs to another user, who may have made it to be found here: remove it, or use a directory of your own", path)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	s := &State{parent: parent, name: name, root: root, base: base}
	if err := s.claim(path, self); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Everybodys reports whether dir is one like /var/tmp, where all users of the
// machine can make files and nobody another one's.
func Everybodys(dir string) bool {
	st, err := os.Stat(dir)
	return err == nil && st.Mode().Perm()&0o002 != 0 && st.Mode()&fs.ModeSticky != 0
}

func ours(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int64(sys.Uid) == int64(os.Geteuid())
}

// claim locks the directory, which path led to.
func (s *State) claim(path string, self Owner) error {
	f, err := s.root.OpenFile(lockName, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("%s is not the state of a disk: %w; if it is not needed, remove it", path, err)
	}
	s.lock = f
	if err := take(f, path, alone, readRecord); err != nil {
		return err
	}
	// Between the look at the name and the lock it may have been given up.
	if !sameDir(s.root, path) {
		return &InUseError{Path: path}
	}
	return writeRecord(f, self)
}

// sameDir reports whether path still leads to root.
func sameDir(root *os.Root, path string) bool {
	own, err := root.Stat(".")
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(own, now)
}

// newState makes the directory of a new state, locked. It counts for nothing
// before Begin.
func newState(parent, name string, self Owner) (*State, error) {
	path, err := os.MkdirTemp(parent, hidden(name)+".making-*")
	if err != nil {
		return nil, err
	}
	s := &State{parent: parent, name: name, base: filepath.Base(path), fresh: true}
	if s.root, err = os.OpenRoot(path); err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	if !Everybodys(parent) { // a pod's volumes are shared by group
		err = os.Chmod(path, 0o770)
	}
	if err == nil {
		err = s.makeLock(path, self)
	}
	if err != nil {
		return nil, errors.Join(err, s.Remove())
	}
	return s, nil
}

func (s *State) makeLock(path string, self Owner) error {
	f, err := s.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o660)
	if err != nil {
		return err
	}
	s.lock = f
	if err := take(f, path, alone, readRecord); err != nil {
		return err
	}
	return writeRecord(f, self)
}

// Fresh reports whether the state was made by this OpenState: its files are to
// be made, and then Begin is to be called.
func (s *State) Fresh() bool { return s.fresh }

// Dir is where the state is now.
func (s *State) Dir() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return filepath.Join(s.parent, s.base)
}

// Path is where the file with the name is now.
func (s *State) Path(name string) string { return filepath.Join(s.Dir(), name) }

// Create makes a new file of the state.
func (s *State) Create(name string) (*os.File, error) {
	return s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o660)
}

// Open opens a file of the state to read and write it.
func (s *State) Open(name string) (*os.File, error) {
	return s.root.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
}

// Has reports whether the state has the file.
func (s *State) Has(name string) (bool, error) {
	_, err := s.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Begin makes a fresh state count: it is found again after the death of the
// process from now on. Its files must be whole.
func (s *State) Begin() error {
	if err := s.rename(young(s.name)); err != nil {
		if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
			return &InUseError{Path: filepath.Join(s.parent, s.name)} // somebody was quicker
		}
		return err
	}
	// Somebody may have begun and anchored since we looked.
	if _, err := os.Lstat(filepath.Join(s.parent, s.name)); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(&InUseError{Path: filepath.Join(s.parent, s.name)}, err)
	}
	s.fresh = false
	return nil
}

// rename gives the directory another name. One that is not empty is never
// replaced, rename(2).
func (s *State) rename(base string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renameLocked(base)
}

func (s *State) renameLocked(base string) error {
	if s.base == base {
		return nil
	}
	if err := os.Rename(filepath.Join(s.parent, s.base), filepath.Join(s.parent, base)); err != nil {
		return err
	}
	s.base = base
	return nil
}

// Anchor makes the state one that survives a loss of power: the names of its
// files and its own are on stable storage when it returns. The content of the
// files must be so before. Whoever had the state before us may have died half
// way: what an earlier process anchored is anchored again, once.
func (s *State) Anchor() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.anchored {
		return nil
	}
	err := syncRoot(s.root)
	if err == nil {
		err = s.renameLocked(s.name)
	}
	if err == nil {
		err = syncDir(s.parent)
	}
	if err != nil {
		return fmt.Errorf("keeping the state of the disk: %w", err)
	}
	s.anchored = true
	return nil
}

// Remove removes the state and all that is in it, and closes it. Cut short, it
// leaves what the next OpenState removes.
func (s *State) Remove() error {
	err := s.rename(fmt.Sprintf("%s.gone-%d-%d", hidden(s.name), os.Getpid(), time.Now().UnixNano()))
	if err == nil {
		err = os.RemoveAll(s.Dir())
	}
	return errors.Join(err, s.close())
}

// Close gives the state back, for the next process to open. One that has not
// begun is removed.
func (s *State) Close() error {
	if s.fresh {
		return s.Remove()
	}
	return s.close()
}

func (s *State) close() error {
	err := s.root.Close()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close()) // last, so that nobody meets us half way
	}
	return err
}

// syncRoot makes the names in a directory survive a loss of power.
func syncRoot(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
