package status

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the HTTP server. Its clients are probes and scrapers: they ask
// little and read what they get.
const (
	headerTimeout = 5 * time.Second
	ioTimeout     = 15 * time.Second // a whole request or response
	idleTimeout   = time.Minute
	maxHeader     = 8 << 10 // bytes
	maxConns      = 64
)

// Server returns the HTTP server of this status. The caller gives it a
// listener and shuts it down.
func (s *Status) Server() *http.Server {
	conns := new(connLimit)
	return &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       ioTimeout,
		WriteTimeout:      ioTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         conns.changed,
		ErrorLog:          slog.NewLogLogger(s.o.Log.Handler(), slog.LevelDebug),
	}
}

// Handler returns the pages:
//
//	/healthz  200 as long as the process lives, whatever becomes of the disks:
//	          a restart does not mend an image
//	/readyz   200 while the disks are served, else 503 with the phase
//	/status   the Report
//	/metrics  for Prometheus
func (s *Status) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /status", s.status)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry(), promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(s.o.Log.Handler(), slog.LevelWarn),
		// A metric that cannot be made is logged, and the others are sent.
		ErrorHandling: promhttp.ContinueOnError,
	}))
	return mux
}

func (s *Status) readyz(w http.ResponseWriter, _ *http.Request) {
	r := s.Report()
	if r.Ready {
		writeText(w, http.StatusOK, "ready")
		return
	}
	text := r.Phase.String()
	if r.Message != "" {
		text += ": " + r.Message
	}
	for _, c := range r.Copies {
		if r.Phase == Populating && c.Done < c.Total {
			text += fmt.Sprintf("\n%s: %v", c.Disk, c)
		}
	}
	writeText(w, http.StatusServiceUnavailable, text)
}

func (s *Status) status(w http.ResponseWriter, _ *http.Request) {
	body, err := json.MarshalIndent(s.Report(), "", "  ")
	if err != nil {
		writeText(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(body, '\n')) // the client may have gone
}

func writeText(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // the client may have gone
}

// connLimit closes the oldest connection when there are more than maxConns, so
// that a flood of idle ones keeps no probe out.
type connLimit struct {
	mu    sync.Mutex // guards conns
	conns []net.Conn // in the order of their arrival
}

// changed is an http.Server's ConnState.
func (l *connLimit) changed(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if oldest := l.add(c); oldest != nil {
			_ = oldest.Close() // changed is called for it in turn
		}
	case http.StateClosed, http.StateHijacked:
		l.remove(c)
	case http.StateActive, http.StateIdle:
	}
}

// add returns the connection that has to go, if there are too many.
func (l *connLimit) add(c net.Conn) net.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	if len(l.conns) <= maxConns {
		return nil
	}
	oldest := l.conns[0]
	l.conns = slices.Delete(l.conns, 0, 1)
	return oldest
}

func (l *connLimit) remove(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = slices.DeleteFunc(l.conns, func(o net.Conn) bool { return o == c })
}
