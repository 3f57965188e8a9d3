package iscsi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerdisk/containerdisk/target/wire"
)

// conn is one connection, from accept to close.
type conn struct {
	srv *Server
	nc  net.Conn
	log *slog.Logger
	cid uint16

	in   receiver // the connection's goroutine's own
	sess *session // set at the end of the login

	alive    atomic.Bool // something came or went since the last check
	sending  atomic.Bool // a write is under way
	silences int         // the keeper's own: checks in a row without a sign of life

	workers sync.WaitGroup // goroutines that will still want mu

	mu sync.Mutex // guards all below, and the order of what is sent
	sequence
	params    params
	out       sender
	commands  *commands
	broken    error // why nothing can be sent any more
	held      map[uint32]heldPDU
	heldBytes int
	solicited int64      // bytes of data-out that are asked for or wait for the disk
	waiting   []*command // writes whose next R2T waits until solicited is less
	text      textState
	managing  []uint32      // tags of the task management requests under way
	deferred  []taskRequest // those that wait for commands sent before them
	late      uint32        // Data-Out PDUs that came for aborted commands
	ended     bool          // nothing comes any more
	gone      *sync.Cond    // a command has ended, a worker is done with it, or ended is set
}

// errLogout ends a connection in good order.
var errLogout = errors.New("logged out")

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{
		srv: s,
		nc:  nc,
		log: s.o.Log.With("client", nc.RemoteAddr().String()),
		in:  receiver{maxData: defaultMaxRecvSegment},
	}
	c.gone = sync.NewCond(&c.mu)
	return c
}

// Serve is the life of a connection.
func (c *conn) Serve(ctx context.Context) {
	defer c.nc.Close()
	c.nc.SetDeadline(time.Now().Add(c.srv.o.LoginTimeout))
	ctx, cancel := context.WithTimeout(ctx, c.srv.o.LoginTimeout)
	err := c.login(ctx)
	cancel()
	if c.sess != nil {
		if err == nil {
			err = c.session()
		}
		c.workers.Wait()
		c.srv.closeSession(c.sess, errors.Is(err, errLogout))
	}
	c.report(err)
}

// session is the full feature phase and its end.
func (c *conn) session() error {
	c.srv.door.Passed(c)
	c.nc.SetDeadline(time.Time{})
	c.enter()
	c.log.Info("login", "session", c.sess.key, "discovery", c.sess.discovery)
	err := c.fullFeature()
	c.nc.Close() // a worker that sends must not wait for an initiator that is gone
	c.mu.Lock()
	c.abandon()
	c.mu.Unlock()
	return err
}

// enter puts the negotiated values in force.
func (c *conn) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.params = c.sess.params
	c.in.maxData = ourMaxRecvSegment
	c.in.headerDigest, c.in.dataDigest = c.params.headerDigest, c.params.dataDigest
	c.out.headerDigest, c.out.dataDigest = c.params.headerDigest, c.params.dataDigest
	if !c.sess.discovery {
		c.commands = newCommands()
	}
}

// start begins the numbering with the first login request.
func (c *conn) start(r loginRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cid = r.cid()
	c.sequence.start(r.cmdSN())
	c.statSN = r.expStatSN() // any number would do; this one reads well in a trace
}

// fullFeature is the loop: work through what has arrived, send the answers,
// wait for more.
func (c *conn) fullFeature() error { return wire.Loop(&c.mu, c.batch, c.fill) }

// batch works through what has arrived, and sends the answers.
func (c *conn) batch() error {
	err := c.handleAll()
	c.endBatch()
	return cmp.Or(err, c.broken)
}

// handleAll handles every PDU that has arrived as a whole.
func (c *conn) handleAll() error {
	for {
		p, ok, err := c.in.next()
		if err != nil || !ok {
			return err
		}
		if err := c.handle(p); err != nil {
			return err
		}
		for c.resumeDeferred(); len(c.held) > 0; c.resumeDeferred() {
			h, ok := c.unhold()
			if !ok {
				break
			}
			if err := c.handleHeld(h); err != nil {
				return err
			}
		}
	}
}

// endBatch lets those go on that waited for what others held, and sends all
// answers. A window that has opened without an answer that would tell of it,
// because a command ended in silence, is told of by a NOP-In, §11.4.11.
// conn.mu is held.
func (c *conn) endBatch() {
	c.solicitWaiting()
	if c.maxCmdSN != c.told && c.commands != nil {
		c.tellWindow()
	}
	c.flush()
}

// fill reads what there is, and waits if there is nothing.
func (c *conn) fill() error {
	n, err := c.nc.Read(c.in.Room(c.in.need))
	c.alive.Store(true)
	c.in.Got(n)
	if n > 0 {
		return nil
	}
	return err
}

// read returns the next PDU, for the login phase.
func (c *conn) read() (pdu, error) {
	for {
		if p, ok, err := c.in.next(); ok || err != nil {
			return p, err
		}
		if err := c.fill(); err != nil {
			return pdu{}, err
		}
	}
}

// handle does what one PDU asks for. An error ends the connection.
func (c *conn) handle(p pdu) error {
	op := p.opcode()
	if p.badData {
		return c.badDigest(p)
	}
	switch op {
	case opDataOut:
		return c.dataOut(dataOut{p.BHS}, p.data)
	case opSNACK: // has no CmdSN
		c.reject(rejectSNACK, p)
		return nil
	case opNopOut, opSCSICommand, opTaskRequest, opText, opLogout:
	case opLogin:
		return errors.New("login request in the full feature phase")
	default:
		c.reject(rejectUnsupported, p)
		return nil
	}
	if !p.immediate() {
		switch c.place(p.cmdSN()) {
		case placeOutside:
			return nil // §4.2.2.1: silently
		case placeLater:
			c.hold(p)
			return nil
		case placeNow:
		}
		c.expCmdSN++
	}
	return c.request(op, p)
}

// request does what a request asks for whose turn it is.
func (c *conn) request(op Opcode, p pdu) error {
	if op != opSCSICommand && !p.immediate() {
		c.maxCmdSN++ // it is over at once; a SCSI command is when it is answered
	}
	if c.sess.discovery && op != opText && op != opLogout {
		c.reject(rejectProtocol, p) // §4.3
		return nil
	}
	switch op {
	case opSCSICommand:
		return c.scsiCommand(scsiCommand{p.BHS}, p)
	case opNopOut:
		c.nopOut(nopOut{p.BHS}, p.data)
	case opTaskRequest:
		c.taskRequest(taskRequest{p.BHS})
	case opText:
		c.textRequest(textRequest{p.BHS}, p)
	case opLogout:
		return c.logout(logoutRequest{p.BHS}, p)
	default: // handle lets nothing else through
	}
	return nil
}

// badDigest discards a PDU whose data is not what was sent, §7.8. Its number
// does not count as received: the initiator sends a command again, and for
// data-out the command ends with a check condition.
func (c *conn) badDigest(p pdu) error {
	c.reject(rejectDataDigest, p)
	if p.opcode() == opDataOut {
		c.lostData(dataOut{p.BHS}, p.data)
	}
	return nil
}

// Drop closes the connection as it stands.
func (c *conn) Drop(reason string) {
	c.log.Warn("connection dropped", "reason", reason)
	c.nc.Close()
}

// Check is the keeper's look at the connection, twice in Options.Idle.
func (c *conn) Check() {
	if c.alive.Swap(false) {
		c.silences = 0
		return
	}
	c.silences++
	switch {
	case c.silences >= 4:
		c.log.Warn("connection given up: no sign of life", "sending", c.sending.Load())
		c.nc.Close()
	case c.silences == 2 && !c.sending.Load():
		if c.mu.TryLock() { // held: it is not idle
			c.ping()
			c.mu.Unlock()
		}
	}
}

// Dismiss ends the connection from outside. The initiator is told, if it takes
// what is being sent.
func (c *conn) Dismiss() {
	t := time.AfterFunc(dismissTime, func() { c.nc.Close() }) // ends any write, and with it the wait for mu
	defer t.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.commands != nil {
		h, _ := c.out.reserve(0)
		async{event: asyncDropSession}.header(h)
		c.commit(statAdvance)
		c.flush()
	}
	c.nc.Close()
}

// askToLogOut asks the initiator to end its session within the time, §11.9.1:
// event 1. What it sends until then is served.
func (c *conn) askToLogOut(within time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.commands == nil {
		return // just about to be in: it will notice the end
	}
	h, _ := c.out.reserve(0)
	async{event: asyncLogout, seconds: uint16(max(within, time.Second) / time.Second)}.header(h)
	c.commit(statAdvance)
	c.flush()
}

// dismissTime is how long a server that closes waits for an initiator to take
// what is being sent.
const dismissTime = time.Second

// report logs how the connection ended.
func (c *conn) report(err error) {
	var failure *loginFailure
	switch {
	case errors.Is(err, errLogout):
		c.log.Info("logout", "session", c.sess.key)
	case errors.As(err, &failure):
		c.log.Warn("login refused", "status", fmt.Sprintf("%#04x", uint16(failure.status)), "reason", failure.Error())
	case c.sess == nil:
		c.log.Debug("connection ended before login", "reason", err)
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		c.log.Info("connection closed", "session", c.sess.key)
	default:
		c.log.Warn("connection ended", "session", c.sess.key, "reason", err)
	}
}
