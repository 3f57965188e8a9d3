package discovery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerdisk/containerdisk/imageconv"
)

// entry is one name in a directory and what is behind it.
type entry struct {
	name    string
	ignored bool   // not looked at
	link    string // where it points, if it is a link
	problem string // why it is no image; "" if it is one

	info   fs.FileInfo // nil: there is nothing behind the name
	format imageconv.Format
	size   int64 // bytes
}

// examine looks at what is behind a name in dir, without leaving dir.
func examine(dir *os.Root, name string, o Options) entry {
	e := entry{name: name}
	if isLink(dir, name) {
		e.link, _ = dir.Readlink(name) // only to be shown
	}
	var err error
	if e.info, err = dir.Stat(name); err != nil {
		e.info, e.problem = nil, e.unreachable(err)
		return e
	}
	if e.problem = notAFile(e.info.Mode()); e.problem == "" {
		e.open(dir, o)
	}
	return e
}

// unreachable says why there is nothing behind the name.
func (e entry) unreachable(err error) string {
	switch {
	case e.link == "":
		return reason(err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Sprintf("a link to %s, where nothing is", show(e.link))
	case filepath.IsAbs(e.link) || !filepath.IsLocal(filepath.Join(filepath.Dir(e.name), e.link)):
		return fmt.Sprintf("a link to %s, which leaves the directory; name that file itself, if it is meant", show(e.link))
	}
	return fmt.Sprintf("a link to %s, which cannot be followed: %s", show(e.link), reason(err))
}

// notAFile says what a file of this mode is, if it cannot hold an image.
func notAFile(mode fs.FileMode) string {
	switch {
	case mode.IsRegular():
		return ""
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeCharDevice != 0: // which comes with ModeDevice
		return "a character device"
	case mode&fs.ModeDevice != 0:
		return "" // a block device
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "neither a file nor a block device"
}

// open finds out the size and the format of a file or block device.
func (e *entry) open(dir *os.Root, o Options) {
	f, err := dir.Open(e.name)
	if err != nil {
		e.problem = unreadable(err, e.info.Mode())
		return
	}
	defer f.Close()
	if e.size, err = f.Seek(0, io.SeekEnd); err != nil { // a block device has no size to Stat
		e.problem = reason(err)
		return
	}
	if e.size == 0 {
		e.problem = "an empty file"
		return
	}
	if e.format = imageconv.Raw; o.Raw {
		return
	}
	if e.format, err = imageconv.Detect(f, e.size); err != nil {
		e.problem = reason(err)
	}
}

// unreadable says why a file of this mode cannot be opened. A file keeps the
// mode it has where the container image is built, and the server is not root.
func unreadable(err error, mode fs.FileMode) string {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Sprintf("not readable for user %d, its mode is %v; in a Dockerfile: ADD --chmod=0444", os.Getuid(), mode)
	}
	return reason(err)
}

// reason is an error without the operation and the path, which the list shows.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}
