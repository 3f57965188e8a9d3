package wire

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

// Conn is a connection as its Door sees it. Check, Drop and Dismiss are called
// from other goroutines than Serve. Check and Drop must not wait.
type Conn interface {
	// Serve is the connection's life. Nothing of the connection is left when
	// it returns. ctx ends before Dismiss is called.
	Serve(ctx context.Context)

	// Drop closes the connection as it stands, to make room for another or as
	// one of all.
	Drop(reason string)

	// Check looks for a sign of life, each DoorOptions.Check, once the
	// connection is past its handshake.
	Check()

	// Dismiss ends the connection because the server closes: after what it has
	// under way, and with a word to the client where the protocol has one. It
	// may wait for a moment for a client that takes nothing.
	Dismiss()
}

// DoorOptions are the limits of a Door. All are required.
type DoorOptions struct {
	Log *slog.Logger

	// Handshakes is how many connections may be in their handshake. When there
	// are more, the oldest of them makes room: a flood of half-open connections
	// must not keep out those who get on with it.
	Handshakes int

	// Check is the time between two looks at each connection.
	Check time.Duration

	// Closed is what Serve returns after Close.
	Closed error
}

// Door lets connections in and sees all of them out.
type Door struct {
	o    DoorOptions
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup // connections and the keeper

	mu         sync.Mutex // guards all below
	listeners  map[net.Listener]bool
	conns      map[Conn]bool // false: in its handshake
	handshakes []Conn        // the oldest first
	closed     bool
}

// NewDoor returns an open Door. Close it, whether or not it ever served.
func NewDoor(o DoorOptions) *Door {
	d := &Door{o: o, listeners: make(map[net.Listener]bool), conns: make(map[Conn]bool)}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.wg.Add(1)
	go d.keep()
	return d
}

// Serve accepts connections from l, and makes them a Conn by open, until Close.
// It may be called for several listeners. The listener is the door's.
func (d *Door) Serve(l net.Listener, open func(net.Conn) Conn) error {
	if !d.add(l) {
		return errors.Join(d.o.Closed, l.Close())
	}
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			d.enter(nc, open)
		case d.isClosed():
			return d.o.Closed
		case isTemporary(err): // out of descriptors: those in use go on
			d.o.Log.Warn("cannot accept", "error", err)
			d.pause()
		default:
			return err
		}
	}
}

// acceptPause is how long nothing is accepted after that failed.
const acceptPause = 100 * time.Millisecond

func (d *Door) pause() {
	t := time.NewTimer(acceptPause)
	defer t.Stop()
	select {
	case <-d.ctx.Done():
	case <-t.C:
	}
}

func isTemporary(err error) bool {
	var ne net.Error
	return !errors.Is(err, net.ErrClosed) && errors.As(err, &ne)
}

func (d *Door) add(l net.Listener) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.listeners[l] = true
	return true
}

func (d *Door) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// enter starts a connection.
func (d *Door) enter(nc net.Conn, open func(net.Conn) Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = nc.Close() // nobody is there to be told
		return
	}
	if len(d.handshakes) >= d.o.Handshakes {
		oldest := d.handshakes[0]
		d.handshakes = d.handshakes[1:]
		oldest.Drop("too many handshakes at once")
	}
	c := open(nc)
	d.conns[c] = false
	d.handshakes = append(d.handshakes, c)
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		c.Serve(d.ctx)
		d.forget(c)
	}()
}

// Passed tells that c is past its handshake: it no longer makes room for
// others.
func (d *Door) Passed(c Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns[c] = true
	d.removeHandshake(c)
}

func (d *Door) removeHandshake(c Conn) {
	d.handshakes = slices.DeleteFunc(d.handshakes, func(h Conn) bool { return h == c })
}

func (d *Door) forget(c Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removeHandshake(c)
	delete(d.conns, c)
}

// DropAll drops every connection, in its handshake or past it. New ones may
// come.
func (d *Door) DropAll(reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		c.Drop(reason)
	}
}

// Len is the number of connections, with those in their handshake.
func (d *Door) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.conns)
}

// Close lets nobody in any more, dismisses all connections, and returns when
// they have ended.
func (d *Door) Close() error {
	d.mu.Lock()
	d.closed = true
	var err error
	for l := range d.listeners {
		err = errors.Join(err, l.Close())
	}
	clear(d.listeners)
	conns := make([]Conn, 0, len(d.conns))
	for c := range d.conns {
		conns = append(conns, c)
	}
	d.mu.Unlock()

	d.stop()
	var dismissed sync.WaitGroup
	for _, c := range conns { // at once: each may wait for its client
		dismissed.Go(c.Dismiss)
	}
	dismissed.Wait()
	d.wg.Wait()
	return err
}

// keep looks at the connections from time to time.
func (d *Door) keep() {
	defer d.wg.Done()
	tick := time.NewTicker(d.o.Check)
	defer tick.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
		}
		for _, c := range d.Conns() {
			c.Check()
		}
	}
}

// Conns are the connections past their handshake.
func (d *Door) Conns() []Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	var conns []Conn
	for c, passed := range d.conns {
		if passed {
			conns = append(conns, c)
		}
	}
	return conns
}
