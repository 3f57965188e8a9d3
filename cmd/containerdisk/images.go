package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerdisk/containerdisk/imageconv"
	"github.com/containerdisk/containerdisk/internal/discovery"
)

// openDisks opens the images that were found, to make disks over them. All that
// is wrong with them is told together. Compressed ones are unpacked into the
// scratch directory first, unless ctx ends.
func (k *keeper) openDisks(ctx context.Context, found []discovery.Disk) ([]*disk, error) {
	var disks []*disk
	var errs []error
	for i, f := range found {
		im, err := imageconv.OpenContext(ctx, f.Path, imageconv.Policy{
			Format: f.Format, Scratch: k.cfg.ScratchDir, Progress: k.unpacking(f.Name)})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d := &disk{name: f.Name, path: f.Path, format: im.Format, lun: k.cfg.LUN + uint64(i), image: im}
		disks = append(disks, d)
		if d.size, err = diskSize(im.Size(), k.cfg.DiskSize); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Path, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, closeDisks(disks))
	}
	return disks, nil
}

// unpackingEvery is how often the log tells how far an image is unpacked.
const unpackingEvery = 5 * time.Second

// unpacking returns what tells the log: that it begins, and how far it is.
func (k *keeper) unpacking(name string) func(done, total int64) {
	var last time.Time
	return func(done, total int64) {
		if time.Since(last) < unpackingEvery {
			return
		}
		last = time.Now()
		k.log.Info("unpacking, once: the image is compressed", "disk", name, "into", k.cfg.ScratchDir, "percent", done*100/max(total, 1))
	}
}
