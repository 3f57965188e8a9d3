package main

import (
	"fmt"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/volume"
	"github.com/containerdisk/containerdisk/overlay"
)

// A block device as the volume. It is the disk, with the size it has. Whether
// it holds the disk already is in its state in the scratch directory, or the
// operator knows.

// lookAtDevice opens the device, as a disk if it is populated. The state comes
// first: its lock knows who has it.
func (k *keeper) lookAtDevice(d *disk) error {
	unknown := k.cfg.CopyMode == config.CopyNone || k.use() == volume.ReadOnly // what it holds is not noted
	if !unknown {
		if err := k.scratchState(d, k.cfg.VolumePath); err != nil {
			return err
		}
	}
	file, err := volume.OpenDisk(k.cfg.VolumePath, k.use(), k.self)
	if err != nil {
		return err
	}
	d.file, d.where = file, file.Path
	if unknown {
		return k.serveUnknownDevice(d, file)
	}
	d.memory = d.state.Memory()
	done, err := d.state.Populated(file)
	if err != nil {
		return err
	}
	fresh := d.state.Fresh()
	switch {
	case !done && fresh && k.cfg.Populated == config.PopulatedYes: // the operator knows better
		if err := d.state.SetPopulated(file); err != nil {
			return err
		}
		fallthrough
	case done:
		if err := k.serveFile(d, file); err != nil {
			return err
		}
		d.memory = d.state.Memory()
		k.served(d)
		return nil
	case fresh && k.cfg.Populated == config.PopulatedAuto:
		return k.mustBeBlank(file)
	}
	return nil
}

// serveUnknownDevice serves a device without a note of what it holds.
func (k *keeper) serveUnknownDevice(d *disk, file *volume.Disk) error {
	if k.cfg.CopyMode != config.CopyNone && k.cfg.Populated != config.PopulatedYes {
		return fmt.Errorf("%s: ACCESS_MODE=read-shared fills no device: set POPULATED=true if it holds the disk, or run containerdisk populate first", file.Path)
	}
	return k.serveFile(d, file)
}

// mustBeBlank refuses a device that may hold what somebody needs.
func (k *keeper) mustBeBlank(file *volume.Disk) error {
	blank, err := file.Blank()
	if err != nil || blank {
		return err
	}
	return fmt.Errorf("%s is not blank, and %s knows nothing of it: set POPULATED=true if it holds the disk, "+
		"POPULATED=false if all that is on it may be overwritten, or SCRATCH_DIR to the directory with which it was begun", file.Path, k.cfg.ScratchDir)
}

// fitDevice makes d as large as its device.
func (d *disk) fitDevice(asked int64) error {
	if err := d.file.Grow(asked); err != nil { // which a device cannot
		return fmt.Errorf("VOLUME_PATH: %w", err)
	}
	if d.file.Size < d.image.Size() {
		return fmt.Errorf("VOLUME_PATH: %s has %d bytes, and the image's disk has %d: use a larger volume", d.file.Path, d.file.Size, d.image.Size())
	}
	d.size = d.file.Size
	return nil
}

// fillDevice makes d an overlay that becomes the device.
func (k *keeper) fillDevice(d *disk) error {
	return k.makeOverlay(d, d.state, parts{
		store: func() (blockdev.Device, error) { return d.file.Open() },
		options: overlay.Options{Mode: overlay.Clone, Finish: func() error {
			return d.state.SetPopulated(d.file)
		}},
	})
}
