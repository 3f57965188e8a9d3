package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/volume"
	"github.com/containerdisk/containerdisk/overlay"
)

// keeper finds the disks and opens them where they are kept:
//
//	on a volume that is complete     as it is; the image is not even looked for
//	on a volume that is not          an overlay that becomes it
//	in the scratch directory         an overlay
//	COPY_MODE=none                   the image is the disk
//	an ISO image, DEVICE_TYPE=cdrom  the image is the disc, which nobody writes to
type keeper struct {
	cfg  config.Config
	log  *slog.Logger
	self volume.Owner
}

func newKeeper(cfg config.Config, log *slog.Logger) *keeper {
	return &keeper{cfg: cfg, log: log, self: volume.Self(bootID())}
}

// use is how disks are opened that are served as they are.
func (k *keeper) use() volume.Use {
	if k.cfg.AccessMode == config.ReadShared {
		return volume.ReadOnly
	}
	return volume.ReadWrite
}

// open opens what find found and what is not open yet.
func (k *keeper) open(d *disk) error {
	switch {
	case d.dev != nil:
		return nil
	case d.volume != nil:
		return about("VOLUME_PATH", k.fillFileSystem(d))
	case d.file != nil:
		return about("VOLUME_PATH", k.fillDevice(d))
	}
	return about("SCRATCH_DIR", k.openScratch(d))
}

// stateName is the name of a disk's state in the scratch directory. Servers
// with different targets or numbers can share one. The numbers stand for the
// disk, and not the image's name: another image in its place must be noticed.
// In a directory like /var/tmp, which nobody chose for this disk, images of
// different users and with different paths are different disks. The map of a
// device is worth nothing for another store.
func (k *keeper) stateName(d *disk, device string) string {
	of := k.cfg.WWN
	if volume.Everybodys(k.cfg.ScratchDir) {
		of += fmt.Sprintf("\x00%d\x00%s", os.Geteuid(), d.path)
	}
	if device != "" {
		of += "\x00" + device
	}
	sum := sha256.Sum256([]byte(of))
	return fmt.Sprintf("containerdisk-lun%d-%s", d.lun, hex.EncodeToString(sum[:4]))
}

// scratchState opens the state of d, which may be on a device, in the scratch
// directory.
func (k *keeper) scratchState(d *disk, device string) error {
	s, err := volume.OpenState(k.cfg.ScratchDir, k.stateName(d, device), k.self)
	if used := (*volume.InUseError)(nil); errors.As(err, &used) {
		return fmt.Errorf("%w, or give this server another SCRATCH_DIR, WWN or LUN", err)
	}
	d.state = s
	return err
}

// checkScratch refuses a scratch directory that cannot be used, if one is
// needed, and tells what is in everybody's: nobody else will.
func (k *keeper) checkScratch(disks []*disk) error {
	if len(disks) > 0 && !slices.ContainsFunc(disks, func(d *disk) bool { return d.dev == nil }) {
		return nil
	}
	if k.cfg.CopyMode == config.CopyNone || k.cfg.VolumePath != "" && isDir(k.cfg.VolumePath) {
		return nil
	}
	dir := k.cfg.ScratchDir
	left, err := volume.Leftovers(dir, k.self.Boot)
	if err == nil {
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return fmt.Errorf("SCRATCH_DIR: %s: %w", dir, err)
	}
	if volume.Everybodys(dir) {
		for _, l := range left {
			k.log.Info("the disk of a run that was cut short is here; if it is not needed, remove it", "directory", l.Path, "bytes", l.Bytes)
		}
	}
	return nil
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// giveBack closes the disks after a run that ended with err. A disk that was to
// live no longer than the run goes, if that ended as it should.
func (k *keeper) giveBack(disks []*disk, err error) error {
	var errs []error
	for _, d := range disks {
		remove := d.state
		if err != nil || k.cfg.KeepScratch || d.file != nil {
			remove = nil
		}
		if remove != nil {
			d.state = nil
		}
		errs = append(errs, d.close())
		if remove != nil {
			errs = append(errs, remove.Remove())
		}
	}
	return errors.Join(errs...)
}

// openScratch makes d an overlay in the scratch directory.
func (k *keeper) openScratch(d *disk) error {
	if err := k.scratchState(d, ""); err != nil {
		return err
	}
	d.memory = d.state.Memory()
	return k.makeOverlay(d, d.state, parts{
		store: func() (blockdev.Device, error) {
			path := d.state.Path(volume.StoreName)
			if d.state.Fresh() {
				return blockdev.CreateFile(path, d.size)
			}
			return blockdev.OpenFile(path, blockdev.ReadWrite)
		},
		options: overlay.Options{Mode: modes[k.cfg.CopyMode]},
	})
}

var modes = map[config.CopyMode]overlay.Mode{
	config.CopyWrite: overlay.CopyOnWrite,
	config.CopyRead:  overlay.CopyOnRead,
	config.CopyClone: overlay.Clone,
}

// fillFileSystem makes d an overlay that becomes the volume's disk.
func (k *keeper) fillFileSystem(d *disk) error {
	v := d.volume
	how := volume.Sparse
	if k.cfg.Preallocate == config.PreallocateFalloc {
		how = volume.Preallocated
	}
	if err := v.Fill(d.size, how); err != nil {
		return err
	}
	if m := v.Disk.Memory(); m != nil {
		d.memory = m
	}
	d.where = filepath.Join(k.cfg.VolumePath, volume.DiskName)
	return k.makeOverlay(d, v.State, parts{
		store: func() (blockdev.Device, error) { return v.Disk.Open() },
		options: overlay.Options{Mode: overlay.Clone, Finish: func() error {
			untidy, err := v.Publish()
			if untidy != nil {
				k.log.Warn("the volume is complete, and not tidy; the next start tries again", "error", untidy)
			}
			return err
		}},
	})
}

// parts are what an overlay needs besides its image and its map.
type parts struct {
	store   func() (blockdev.Device, error)
	options overlay.Options
}

// makeOverlay makes d the overlay whose map is in s, new or as it was left.
func (k *keeper) makeOverlay(d *disk, s *volume.State, p parts) error {
	fresh := s.Fresh()
	m, err := k.openMap(d, s)
	if err != nil {
		return err
	}
	store, err := p.store()
	if err == nil && fresh {
		if err = s.Begin(); err != nil {
			err = errors.Join(err, store.Close())
		}
	}
	if err != nil {
		return errors.Join(err, m.Close())
	}
	o := p.options
	o.Anchor, o.Rate, o.Log = s.Anchor, k.cfg.HydrateRate, k.log.With("disk", d.name)
	image := d.image
	d.image = nil // the overlay's
	if d.overlay, err = overlay.Open(image, store, m, o); err != nil {
		return k.wayOut(s, err)
	}
	d.dev = d.overlay
	if !fresh {
		k.log.Info("going on with the disk as it was left", "disk", d.name, "directory", s.Dir())
	}
	return nil
}

func (k *keeper) openMap(d *disk, s *volume.State) (*overlay.Map, error) {
	origin, err := d.origin()
	if err != nil {
		return nil, err
	}
	if d.file != nil {
		origin += "; on " + d.file.Identity()
	}
	h := overlay.Header{
		Base: origin, Format: string(d.format), BaseSize: d.image.Size(), Size: d.size,
		ClusterSize: overlay.ClusterSize(d.size),
	}
	if s.Fresh() {
		return overlay.CreateMap(s.Path(volume.MapName), h, k.self.Boot)
	}
	m, err := overlay.OpenMap(s.Path(volume.MapName), k.self.Boot)
	if err != nil {
		return nil, k.wayOut(s, err)
	}
	if err := m.Match(h); err != nil {
		return nil, errors.Join(k.wayOut(s, err), m.Close())
	}
	return m, nil
}

// wayOut tells what a person can do about a state that cannot be used.
func (k *keeper) wayOut(s *volume.State, err error) error {
	away := "set SCRATCH_DIR to another directory to leave it alone"
	if k.cfg.VolumePath != "" {
		away = "name another volume to leave it alone"
	}
	return fmt.Errorf("%w\nthe disk's state, with all that was written to it, is the directory %s: remove that to begin anew, or %s", err, s.Dir(), away)
}
