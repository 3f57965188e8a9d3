package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/status"
)

// populateSettings are those of serve that have to do with the volume.
var populateSettings = []string{
	"IMAGE_PATH", "IMAGE_FORMAT", "HYDRATE_RATE", "DISK_SIZE",
	"VOLUME_PATH", "PREALLOCATE", "POPULATED", "SCRATCH_DIR", "SCRATCH_DIRS", "USAGE_TYPE", "WWN", "LUN",
	"LOG_FORMAT", "LOG_LEVEL",
}

func newPopulate(env environment, std stdio) *cobra.Command {
	s := newSettings(env)
	cmd := &cobra.Command{
		Use:   "populate [IMAGE]",
		Short: "Fill a volume with the disk in an image, and end",
		Long: "Fill the volume at VOLUME_PATH with the disk in the image, without serving it: when it ends with 0, the\n" +
			"volume holds disk.img, raw, and nothing else. A volume that holds it already is left alone. Cut short, it\n" +
			"goes on where it was. IMAGE stands for IMAGE_PATH.\n\n" +
			"Exit code 0: the volume holds the disk; 1: something failed, try again; 2: refused.",
		Args: usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				s.over["IMAGE_PATH"] = args[0]
			}
			return runPopulate(cmd.Context(), s, std)
		},
	}
	s.addFlags(cmd.Flags(), populateSettings...)
	return cmd
}

func runPopulate(ctx context.Context, s *settings, std stdio) (err error) {
	cfg, err := config.FromEnv(s)
	if err == nil && cfg.VolumePath == "" {
		err = errors.New("VOLUME_PATH: which volume is to be filled?")
	}
	if err == nil && cfg.CopyMode != config.CopyClone {
		err = errors.New("COPY_MODE: a volume is filled with clone; unset it")
	}
	log := newLogger(std.err, cfg.LogFormat, cfg.LogLevel)
	st := status.New(status.Options{TerminationLog: status.TerminationLog, Log: log})
	defer func() {
		if err != nil {
			st.Fail(err)
		}
	}()
	if err != nil {
		return refusal{err}
	}
	cfg.AccessMode = config.WriteExclusive // whoever is served later
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return populateVolume(ctx, newKeeper(cfg, log), log, st, watched(std, cfg))
}

// populateVolume fills the volume unless that is done.
func populateVolume(ctx context.Context, k *keeper, log *slog.Logger, st *status.Status, term *os.File) (err error) {
	disks, err := k.find(ctx)
	defer func() { err = errors.Join(err, closeDisks(disks)) }()
	if err = errors.Join(err, k.checkScratch(disks)); err != nil {
		if ctx.Err() != nil { // while the image was unpacked
			return errors.Join(errStopped, err)
		}
		return refusal{err}
	}
	d := disks[0]
	if d.dev != nil {
		log.Info("the volume is populated already", "volume", k.cfg.VolumePath, "size", d.size)
		return nil
	}
	if err = k.open(d); err != nil {
		return refusal{err}
	}
	st.SetPhase(status.Populating, d.path)
	if err = populate(ctx, d, term, log, st); err != nil {
		return err
	}
	log.Info("populated", "volume", k.cfg.VolumePath, "size", d.size, "image", d.path)
	st.SetPhase(status.Stopped, "")
	return nil
}
