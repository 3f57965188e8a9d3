package main

import (
	"errors"
	"net"
	"net/http"
	"net/netip"

	"github.com/containerdisk/containerdisk/internal/status"
	"github.com/containerdisk/containerdisk/target/iscsi"
	"github.com/containerdisk/containerdisk/target/nbd"
)

// newStatus returns the status of s: what it counts is looked up when somebody
// asks.
func newStatus(s *server) *status.Status {
	return status.New(status.Options{
		Version:        version(),
		Revision:       revision(),
		Stats:          s.wires,
		HealthFile:     s.cfg.HealthFile,
		TerminationLog: status.TerminationLog,
		Log:            s.log,
	})
}

// describe tells about the disks, and where they are served once they are.
func (s *server) describe() []status.Disk {
	var all []status.Disk
	for _, d := range s.disks {
		about := status.Disk{Name: d.name, Image: d.path, Format: string(d.format), Size: d.size}
		if len(s.doors) > 0 {
			about.URL = s.doors[0].url(s, d)
		}
		all = append(all, about)
	}
	return all
}

// wires is what the wires have counted so far.
func (s *server) wires() []status.WireStats {
	t := s.target.Load()
	if t == nil {
		return nil
	}
	var all []status.WireStats
	if s.cfg.ISCSIListen.IsValid() {
		all = append(all, s.iscsiStats(t.Stats().ISCSI))
	}
	if s.servesNBD() {
		all = append(all, s.nbdStats(t.Stats().NBD))
	}
	return all
}

func (s *server) iscsiStats(i iscsi.Stats) status.WireStats {
	w := status.WireStats{Wire: wireISCSI, Sessions: int64(i.Sessions), Logins: i.Logins, LoginFailures: i.LoginFailures}
	for _, d := range s.disks {
		c := d.unit.Stats()
		w.Disks = append(w.Disks, status.DiskStats{
			Name: d.name, Reads: c.Reads, Writes: c.Writes, ReadBytes: c.ReadBytes, WriteBytes: c.WriteBytes,
			Flushes: c.Flushes, Errors: c.Errors,
		})
	}
	return w
}

func (s *server) nbdStats(n nbd.Stats) status.WireStats {
	w := status.WireStats{Wire: wireNBD, Sessions: int64(n.Connections), Logins: n.Admitted, LoginFailures: n.Refused}
	for _, d := range s.disks {
		c := d.export.Stats()
		w.Disks = append(w.Disks, status.DiskStats{
			Name: d.name, Reads: c.Reads, Writes: c.Writes, ReadBytes: c.ReadBytes, WriteBytes: c.WriteBytes,
			Flushes: c.Flushes, Errors: c.Errors,
		})
	}
	return w
}

// pages is the HTTP server of the status. A nil one is off.
type pages struct {
	listener net.Listener
	server   *http.Server
	ended    chan error
}

// newPages serves the pages from now on.
func newPages(s *status.Status, at netip.AddrPort) (*pages, error) {
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return nil, err
	}
	p := &pages{listener: l, server: s.Server(), ended: make(chan error, 1)}
	go func() { p.ended <- p.server.Serve(l) }()
	return p, nil
}

// close ends the server. Nobody waits for an answer that matters any more.
func (p *pages) close() error {
	if p == nil {
		return nil
	}
	err := p.server.Close()
	if serr := <-p.ended; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}
