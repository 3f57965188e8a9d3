package iscsi

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/containerdisk/containerdisk/target/scsi"
)

// session is one initiator port that is logged in. With one connection each,
// it lives and dies with its connection.
type session struct {
	key  sessionKey
	tsih uint16 // 0 for a discovery session until it is counted, then like others

	discovery bool
	nexus     *scsi.Nexus // nil for a discovery session
	params    params
	conn      *conn
	release   func()        // gives back the place that Options.Admit gave
	over      chan struct{} // closed when nothing of the session is left
}

// sessionKey names a session, RFC 7143 §6.3.1. The target and its portal group
// belong to it too, and there is one of each. A normal session never takes the
// place of a discovery session, §7.4.2.1.
type sessionKey struct {
	initiator string
	isid      isid
	discovery bool
}

// port is the name of the initiator port, SAM's end of the nexus, §4.4.
func (k sessionKey) port() string { return fmt.Sprintf("%s,i,%s", k.initiator, k.isid) }

// openSession gives the login its session, by the table of §6.3.1. A session
// of the same name that is still there ends first, with all its tasks.
func (s *Server) openSession(ctx context.Context, l *login) (*session, error) {
	key := sessionKey{l.initiator, l.first.isid(), l.discovery}
	if !key.discovery {
		s.countReplacing(1)
		defer s.countReplacing(-1)
	}
	var ended uint16 // TSIH of a session that ended to make room
	for {
		old, err := s.claim(key, l, ended)
		if err != nil {
			return nil, err
		}
		if old == nil {
			break
		}
		ended = old.tsih
		old.conn.log.Info("session reinstated", "initiator", key.initiator)
		old.conn.nc.Close()
		select {
		case <-old.over:
		case <-ctx.Done():
			return nil, failLogin(statusTargetError, "the session before does not end: %w", ctx.Err())
		}
	}
	return l.c.sess, nil
}

// countReplacing keeps Shutdown from ending while a session is between its old
// and its new connection.
func (s *Server) countReplacing(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replacing += n
	s.changed.Broadcast()
}

// claim makes the session for l, unless one of the same name is in the way: it
// is returned. ended is the TSIH of the one that was.
func (s *Server) claim(key sessionKey, l *login, ended uint16) (old *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old = s.sessions[key]
	if old != nil || ended == 0 || l.first.tsih() != ended {
		if err := checkTSIH(l.first, old); err != nil {
			return nil, err
		}
	}
	if old != nil {
		return old, nil
	}
	if s.leaving || s.draining && !s.known.Has(key.initiator) {
		return nil, failLogin(statusUnavailable, "the server is shutting down")
	}
	if n := s.countSessions(key.discovery); n >= s.o.MaxSessions {
		return nil, failLogin(statusNoResources, "there are %d sessions already", n)
	}
	sess := &session{key: key, discovery: l.discovery, params: *l.neg.params, conn: l.c,
		release: func() {}, over: make(chan struct{})}
	sess.params.firstBurst = min(sess.params.firstBurst, sess.params.maxBurst)
	if !sess.discovery {
		if err := s.admit(sess); err != nil {
			return nil, err
		}
	}
	if l.first.tsih() != 0 {
		sess.tsih = l.first.tsih()
	} else {
		sess.tsih = s.freeTSIH()
	}
	s.sessions[key] = sess
	l.c.sess = sess
	return nil, nil
}

// admit asks for the right to use the disks and makes the nexus.
func (s *Server) admit(sess *session) error {
	release, err := s.o.Admit(sess.key.initiator)
	if err != nil {
		s.o.Log.Warn("initiator refused", "initiator", sess.key.initiator, "error", err)
		return failLogin(statusUnavailable, "%w", err)
	}
	sess.release = release
	sess.nexus = s.o.Target.NewNexus(sess.key.port())
	s.known.Add(sess.key.initiator)
	s.returned(sess.key.initiator)
	s.stats.logins.Add(1)
	return nil
}

// checkTSIH refuses a login to a session that is not there, or that would need
// a second connection. The same connection again takes the place of the old
// one; at recovery level 0 that is the same as a new session, because the
// tasks of the old connection are gone.
func checkTSIH(first *loginRequest, old *session) error {
	switch tsih := first.tsih(); {
	case tsih == 0:
		return nil
	case old == nil || old.tsih != tsih:
		return failLogin(statusNoSession, "there is no session with TSIH %d", tsih)
	case first.cid() != old.conn.cid:
		return failLogin(statusTooMany, "one connection a session")
	}
	return nil
}

// freeTSIH returns a handle that no session has. s.mu is held.
func (s *Server) freeTSIH() uint16 {
	for {
		s.lastTSIH++
		if s.lastTSIH != 0 && !s.usesTSIH(s.lastTSIH) {
			return s.lastTSIH
		}
	}
}

func (s *Server) usesTSIH(tsih uint16) bool {
	for _, sess := range s.sessions {
		if sess.tsih == tsih {
			return true
		}
	}
	return false
}

// closeSession ends the session, when its connection has ended and no task of
// it is left. An initiator that did not log out may be about to come back.
func (s *Server) closeSession(sess *session, loggedOut bool) {
	if sess.nexus != nil {
		sess.nexus.Close()
	}
	sess.release()
	s.mu.Lock()
	delete(s.sessions, sess.key)
	if !sess.discovery && !loggedOut && !s.closed {
		s.await(sess.key.initiator)
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	close(sess.over)
}

// LogValue names the session in the log.
func (k sessionKey) LogValue() slog.Value {
	return slog.GroupValue(slog.String("initiator", k.initiator), slog.String("isid", k.isid.String()))
}
