package nbd

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/containerdisk/containerdisk/target/wire"
)

// errDisconnect ends a connection in good order: the client sent DISC.
var errDisconnect = errors.New("disconnected")

// transmit is the loop: work through what has arrived, send the answers, wait
// for more.
func (c *conn) transmit() error { return wire.Loop(&c.mu, c.batch, c.fill) }

// batch works through what has arrived, and sends the answers.
func (c *conn) batch() error {
	err := c.handleAll()
	c.flush()
	return cmp.Or(err, c.broken)
}

// handleAll handles everything that has arrived. It leaves in c.need how many
// bytes the next step takes.
func (c *conn) handleAll() error {
	for c.takePayload() {
		b := c.in.Bytes()
		if len(b) < reqLen {
			c.need = reqLen
			return nil
		}
		if m := reqMagic.Get(b); m != magicRequest {
			return fmt.Errorf("a request begins with %#08x", m)
		}
		c.req = parseRequest(b)
		c.in.Skip(reqLen)
		if c.req.cmd == cmdDisc {
			return errDisconnect
		}
		c.handle(&c.req)
	}
	return nil
}

// handle carries out one request, or begins to. r holds until it returns.
func (c *conn) handle(r *request) {
	if f := c.refuse(r); f != nil {
		if r.cmd == cmdWrite {
			c.discardPayload(r, f)
			return
		}
		c.fail(r, f)
		return
	}
	commands[r.cmd].run(c, r)
}

// fill reads what there is, and waits if there is nothing.
func (c *conn) fill() error {
	n, err := c.nc.Read(c.in.Room(c.need))
	c.in.Got(n)
	if n > 0 {
		return nil
	}
	return err
}

// flush sends the batch. conn.mu is held. A client that takes nothing holds up
// its own connection here, until it is given up (conn.Check).
func (c *conn) flush() {
	if c.out.Empty() {
		return
	}
	c.sendings.Add(1)
	c.sending.Store(true)
	err := c.out.Flush(c.nc)
	c.sending.Store(false)
	if err != nil {
		c.breakOff(err)
	}
}

// breakOff ends the connection because nothing more can be sent. conn.mu is
// held.
func (c *conn) breakOff(err error) {
	if c.broken == nil {
		c.broken = err
		c.raw.Close() // wakes the goroutine that reads
	}
}
