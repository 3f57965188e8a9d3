package volume

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A block device that is a volume has no room for anything but the disk. While
// it is being populated its map is in a State elsewhere, and when that is done
// the state says so. Without the state nobody can tell a device that holds a
// guest's disk, or half of one, from one that holds what the last user left: so
// nothing but a blank device is ever taken for a new one.

// Samples of a device, bytes.
const (
	blankEnds    = 4 << 20 // looked at as a whole at both ends: partition tables and superblocks
	blankSample  = 4096
	blankSamples = 256 // in between
)

// Blank reports whether the device holds nothing, as far as samples can tell:
// all zeros at its ends, where every file system and partition table leaves
// something, and here and there.
func (d *Disk) Blank() (bool, error) {
	ends := min(blankEnds, d.Size)
	blank, err := d.zeros(0, ends)
	if err == nil && blank {
		blank, err = d.zeros(d.Size-ends, ends)
	}
	step := max(d.Size/blankSamples/blankSample*blankSample, blankSample)
	for off := int64(0); err == nil && blank && off < d.Size; off += step {
		blank, err = d.zeros(off, min(blankSample, d.Size-off))
	}
	return blank, err
}

func (d *Disk) zeros(off, n int64) (bool, error) {
	b := make([]byte, n)
	if _, err := d.f.ReadAt(b, off); err != nil {
		return false, err
	}
	return len(bytes.TrimLeft(b, "\x00")) == 0, nil
}

// Identity names the device as its maker did, as far as the kernel tells, so
// that a map is not believed for another one.
func (d *Disk) Identity() string {
	id := fmt.Sprintf("device of %d bytes", d.Size)
	var st unix.Stat_t
	if unix.Fstat(int(d.f.Fd()), &st) != nil {
		return id
	}
	dir, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		return id // no sysfs here
	}
	if part, err := os.ReadFile(filepath.Join(dir, "partition")); err == nil {
		id += ", partition " + strings.TrimSpace(string(part))
		dir = filepath.Dir(dir)
	}
	for _, name := range []string{"wwid", "device/wwid", "dm/uuid", "serial", "device/serial", "loop/backing_file"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if text := strings.TrimSpace(string(b)); err == nil && text != "" {
			return id + ", " + text
		}
	}
	return id
}

// SetPopulated notes that the device is populated: from now on it is served as
// it is. The device must be complete and on stable storage. A fresh state has
// begun with it.
func (s *State) SetPopulated(device *Disk) error {
	if err := s.save(doneName, []byte(device.Identity())); err != nil {
		return fmt.Errorf("noting that %s is populated: %w", device.Path, err)
	}
	if s.fresh {
		if err := s.Begin(); err != nil {
			return err
		}
	}
	return s.Anchor()
}

// Populated reports whether the device was populated, as far as the state
// knows. That another one was is an error.
func (s *State) Populated(device *Disk) (bool, error) {
	b, err := s.load(doneName)
	if err != nil || b == nil {
		return false, err
	}
	if was, is := string(b), device.Identity(); was != is {
		return false, fmt.Errorf("%s belongs to another device (%s) than %s (%s): remove it, or name the device that it belongs to",
			s.Dir(), was, device.Path, is)
	}
	return true, nil
}
