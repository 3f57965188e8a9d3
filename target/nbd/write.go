package nbd

import (
	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target/wire"
)

// write is a WRITE on its way. conn.mu guards it.
type write struct {
	request
	at      int64    // bytes of payload that have come
	refused *failure // the payload is thrown away
	err     error    // of the device
	away    int      // pieces that workers have
}

// beginWrite takes the payload that follows the request.
func (c *conn) beginWrite(r *request) {
	c.export.stats.writes.Add(1)
	c.export.stats.writeBytes.Add(uint64(r.n))
	c.writing = c.newWrite(r)
}

// discardPayload throws the payload that follows away, and answers then: the
// stream goes on behind it. Its length is not bound, but none of it is kept.
func (c *conn) discardPayload(r *request, f *failure) {
	c.writing = c.newWrite(r)
	c.writing.refused = f
}

// newWrite takes a write from those that are not used.
func (c *conn) newWrite(r *request) *write {
	if n := len(c.spareWrites); n > 0 {
		w := c.spareWrites[n-1]
		c.spareWrites = c.spareWrites[:n-1]
		*w = write{request: *r}
		return w
	}
	return &write{request: *r}
}

// takePayload takes what has come of the payload of the current write. It
// returns false when more of it must come, and true when there is none to wait
// for.
func (c *conn) takePayload() bool {
	w := c.writing
	if w == nil {
		return true
	}
	for w.at < w.n {
		b := c.in.Bytes()
		n := w.nextPiece(len(b))
		if len(b) < n || n == 0 {
			c.need = max(n, 1)
			return false
		}
		c.store(w, b[:n])
		c.in.Skip(n)
		w.at += int64(n)
	}
	c.writing = nil
	if w.away == 0 {
		c.endWrite(w)
	}
	return true
}

// page is the size in bytes at whose multiples a payload is cut: a write that
// ends within a page would make the system read it.
const page = 4096

// nextPiece is the length of the piece that is written next, of which have
// bytes have come: a whole wire.PieceSize where there is that much.
func (w *write) nextPiece(have int) int {
	left := w.n - w.at
	if w.refused != nil || w.err != nil {
		return int(min(left, int64(have)))
	}
	return int(min(left, wire.PieceSize-(w.off+w.at)%page))
}

// store writes a piece of the payload, which belongs at w.at, or gives a copy
// of it to a worker.
func (c *conn) store(w *write, p []byte) {
	if w.refused != nil || w.err != nil {
		return
	}
	off := w.off + w.at
	err := c.export.dev.TryWriteAt(p, off)
	if err != blockdev.ErrWouldBlock {
		w.err = err
		return
	}
	w.away++
	p = wire.CopyPiece(p)
	c.away(int64(len(p)), func() {
		_, err := c.export.dev.WriteAt(p, off)
		wire.FreePiece(p)
		c.mu.Lock()
		defer c.mu.Unlock()
		if w.away--; err != nil {
			w.err = err
		}
		if w.away == 0 && w.at == w.n && c.writing != w {
			c.endWrite(w)
			c.flush()
		}
	})
}

// endWrite answers a write whose payload is with the disk, or gives it up.
func (c *conn) endWrite(w *write) {
	switch {
	case w.refused != nil:
		c.fail(&w.request, w.refused)
	case w.err == nil && w.has(flagFUA):
		c.syncAway(w.request)
	default:
		c.end(&w.request, w.err)
	}
	if len(c.spareWrites) < maxSpareWrites {
		c.spareWrites = append(c.spareWrites, w)
	}
}

// maxSpareWrites is how many writes a connection keeps to use again.
const maxSpareWrites = 16
