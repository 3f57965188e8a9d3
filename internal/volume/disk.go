package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
)

const sector = 512 // bytes; a disk is a whole number of them

// Disk is a raw disk, in a file or on a block device, that is served as it is:
// what is written stays. It is locked, and what is in it is never looked at: a
// guest can write any format's signature.
type Disk struct {
	Path   string
	Size   int64 // bytes
	Device bool  // a block device, and not a file

	use Use
	f   *os.File // which holds the lock
}

// Use is what a disk is opened for.
type Use uint8

const (
	ReadWrite Use = iota // locked for one
	ReadOnly             // locked for all that only read
)

// OpenDisk locks the raw disk at path.
func OpenDisk(path string, use Use, self Owner) (*Disk, error) {
	f, err := openLocked(path, use, self)
	if err != nil {
		return nil, err
	}
	d := &Disk{Path: path, use: use, f: f}
	st, err := f.Stat()
	if err == nil {
		d.Device = st.Mode()&fs.ModeDevice != 0
		d.Size, err = f.Seek(0, io.SeekEnd)
	}
	switch {
	case err != nil:
	case d.Size == 0:
		err = fmt.Errorf("%s is empty and no disk: remove it, or put a raw disk there", path)
	case d.Size%sector != 0:
		err = fmt.Errorf("%s has %d bytes, which is no whole number of sectors of %d bytes: no raw disk, or one that was cut; if nothing is missing, truncate --size=%%%d makes it one",
			path, d.Size, sector, sector)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// openLocked opens and locks what the name path means, not what it meant when
// we began to look.
func openLocked(path string, use Use, self Owner) (*os.File, error) {
	flag, how := os.O_RDWR, alone
	if use == ReadOnly {
		flag, how = os.O_RDONLY, shared
	}
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	device := st.Mode()&fs.ModeDevice != 0 && st.Mode()&fs.ModeCharDevice == 0
	switch {
	case device && use == ReadWrite:
		// Claimed against mounts, and against processes that know it by
		// another node, for which flock is another lock.
		flag |= unix.O_EXCL
	case !device && !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is %s, and the disk is a file or a block device: remove it, or name another place", path, kind(st.Mode()))
	}
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return nil, &InUseError{Path: path}
	case err != nil:
		return nil, err
	}
	if err := take(f, path, how, readOwnerAttr); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if !sameFile(f, path) {
		return nil, errors.Join(&InUseError{Path: path}, f.Close())
	}
	if use == ReadWrite {
		writeOwnerAttr(f, self)
	}
	return f, nil
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a character device"
}

// sameFile reports whether path still leads to f.
func sameFile(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(own, now)
}

// Grow makes the disk size bytes large, zeros at the end; 0 leaves it as it is.
// The new size survives a loss of power when it returns.
func (d *Disk) Grow(size int64) error {
	switch {
	case size == 0 || size == d.Size:
		return nil
	case size < d.Size:
		return fmt.Errorf("DISK_SIZE of %d bytes is smaller than %s of %d bytes, whose end would be lost: ask for at least that, or unset it", size, d.Path, d.Size)
	case d.Device:
		return fmt.Errorf("DISK_SIZE of %d bytes is larger than the device %s of %d bytes: make the device larger, or unset it", size, d.Path, d.Size)
	}
	if err := enoughRoom(d.f, d.Path, size); err != nil {
		return err
	}
	err := d.f.Truncate(size)
	if err == nil {
		err = d.f.Sync()
	}
	if err != nil {
		return fmt.Errorf("growing %s: %w", d.Path, err)
	}
	d.Size = size
	return nil
}

// Preallocate makes the file system set aside all space of the disk. Nothing
// changes where there is data.
func (d *Disk) Preallocate() error {
	if d.Device {
		return nil
	}
	return preallocate(d.f, d.Path, d.Size)
}

// Memory is where what the disk's initiators asked to be remembered is kept: an
// extended attribute, so that it goes where the disk goes and is no second file.
// nil: there are none here.
func (d *Disk) Memory() *Memory {
	if d.Device || d.use == ReadOnly || !hasAttrs(d.f) {
		return nil
	}
	return &Memory{attr{d.f}}
}

// Open returns the disk as a device: the same open file. Through another one
// Linux would not give back the space of a block device that is claimed, where
// pages of it are in memory. The lock lasts until both are closed.
func (d *Disk) Open() (*blockdev.File, error) {
	fd, err := unix.FcntlInt(d.f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	access := blockdev.ReadWrite
	if d.use == ReadOnly {
		access = blockdev.ReadOnly
	}
	return blockdev.FileOf(os.NewFile(uintptr(fd), d.Path), access)
}

// Close gives the disk back, when its devices are closed as well.
func (d *Disk) Close() error { return d.f.Close() }
