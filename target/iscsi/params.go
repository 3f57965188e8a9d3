package iscsi

import "github.com/containerdisk/containerdisk/target/wire"

// What this target offers, and what holds before anything is negotiated.
const (
	ourMaxRecvSegment = wire.PieceSize // MaxRecvDataSegmentLength, bytes, both ways at most
	ourMaxBurst       = 1 << 20
	ourFirstBurst     = 256 << 10
	ourMaxR2T         = 4

	defaultMaxRecvSegment = 8192 // §13.12
	defaultMaxBurst       = 262144
	defaultFirstBurst     = 65536

	maxSegment = 1<<24 - 1 // the largest length that any key can take
	minSegment = 512

	portalGroupTag = "1"
	protocolLevel  = 1 // RFC 7143; 2 would be RFC 7144
)

// params are the values in force on a connection and its session.
type params struct {
	headerDigest, dataDigest bool

	// maxSend is the initiator's MaxRecvDataSegmentLength, bytes.
	maxSend uint32

	initialR2T, immediateData bool
	maxBurst, firstBurst      uint32 // bytes
	maxR2T                    uint32
}

// defaults are the values of a login that negotiates nothing, RFC 7143 §13.
func defaults() params {
	return params{
		maxSend:       defaultMaxRecvSegment,
		initialR2T:    true,
		immediateData: true,
		maxBurst:      defaultMaxBurst,
		firstBurst:    defaultFirstBurst,
		maxR2T:        1,
	}
}
