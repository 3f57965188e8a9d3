package iscsi

import (
	"context"
	"errors"
	"time"
)

// How a server ends. While it drains, those who were here may come back: a
// guest that reconnects has data to write. It waits until each has logged out;
// a connection that broke is no logout, and its initiator has returnTime to
// mend it. Shortly before the time is over it asks those left to log out (an
// initiator takes that as a reason to come again at once, so from then on
// nobody is let in), and at its end it closes.

// returnTime is how long an initiator that lost its connection is waited for.
// The Linux initiator and libiscsi try again after a second or two.
const returnTime = 3 * time.Second

// logoutTime is how long before the end initiators are asked to log out, but
// not more than a quarter of the time there is.
const logoutTime = 3 * time.Second

// Drain turns away initiators that have never been here.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
}

// Shutdown drains, waits until every session has logged out or ctx ends, and
// closes. It returns ctx's error if that is what ended it.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer stop()
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		notice := min(logoutTime, left/4)
		ask := time.AfterFunc(left-notice, func() { s.askToLeave(notice) })
		defer ask.Stop()
	}
	s.mu.Lock()
	for s.isUsed() && ctx.Err() == nil && !s.closed {
		s.changed.Wait()
	}
	var err error
	if s.isUsed() {
		err = ctx.Err()
	}
	s.mu.Unlock()
	return errors.Join(err, s.Close())
}

// isUsed reports whether anybody has a session or is about to. s.mu is held.
func (s *Server) isUsed() bool {
	return s.countSessions(normalSession)+s.replacing+len(s.awaited) > 0
}

// await waits for an initiator whose connection broke. s.mu is held.
func (s *Server) await(initiator string) {
	s.returned(initiator)
	var t *time.Timer
	t = time.AfterFunc(returnTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.awaited[initiator] == t {
			s.returned(initiator)
		}
	})
	s.awaited[initiator] = t
}

// returned ends the wait for an initiator. s.mu is held.
func (s *Server) returned(initiator string) {
	if t, ok := s.awaited[initiator]; ok {
		t.Stop()
		delete(s.awaited, initiator)
		s.changed.Broadcast()
	}
}

// askToLeave lets nobody in any more and asks those there to log out within
// the time, §11.9.1.
func (s *Server) askToLeave(within time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.leaving = true
	for _, sess := range s.sessions {
		if !sess.discovery {
			s.asks.Go(func() { sess.conn.askToLogOut(within) })
		}
	}
}

// hangUp ends every connection, with nothing left of its session.
func (s *Server) hangUp() { s.door.DropAll("target cold reset") }
