package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// scratchPrefix is the beginning of the names of states in scratch directories.
const scratchPrefix = "containerdisk-"

// onTheWay are the names of states that have not come to stay.
var onTheWay = regexp.MustCompile(`^\.containerdisk(?:-[^.]*)?\.(new|making-[0-9]+|gone-[0-9-]+)$`)

// makingLimit is how long the making of a state may be without a lock.
const makingLimit = time.Minute

// sweep removes what dead processes left in parent that nobody can need: what
// was being made or removed, and what was never anchored before another boot.
// It tells the final states that nobody has open. What cannot be removed stays.
func sweep(parent, bootID string) (final []string, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(parent, e.Name())
		kind := onTheWay.FindStringSubmatch(e.Name())
		switch {
		case !e.IsDir(): // nor is a link to one
		case kind != nil:
			discard(path, func(o Owner, known bool) bool {
				return kind[1] != "new" || !known || o.Boot != bootID
			})
		case strings.HasPrefix(e.Name(), scratchPrefix):
			final = append(final, path)
		}
	}
	return final, nil
}

// idle reports whether the state at path is nobody's at the moment, and whose
// it was.
func idle(path string) (last Owner, ok bool) {
	root, lock, err := lockOf(path)
	if err != nil {
		return Owner{}, false
	}
	defer root.Close()
	defer lock.Close()
	last, _ = readRecord(lock)
	return last, true
}

// lockOf opens the directory at path and takes its lock.
func lockOf(path string) (*os.Root, *os.File, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, nil, err
	}
	lock, err := root.OpenFile(lockName, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, errors.Join(err, root.Close())
	}
	if err := tryLock(lock, alone); err != nil || !sameDir(root, path) {
		return nil, nil, errors.Join(fmt.Errorf("%s is not to be had", path), err, lock.Close(), root.Close())
	}
	return root, lock, nil
}

// discard removes the directory at path unless somebody has it, if unwanted
// says so of its last owner.
func discard(path string, unwanted func(o Owner, known bool) bool) {
	root, lock, err := lockOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		discardUnlocked(path)
		return
	}
	if err != nil {
		return
	}
	defer root.Close()
	defer lock.Close()
	if o, known := readRecord(lock); !unwanted(o, known) {
		return
	}
	gone := path
	if strings.HasSuffix(path, ".new") { // half removed, it must not look like one
		gone = fmt.Sprintf("%s.gone-%d", strings.TrimSuffix(path, ".new"), time.Now().UnixNano())
		if os.Rename(path, gone) != nil {
			return
		}
	}
	_ = os.RemoveAll(gone) // what stays is met again the next time
}

// discardUnlocked removes a directory without a lock: what is left of one that
// was being removed, or one that died before it had its lock.
func discardUnlocked(path string) {
	if strings.Contains(filepath.Base(path), ".gone-") {
		_ = os.RemoveAll(path)
		return
	}
	if st, err := os.Lstat(path); err == nil && time.Since(st.ModTime()) > makingLimit {
		_ = os.Remove(path) // only if it is empty
	}
}

// Leftover is a state in a scratch directory that nobody uses.
type Leftover struct {
	Path  string
	Bytes int64 // of space that its store takes
	Last  Owner // who used it last; zero if that is not known
}

// Leftovers are the states in the scratch directory that are kept and that
// nobody uses.
func Leftovers(scratch, bootID string) ([]Leftover, error) {
	final, err := sweep(scratch, bootID)
	if err != nil {
		return nil, err
	}
	var all []Leftover
	for _, path := range final {
		l, ok := Leftover{Path: path}, false
		if l.Last, ok = idle(path); !ok {
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(path, StoreName), &st) == nil {
			l.Bytes = st.Blocks * 512
		}
		all = append(all, l)
	}
	return all, nil
}
