package iscsi

import "github.com/containerdisk/containerdisk/target/wire"

// away hands cmd to a goroutine of its own. From here on the task is the
// worker's, until it clears busy. conn.mu is held here, and not by what the
// worker does with the disk.
func (c *conn) away(cmd *command, work func(*conn, *command)) {
	cmd.busy = true
	c.workers.Add(1)
	go func() {
		defer c.workers.Done()
		work(c, cmd)
	}()
}

// readAway reads the data-in that is not in memory, a piece at a time, and
// ends the command.
func (c *conn) readAway(cmd *command) {
	total := cmd.dataInLen()
	buf := wire.PieceFor(total)
	defer wire.FreePiece(buf)
	for cmd.sent < total {
		c.mu.Lock()
		n := c.segment(cmd, total)
		c.mu.Unlock()
		p := buf[:n]
		if cmd.task.Read(p, cmd.sent) != nil {
			break
		}
		c.mu.Lock()
		if cmd.task.Aborted() { // its end may have been told
			c.mu.Unlock()
			break
		}
		h, data := c.out.reserve(n)
		copy(data, p)
		over := c.dataIn(h, cmd, n, total)
		c.endBatch()
		c.mu.Unlock()
		if over {
			return
		}
	}
	c.finishAway(cmd)
}

// finishAway does what is left of the command and sends its response.
func (c *conn) finishAway(cmd *command) {
	cmd.task.Finish()
	c.mu.Lock()
	defer c.mu.Unlock()
	cmd.busy = false
	c.respond(cmd)
	c.endBatch()
}

// writeAway writes the pieces that have come and those that come meanwhile.
func (c *conn) writeAway(cmd *command) {
	o := &cmd.out
	c.mu.Lock()
	for len(o.queue) > 0 {
		piece, at := o.queue[0], o.queuedAt
		c.mu.Unlock()
		_ = cmd.task.Write(piece, at) // the task knows that it has failed
		c.mu.Lock()
		o.queuedAt += int64(len(piece))
		copy(o.queue, o.queue[1:])
		o.queue = o.queue[:len(o.queue)-1]
		c.settle(cmd, len(piece))
		wire.FreePiece(piece)
	}
	cmd.busy = false
	if cmd.abortWaiting {
		c.drop(cmd) // the rest of its data may never come
	} else {
		c.goOn(cmd)
	}
	c.gone.Broadcast()
	c.endBatch()
	c.mu.Unlock()
}
