package nbd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerdisk/containerdisk/target/wire"
)

// Options say what a Server serves and to whom. Exports is required.
type Options struct {
	// Exports are the disks. The first is the default export as well, which
	// clients get that ask for the empty name.
	Exports []*Export

	// TLS is what is shown to clients that may or must use TLS, nil where
	// there is none. See LoadTLS.
	TLS *TLS

	// Admit is asked for every connection that wants a disk, with the client's
	// name (see peerOf), which all connections of a client share. It returns what gives the place back, or why the client
	// must wait. Nil admits everybody.
	Admit func(client string) (release func(), err error)

	Log *slog.Logger // nil: none

	MaxClients    int           // connections in transmission; 0: 128
	MaxHandshakes int           // connections before that; 0: 64
	Handshake     time.Duration // how long the whole handshake may take; 0: 10 s
	// Stalled is after how long a client is given up that takes nothing of what
	// is sent to it; 0: 1 min.
	Stalled time.Duration
}

func (o *Options) fillIn() {
	if o.Admit == nil {
		o.Admit = func(string) (func(), error) { return func() {}, nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.MaxClients = cmp.Or(o.MaxClients, 128)
	o.MaxHandshakes = cmp.Or(o.MaxHandshakes, 64)
	o.Handshake = cmp.Or(o.Handshake, 10*time.Second)
	o.Stalled = cmp.Or(o.Stalled, time.Minute)
}

// Server serves exports to NBD clients.
type Server struct {
	o     Options
	door  *wire.Door
	stats counts

	mu       sync.Mutex // guards all below
	left     chan struct{}
	users    int        // connections in transmission
	known    wire.Known // clients that were admitted
	draining bool
	closed   bool
}

// counts are what Stats tells.
type counts struct {
	users, admitted, refused atomic.Int64
}

// Stats are a server's counters.
type Stats struct {
	Connections int   // in transmission now
	Admitted    int64 // connections that were given a disk
	Refused     int64 // clients that were turned away, or failed at TLS
}

// ErrClosed is what Serve returns after Shutdown or Close.
var ErrClosed = errors.New("nbd: the server is closed")

// New returns a server. Close it, whether or not it ever served.
func New(o Options) *Server {
	o.fillIn()
	return &Server{
		o:    o,
		left: make(chan struct{}),
		door: wire.NewDoor(wire.DoorOptions{
			Log:        o.Log,
			Handshakes: o.MaxHandshakes,
			Check:      o.Stalled / 2,
			Closed:     ErrClosed,
		}),
	}
}

// Stats returns the counters as they are now.
func (s *Server) Stats() Stats {
	return Stats{
		Connections: s.inTransmission(),
		Admitted:    s.stats.admitted.Load(),
		Refused:     s.stats.refused.Load(),
	}
}

func (s *Server) inTransmission() int { return int(s.stats.users.Load()) }

// TLSMode says what a listener's clients do about TLS.
type TLSMode uint8

const (
	TLSOff     TLSMode = iota // not offered
	TLSAllow                  // as the client likes
	TLSRequire                // nothing but STARTTLS and ABORT before it
)

// Serve accepts connections from l until the server is shut down or closed,
// and then returns ErrClosed. It may be called for several listeners.
func (s *Server) Serve(l net.Listener, mode TLSMode) error {
	if mode != TLSOff && s.o.TLS == nil {
		return errors.Join(errors.New("nbd: no certificates to use TLS with"), l.Close())
	}
	return s.door.Serve(l, func(nc net.Conn) wire.Conn { return newConn(s, nc, mode) })
}

// Drain turns away clients that have never been here; those known may come
// back, because a guest that reconnects has data to write.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
}

// Shutdown drains, waits until every client has left or ctx ends, and closes.
// It returns ctx's error if that is what ended it.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	var err error
	for err == nil {
		users, left := s.userCount()
		if users == 0 {
			break
		}
		select {
		case <-left:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return errors.Join(err, s.Close())
}

// userCount is the number of connections in transmission, and what is closed
// when one of them leaves or the server is closed.
func (s *Server) userCount() (n int, left <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, s.left
	}
	return s.users, s.left
}

// Close ends all connections, after what each has under way, and returns when
// nothing of the server is left. What was acknowledged is with the device; to
// flush it is the caller's.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.announceLeft()
	s.mu.Unlock()
	return s.door.Close()
}

// announceLeft wakes those that wait for a place. s.mu is held.
func (s *Server) announceLeft() {
	close(s.left)
	s.left = make(chan struct{})
}

// refusal is why a client does not get its disk.
type refusal struct {
	reply optionReply
	err   error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// handover is how long a client waits for the place of another. One that ends
// and one that begins right behind it are two connections here, and which of
// the two is looked at first is chance.
const handover = time.Second

// admit gives a client a place, or tells why there is none for it.
func (s *Server) admit(ctx context.Context, client string) (release func(), err *refusal) {
	ctx, cancel := context.WithTimeout(ctx, handover)
	defer cancel()
	for {
		release, left, err := s.tryAdmit(client)
		switch {
		case err == nil:
			s.stats.admitted.Add(1)
			return release, nil
		case left == nil || !waitFor(ctx, left):
			s.stats.refused.Add(1)
			return nil, err
		}
	}
}

var (
	errDraining = errors.New("the server is shutting down")
	errFull     = errors.New("too many connections")
)

// waitFor reports whether ch was closed before ctx ended.
func waitFor(ctx context.Context, ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// tryAdmit is admit without waiting. left is closed when it is worth trying
// again, and nil when it never is.
func (s *Server) tryAdmit(client string) (release func(), left <-chan struct{}, why *refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed, s.draining && !s.known.Has(client):
		return nil, nil, &refusal{repErrShutdown, errDraining}
	case s.users >= s.o.MaxClients:
		return nil, s.left, &refusal{repErrPolicy, errFull}
	}
	free, err := s.o.Admit(client)
	if err != nil {
		return nil, s.left, &refusal{repErrPolicy, err}
	}
	s.known.Add(client) // on a Unix socket each process is another one
	s.setUsers(s.users + 1)
	return sync.OnceFunc(func() { s.leave(free) }), nil, nil
}

func (s *Server) setUsers(n int) {
	s.users = n
	s.stats.users.Store(int64(n))
}

// leave gives a place back.
func (s *Server) leave(free func()) {
	free()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setUsers(s.users - 1)
	s.announceLeft()
}

// find returns the export with the name, or nil.
func (s *Server) find(name string) *Export {
	if name == "" {
		return s.o.Exports[0]
	}
	for _, e := range s.o.Exports {
		if e.name == name {
			return e
		}
	}
	return nil
}
