//go:build e2e

package e2e

import (
	"io"
	"net"
	"sync"
	"testing"
)

// network is what lies between a client and a server: it can be cut, and it can
// go silent without telling either end.
type network struct {
	address string // where the client connects

	mu     sync.Mutex // guards all below
	to     string     // where the server is
	silent chan struct{}
	conns  map[net.Conn]bool
	came   int // connections from the client
}

// connectTo makes a network in front of a server.
func connectTo(t *testing.T, server string) *network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &network{address: l.Addr().String(), to: server, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { n.carry(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		n.speak()
		n.cut()
		wg.Wait()
	})
	return n
}

// carry carries what is said on a connection, both ways, until an end hangs up.
func (n *network) carry(client net.Conn) {
	defer n.forget(client)
	n.enter(client)
	n.pause() // a connection that begins in silence waits, as it would
	server, err := net.Dial("tcp", n.server())
	if err != nil {
		return
	}
	defer n.forget(server)
	n.add(server)
	var wg sync.WaitGroup
	wg.Go(func() { n.copy(server, client) })
	wg.Go(func() { n.copy(client, server) })
	wg.Wait()
}

func (n *network) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		k, err := from.Read(b)
		n.pause()
		if _, werr := to.Write(b[:k]); err != nil || werr != nil {
			return
		}
	}
}

func (n *network) enter(c net.Conn) {
	n.mu.Lock()
	n.came++
	n.mu.Unlock()
	n.add(c)
}

func (n *network) add(c net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[c] = true
}

func (n *network) forget(c io.Closer) {
	c.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, c.(net.Conn))
}

func (n *network) server() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.to
}

// connections counts those that the client has made.
func (n *network) connections() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.came
}

// cut hangs up on both ends of every connection.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		c.Close()
	}
}

// hush holds back everything that is said from now on, until speak.
func (n *network) hush() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent == nil {
		n.silent = make(chan struct{})
	}
}

func (n *network) speak() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent != nil {
		close(n.silent)
		n.silent = nil
	}
}

func (n *network) pause() {
	n.mu.Lock()
	silent := n.silent
	n.mu.Unlock()
	if silent != nil {
		<-silent
	}
}
