package volume

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Memory keeps what initiators asked a logical unit to remember across a
// restart: a few hundred bytes that change seldom. It is a scsi.Store.
type Memory struct{ keeper }

// keeper is a place for a few bytes.
type keeper interface {
	// Load returns what was saved last, or nothing if nothing was.
	Load() ([]byte, error)
	// Save replaces it as a whole: once Save has returned nil it is on stable
	// storage, and if Save fails the old content is still there.
	Save(b []byte) error
}

// maxMemory is far more than any logical unit remembers, bytes.
const maxMemory = 2 << 20

// Memory is where the state keeps it: a file. A state of which nothing was
// promised yet becomes one that survives a loss of power with the first Save.
func (s *State) Memory() *Memory { return &Memory{file{s}} }

type file struct{ s *State }

func (m file) Load() ([]byte, error) { return m.s.load(memoryName) }

func (m file) Save(b []byte) error {
	if err := m.s.save(memoryName, b); err != nil {
		return err
	}
	return m.s.persist()
}

// persist makes a state that nothing was promised of survive a loss of power,
// as one in which nothing is durable: its map has to be whole for that.
func (s *State) persist() error {
	f, err := s.Open(MapName)
	switch {
	case err == nil:
		err = errors.Join(f.Sync(), f.Close())
	case errors.Is(err, fs.ErrNotExist): // a disk without a map
		err = nil
	}
	if err != nil {
		return err
	}
	return s.Anchor()
}

// load returns the content of a small file of the state, or nothing if there is
// none.
func (s *State) load(name string) ([]byte, error) {
	f, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxMemory))
	return b, errors.Join(err, f.Close())
}

// save replaces the content of a small file as a whole. It survives a loss of
// power as the state does.
func (s *State) save(name string, b []byte) error {
	next := name + ".next"
	f, err := s.root.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o660)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, s.root.Remove(next))
	}
	if err := s.root.Rename(next, name); err != nil {
		return err
	}
	return syncRoot(s.root)
}

// memoryAttr holds it where the disk is a file that must stay alone.
const memoryAttr = "user.containerdisk.memory"

type attr struct{ f *os.File }

func (a attr) Load() ([]byte, error) {
	for size := maxRecord; ; size *= 2 {
		b := make([]byte, size)
		n, err := unix.Fgetxattr(int(a.f.Fd()), memoryAttr, b)
		switch {
		case err == nil:
			return b[:n], nil
		case errors.Is(err, unix.ENODATA):
			return nil, nil
		case !errors.Is(err, unix.ERANGE) || size > maxMemory:
			return nil, err
		}
	}
}

// Save relies on the file system to replace an attribute as a whole, which the
// journaling ones do.
func (a attr) Save(b []byte) error {
	if err := unix.Fsetxattr(int(a.f.Fd()), memoryAttr, b, 0); err != nil {
		return err
	}
	return a.f.Sync()
}

// hasAttrs reports whether the file system of f has extended attributes.
func hasAttrs(f *os.File) bool {
	_, err := unix.Fgetxattr(int(f.Fd()), memoryAttr, nil)
	return err == nil || errors.Is(err, unix.ENODATA)
}
