package nbd

import (
	"bytes"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target/wire"
)

// maxWhole is the longest read, bytes, whose answer is put together in the
// batch before any of it is sent.
const maxWhole = 1 << 20

// read answers a READ. The request is a value from here on: c.req is used
// again for the next one.
func (c *conn) read(r *request) {
	c.export.stats.reads.Add(1)
	c.export.stats.readBytes.Add(uint64(r.n))
	switch {
	case r.n == 0:
		c.succeed(r)
	case c.splits(r):
		c.readChunks(r)
	case r.n > maxWhole:
		c.readAway(*r, 0)
	default:
		switch err := c.readPiece(r, 0, r.n); {
		case err == blockdev.ErrWouldBlock:
			c.readAway(*r, 0)
		case err != nil:
			c.broke(r, err)
		}
	}
}

// splits reports whether the data of r may come in several chunks.
func (c *conn) splits(r *request) bool { return c.structured && !r.has(flagDF) }

// readChunks answers with as many chunks as it takes. Those that need waiting,
// and all behind them, are a worker's.
func (c *conn) readChunks(r *request) {
	for at := int64(0); at < r.n; at += wire.PieceSize {
		n := min(r.n-at, wire.PieceSize)
		switch err := c.readPiece(r, at, n); {
		case err == blockdev.ErrWouldBlock:
			c.readAway(*r, at)
			return
		case err != nil:
			c.broke(r, err)
			return
		}
	}
}

// readPiece reads [at, at+n) of r straight into the batch, or leaves nothing
// there and returns why.
func (c *conn) readPiece(r *request, at, n int64) error {
	hdr := c.dataHeaderLen()
	b := c.out.ReservePayload(hdr+int(n), hdr)
	if err := c.export.dev.TryReadAt(b[hdr:], r.off+at); err != nil {
		return err
	}
	c.commitData(r, b, at, n)
	return nil
}

// dataHeaderLen is the room that goes before the data of a read.
func (c *conn) dataHeaderLen() int {
	if c.structured {
		return chunkDataLen
	}
	return simpleLen
}

// commitData completes the reserved room b, which holds the data of [at, at+n)
// of r, and makes it part of the batch: as a chunk, or where there are none as
// the reply. Zeros go as a hole, which is all that a hole in a reply means.
func (c *conn) commitData(r *request, b []byte, at, n int64) {
	if !c.structured {
		simpleHeader(b, r.cookie, eOK)
		c.commit(len(b))
		return
	}
	flags := uint16(0)
	if at+n == r.n {
		flags = chunkFlagDone
	}
	if n >= minHole && isZero(b[chunkDataLen:]) {
		chunkHeader(b, r.cookie, chunkOffsetHole, flags, chunkHoleLen-chunkHdrLen)
		chunkOffset.Put(b, uint64(r.off+at))
		chunkHole.Put(b, uint32(n))
		c.commit(chunkHoleLen)
		return
	}
	chunkHeader(b, r.cookie, chunkOffsetData, flags, chunkDataLen-chunkHdrLen+int(n))
	chunkOffset.Put(b, uint64(r.off+at))
	c.commit(len(b))
}

// minHole is the number of zeros, bytes, from which a hole is shorter by more
// than it costs to look.
const minHole = 512

var zeros [64 << 10]byte

// isZero stops at the first difference: data costs it next to nothing.
func isZero(p []byte) bool {
	for len(p) > 0 {
		n := min(len(p), len(zeros))
		if !bytes.Equal(p[:n], zeros[:n]) {
			return false
		}
		p = p[n:]
	}
	return true
}

// readAway gives what is left of a read, from at on, to a worker.
func (c *conn) readAway(r request, at int64) {
	cost := min(r.n-at, wire.PieceSize)
	c.away(cost, func() {
		buf := piece(cost)
		defer wire.FreePiece(buf)
		switch {
		case c.splits(&r):
			c.readChunksAway(&r, at, buf)
		case r.n <= int64(len(buf)):
			c.readWholeAway(&r, buf)
		default:
			c.readTwice(&r, buf)
		}
	})
}

// piece returns a buffer of at least n bytes, at most wire.PieceSize.
func piece(n int64) []byte {
	if n <= smallRead {
		return make([]byte, n)
	}
	return wire.Piece()
}

// smallRead is the size in bytes up to which a read that waits for the disk
// gets a buffer of its own size.
const smallRead = 16 << 10

// readChunksAway sends a chunk for each buffer full.
func (c *conn) readChunksAway(r *request, at int64, buf []byte) {
	for at < r.n {
		p := buf[:min(r.n-at, int64(len(buf)))]
		_, err := c.export.dev.ReadAt(p, r.off+at)
		c.mu.Lock()
		if err != nil {
			c.broke(r, err)
		} else {
			c.copyData(r, p, at)
		}
		c.flush()
		c.mu.Unlock()
		if err != nil {
			return
		}
		at += int64(len(p))
	}
}

// copyData puts p, the data of r from at on, into the batch.
func (c *conn) copyData(r *request, p []byte, at int64) {
	hdr := c.dataHeaderLen()
	b := c.out.ReservePayload(hdr+len(p), hdr)
	copy(b[hdr:], p)
	c.commitData(r, b, at, int64(len(p)))
}

// readWholeAway sends a read of one buffer full.
func (c *conn) readWholeAway(r *request, buf []byte) {
	p := buf[:r.n]
	_, err := c.export.dev.ReadAt(p, r.off)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.broke(r, err)
	} else {
		c.copyData(r, p, 0)
	}
	c.flush()
}

// readTwice sends a read that is longer than a buffer and may not be split:
// once its header is out, its data must follow without a gap and without a
// failure. So it is read first, to find out whether it can be, and that brings
// it to memory; then again, to be sent, while other answers wait.
func (c *conn) readTwice(r *request, buf []byte) {
	for at := int64(0); at < r.n; at += int64(len(buf)) {
		p := buf[:min(r.n-at, int64(len(buf)))]
		if _, err := c.export.dev.ReadAt(p, r.off+at); err != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.broke(r, err)
			c.flush()
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wholeHeader(r)
	for at := int64(0); at < r.n && c.broken == nil; at += int64(len(buf)) {
		p := c.out.ReservePayload(int(min(r.n-at, int64(len(buf)))), 0)
		if _, err := c.export.dev.ReadAt(p, r.off+at); err != nil {
			c.export.stats.errors.Add(1)
			c.breakOff(err) // no other way is left to tell
			return
		}
		c.out.Commit(len(p))
		c.flush()
	}
}

// wholeHeader begins the reply to r whose data follows.
func (c *conn) wholeHeader(r *request) {
	b := c.out.Reserve(c.dataHeaderLen())
	if c.structured {
		chunkHeader(b, r.cookie, chunkOffsetData, chunkFlagDone, chunkDataLen-chunkHdrLen+int(r.n))
		chunkOffset.Put(b, uint64(r.off))
	} else {
		simpleHeader(b, r.cookie, eOK)
	}
	c.out.Commit(len(b))
}
