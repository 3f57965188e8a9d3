package nbd

import (
	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target/wire"
)

// What the workers of all connections hold together at most. Each connection
// has an equal share, so that one cannot take what another needs.
const (
	totalHeld    = 256 << 20 // bytes
	totalWorkers = 1024      // each may keep a thread of the system busy

	mostHeld    = 16 << 20 // of one connection
	mostWorkers = 64
)

// share is what one of n connections may have at workers.
func share(n int) (held int64, workers int) {
	n = max(n, 1)
	return min(mostHeld, totalHeld/int64(n)), min(mostWorkers, totalWorkers/n)
}

// away gives work to a goroutine of its own, which holds cost bytes of memory
// while it runs. conn.mu is held, and let go while the connection has its full
// share at work: until then nothing more is read from it.
func (c *conn) away(cost int64, work func()) {
	for c.workers > 0 {
		held, workers := share(c.srv.inTransmission())
		if c.held+cost <= held && c.workers < workers {
			break
		}
		c.flush() // the client may be waiting for just these
		c.workerEnded.Wait()
	}
	c.spawn(cost, work)
}

func (c *conn) spawn(cost int64, work func()) {
	c.held += cost
	c.workers++
	go func() {
		work()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.held -= cost
		c.workers--
		c.workerEnded.Broadcast()
	}()
}

// waitWorkers returns when all workers have ended.
func (c *conn) waitWorkers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.workers > 0 {
		c.workerEnded.Wait()
	}
}

// run does work at a worker and answers r with what comes of it, after a flush
// where r has FUA.
func (c *conn) run(r request, work func() error) {
	c.away(0, func() {
		err := work()
		if err == nil && r.has(flagFUA) {
			err = c.export.dev.Flush()
		}
		c.answer(&r, err)
	})
}

// answer answers r from a worker.
func (c *conn) answer(r *request, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(r, err)
	c.flush()
}

// syncAway flushes for a write with FUA whose data is with the disk. It is
// called by workers too, and so does not wait for a share.
func (c *conn) syncAway(r request) {
	c.spawn(0, func() { c.answer(&r, c.export.dev.Flush()) })
}

// flushDisk answers a FLUSH: it covers what was written on any connection.
func (c *conn) flushDisk(r *request) {
	c.export.stats.flushes.Add(1)
	c.run(request{cookie: r.cookie, cmd: r.cmd}, c.export.dev.Flush)
}

func (c *conn) trim(r *request) {
	off, n := r.off, r.n
	c.run(*r, func() error { return c.export.dev.Discard(off, n) })
}

func (c *conn) writeZeroes(r *request) {
	off, n, mode := r.off, r.n, blockdev.ZeroMayUnmap
	if r.has(flagNoHole) {
		mode = blockdev.ZeroKeepAllocated
	}
	c.run(*r, func() error { return c.export.dev.Zero(off, n, mode) })
}

// cache answers a CACHE by reading the range, which brings it to memory.
func (c *conn) cache(r *request) {
	q := request{cookie: r.cookie, cmd: r.cmd, off: r.off, n: min(r.n, maxCache)}
	c.away(wire.PieceSize, func() {
		buf := wire.Piece()
		defer wire.FreePiece(buf)
		var err error
		for at := int64(0); at < q.n && err == nil; at += int64(len(buf)) {
			_, err = c.export.dev.ReadAt(buf[:min(q.n-at, int64(len(buf)))], q.off+at)
		}
		c.answer(&q, err)
	})
}
