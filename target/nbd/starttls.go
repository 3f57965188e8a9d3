package nbd

import (
	"crypto/tls"
	"errors"
	"fmt"
)

// startTLS answers STARTTLS and begins TLS. Nothing that the client said before
// counts afterwards: somebody between us could have said it. For the same
// reason bytes that are here already, behind the option, end the connection: a
// client sends none before it has our answer.
func (h *handshake) startTLS(opt option, _ []byte) (bool, error) {
	switch {
	case h.secure:
		h.refuseOption(opt, repErrInvalid, "TLS has begun already")
		return false, nil
	case h.tls == TLSOff:
		h.refuseOption(opt, repErrUnsup, "TLS is not configured")
		return false, nil
	case len(h.in.Bytes()) > 0:
		return false, errors.New("data behind STARTTLS")
	}
	h.reply(opt, repAck, nil)
	if err := h.send(); err != nil {
		return false, err
	}
	t := tls.Server(h.raw, h.srv.o.TLS.config())
	if err := t.HandshakeContext(h.ctx); err != nil {
		h.srv.stats.refused.Add(1)
		return false, &refusal{repErrTLSReqd, fmt.Errorf("TLS: %w", err)}
	}
	h.nc, h.secure = t, true
	h.out.Solid = true
	h.agreed = negotiated{}
	return false, nil
}
