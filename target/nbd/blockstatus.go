package nbd

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/target/wire"
)

const (
	descriptorLen = 8 // length, status flags
	contextIDLen  = 4

	// chunkRoom is what the payload of one context's chunk may take, bytes: all
	// of them together fill a worker's buffer.
	chunkRoom = wire.PieceSize / len(metaContexts)

	// maxDescriptors is how many one chunk has. The client asks again for the
	// rest of its range.
	maxDescriptors = (chunkRoom - contextIDLen) / descriptorLen

	// maxDescribed is the longest that a descriptor tells of, bytes: a round
	// number that its 32 bits hold.
	maxDescribed = 1 << 31
)

// blockStatus answers a BLOCK_STATUS: a chunk for each context that was
// chosen, or an error when one of them cannot be told.
func (c *conn) blockStatus(r *request) {
	q := *r
	c.away(wire.PieceSize, func() {
		buf := wire.Piece()
		defer wire.FreePiece(buf)
		lists, err := c.describe(buf, &q)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			c.broke(&q, err)
		} else {
			c.statusChunks(&q, lists)
		}
		c.flush()
	})
}

// describe makes the payloads of the chunks in buf.
func (c *conn) describe(buf []byte, r *request) (lists [][]byte, err error) {
	for i, m := range metaContexts {
		if !c.contexts.has(i) {
			continue
		}
		room := buf[i*chunkRoom:][:0:chunkRoom]
		list, err := m.describe(binary.BigEndian.AppendUint32(room, uint32(i+1)), c.export, r)
		if err != nil {
			return nil, err
		}
		lists = append(lists, list)
	}
	return lists, nil
}

func (c *conn) statusChunks(r *request, lists [][]byte) {
	for i, list := range lists {
		flags := uint16(0)
		if i == len(lists)-1 {
			flags = chunkFlagDone
		}
		b := c.out.Reserve(chunkHdrLen + len(list))
		chunkHeader(b, r.cookie, chunkBlockStatus, flags, len(list))
		copy(b[chunkHdrLen:], list)
		c.commit(len(b))
	}
}

// describe appends the descriptors of the range, at least one and none reaching
// beyond it. An error behind the first descriptor only cuts the list.
func (m *metaContext) describe(list []byte, e *Export, r *request) ([]byte, error) {
	most := maxDescriptors
	if r.has(flagReqOne) {
		most = 1
	}
	n := 0
	for x, err := range m.runs(e, r.off, r.n) {
		if err != nil && n == 0 {
			return nil, err
		}
		if err != nil {
			break
		}
		for x.n > 0 && n < most {
			k := min(x.n, maxDescribed)
			list = binary.BigEndian.AppendUint32(list, uint32(k))
			list = binary.BigEndian.AppendUint32(list, x.flags)
			x.n -= k
			n++
		}
		if n == most {
			break
		}
	}
	return list, nil
}
