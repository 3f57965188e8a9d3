package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv"
	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/discovery"
	"github.com/containerdisk/containerdisk/internal/volume"
)

// find returns the disks that are to be served. Those that need no image are
// open; those that do have theirs.
func (k *keeper) find(ctx context.Context) ([]*disk, error) {
	if k.cfg.VolumePath == "" {
		return k.findImages(ctx)
	}
	kept, err := k.findOnVolume()
	if err != nil {
		return nil, fmt.Errorf("VOLUME_PATH: %w", err)
	}
	if kept.dev != nil {
		return []*disk{kept}, nil
	}
	disks, err := k.findImages(ctx)
	if err != nil {
		return nil, errors.Join(err, kept.close())
	}
	d := disks[0] // the only one: MULTI_DISK is refused with a volume
	d.name, d.kept = kept.name, kept.kept
	if d.file != nil {
		err = d.fitDevice(k.cfg.DiskSize)
	}
	return disks, err
}

func (k *keeper) findImages(ctx context.Context) ([]*disk, error) {
	found, err := discovery.Find(k.cfg.ImagePath, discovery.Options{Several: k.cfg.MultiDisk, Raw: k.cfg.RawImage})
	if err != nil {
		if k.cfg.CopyMode == config.CopyNone && !k.cfg.RawImage {
			err = fmt.Errorf("%w\nif it is a raw disk in which a guest wrote what looks like something else: IMAGE_FORMAT=raw", err)
		}
		return nil, err
	}
	if k.cfg.CopyMode == config.CopyNone && k.cfg.DeviceType != config.CDROM && !allDiscs(found) {
		return k.openImages(found)
	}
	disks, err := k.openDisks(ctx, found)
	if err != nil {
		return nil, err
	}
	if err := k.serveDiscs(disks); err != nil {
		return nil, errors.Join(err, closeDisks(disks))
	}
	return disks, nil
}

// openImages opens images that are served as they are.
func (k *keeper) openImages(found []discovery.Disk) ([]*disk, error) {
	var disks []*disk
	var errs []error
	for i, f := range found {
		if f.Format != imageconv.Raw {
			errs = append(errs, fmt.Errorf("%s: COPY_MODE=none serves a raw disk as it is, and this is a %s image: set COPY_MODE to clone or copy-on-write, or convert it with containerdisk convert; "+
				"if it is a raw disk in which a guest wrote what looks like one: IMAGE_FORMAT=raw", f.Path, f.Format))
			continue
		}
		d := &disk{name: f.Name, path: f.Path, format: f.Format, lun: k.cfg.LUN + uint64(i)}
		disks = append(disks, d)
		file, err := volume.OpenDisk(f.Path, k.use(), k.self)
		if errors.Is(err, fs.ErrPermission) || isReadOnly(err) {
			err = fmt.Errorf("%w: COPY_MODE=none writes to the image itself; set COPY_MODE to clone or copy-on-write, or ACCESS_MODE=read-shared", err)
		}
		if err == nil {
			err = k.serveFile(d, file)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, closeDisks(disks))
	}
	return disks, nil
}

func isReadOnly(err error) bool { return err != nil && blockdev.KindOf(err) == blockdev.KindReadOnly }

// serveFile makes d the raw disk in file.
func (k *keeper) serveFile(d *disk, file *volume.Disk) error {
	d.file, d.where = file, file.Path
	if k.use() == volume.ReadWrite {
		if err := file.Grow(k.cfg.DiskSize); err != nil {
			return err
		}
	}
	dev, err := file.Open()
	if err != nil {
		return err
	}
	d.dev, d.size, d.format = dev, dev.Size(), imageconv.Raw
	if m := file.Memory(); m != nil {
		d.memory = m
	}
	return nil
}

// findOnVolume returns the disk of the volume, open if it is there.
func (k *keeper) findOnVolume() (*disk, error) {
	path := k.cfg.VolumePath
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: mount the volume there, or unset it", err)
	}
	d := &disk{lun: k.cfg.LUN}
	switch {
	case st.IsDir():
		d.name = volume.DiskName
		err = k.lookAtFileSystem(d)
	case st.Mode()&fs.ModeDevice != 0 && st.Mode()&fs.ModeCharDevice == 0:
		d.name = filepath.Base(path)
		err = k.lookAtDevice(d)
	default:
		err = fmt.Errorf("%s is neither a directory nor a block device: name where the volume is mounted, or its device", path)
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

var errNotPopulated = errors.New("it does not hold its disk yet, and COPY_MODE=none fills no volume: set COPY_MODE=clone, or run containerdisk populate first")

// lookAtFileSystem opens a volume that is a file system, and its disk if it is
// complete.
func (k *keeper) lookAtFileSystem(d *disk) error {
	v, err := volume.OpenVolume(k.cfg.VolumePath, k.use(), k.self)
	if err != nil {
		return err
	}
	d.volume = v
	if !v.Complete() {
		if k.cfg.CopyMode == config.CopyNone {
			return fmt.Errorf("%s: %w", k.cfg.VolumePath, errNotPopulated)
		}
		return nil
	}
	if len(v.Foreign) > 0 {
		k.log.Warn("the volume holds more than its disk", "volume", k.cfg.VolumePath, "files", v.Foreign)
	}
	file := v.Disk
	err = k.serveFile(d, file)
	d.file = nil // the volume's
	if err == nil && k.cfg.Preallocate == config.PreallocateFalloc && k.use() == volume.ReadWrite {
		err = file.Preallocate()
	}
	if err != nil {
		return err
	}
	k.served(d)
	return nil
}

// served tells that the image plays no part any more.
func (k *keeper) served(d *disk) {
	k.log.Info("the disk is on its volume; the image is not looked at", "disk", d.name, "volume", k.cfg.VolumePath, "size", d.size, "image", k.cfg.ImagePath)
}
