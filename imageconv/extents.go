package imageconv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/vmdk"
)

// A vmdk image may be several files: a text that names the others. They are the
// one case in which a file is opened because an image names it and nobody else
// allowed it, so that there is as little to choose as can be (docs/adr/0004):
// a plain name, beside the image, of a file that is no link, and called as
// the parts of an image are.

// extentSuffix ends the names of the parts of an image.
const extentSuffix = ".vmdk"

// isVMDK is the probe for vmdk.
func isVMDK(e *ends) bool {
	return anyOf(at(0, "KDMV"), at(0, "COWD"))(e) || vmdk.IsDescriptor(e.head)
}

func openVMDK(im *Image, f blockdev.Source, p Policy) error {
	o := vmdk.Options{MaxSize: p.maxSize()}
	if _, isFile := f.(*blockdev.File); isFile { // and not something packed within one
		o.Extent = func(name string) (blockdev.Source, error) {
			part, err := openExtent(p.chain.path, name)
			if err != nil {
				return nil, err
			}
			im.files = append(im.files, part)
			im.info.FileSize += part.Size()
			return part, nil
		}
	}
	r, err := vmdk.Open(f, f.Size(), o)
	if err != nil {
		return err
	}
	h := r.Header()
	im.Source = r
	im.info.Version = h.Version
	im.info.ClusterSize = h.GrainSize
	im.info.Features = []string{h.CreateType}
	if h.Compressed {
		im.info.Compression = "zlib"
	}
	if h.Unclean {
		im.info.Features = append(im.info.Features, "unclean shutdown")
	}
	return nil
}

// openExtent opens the part of the image at path that the image calls name.
func openExtent(path, name string) (*blockdev.File, error) {
	own := filepath.Base(path)
	stem := strings.TrimSuffix(own, filepath.Ext(own)) + "-"
	switch {
	case name != filepath.Base(name) || !filepath.IsLocal(name): // as package vmdk has checked
		return nil, refusedName("it is not the plain name of a file")
	case !strings.EqualFold(filepath.Ext(name), extentSuffix) && !strings.HasPrefix(name, stem):
		return nil, refusedName("only a file whose name ends in %s or begins with %q is opened as a part of %s", extentSuffix, stem, own)
	}
	// O_NONBLOCK: the open of a FIFO would wait for a writer.
	f, err := os.OpenFile(filepath.Join(filepath.Dir(path), name), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, openError(blockdev.KindOf(err), err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refusedName("it is not a regular file (%s)", info.Mode().Type())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return blockdev.FileOf(f, blockdev.ReadOnly)
}

func refusedName(format string, a ...any) error {
	return openError(blockdev.KindUnsupported, fmt.Errorf(format, a...))
}
