package nbd

import "encoding/binary"

// All replies are made here. conn.mu is held: it keeps them whole.

// commit makes n bytes of reserved room part of the batch, and sends the batch
// when that is large.
func (c *conn) commit(n int) {
	c.out.Commit(n)
	if c.out.Full() {
		c.flush()
	}
}

// simple appends a simple reply without data.
func (c *conn) simple(cookie uint64, e errno) {
	simpleHeader(c.out.Reserve(simpleLen), cookie, e)
	c.commit(simpleLen)
}

func simpleHeader(b []byte, cookie uint64, e errno) {
	b = b[:simpleLen]
	simpleMagic.Put(b, magicSimple)
	simpleError.Put(b, uint32(e))
	simpleCookie.Put(b, cookie)
}

// chunkHeader writes the header of a chunk with n bytes of payload.
func chunkHeader(b []byte, cookie uint64, kind chunkType, flags uint16, n int) {
	b = b[:chunkHdrLen]
	chunkMagic.Put(b, magicChunk)
	chunkFlags.Put(b, flags)
	chunkKind.Put(b, uint16(kind))
	chunkCookie.Put(b, cookie)
	chunkLength.Put(b, uint32(n))
}

// wantsChunks reports whether the reply to r must be structured: those with a
// payload must, once structured replies are negotiated.
func (c *conn) wantsChunks(r *request) bool {
	return c.structured && (r.cmd == cmdRead || r.cmd == cmdBlockStatus)
}

// succeed answers r without data.
func (c *conn) succeed(r *request) {
	if !c.wantsChunks(r) {
		c.simple(r.cookie, eOK)
		return
	}
	chunkHeader(c.out.Reserve(chunkHdrLen), r.cookie, chunkNone, chunkFlagDone, 0)
	c.commit(chunkHdrLen)
}

// fail answers r with an error.
func (c *conn) fail(r *request, f *failure) {
	if !c.wantsChunks(r) {
		c.simple(r.cookie, f.errno)
		return
	}
	n := 4 + 2 + len(f.text) // error, length of the message, message
	b := c.out.Reserve(chunkHdrLen + n)
	chunkHeader(b, r.cookie, chunkError, chunkFlagDone, n)
	p := b[chunkHdrLen:]
	binary.BigEndian.PutUint32(p, uint32(f.errno))
	binary.BigEndian.PutUint16(p[4:], uint16(len(f.text)))
	copy(p[6:], f.text)
	c.commit(chunkHdrLen + n)
}

// broke counts an error of the device and answers with it.
func (c *conn) broke(r *request, err error) {
	c.export.stats.errors.Add(1)
	c.fail(r, failureOf(err))
}

// end answers r with what came of it.
func (c *conn) end(r *request, err error) {
	if err != nil {
		c.broke(r, err)
		return
	}
	c.succeed(r)
}
