package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"time"

	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/status"
	"github.com/containerdisk/containerdisk/overlay"
)

// hydrate copies the disks in the background, one after the other, until ctx
// ends or stop is called. Whatever comes of it, the disks are served. stop
// returns when it is over.
func (s *server) hydrate(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, d := range s.disks {
			if d.overlay == nil || s.cfg.CopyMode != config.CopyClone {
				continue
			}
			err := watchHydrate(ctx, d, s.watched(), s.log, s.status)
			switch {
			case err == nil:
				s.log.Info("copied; the image is not needed any more", "disk", d.name, "into", d.home())
			case ctx.Err() == nil:
				s.log.Error("not all of the image is copied; the disk is served on", "disk", d.name, "error", err)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// progressTick is how often the copying is looked at.
const progressTick = 200 * time.Millisecond

// watchHydrate copies the image of d and shows how far that is.
func watchHydrate(ctx context.Context, d *disk, term *os.File, log *slog.Logger, st *status.Status) error {
	p := newProgress(term, log, "copying", st.Copy(d.name))
	defer p.end()
	ended := make(chan error, 1)
	go func() { ended <- d.overlay.Hydrate(ctx) }()
	tick := time.NewTicker(progressTick)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			p.hydration(d.overlay.Progress())
			return err
		case <-tick.C:
			p.hydration(d.overlay.Progress())
		}
	}
}

// hydration shows how far the overlay is.
func (p *progress) hydration(now overlay.Progress) {
	p.copy.SetState(now.State.String())
	if now.Total > 0 || now.State == overlay.Complete {
		p.update(now.Done, now.Total)
	}
}

// hydration tells NBD clients which parts of the disk are here already; nil: all.
func (d *disk) hydration() func(off, n int64) iter.Seq2[int64, bool] {
	if d.overlay == nil {
		return nil
	}
	return func(off, n int64) iter.Seq2[int64, bool] {
		return func(yield func(int64, bool) bool) {
			for p, err := range d.overlay.Hydration(off, n) {
				if err != nil || !yield(p.Len, p.Local) {
					return
				}
			}
		}
	}
}

// home is where the disk is now.
func (d *disk) home() string {
	if d.state != nil && d.file == nil {
		return d.state.Dir()
	}
	return d.where
}

var (
	errNoRoom  = errors.New("no room to go on: make some, or use a larger volume, and run it again")
	errStopped = errors.New("stopped before the end: run it again to go on")
)

// populate copies all of d, or fails.
func populate(ctx context.Context, d *disk, term *os.File, log *slog.Logger, st *status.Status) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := make(chan struct{})
	go func() { // a job that waits for room would never tell anybody
		defer close(watch)
		tick := time.NewTicker(progressTick)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if d.overlay.Progress().State == overlay.NoSpace {
					cancel(errNoRoom)
					return
				}
			}
		}
	}()
	err := watchHydrate(ctx, d, term, log, st)
	stopped := context.Cause(ctx)
	cancel(nil)
	<-watch
	switch {
	case err == nil:
		return nil
	case errors.Is(stopped, errNoRoom):
		err = errNoRoom
	case stopped != nil:
		err = errStopped
	}
	return fmt.Errorf("%s: %w", d.home(), err)
}
