package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/discovery"
)

// Discs: an ISO image, or any image as the disc in a CD/DVD drive. Nobody writes
// to one, so that it is served from its image, which stays open, and nothing is
// kept anywhere.

// discBlock is the size of a disc's blocks, bytes.
const discBlock = 2048

// isDisc reports whether the image is served as a disc.
func (k *keeper) isDisc(d *disk) bool {
	return d.image != nil && (k.cfg.DeviceType == config.CDROM || d.image.ReadOnly())
}

// allDiscs reports whether all images that were found are ISO images.
func allDiscs(found []discovery.Disk) bool {
	return !slices.ContainsFunc(found, func(f discovery.Disk) bool { return !f.Format.ReadOnly() })
}

// serveDiscs opens those of the disks that are discs.
func (k *keeper) serveDiscs(disks []*disk) error {
	var errs []error
	for _, d := range disks {
		if k.isDisc(d) {
			if err := k.serveDisc(d); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", d.path, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (k *keeper) serveDisc(d *disk) error {
	format := d.image.Info().Format
	const asDisk = "for a writable disk with the same content, set IMAGE_FORMAT=raw and DEVICE_TYPE=disk"
	switch {
	case k.cfg.VolumePath != "":
		return fmt.Errorf("VOLUME_PATH: a disc is served from its %s image and kept on no volume: unset it; %s", format, asDisk)
	case k.cfg.DiskSize != 0:
		return fmt.Errorf("DISK_SIZE: a disc is as large as its %s image: unset it; %s", format, asDisk)
	case !format.Live():
		return fmt.Errorf("DEVICE_TYPE=cdrom: a disc is served from an iso, raw or qcow2 image, and this is %s: convert it with containerdisk convert", format)
	case k.cfg.DeviceType == config.CDROM && d.image.Size()%discBlock != 0:
		return fmt.Errorf("DEVICE_TYPE=cdrom: the image holds %d bytes, and a disc has whole blocks of %d: this is no disc's image", d.image.Size(), discBlock)
	}
	d.dev, d.where = blockdev.NewFrozen(d.image.Source, d.image), d.path
	d.image = nil // the device's
	return nil
}
