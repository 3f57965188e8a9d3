package iscsi

import (
	"errors"
	"fmt"

	"github.com/containerdisk/containerdisk/target/wire"
)

var errHeaderDigest = errors.New("header digest error")

// receiver holds what has arrived and is not handled yet. It belongs to the
// connection's goroutine.
type receiver struct {
	wire.In
	need int // bytes that the next PDU takes, as far as known

	maxData                  int // the most that a data segment may have, bytes
	headerDigest, dataDigest bool
}

// next returns the next PDU that has arrived as a whole, or ok false when more
// must be read. An error means that the stream cannot be followed any more.
func (in *receiver) next() (p pdu, ok bool, err error) {
	b := in.Bytes()
	if len(b) < bhsLen {
		in.need = bhsLen
		return pdu{}, false, nil
	}
	h := (*BHS)(b)
	if n := h.dataLen(); n > in.maxData {
		return pdu{}, false, fmt.Errorf("%s with a data segment of %d bytes, limit %d", h.opcode(), n, in.maxData)
	}
	ahsEnd := bhsLen + h.ahsLen()
	dataStart := ahsEnd + lenIf(in.headerDigest)
	dataEnd := dataStart + h.dataLen()
	end := dataEnd + padding(h.dataLen())
	hasDigest := in.dataDigest && h.dataLen() > 0 // §11.2.4: no data, no digest
	total := end + lenIf(hasDigest)
	if len(b) < total {
		in.need = total
		return pdu{}, false, nil
	}
	// A header that is wrong leaves the length of the PDU in doubt: §7.8.
	if in.headerDigest && !checkDigest(b[ahsEnd:dataStart], b[:ahsEnd]) {
		return pdu{}, false, errHeaderDigest
	}
	in.Skip(total)
	return pdu{
		BHS:     h,
		ahs:     b[bhsLen:ahsEnd],
		data:    b[dataStart:dataEnd:dataEnd],
		badData: hasDigest && !checkDigest(b[end:total], b[dataStart:end]),
	}, true, nil
}
