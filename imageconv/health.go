package imageconv

import (
	"context"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/qcow2"
)

// Check looks for what is wrong with the image. Of qcow2 it checks all
// bookkeeping, as qemu-img check does, but reads no data. Other formats have no
// refcounts: of them every table is looked at and all data is read once, and
// what cannot be read is a corruption. An error means that the check could not
// be done.
func (im *Image) Check(ctx context.Context, progress func(done, total int64)) (qcow2.Health, error) {
	if im.qcow2 != nil {
		return im.qcow2.Check(ctx)
	}
	var h qcow2.Health
	err := readAll(ctx, im, progress)
	if err != nil && ctx.Err() == nil {
		h.Corruptions, h.Findings, err = 1, []string{err.Error()}, nil
	}
	return h, err
}

// readAll reads all data that a disk has.
func readAll(ctx context.Context, src blockdev.Source, progress func(done, total int64)) error {
	buf := make([]byte, pieceOf(src))
	for e, err := range src.Extents(0, src.Size()) {
		if err != nil {
			return err
		}
		for !e.Kind.ReadsZero() && e.Len > 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			n := min(e.Len, int64(len(buf))-e.Off%int64(len(buf)))
			if _, err := src.ReadAt(buf[:n], e.Off); err != nil {
				return err
			}
			e.Off, e.Len = e.Off+n, e.Len-n
		}
		progress(e.End(), src.Size())
	}
	return nil
}
