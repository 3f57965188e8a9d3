package imageconv

import "github.com/containerdisk/containerdisk/blockdev"

// cloner returns a function that shares a piece of the source with the
// destination and reports whether it has: not where the source does not have it
// as it is. An error means that these files cannot share. It returns nil where
// there is nothing to try.
func cloner(dst blockdev.Device, src blockdev.Source, o CopyOptions) func(blockdev.Extent) (bool, error) {
	to, ok := dst.(*blockdev.File)
	if !ok || o.Dirty {
		return nil
	}
	im, ok := src.(*Image)
	if !ok {
		return nil
	}
	return func(e blockdev.Extent) (bool, error) {
		for e.Len > 0 {
			from, off, n := im.place(e.Off, e.Len)
			if n == 0 {
				return false, nil
			}
			if err := to.CloneRange(e.Off, from, off, n); err != nil {
				return false, err
			}
			e.Off, e.Len = e.Off+n, e.Len-n
		}
		return true, nil
	}
}

// place is where in which file the disk's content from off on is kept as it
// is, and how much of n bytes; 0: it is not, or it cannot be told.
func (im *Image) place(off, n int64) (*blockdev.File, int64, int64) {
	switch {
	case im.file == nil:
	case im.Format == Raw:
		if n = min(n, im.file.Size()-off); n > 0 {
			return im.file, off, n
		}
	case im.qcow2 != nil && off < im.qcow2.Size():
		p, err := im.qcow2.Place(off, min(n, im.qcow2.Size()-off))
		switch {
		case err != nil: // reading will tell
		case p.DataFile:
			return im.data, p.Off, p.Len
		default:
			return im.file, p.Off, p.Len
		}
	}
	return nil, 0, 0
}
