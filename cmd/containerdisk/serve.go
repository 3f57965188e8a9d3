package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/containerdisk/containerdisk/auth"
	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/status"
	"github.com/containerdisk/containerdisk/target"
	"github.com/containerdisk/containerdisk/target/nbd"
	"github.com/containerdisk/containerdisk/target/scsi"
)

// The order of start and stop:
//
//	config → volume, discovery → images open → disks locked and open, new or as
//	they were left → listen → ready → the images are copied behind the guests
//	SIGTERM → no new clients, no more copying → those there leave, or
//	          SHUTDOWN_GRACE ends → flush → disks closed → exit 0
//
// All that can be refused is refused before anybody can connect. What was
// opened is closed in the opposite order, on every way out.

func newServe(env environment, std stdio) *cobra.Command {
	s := newSettings(env)
	cmd := &cobra.Command{
		Use:   "serve [IMAGE]",
		Short: "Serve the disk in an image over iSCSI and NBD",
		Long: "Find the disk image, make it a writable disk, and serve that at once over iSCSI, and over NBD where\n" +
			"NBD_SOCKET or NBD_LISTEN is set. The image is copied into a raw disk while it is served, in SCRATCH_DIR\n" +
			"or on the volume at VOLUME_PATH. IMAGE stands for IMAGE_PATH.\n\n" +
			"SIGTERM and SIGINT let the attached clients finish; a second one does not.",
		Args: usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				s.over["IMAGE_PATH"] = args[0]
			}
			return serve(cmd.Context(), s, std)
		},
	}
	s.addFlags(cmd.Flags())
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		fmt.Fprintf(cmd.OutOrStderr(), "Usage:\n  %s\n\nSettings, as environment variables or flags:\n", cmd.UseLine())
		writeVariables(cmd.OutOrStderr(), terminalWidth(std.out))
		return nil
	})
	return cmd
}

// gcPercent has the memory of finished requests collected soon. The usual 100
// would let the process grow to twice what it needs, in a pod whose limit has to
// hold that too; and where a disk is local nothing is allocated, so that there
// is nothing to be gained by collecting late.
const gcPercent = 25

// serve runs the server until it is told to stop.
func serve(ctx context.Context, s *settings, std stdio) error {
	cfg, err := config.FromEnv(s)
	if err != nil {
		status.New(status.Options{TerminationLog: status.TerminationLog}).Fail(err)
		return refusal{err}
	}
	stop := notifyStop(ctx)
	defer stop.release()
	// Whoever reads the log may go away: that is no reason to take the disk
	// from a guest.
	signal.Ignore(syscall.SIGPIPE)
	srv := &server{cfg: cfg, std: std, log: newLogger(std.err, cfg.LogFormat, cfg.LogLevel), started: time.Now()}
	srv.status = newStatus(srv)
	return srv.run(stop)
}

// stop is the operator's wish to stop: soft ends at the first signal, hard at
// the second.
type stop struct {
	soft, hard context.Context
	release    func()
}

func notifyStop(ctx context.Context) stop {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	soft, first := context.WithCancel(ctx)
	hard, second := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, cancel := range []func(){first, second} {
			select {
			case <-signals:
				cancel()
			case <-hard.Done():
				return
			}
		}
	}()
	return stop{soft, hard, func() {
		signal.Stop(signals)
		first()
		second()
		<-done
	}}
}

// server is one run of serve.
type server struct {
	cfg     config.Config
	std     stdio
	log     *slog.Logger
	started time.Time

	status *status.Status
	pages  *pages // nil: off

	keeper *keeper
	disks  []*disk
	certs  *nbd.TLS // nil: none
	doors  []*door
	target atomic.Pointer[target.Server] // nil before join; the status pages look at it
}

func (s *server) run(stop stop) (err error) {
	defer func() { err = errors.Join(err, s.close(err)) }()
	if err := s.prepare(stop.soft); err != nil {
		if errors.Is(err, context.Canceled) && stop.soft.Err() != nil {
			return nil // as asked, while an image was unpacked
		}
		return refusal{err}
	}
	if err := s.join(); err != nil {
		return err
	}
	if err := s.openDoors(); err != nil {
		return errors.Join(err, s.target.Load().Close())
	}
	served := s.serveDoors()
	s.announce()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent) // now: what the start leaves is not collected before the first read
	}
	defer s.hydrate(stop.soft)()

	select {
	case err := <-served: // nothing can connect there any more
		return errors.Join(err, s.target.Load().Close(), waitDoors(served, len(s.doors)-1))
	case <-stop.soft.Done():
		return s.drain(stop.hard, served)
	}
}

// prepare does all that may be refused.
func (s *server) prepare(ctx context.Context) (err error) {
	s.keeper = newKeeper(s.cfg, s.log)
	s.disks, err = s.keeper.find(ctx)
	s.status.SetDisks(s.describe())
	err = errors.Join(err, s.keeper.checkScratch(s.disks), s.openPages(), s.checkDoors(), s.checkLUNs())
	if err != nil {
		return err
	}
	for _, d := range s.disks {
		if err := s.keeper.open(d); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return nil
}

func (s *server) openPages() error {
	if !s.cfg.StatusListen.IsValid() {
		return nil
	}
	p, err := newPages(s.status, s.cfg.StatusListen)
	if err != nil {
		return fmt.Errorf("STATUS_LISTEN: %w", err)
	}
	s.pages = p
	s.log.Info("listening", "wire", "status", "address", p.listener.Addr().String())
	return nil
}

// maxLUN is the highest number that peripheral device addressing can name,
// which every initiator knows.
const maxLUN = 255

func (s *server) checkLUNs() error {
	if n := uint64(len(s.disks)); n > 0 && s.cfg.LUN+n-1 > maxLUN {
		return fmt.Errorf("LUN=%d: the numbers of %d disks would go beyond %d", s.cfg.LUN, n, maxLUN)
	}
	return nil
}

// join makes logical units and exports of the disks and a server of those.
func (s *server) join() error {
	mode, err := target.ParseAccessMode(string(s.cfg.AccessMode))
	if err != nil {
		return err
	}
	o := target.Options{Mode: mode, Log: s.log}
	if s.cfg.ISCSIListen.IsValid() {
		if o.ISCSI, err = s.joinISCSI(mode); err != nil {
			return err
		}
	}
	if s.servesNBD() {
		o.NBD = s.joinNBD(mode)
	}
	s.target.Store(target.New(o))
	return nil
}

var deviceTypes = map[config.DeviceType]scsi.DeviceType{config.Disk: scsi.Disk, config.CDROM: scsi.CDROM}

func (s *server) joinISCSI(mode target.AccessMode) (*target.ISCSI, error) {
	luns := map[uint64]*scsi.LUN{}
	for _, d := range s.disks {
		d.unit = scsi.NewLUN(d.dev, scsi.LUNOptions{Type: deviceTypes[s.cfg.DeviceType], Access: mode.Disk(), Identity: d.identity(s.cfg.WWN), Store: d.memory})
		if err := d.unit.Restore(); err != nil {
			return nil, fmt.Errorf("%s: %w: initiators rely on it, so the disk is not served without", d.name, err)
		}
		luns[d.lun] = d.unit
	}
	var who *auth.Authenticator
	if s.cfg.CHAP.Enabled() {
		who = auth.NewAuthenticator(s.cfg.CHAP)
	}
	return &target.ISCSI{Name: s.cfg.WWN, LUNs: luns, Auth: who}, nil
}

func (s *server) joinNBD(mode target.AccessMode) *target.NBD {
	o := &target.NBD{TLS: s.certs}
	for _, d := range s.disks {
		d.export = nbd.NewExport(d.name, d.dev, nbd.ExportOptions{Description: d.describe(), Access: mode.Disk(), Hydration: d.hydration()})
		o.Exports = append(o.Exports, d.export)
	}
	return o
}

// announce tells that the disks are there.
func (s *server) announce() {
	s.status.SetDisks(s.describe())
	for _, dr := range s.doors {
		for _, d := range s.disks {
			attrs := append([]any{"wire", dr.wire, "address", dr.address()}, dr.detail(s, d)...)
			s.log.Info("listening", append(attrs, "disk", d.name)...)
		}
	}
	s.status.SetPhase(status.Ready, "")
	s.log.Info("ready", "after", time.Since(s.started).Round(time.Millisecond).String())
	if term := s.watched(); term != nil {
		for _, d := range s.disks {
			s.invite(term, d)
		}
	}
}

// watched is the terminal at which a person watches, or nil.
func (s *server) watched() *os.File { return watched(s.std, s.cfg) }

func watched(std stdio, cfg config.Config) *os.File {
	if cfg.LogFormat == config.LogJSON {
		return nil // it is for a program, even there
	}
	return terminal(std.err)
}

// drain serves those who are attached until they leave.
func (s *server) drain(hard context.Context, served <-chan error) error {
	t := s.target.Load()
	s.status.SetPhase(status.Draining, fmt.Sprintf("%d clients, for at most %v", t.Stats().Clients, s.cfg.ShutdownGrace))
	ctx, cancel := context.WithTimeout(hard, s.cfg.ShutdownGrace)
	defer cancel()
	return errors.Join(t.Shutdown(ctx), waitDoors(served, len(s.doors)))
}

// close gives back what is left, in the opposite order of the start. err is
// what ended the run.
func (s *server) close(err error) error {
	closing := s.keeper.giveBack(s.disks, err)
	if err := errors.Join(err, closing); err != nil {
		s.status.Fail(err)
	} else {
		s.status.SetPhase(status.Stopped, "")
	}
	return errors.Join(closing, s.pages.close())
}
