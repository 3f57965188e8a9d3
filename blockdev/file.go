package blockdev

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// filePage is the unit in which Linux file systems give back space and in
// which a write needs no read of what surrounds it, as far as we can tell
// without asking each of them.
const filePage = 4096

// File is a raw disk in a regular file or on a block device. The disk is what
// the file holds, byte for byte: nothing is kept beside it.
//
// The descriptor is used directly for what package os has no call for; Close
// must therefore come after all other calls have returned.
//
// Reads check their range, because a Source is used without a Guard as well.
type File struct {
	f    *os.File
	fd   int
	size int64
	caps Caps

	noNowait atomic.Bool // the file system knows no RWF_NOWAIT
	failed   atomic.Bool // a sync failed: what is on the medium is not known
	closed   atomic.Bool // the descriptor may be another file's by now
}

// OpenFile opens the raw disk at path, a regular file or a block device.
func OpenFile(path string, access Access) (*File, error) {
	flag := os.O_RDWR
	if access == ReadOnly {
		flag = os.O_RDONLY
	}
	// O_NONBLOCK only matters where path is a FIFO: without it the open would
	// wait for a writer.
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, wrap("open", 0, 0, err)
	}
	return newFile(f, access)
}

// OpenDevice opens the block device at path to write over all of it. One that
// is in use, a mounted file system or another program's, is refused.
func OpenDevice(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_EXCL, 0) // without O_CREATE: not in use
	if err != nil {
		return nil, wrap("open", 0, 0, err)
	}
	return newFile(f, ReadWrite)
}

// CreateFile makes a new sparse file of size bytes, all zeros, at path, which
// must not exist yet. Members of the group may open it: a pod's volumes are
// shared by group.
func CreateFile(path string, size int64) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o660)
	if err != nil {
		return nil, wrap("open", 0, 0, err)
	}
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(wrap("open", 0, size, err), f.Close(), os.Remove(path))
	}
	return newFile(f, ReadWrite)
}

// FileOf makes a disk of an open file, which is the disk's from then on, also
// when this fails.
func FileOf(f *os.File, access Access) (*File, error) { return newFile(f, access) }

func newFile(f *os.File, access Access) (*File, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(wrap("open", 0, 0, err), f.Close())
	}
	d := &File{f: f, fd: int(f.Fd()), caps: Caps{
		ReadOnly:      access == ReadOnly,
		Granularity:   filePage,
		PhysicalBlock: filePage,
	}}
	switch mode := st.Mode(); {
	case mode.IsRegular():
		d.size = st.Size()
		d.caps.Discard = access == ReadWrite && d.canPunch()
		d.caps.DiscardZeroes = d.caps.Discard
		d.caps.FastZero = d.caps.Discard
	case mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0:
		d.size, err = f.Seek(0, io.SeekEnd)
		d.caps.Discard = access == ReadWrite // as far as the device can
	default:
		err = fmt.Errorf("%s is neither a file nor a block device (%s)", f.Name(), mode.Type())
	}
	if err != nil {
		return nil, errors.Join(wrap("open", 0, 0, err), f.Close())
	}
	return d, nil
}

// canPunch asks the file system for a hole behind the end of the file, which
// changes nothing.
func (d *File) canPunch() bool {
	return d.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, d.size, filePage) == nil
}

func (d *File) Size() int64 { return d.size }
func (d *File) Caps() Caps  { return d.caps }

func (d *File) ReadAt(p []byte, off int64) (int, error) {
	if err := CheckRange("read", off, int64(len(p)), d.size); err != nil {
		return 0, err
	}
	n, err := d.f.ReadAt(p, off)
	if err == io.EOF && n < len(p) {
		err = io.ErrUnexpectedEOF // somebody truncated the file under us
	}
	if n == len(p) {
		return n, nil
	}
	return n, wrap("read", off, int64(len(p)), err)
}

func (d *File) TryReadAt(p []byte, off int64) error {
	switch {
	case d.closed.Load():
		return wrap("read", off, int64(len(p)), fs.ErrClosed)
	case len(p) == 0:
		return nil
	case d.noNowait.Load():
		return ErrWouldBlock
	}
	n, err := preadNowait(d.fd, p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil, err == unix.EAGAIN, err == unix.EINTR:
		return ErrWouldBlock
	case err == unix.EOPNOTSUPP:
		d.noNowait.Store(true)
		return ErrWouldBlock
	}
	return wrap("read", off, int64(len(p)), err)
}

func (d *File) WriteAt(p []byte, off int64) (int, error) {
	if err := d.changeable("write", off, int64(len(p))); err != nil {
		return 0, err
	}
	n, err := d.f.WriteAt(p, off)
	return n, wrap("write", off, int64(len(p)), err)
}

// TryWriteAt writes to the page cache at once. Linux makes a writer wait only
// while far too many pages are dirty, for at most a fifth of a second a call.
func (d *File) TryWriteAt(p []byte, off int64) error {
	_, err := d.WriteAt(p, off)
	return err
}

func (d *File) Zero(off, n int64, mode ZeroMode) error {
	if err := d.changeable("zero", off, n); err != nil || n == 0 {
		return err
	}
	how := uint32(unix.FALLOC_FL_PUNCH_HOLE)
	if mode == ZeroKeepAllocated {
		how = unix.FALLOC_FL_ZERO_RANGE
	}
	err := d.fallocate(how|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if err == unix.EOPNOTSUPP || err == unix.EINVAL { // EINVAL: a block device, unaligned
		return d.writeZeros(off, n)
	}
	return wrap("zero", off, n, err)
}

var zeros [256 << 10]byte

func (d *File) writeZeros(off, n int64) error {
	for n > 0 {
		k, err := d.f.WriteAt(zeros[:min(n, int64(len(zeros)))], off)
		if err != nil {
			return wrap("zero", off, n, err)
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}

// Discard makes a hole. On a block device that cannot, nothing happens.
func (d *File) Discard(off, n int64) error {
	if err := d.changeable("discard", off, n); err != nil || n == 0 || !d.caps.Discard {
		return err
	}
	err := d.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if !d.caps.DiscardZeroes && (err == unix.EOPNOTSUPP || err == unix.EINVAL) {
		return nil
	}
	return wrap("discard", off, n, err)
}

func (d *File) Flush() error {
	if err := d.usable("flush", 0, 0); err != nil {
		return err
	}
	if d.caps.ReadOnly {
		return nil
	}
	err := retry(func() error { return unix.Fdatasync(d.fd) })
	if err != nil {
		// The kernel has dropped the dirty pages or their mark: a second try
		// would succeed and lie.
		d.failed.Store(true)
	}
	return wrap("flush", 0, 0, err)
}

func (d *File) Close() error {
	d.closed.Store(true)
	return wrap("close", 0, 0, d.f.Close())
}

var errSyncFailed = errors.New("an earlier flush failed")

// changeable refuses changes on a device that may not be changed.
func (d *File) changeable(op string, off, n int64) error {
	err := d.usable(op, off, n)
	if err == nil && d.caps.ReadOnly {
		err = &Error{Op: op, Off: off, Len: n, Kind: KindReadOnly}
	}
	return err
}

// usable refuses a device that is closed or whose content is in doubt. In the
// latter case reads go on.
func (d *File) usable(op string, off, n int64) error {
	switch {
	case d.closed.Load():
		return wrap(op, off, n, fs.ErrClosed)
	case d.failed.Load():
		return &Error{Op: op, Off: off, Len: n, Kind: KindIO, Err: errSyncFailed}
	}
	return nil
}

func (d *File) Extents(off, n int64) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		if err := d.readable(off, n); err != nil {
			yield(Extent{}, err)
			return
		}
		j := NewJoin(yield)
		for end := off + n; off < end; {
			e, err := d.extentAt(off, end)
			if err != nil {
				j.Fail(wrap("map", off, end-off, err))
				return
			}
			if !j.Add(e) {
				return
			}
			off = e.End()
		}
		j.Done()
	}
}

// readable refuses to map what cannot be read.
func (d *File) readable(off, n int64) error {
	if d.closed.Load() {
		return wrap("map", off, n, fs.ErrClosed)
	}
	return CheckRange("map", off, n, d.size)
}

// extentAt returns the extent that begins at off, cut at end. It asks where the
// data begins and, where that is at off, where it ends. Between the two a hole
// may be punched at off: then it asks again.
func (d *File) extentAt(off, end int64) (Extent, error) {
	for {
		data, err := unix.Seek(d.fd, off, unix.SEEK_DATA)
		switch {
		case err == unix.ENXIO: // no data up to the end of the file
			return Extent{off, end - off, Hole}, nil
		case err == unix.EINVAL: // not a file that knows of holes
			return Extent{off, end - off, Data}, nil
		case err != nil:
			return Extent{}, err
		case data > off:
			return Extent{off, min(data, end) - off, Hole}, nil
		}
		hole, err := unix.Seek(d.fd, off, unix.SEEK_HOLE)
		if err != nil {
			return Extent{}, err
		}
		if hole > off {
			return Extent{off, min(hole, end) - off, Data}, nil
		}
	}
}

func (d *File) fallocate(mode uint32, off, n int64) error {
	return retry(func() error { return unix.Fallocate(d.fd, mode, off, n) })
}

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

var _ Device = (*File)(nil)
