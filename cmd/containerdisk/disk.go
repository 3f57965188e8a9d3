package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv"
	"github.com/containerdisk/containerdisk/internal/discovery"
	"github.com/containerdisk/containerdisk/internal/volume"
	"github.com/containerdisk/containerdisk/target/nbd"
	"github.com/containerdisk/containerdisk/target/scsi"
)

// disk is one image on its way to being a logical unit.
type disk struct {
	name   string // of the image file
	path   string // of the image file
	lun    uint64
	format imageconv.Format
	image  *imageconv.Image // nil when it is not needed any more
	size   int64            // bytes, of the disk to serve
	dev    blockdev.Device  // nil before expand
	unit   *scsi.LUN        // nil before join, and without iSCSI
	export *nbd.Export      // nil before join, and without NBD
}

// openDisks opens the images that were found. All that is wrong with them is
// told together.
// The first gets the number lun. Compressed ones are unpacked into scratch.
func openDisks(found []discovery.Disk, size int64, lun uint64, scratch string) ([]*disk, error) {
	var disks []*disk
	var errs []error
	for i, f := range found {
		im, err := imageconv.Open(f.Path, imageconv.Policy{Format: f.Format, Scratch: scratch})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		d := &disk{name: f.Name, path: f.Path, format: f.Format, lun: lun + uint64(i), image: im}
		disks = append(disks, d)
		if d.size, err = diskSize(im.Size(), size); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Path, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, closeDisks(disks))
	}
	return disks, nil
}

// diskSize is the size of the disk to serve: the image's, or the larger one
// that was asked for (0: none was).
func diskSize(image, asked int64) (int64, error) {
	switch {
	case asked == 0:
		return image, nil
	case asked < image:
		return 0, fmt.Errorf("DISK_SIZE of %d bytes is smaller than the image's disk of %d bytes, whose end would be lost: ask for at least that", asked, image)
	}
	return asked, nil
}

// expand makes d ready to be served. It is the seam between images and wires:
// what comes out is a blockdev.Device that reads as the image and can be
// written, and nobody above asks how.
func (d *disk) expand(ctx context.Context, scratch *volume.Scratch, update func(done, total int64)) error {
	dev, err := scratch.Create(fmt.Sprintf("lun%d", d.lun), d.size)
	if err != nil {
		return err
	}
	d.dev = dev
	err = imageconv.Copy(ctx, dev, d.image, imageconv.CopyOptions{Progress: update})
	if err == nil {
		return d.closeImage() // it is not needed again
	}
	if blockdev.KindOf(err) == blockdev.KindNoSpace {
		err = fmt.Errorf("%w: the disk needs more room in %s; set SCRATCH_DIR to a larger volume", err, scratch.Dir())
	}
	return err
}

// closeImage closes the image, once.
func (d *disk) closeImage() error {
	if d.image == nil {
		return nil
	}
	im := d.image
	d.image = nil
	return im.Close()
}

func closeDisks(disks []*disk) error {
	var errs []error
	for _, d := range disks {
		errs = append(errs, d.closeImage())
		if d.dev != nil {
			errs = append(errs, d.dev.Close())
		}
	}
	return errors.Join(errs...)
}

// describe tells a person what the disk is.
func (d *disk) describe() string {
	return fmt.Sprintf("%s, from a %s image", size(d.size), d.format)
}

// identity is who the disk says it is. It depends on nothing but the target
// and the disk's name, so that after a restart the guest finds the same disk.
func (d *disk) identity(targetName string) scsi.Identity {
	sum := sha256.Sum256([]byte(targetName + "\x00" + d.name))
	return scsi.Identity{
		Vendor:   "CNTRDISK",
		Product:  "containerdisk",
		Revision: "1",
		Serial:   hex.EncodeToString(sum[16:26]), // another part than the ID
		ID:       [16]byte(sum[:16]),
	}
}
