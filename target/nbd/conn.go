package nbd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerdisk/containerdisk/target/wire"
)

// conn is one connection, from accept to close.
type conn struct {
	srv *Server
	raw net.Conn // as accepted: closing it waits for nothing
	nc  net.Conn // raw, or TLS over it
	tls TLSMode
	log *slog.Logger

	peer string // at the other end, as peerOf says

	// The connection's goroutine's own.
	in   wire.In
	need int // bytes that the next step takes
	req  request

	// Set by the handshake.
	export     *Export
	structured bool       // structured replies
	contexts   contextSet // metadata contexts, for this export
	release    func()

	sending  atomic.Bool // a write to the client is under way
	sendings atomic.Uint32
	silent   int    // Check's own: looks in a row that saw the same sending
	seen     uint32 // Check's own: which one

	mu          sync.Mutex // guards all below, and the order of what is sent
	out         wire.Out
	broken      error // why nothing can be sent any more
	writing     *write
	spareWrites []*write
	workers     int
	held        int64 // bytes that workers hold
	workerEnded sync.Cond
}

func newConn(s *Server, nc net.Conn, mode TLSMode) *conn {
	peer, err := peerOf(nc)
	if err != nil {
		peer = "" // it is not admitted
	}
	c := &conn{srv: s, raw: nc, nc: nc, tls: mode, peer: peer, log: s.o.Log.With("wire", "nbd", "client", peer)}
	c.workerEnded.L = &c.mu
	tune(nc)
	return c
}

// sendBuffer is what a Unix socket's buffer is set to, bytes, as far as the
// system allows: its default of 208 KiB lets a client wait that reads much.
const sendBuffer = 1 << 20

// tune sets what the system lets us choose for a connection; it works without.
// With keep-alive we find out in some two minutes that a client's machine is
// gone, which gives its place free. A TCP connection's buffers grow as needed.
func tune(nc net.Conn) {
	switch nc := nc.(type) {
	case *net.TCPConn:
		_ = nc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 20 * time.Second, Count: 3})
	case *net.UnixConn:
		_ = nc.SetWriteBuffer(sendBuffer)
	}
}

// Serve is the life of the connection.
func (c *conn) Serve(ctx context.Context) {
	defer c.raw.Close()
	c.raw.SetDeadline(time.Now().Add(c.srv.o.Handshake))
	err := c.handshake(ctx)
	if err == nil {
		err = c.session(ctx)
		c.release()
	}
	c.report(err)
}

// session is the transmission phase and its end.
func (c *conn) session(ctx context.Context) error {
	c.srv.door.Passed(c)
	c.raw.SetDeadline(time.Time{})
	if ctx.Err() != nil { // Dismiss may have set the deadline before we took it off
		return ErrClosed
	}
	c.log.Info("connected", "export", c.export.name, "tls", c.nc != c.raw)
	err := c.transmit()
	if errors.Is(err, io.EOF) && c.writing == nil && len(c.in.Bytes()) == 0 {
		err = errDisconnect // without a word, and with nothing begun
	}
	c.waitWorkers()
	if errors.Is(err, errDisconnect) {
		c.nc.Close() // over TLS with a farewell
	}
	return err
}

// Check gives the connection up when a whole interval has passed within one
// write to its client.
func (c *conn) Check() {
	now := c.sendings.Load()
	if !c.sending.Load() || now != c.seen {
		c.seen, c.silent = now, 0
		return
	}
	if c.silent++; c.silent >= 2 {
		c.log.Warn("connection given up: the client takes nothing")
		c.raw.Close()
	}
}

// Drop makes room for others.
func (c *conn) Drop(reason string) {
	c.log.Warn("connection dropped", "reason", reason)
	c.raw.Close()
}

// dismissTime is how long a server that closes waits for a client to take the
// answers to what is under way.
const dismissTime = time.Second

// Dismiss lets the loop end: nothing more is read.
func (c *conn) Dismiss() {
	c.raw.SetWriteDeadline(time.Now().Add(dismissTime))
	c.raw.SetReadDeadline(time.Unix(1, 0))
}

// report logs how the connection ended.
func (c *conn) report(err error) {
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		c.log.Warn("refused", "reason", refused.Error())
	case c.release == nil:
		c.log.Debug("connection ended in its handshake", "reason", err)
	case errors.Is(err, errDisconnect):
		c.log.Info("disconnected", "export", c.export.name)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, ErrClosed):
		c.log.Info("connection ended: the server closes", "export", c.export.name)
	default:
		c.log.Warn("connection ended", "export", c.export.name, "reason", err)
	}
}
