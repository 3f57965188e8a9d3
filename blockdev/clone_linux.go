package blockdev

import "golang.org/x/sys/unix"

// CloneRange makes [off, off+n) share its space with as much of src from
// srcOff on, until either is written: nothing is copied. The file system must
// know how, and both files must be on it; the range is in whole blocks of it
// unless it ends where src does. Anything else is an error, and nothing has
// changed then.
func (d *File) CloneRange(off int64, src *File, srcOff, n int64) error {
	if err := d.changeable("clone", off, n); err != nil {
		return err
	}
	err := retry(func() error {
		return unix.IoctlFileCloneRange(d.fd, &unix.FileCloneRange{
			Src_fd: int64(src.fd), Src_offset: uint64(srcOff), Src_length: uint64(n), Dest_offset: uint64(off),
		})
	})
	return wrap("clone", off, n, err)
}
