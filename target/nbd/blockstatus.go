package nbd

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target/wire"
)

const (
	descriptorLen = 8 // length, status flags

	// maxDescriptors is how many one reply has: a worker's buffer full. The
	// client asks again for the rest of its range.
	maxDescriptors = (wire.PieceSize - contextIDLen) / descriptorLen
	contextIDLen   = 4

	// maxDescribed is the longest that a descriptor tells of, bytes: a round
	// number that its 32 bits hold.
	maxDescribed = 1 << 31
)

// blockStatus answers a BLOCK_STATUS for the one context that there is.
func (c *conn) blockStatus(r *request) {
	q := *r
	c.away(wire.PieceSize, func() {
		buf := wire.Piece()
		defer wire.FreePiece(buf)
		list, err := describe(buf[:0], c.export.dev, &q)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			c.broke(&q, err)
		} else {
			c.statusChunk(&q, list)
		}
		c.flush()
	})
}

func (c *conn) statusChunk(r *request, list []byte) {
	b := c.out.Reserve(chunkHdrLen + len(list))
	chunkHeader(b, r.cookie, chunkBlockStatus, chunkFlagDone, len(list))
	copy(b[chunkHdrLen:], list)
	c.commit(len(b))
}

// describe appends the payload of the chunk: the context's number and the
// descriptors of the range, at least one and none reaching beyond it. An error
// behind the first descriptor only cuts the list.
func describe(list []byte, disk blockdev.Source, r *request) ([]byte, error) {
	most := maxDescriptors
	if r.has(flagReqOne) {
		most = 1
	}
	list = binary.BigEndian.AppendUint32(list, allocationID)
	n := 0
	for e, err := range disk.Extents(r.off, r.n) {
		if err != nil && n == 0 {
			return nil, err
		}
		if err != nil {
			break
		}
		for e.Len > 0 && n < most {
			k := min(e.Len, maxDescribed)
			list = binary.BigEndian.AppendUint32(list, uint32(k))
			list = binary.BigEndian.AppendUint32(list, stateOf(e.Kind))
			e.Len -= k
			n++
		}
		if n == most {
			break
		}
	}
	return list, nil
}

// stateOf is the status of base:allocation.
func stateOf(k blockdev.ExtentKind) uint32 {
	switch k {
	case blockdev.Hole:
		return stateHole | stateZero
	case blockdev.Zero:
		return stateZero
	case blockdev.Data:
	}
	return 0
}
