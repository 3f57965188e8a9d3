package iscsi

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerdisk/containerdisk/auth"
	"github.com/containerdisk/containerdisk/target/scsi"
	"github.com/containerdisk/containerdisk/target/wire"
)

// Options say what a Server serves and to whom. Name and Target are required.
type Options struct {
	Name   string       // the target's iSCSI name, RFC 7143 §4.2.7
	Target *scsi.Target // its logical units

	// Auth is asked for every login, of discovery sessions too; nil lets
	// everybody in.
	Auth *auth.Authenticator

	// Admit is asked for every normal session, after its authentication, with
	// the initiator's name. It returns what gives the place back, or why the
	// initiator must wait. Nil admits everybody.
	Admit func(initiator string) (release func(), err error)

	Log *slog.Logger // nil: none

	MaxSessions  int           // of normal sessions, and as many of discovery; 0: 64
	MaxLogins    int           // connections before the end of their login; 0: 16
	LoginTimeout time.Duration // of the whole login; 0: 15 s
	// Idle is after how long without a word an initiator is pinged, and after
	// how long again it is given up; 0: 30 s.
	Idle time.Duration
}

func (o *Options) fillIn() {
	if o.Admit == nil {
		o.Admit = func(string) (func(), error) { return func() {}, nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.MaxSessions = cmp.Or(o.MaxSessions, 64)
	o.MaxLogins = cmp.Or(o.MaxLogins, 16)
	o.LoginTimeout = cmp.Or(o.LoginTimeout, 15*time.Second)
	o.Idle = cmp.Or(o.Idle, 30*time.Second)
}

// Server is an iSCSI target node with one target and one portal group.
type Server struct {
	o     Options
	stats counters
	door  *wire.Door
	asks  sync.WaitGroup // those who ask initiators to log out

	mu        sync.Mutex // guards all below
	changed   *sync.Cond // a session has ended
	sessions  map[sessionKey]*session
	lastTSIH  uint16
	known     wire.Known             // initiators that were admitted
	replacing int                    // logins that open a session, perhaps in the place of another
	awaited   map[string]*time.Timer // initiators that lost their connection a moment ago
	draining  bool                   // those known may still come
	leaving   bool                   // nobody may
	closed    bool
}

// counters are what Stats tells.
type counters struct {
	logins, loginFailures atomic.Int64
}

// Stats are a server's counters.
type Stats struct {
	Sessions      int   // now, without discovery sessions
	Connections   int   // now, with those logging in
	Logins        int64 // normal sessions that were opened
	LoginFailures int64 // authentications that failed
}

// ErrClosed is what Serve returns after Shutdown or Close.
var ErrClosed = errors.New("iscsi: the server is closed")

// New returns a server. Close it, whether or not it ever served.
func New(o Options) *Server {
	o.fillIn()
	s := &Server{
		o: o,
		door: wire.NewDoor(wire.DoorOptions{
			Log:        o.Log,
			Handshakes: o.MaxLogins,
			Check:      o.Idle / 2,
			Closed:     ErrClosed,
		}),
		sessions: make(map[sessionKey]*session),
		awaited:  make(map[string]*time.Timer),
	}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// Stats returns the counters as they are now.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{
		Sessions:      s.countSessions(normalSession),
		Connections:   s.door.Len(),
		Logins:        s.stats.logins.Load(),
		LoginFailures: s.stats.loginFailures.Load(),
	}
}

// The kinds of session, for countSessions.
const (
	normalSession    = false
	discoverySession = true
)

// countSessions counts the sessions of a kind. s.mu is held.
func (s *Server) countSessions(discovery bool) int {
	n := 0
	for _, sess := range s.sessions {
		if sess.discovery == discovery {
			n++
		}
	}
	return n
}

// Serve accepts connections from l until the server is shut down or closed,
// and then returns ErrClosed. It may be called for several listeners.
func (s *Server) Serve(l net.Listener) error {
	return s.door.Serve(l, func(nc net.Conn) wire.Conn { return newConn(s, nc) })
}

// Close ends all connections, after what each has under way, and returns when
// nothing of the server is left. What was acknowledged is with the device; to
// flush it is the caller's.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for initiator := range s.awaited {
		s.returned(initiator)
	}
	s.changed.Broadcast()
	s.mu.Unlock()

	err := s.door.Close()
	s.asks.Wait()
	return err
}
