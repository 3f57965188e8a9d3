package imageconv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/qcow2"
)

// Files that an image names: docs/adr/0004. Whoever made the image chose the
// names, so they are opened only where Policy.AllowDir says so, within that
// directory, and never taken for a protocol. os.Root sees to it that no link
// leads out.

// maxChain is how many image files may stand on each other. It bounds the
// memory and the file descriptors that an image can ask for.
const maxChain = 8

// chain are the files that are open on the way from the image that was asked
// for down to the one that is being opened.
type chain struct {
	path  string // of the last one
	above *chain // or nil
	info  fs.FileInfo
	depth int            // files, with this one
	all   *[]fs.FileInfo // every file that was opened, those beside the chain too
}

// below reports whether the last file is read by way of another.
func (c *chain) below() bool { return c != nil && c.above != nil }

// follow returns the chain with one more file, if it is not in it yet and there
// is room.
func (c *chain) follow(path string, info fs.FileInfo) (*chain, error) {
	next := &chain{path: path, above: c, info: info, depth: 1, all: new([]fs.FileInfo)}
	if c != nil {
		next.depth, next.all = c.depth+1, c.all
	}
	if next.depth > maxChain {
		return nil, openError(blockdev.KindUnsupported,
			fmt.Errorf("more than %d files stand on each other: shorten the chain (qemu-img rebase or commit)", maxChain))
	}
	for ; c != nil; c = c.above {
		if os.SameFile(c.info, info) {
			return nil, openError(blockdev.KindCorrupt, fmt.Errorf("the chain of files is a loop: %.200q is in it already", path))
		}
	}
	*next.all = append(*next.all, info)
	return next, nil
}

// identity names the files as they were when they were opened: it is another
// one when a file was replaced or written.
func (c *chain) identity() string {
	var b strings.Builder
	for _, info := range *c.all {
		fmt.Fprintf(&b, ";%d@%d", info.Size(), info.ModTime().UnixNano())
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			fmt.Fprintf(&b, " %d:%d", st.Dev, st.Ino)
		}
	}
	return b.String()
}

// openNamed opens the file that the last image of the chain calls name, within
// the directory that the policy allows.
func (p Policy) openNamed(name string) (*blockdev.File, *chain, error) {
	path, err := resolveName(p.chain.path, name)
	if err != nil {
		return nil, nil, openError(blockdev.KindUnsupported, err)
	}
	f, err := p.openWithin(path)
	if err != nil {
		return nil, nil, openError(blockdev.KindOf(err), err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	c, err := p.chain.follow(path, info)
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	file, err := blockdev.FileOf(f, blockdev.ReadOnly)
	return file, c, err
}

// resolveName is the path of what the image at path calls name: as QEMU has it,
// a relative name begins where the image is.
func resolveName(image, name string) (string, error) {
	if i := strings.IndexAny(name, ":/"); i >= 0 && name[i] == ':' {
		return "", errors.New("the name is that of a protocol, which is never followed: only names of files are")
	}
	if strings.ContainsRune(name, 0) {
		return "", errors.New("the name has a zero byte")
	}
	if filepath.IsAbs(name) {
		return name, nil
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(image))
	if err != nil {
		return "", err
	}
	dir, err = filepath.Abs(dir)
	return dir + "/" + name, err // not cleaned: a/.. is where the link a leads
}

// openWithin opens the file at an absolute path if it is in the directory that
// is allowed.
func (p Policy) openWithin(path string) (*os.File, error) {
	allowed, err := filepath.Abs(p.AllowDir)
	if err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(allowed)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, dir := range []string{real, allowed} {
		if rest, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/"); ok {
			// O_NONBLOCK: the open of a FIFO would wait for a writer.
			f, err := root.OpenFile(strings.TrimLeft(rest, "/"), os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				return nil, fmt.Errorf("in the allowed directory %s: %w", p.AllowDir, err)
			}
			return f, nil
		}
	}
	return nil, fmt.Errorf("%.200q is not in the allowed directory %s", path, p.AllowDir)
}

// named makes the two functions with which a qcow2 image opens what it names,
// or none where the policy allows nothing.
func (im *Image) named(p Policy, o qcow2.Options) qcow2.Options {
	if p.AllowDir == "" {
		return o
	}
	o.Backing = func(ref qcow2.Reference) (blockdev.Source, error) { return im.openBacking(ref, p) }
	o.DataFile = func(ref qcow2.Reference) (blockdev.Source, error) {
		f, _, err := p.openNamed(ref.Name)
		if err != nil {
			return nil, err
		}
		im.files = append(im.files, f)
		im.data = f
		return f, nil
	}
	return o
}

// openBacking opens a backing file as an image of its own. Its format must be
// on record: a guest could have written any format's header into a raw one.
func (im *Image) openBacking(ref qcow2.Reference, p Policy) (blockdev.Source, error) {
	if ref.Format == "" {
		return nil, openError(blockdev.KindUnsupported, fmt.Errorf(
			"its format is not recorded, and guessing is not safe: record it (qemu-img rebase -u -F FORMAT -b %.200q IMAGE)", ref.Name))
	}
	f, c, err := p.openNamed(ref.Name)
	if err != nil {
		return nil, err
	}
	below := &Image{path: c.path, info: Info{FileSize: f.Size()}}
	below.files = append(below.files, f)
	im.files = append(im.files, below)
	p.chain, p.Format, p.Snapshot = c, Format(ref.Format), ""
	return below, below.open(f, p)
}
