package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv"
	"github.com/containerdisk/containerdisk/internal/volume"
	"github.com/containerdisk/containerdisk/overlay"
	"github.com/containerdisk/containerdisk/target/nbd"
	"github.com/containerdisk/containerdisk/target/scsi"
)

// disk is one image on its way to being a logical unit.
type disk struct {
	name   string // of the image file, or of the volume's disk
	path   string // of the image file; "": it was not looked for
	lun    uint64
	format imageconv.Format
	image  *imageconv.Image // nil when it is not needed, or the overlay's
	size   int64            // bytes, of the disk to serve

	dev     blockdev.Device // nil before it is opened
	overlay *overlay.Disk   // the device, where it is one over the image
	kept                    // where it is
	unit    *scsi.LUN       // nil before join, and without iSCSI
	export  *nbd.Export     // nil before join, and without NBD
}

// kept is where a disk is, and who else must not have it.
type kept struct {
	where  string         // for people
	memory scsi.Store     // nil: nothing can be remembered
	state  *volume.State  // in a scratch directory; nil: none
	volume *volume.Volume // nil: none
	file   *volume.Disk   // that is served as it is, or populated; nil: none
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

// closeImage closes the image, once.
func (d *disk) closeImage() error {
	if d.image == nil {
		return nil
	}
	im := d.image
	d.image = nil
	return im.Close()
}

// close gives back all that the disk has. What it is kept in stays.
func (d *disk) close() error {
	errs := []error{d.closeImage()}
	if d.dev != nil {
		errs = append(errs, d.dev.Close())
	}
	if d.state != nil {
		errs = append(errs, d.state.Close())
	}
	if d.file != nil {
		errs = append(errs, d.file.Close())
	}
	if d.volume != nil {
		errs = append(errs, d.volume.Close())
	}
	return errors.Join(errs...)
}

func closeDisks(disks []*disk) error {
	var errs []error
	for _, d := range disks {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

// describe tells a person what the disk is.
func (d *disk) describe() string {
	if d.path == "" {
		return fmt.Sprintf("%s, kept in %s", size(d.size), d.where)
	}
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
