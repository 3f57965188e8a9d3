package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// DiskName is the one file of a volume, a raw disk.
	DiskName = "disk.img"
	// fillName is the state of a volume that is being filled.
	fillName = ".containerdisk"
)

// Volume is a file system with one disk: a mounted PersistentVolume.
//
//	empty     nothing but what file systems put there themselves
//	filling   the State .containerdisk, whose store is locked as the disk will be
//	complete  disk.img, and nothing else
//
// Publish is the step from the second to the third.
type Volume struct {
	Disk    *Disk    // locked; while the volume is being filled, its store. nil before Fill
	State   *State   // while it is being filled; or nil
	Foreign []string // what else is in a complete volume: not ours to remove

	path string
	self Owner
}

// OpenVolume opens the volume mounted at path. If it is complete the disk is
// opened; one that is not has to be filled. What is in the way is an error.
func OpenVolume(path string, use Use, self Owner) (*Volume, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	v := &Volume{path: path, self: self}
	for _, e := range entries {
		if !expected(e.Name()) {
			v.Foreign = append(v.Foreign, e.Name())
		}
	}
	disk := filepath.Join(path, DiskName)
	_, err = os.Lstat(disk)
	switch {
	case err == nil:
		err = v.open(disk, use)
	case !errors.Is(err, fs.ErrNotExist):
	case len(v.Foreign) > 0:
		err = fmt.Errorf("%s has no %s but holds %s: a volume is for one disk and nothing else; name an empty one, or remove what is there",
			path, DiskName, few(v.Foreign))
	default:
		err = nil
	}
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// expected are names that are ours, or that file systems put into a volume.
func expected(name string) bool {
	return name == DiskName || name == fillName || onTheWay.MatchString(name) ||
		name == "lost+found" || name == ".snapshot" || strings.HasPrefix(name, ".nfs")
}

// few names the first few names for a person.
func few(names []string) string {
	const enough = 5
	names = slices.Clone(names)
	for i, n := range names {
		names[i] = fmt.Sprintf("%q", n)
	}
	if more := len(names) - enough; more > 0 {
		names = append(names[:enough], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// Complete reports whether the volume has its disk, so that it is served
// whatever the image is.
func (v *Volume) Complete() bool { return v.Disk != nil && v.State == nil }

// open opens the disk of a complete volume.
func (v *Volume) open(disk string, use Use) error {
	for _, name := range []string{fillName, young(fillName)} {
		store := filepath.Join(v.path, name, StoreName)
		if _, err := os.Lstat(store); !errors.Is(err, fs.ErrNotExist) {
			return errors.Join(fmt.Errorf("%s has %s, and %s beside it, which was being filled: both may hold what a guest wrote; remove the one that is not needed",
				v.path, DiskName, filepath.Join(name, StoreName)), err)
		}
	}
	d, err := OpenDisk(disk, use, v.self)
	if err != nil {
		return err
	}
	v.Disk = d
	if use == ReadWrite {
		v.tidy()
	}
	return nil
}

// tidy removes what a process left that died in Publish. The disk is locked.
func (v *Volume) tidy() {
	_, _ = sweep(v.path, v.self.Boot) // what cannot be removed is tried again the next time
	discard(filepath.Join(v.path, fillName), func(Owner, bool) bool { return true })
}

// Allocation is what is done about space that is not written yet.
type Allocation uint8

const (
	Sparse       Allocation = iota // it is taken when it is needed
	Preallocated                   // it is set aside at once
)

// Fill opens the state of a volume that is not complete, or makes one with a
// store of size bytes, all zeros. A volume without room for that is refused
// before anything is written to it.
func (v *Volume) Fill(size int64, a Allocation) error {
	if err := v.checkRoom(size); err != nil {
		return err
	}
	s, err := OpenState(v.path, fillName, v.self)
	if err != nil {
		return err
	}
	v.State = s
	if _, err := os.Lstat(filepath.Join(v.path, DiskName)); !errors.Is(err, fs.ErrNotExist) {
		// Whoever filled it was done between our two looks.
		return errors.Join(&InUseError{Path: v.path}, err)
	}
	if s.Fresh() {
		err = v.makeStore(size, a)
	}
	if err == nil {
		v.Disk, err = OpenDisk(s.Path(StoreName), ReadWrite, v.self)
	}
	return err
}

// checkRoom refuses an empty volume that is too small. One that is being filled
// already holds what was promised to be kept: it is served as long as it goes.
func (v *Volume) checkRoom(size int64) error {
	for _, name := range []string{fillName, young(fillName)} {
		if _, err := os.Lstat(filepath.Join(v.path, name)); err == nil {
			return nil
		}
	}
	dir, err := os.Open(v.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return enoughRoom(dir, v.path, size)
}

func (v *Volume) makeStore(size int64, a Allocation) error {
	f, err := v.State.Create(StoreName)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	if err == nil && a == Preallocated {
		err = preallocate(f, v.path, size)
	}
	return errors.Join(err, f.Close())
}

// Publish makes the store the volume's disk. The store must be complete and on
// stable storage. At every moment, also one at which the power fails, there is
// either the state, whole, or the disk, whole. What could not be tidied up then
// is told apart: the disk is there, and the next OpenVolume tries again.
func (v *Volume) Publish() (untidy, err error) {
	if err = v.rename(); err == nil {
		err = syncDir(v.path) // before what would be needed without it goes
	}
	if err != nil {
		return nil, fmt.Errorf("publishing %s: %w", filepath.Join(v.path, DiskName), err)
	}
	s := v.State
	v.State = nil
	if untidy = s.Remove(); untidy == nil {
		untidy = syncDir(v.path)
	}
	return untidy, nil
}

// rename gives the store its name, unless that has been taken meanwhile.
func (v *Volume) rename() error {
	store, disk := v.State.Path(StoreName), filepath.Join(v.path, DiskName)
	if !sameFile(v.Disk.f, store) {
		return fmt.Errorf("%s is not the disk that is served any more", store)
	}
	err := unix.Renameat2(unix.AT_FDCWD, store, unix.AT_FDCWD, disk, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system that cannot promise that
		if _, err = os.Lstat(disk); err == nil {
			return &fs.PathError{Op: "rename", Path: disk, Err: fs.ErrExist}
		}
		err = os.Rename(store, disk)
	}
	if err == nil {
		v.Disk.Path = disk
	}
	return err
}

// Close gives the volume back. What it is being filled with stays for the next.
func (v *Volume) Close() error {
	var errs []error
	if v.Disk != nil {
		errs = append(errs, v.Disk.Close())
	}
	if v.State != nil {
		errs = append(errs, v.State.Close())
	}
	return errors.Join(errs...)
}
