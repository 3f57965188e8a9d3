// Package target puts disks on a wire: it owns the listeners of all protocols,
// counts their clients under one access mode, and ends them in good order.
package target

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/containerdisk/containerdisk/auth"
	"github.com/containerdisk/containerdisk/target/iscsi"
	"github.com/containerdisk/containerdisk/target/nbd"
	"github.com/containerdisk/containerdisk/target/scsi"
)

// Options say what a Server serves.
type Options struct {
	Mode  AccessMode
	ISCSI *ISCSI       // nil: not served
	NBD   *NBD         // nil: not served
	Log   *slog.Logger // nil: none
}

// ISCSI are the options of the iSCSI wire.
type ISCSI struct {
	Name  string               // the target's iSCSI name
	LUNs  map[uint64]*scsi.LUN // by number
	Auth  *auth.Authenticator  // nil: everybody may log in
	Limit int                  // sessions; 0: the wire's own limit
}

// NBD are the options of the NBD wire.
type NBD struct {
	Exports []*nbd.Export // the first is the default export as well
	TLS     *nbd.TLS      // nil: no TLS
}

// Server serves disks on all the wires that it was given. Its life is: New,
// Serve for each listener, Shutdown or Close.
type Server struct {
	clients *Clients
	iscsi   *iscsi.Server
	nbd     *nbd.Server
	units   []*scsi.LUN
	disks   []flusher
}

// flusher is a disk as a wire has it.
type flusher interface{ Flush() error }

// New returns a server that serves nothing yet.
func New(o Options) *Server {
	s := &Server{clients: NewClients(o.Mode)}
	if i := o.ISCSI; i != nil {
		for _, l := range i.LUNs {
			s.units = append(s.units, l)
			s.disks = append(s.disks, l)
		}
		s.iscsi = iscsi.New(iscsi.Options{
			Name:        i.Name,
			Target:      scsi.NewTarget(i.Name, i.LUNs),
			Auth:        i.Auth,
			Admit:       s.clients.Admit,
			Log:         o.Log,
			MaxSessions: i.Limit,
		})
	}
	if n := o.NBD; n != nil {
		for _, e := range n.Exports {
			s.disks = append(s.disks, e)
		}
		s.nbd = nbd.New(nbd.Options{Exports: n.Exports, TLS: n.TLS, Admit: s.clients.Admit, Log: o.Log})
	}
	return s
}

// ErrClosed is what ServeISCSI and ServeNBD return after Shutdown or Close.
var ErrClosed = errors.New("the server is closed")

// ServeISCSI serves iSCSI initiators that connect to l, until Shutdown or
// Close. The listener is the server's from now on.
func (s *Server) ServeISCSI(l net.Listener) error {
	if s.iscsi == nil {
		return errors.Join(errors.New("this server was made without iSCSI"), l.Close())
	}
	return closedOr(iscsi.ErrClosed, s.iscsi.Serve(l))
}

// ServeNBD serves NBD clients that connect to l, as ServeISCSI does.
func (s *Server) ServeNBD(l net.Listener, mode nbd.TLSMode) error {
	if s.nbd == nil {
		return errors.Join(errors.New("this server was made without NBD"), l.Close())
	}
	return closedOr(nbd.ErrClosed, s.nbd.Serve(l, mode))
}

// closedOr makes a wire's word for it our own.
func closedOr(closed, err error) error {
	if errors.Is(err, closed) {
		return ErrClosed
	}
	return err
}

// Stats are the counters of all wires.
type Stats struct {
	Clients int // that are using the disks now
	ISCSI   iscsi.Stats
	NBD     nbd.Stats
}

// Stats returns the counters as they are now.
func (s *Server) Stats() Stats {
	st := Stats{Clients: s.clients.Count()}
	if s.iscsi != nil {
		st.ISCSI = s.iscsi.Stats()
	}
	if s.nbd != nil {
		st.NBD = s.nbd.Stats()
	}
	return st
}

// Shutdown turns new clients away, serves those that are there until they
// leave or ctx ends, closes, and flushes the disks. A guest that is shutting
// down at the same time can write its last blocks. The error tells of disks
// that could not be flushed; that clients had to be cut off is none.
func (s *Server) Shutdown(ctx context.Context) error {
	var ended []chan error
	for _, w := range s.wires() {
		w.Drain() // all of them, before any is waited for
		end := make(chan error, 1)
		ended = append(ended, end)
		go func() { end <- w.Shutdown(ctx) }()
	}
	var errs []error
	for _, end := range ended {
		if err := <-end; err != nil && ctx.Err() == nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, s.flush())...)
}

// Close cuts off all clients and flushes the disks.
func (s *Server) Close() error {
	var errs []error
	for _, w := range s.wires() {
		errs = append(errs, w.Close())
	}
	return errors.Join(append(errs, s.flush())...)
}

// wire is what the servers of all protocols have.
type wire interface {
	Drain()
	Shutdown(context.Context) error
	Close() error
}

func (s *Server) wires() []wire {
	var all []wire
	if s.iscsi != nil {
		all = append(all, s.iscsi)
	}
	if s.nbd != nil {
		all = append(all, s.nbd)
	}
	return all
}

// flush ends what the logical units do by themselves, and flushes the disks.
func (s *Server) flush() error {
	for _, l := range s.units {
		l.Close()
	}
	var errs []error
	for i, d := range s.disks {
		if err := d.Flush(); err != nil {
			errs = append(errs, fmt.Errorf("disk %d: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
