package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/containerdisk/containerdisk/target"
	"github.com/containerdisk/containerdisk/target/nbd"
)

// The wires' names in logs and metrics.
const (
	wireISCSI = "iscsi"
	wireNBD   = "nbd"
)

// door is a listener and the wire that is served there.
type door struct {
	wire string
	l    net.Listener
	tls  nbd.TLSMode // of NBD
}

// servesNBD reports whether there is any door for NBD.
func (s *server) servesNBD() bool {
	return s.cfg.NBDSocket != "" || s.cfg.NBDListen.IsValid() || s.cfg.Sockets > 0
}

// checkDoors finds out whether the doors can be had. Nobody must be able to
// connect before there is a disk, so addresses are given back.
func (s *server) checkDoors() error {
	var errs []error
	if s.cfg.ISCSIListen.IsValid() {
		errs = append(errs, about("ISCSI_LISTEN", checkTCP(s.cfg.ISCSIListen.String())))
	}
	if s.cfg.NBDListen.IsValid() {
		errs = append(errs, about("NBD_LISTEN", checkTCP(s.cfg.NBDListen.String())))
	}
	if s.cfg.NBDSocket != "" {
		errs = append(errs, about("NBD_SOCKET", nbd.CheckUnix(s.cfg.NBDSocket)))
	}
	if s.cfg.NBDTLSDir != "" {
		var err error
		s.certs, err = nbd.LoadTLS(s.cfg.NBDTLSDir, s.log)
		errs = append(errs, about("NBD_TLS_DIR", err))
	}
	return errors.Join(errs...)
}

func checkTCP(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

// about names the variable that an error is about.
func about(variable string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", variable, err)
}

// openDoors opens all doors, or none.
func (s *server) openDoors() error {
	var errs []error
	add := func(wire, variable string, l net.Listener, err error) {
		if err != nil {
			errs = append(errs, about(variable, err))
			return
		}
		d := &door{wire: wire, l: l}
		if wire == wireNBD {
			d.tls, err = tlsMode(l.Addr(), s.certs != nil)
			errs = append(errs, about(variable, err))
		}
		s.doors = append(s.doors, d)
	}
	if s.cfg.ISCSIListen.IsValid() {
		l, err := net.Listen("tcp", s.cfg.ISCSIListen.String())
		add(wireISCSI, "ISCSI_LISTEN", l, err)
	}
	if s.cfg.NBDSocket != "" {
		l, err := nbd.ListenUnix(s.cfg.NBDSocket)
		add(wireNBD, "NBD_SOCKET", l, err)
	}
	if s.cfg.NBDListen.IsValid() {
		l, err := net.Listen("tcp", s.cfg.NBDListen.String())
		add(wireNBD, "NBD_LISTEN", l, err)
	}
	for i := range s.cfg.Sockets {
		l, err := activated(i)
		add(wireNBD, "LISTEN_FDS", l, err)
	}
	if err := errors.Join(errs...); err != nil {
		for _, d := range s.doors {
			err = errors.Join(err, d.l.Close())
		}
		s.doors = nil
		return err
	}
	return nil
}

// tlsMode is what NBD clients at an address do about TLS: from the network they
// must, through a socket of this machine they may.
func tlsMode(at net.Addr, certs bool) (nbd.TLSMode, error) {
	tcp, _ := at.(*net.TCPAddr)
	switch {
	case certs && tcp != nil:
		return nbd.TLSRequire, nil
	case certs:
		return nbd.TLSAllow, nil
	case tcp != nil && !tcp.IP.IsLoopback():
		return 0, fmt.Errorf("%s can be reached by other machines; set NBD_TLS_DIR", at)
	}
	return nbd.TLSOff, nil
}

// firstSocket is the descriptor of the first socket that is handed over,
// sd_listen_fds(3).
const firstSocket = 3

// activated is the i-th listening socket that we were started with.
func activated(i int) (net.Listener, error) {
	f := os.NewFile(uintptr(firstSocket+i), fmt.Sprintf("socket %d", i))
	l, err := net.FileListener(f) // works on a copy
	return l, errors.Join(err, f.Close())
}

// serveDoors serves all doors. What comes out of each is sent when it ends.
func (s *server) serveDoors() <-chan error {
	t := s.target.Load()
	served := make(chan error, len(s.doors))
	for _, d := range s.doors {
		go func() {
			if d.wire == wireISCSI {
				served <- about("iSCSI", t.ServeISCSI(d.l))
			} else {
				served <- about("NBD", t.ServeNBD(d.l, d.tls))
			}
		}()
	}
	return served
}

// waitDoors waits until n doors have ended, as they should.
func waitDoors(served <-chan error, n int) error {
	var errs []error
	for range n {
		if err := <-served; !errors.Is(err, target.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *door) address() string { return d.l.Addr().String() }

// detail is what the log says about a disk behind the door.
func (d *door) detail(s *server, disk *disk) []any {
	if d.wire == wireISCSI {
		return []any{"target", s.cfg.WWN, "lun", disk.lun}
	}
	return []any{"export", disk.name, "url", d.url(s, disk)}
}

// url is where clients find a disk. With one disk its name is not needed: it is
// the default export.
func (d *door) url(s *server, disk *disk) string {
	return d.urlFor(s, disk, "", d.address())
}

// urlFor is url with a user and an address of the caller's choice.
func (d *door) urlFor(s *server, disk *disk, userinfo, address string) string {
	export := url.PathEscape(disk.name)
	if len(s.disks) == 1 {
		export = ""
	}
	switch {
	case d.wire == wireISCSI:
		return fmt.Sprintf("iscsi://%s%s/%s/%d", userinfo, address, s.cfg.WWN, disk.lun)
	case d.l.Addr().Network() == "unix":
		return "nbd+unix:///" + export + "?socket=" + strings.ReplaceAll(url.QueryEscape(address), "%2F", "/")
	case d.tls == nbd.TLSRequire:
		return "nbds://" + address + "/" + export
	}
	return "nbd://" + address + "/" + export
}
