package volume

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// enoughRoom refuses a disk of size bytes in the file f, which the operator
// knows as path, when its file system could not hold all of it: even where the
// image is mostly holes, the guest may write to every one of them, and a disk
// that was promised to be kept has nowhere else to go. What f has already counts.
func enoughRoom(f *os.File, path string, size int64) error {
	var sf unix.Statfs_t
	if err := ignoringEINTR(func() error { return unix.Fstatfs(int(f.Fd()), &sf) }); err != nil {
		return fmt.Errorf("%s: how much room is there: %w", path, err)
	}
	if sf.Blocks == 0 {
		return nil // a file system that does not tell
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	room := int64(sf.Bavail) * sf.Bsize
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		room += st.Blocks * 512
	}
	if room < size {
		return fmt.Errorf("%s has room for %d bytes, and the disk has %d bytes: use a larger volume, or a smaller disk", path, room, size)
	}
	return nil
}

// preallocate makes the file system set aside size bytes for f.
func preallocate(f *os.File, path string, size int64) error {
	err := ignoringEINTR(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, size) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: the file system cannot set space aside: unset PREALLOCATE", path)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("%s: no room to set aside %d bytes: use a larger volume, or unset PREALLOCATE", path, size)
	}
	return fmt.Errorf("%s: setting space aside: %w", path, err)
}
