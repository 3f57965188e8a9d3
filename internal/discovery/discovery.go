// Package discovery says which files are the disks: one image, given or found
// in a directory, or several where that is meant.
//
// The content of a file decides, not its name. Everything in the directory
// that is not hidden has to be an image: what is there by mistake is more
// likely the disk that somebody misses than something to overlook. A link may
// not leave the directory it is in, because images come from registries, and a
// link in one must not make a disk of a secret that is mounted elsewhere.
package discovery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerdisk/containerdisk/imageconv"
)

// Disk is an image that was found.
type Disk struct {
	Name   string // of the file that was found, without its directory
	Path   string // where it is, no link
	Format imageconv.Format
	Size   int64 // of the file, bytes
}

// Options say what the operator meant.
type Options struct {
	Several bool // several images are as many disks
	Raw     bool // they are raw disks whatever they look like
}

// maxEntries is how many names a directory of images may hold. It bounds what
// an image from a registry makes us read and sort.
const maxEntries = 1024

// Find returns the image at path, or those in the directory at path in the
// order of their names: at least one, and exactly one unless several are
// meant. Its errors tell what was found and the way out.
func Find(path string, o Options) ([]Disk, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	parent, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, missing(path, err)
	}
	defer parent.Close()

	name := filepath.Base(path)
	if path == filepath.Dir(path) { // the root directory
		name = "."
	}
	info, err := parent.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !isLink(parent, name):
		return nil, missing(path, err)
	case err != nil || !info.IsDir():
		return findFile(parent, path, o)
	}
	dir, err := parent.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer dir.Close()
	return findIn(dir, path, o)
}

// findFile returns the image at path, whose directory is dir.
func findFile(dir *os.Root, path string, o Options) ([]Disk, error) {
	e := examine(dir, filepath.Base(path), o)
	if e.problem != "" {
		return nil, fmt.Errorf("%s: %s", show(path), e.problem)
	}
	d, err := e.disk(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	return []Disk{d}, nil
}

// findIn returns the images in dir, which the operator knows as path.
func findIn(dir *os.Root, path string, o Options) ([]Disk, error) {
	names, err := readNames(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var found []entry
	for _, n := range names {
		if ignored(n) {
			found = append(found, entry{name: n, ignored: true})
		} else {
			found = append(found, examine(dir, n, o))
		}
	}
	found = withoutTwins(found)

	var disks []Disk
	problems := 0
	for _, e := range found {
		switch {
		case e.ignored:
		case e.problem != "":
			problems++
		default:
			d, err := e.disk(path)
			if err != nil {
				return nil, err
			}
			disks = append(disks, d)
		}
	}
	switch {
	case problems > 0:
		return nil, report(path, "not everything here is an image", found, wayOutOfProblems(path))
	case len(disks) == 0:
		return nil, report(path, "no image", found, wayOutOfNone)
	case len(disks) > 1 && !o.Several:
		return nil, report(path, fmt.Sprintf("%d images, and one was expected", len(disks)), found, wayOutOfSeveral(path, disks))
	}
	return disks, nil
}

// readNames returns the names in dir in order.
func readNames(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var names []string
	for len(names) <= maxEntries {
		more, err := f.Readdirnames(maxEntries)
		names = append(names, more...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	if len(names) > maxEntries {
		return nil, fmt.Errorf("more than %d files; this is no directory of disk images", maxEntries)
	}
	slices.Sort(names)
	return names, nil
}

// withoutTwins leaves out links to files that are found themselves.
func withoutTwins(found []entry) []entry {
	var kept []entry
	for _, e := range found {
		if e.link == "" || !slices.ContainsFunc(found, e.pointsTo) {
			kept = append(kept, e)
		}
	}
	return kept
}

// pointsTo reports whether the link e ends at the file f.
func (e entry) pointsTo(f entry) bool {
	return f.link == "" && f.info != nil && e.info != nil && os.SameFile(e.info, f.info)
}

// disk is the Disk of an entry without a problem in the directory at path.
func (e entry) disk(path string) (Disk, error) {
	path = filepath.Join(path, e.name)
	if e.link != "" {
		// The way was found to stay inside; what is opened later is its end.
		var err error
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return Disk{}, err
		}
	}
	return Disk{Name: e.name, Path: path, Format: e.format, Size: e.size}, nil
}

func isLink(dir *os.Root, name string) bool {
	info, err := dir.Lstat(name)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// ignored are names that file systems and mounts put into a directory.
func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || name == "lost+found"
}
