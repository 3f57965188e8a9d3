package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
)

// optionRow is one option of the handshake.
type optionRow struct {
	plain  bool // allowed before TLS where TLS is required
	noData bool // data make it invalid
	// run answers the option. done ends the handshake with success.
	run func(h *handshake, opt option, data []byte) (done bool, err error)
}

// options are those that we know. ABORT's data are ignored, as the document
// wants it.
var options = [...]optionRow{
	optExportName:      {run: (*handshake).exportName},
	optAbort:           {run: (*handshake).abort, plain: true},
	optList:            {run: (*handshake).list, noData: true},
	optStartTLS:        {run: (*handshake).startTLS, noData: true, plain: true},
	optInfo:            {run: (*handshake).infoOrGo},
	optGo:              {run: (*handshake).infoOrGo},
	optStructuredReply: {run: (*handshake).structuredReply, noData: true},
	optListMetaContext: {run: (*handshake).metaContext},
	optSetMetaContext:  {run: (*handshake).metaContext},
}

// handle answers an option. An error ends the connection.
func (h *handshake) handle(opt option, data []byte) (done bool, err error) {
	known := int64(opt) < int64(len(options)) && options[opt].run != nil
	mustTLS := h.tls == TLSRequire && !h.secure
	switch {
	case mustTLS && opt == optExportName:
		return false, errors.New("EXPORT_NAME before STARTTLS") // cannot be answered with an error
	case mustTLS && !(known && options[opt].plain):
		h.refuseOption(opt, repErrTLSReqd, "STARTTLS comes first")
		return false, nil
	case !known:
		h.refuseOption(opt, repErrUnsup, "option not supported")
		return false, nil
	case options[opt].noData && len(data) > 0:
		h.refuseOption(opt, repErrInvalid, "the option has no data")
		return false, nil
	}
	return options[opt].run(h, opt, data)
}

func (h *handshake) abort(opt option, _ []byte) (bool, error) {
	h.reply(opt, repAck, nil)
	_ = h.send() // the client may be gone already
	return false, errAborted
}

func (h *handshake) structuredReply(opt option, _ []byte) (bool, error) {
	h.agreed.structured = true
	h.reply(opt, repAck, nil)
	return false, nil
}

// list tells the names. The default export is one of them.
func (h *handshake) list(opt option, _ []byte) (bool, error) {
	for _, e := range h.srv.o.Exports {
		b := appendString(nil, e.name)
		h.reply(opt, repServer, append(b, e.description...))
	}
	h.reply(opt, repAck, nil)
	return false, nil
}

// exportName is GO without the possibility of an error, "EXPORT_NAME".
func (h *handshake) exportName(_ option, data []byte) (bool, error) {
	if len(data) > maxString {
		return false, fmt.Errorf("export name of %d bytes", len(data))
	}
	e := h.srv.find(string(data))
	if e == nil {
		return false, fmt.Errorf("no export %q", data)
	}
	if why := h.enter(e); why != nil {
		return false, why
	}
	const padding = 124
	b := h.out.Reserve(10 + padding)
	clear(b)
	binary.BigEndian.PutUint64(b, uint64(e.size))
	binary.BigEndian.PutUint16(b[8:], e.flags(h.agreed.structured))
	if h.noZeroes {
		b = b[:10]
	}
	h.out.Commit(len(b))
	return true, nil
}

// enter gives the client a place at e and settles what was negotiated.
func (h *handshake) enter(e *Export) *refusal {
	if h.peer == "" {
		return &refusal{repErrPlatform, errNoPeer}
	}
	release, why := h.srv.admit(h.ctx, named(h.peer, h.nc))
	if why != nil {
		return why
	}
	h.export, h.release = e, release
	h.conn.structured = h.agreed.structured
	if h.srv.find(h.agreed.contextsOf) == e {
		h.conn.contexts = h.agreed.contexts
	}
	return nil
}

var errNoPeer = errors.New("the system does not tell who the client is")

// infoOrGo answers INFO and GO, which differ in their end only.
func (h *handshake) infoOrGo(opt option, data []byte) (bool, error) {
	name, wanted, ok := parseInfo(data)
	if !ok {
		h.refuseOption(opt, repErrInvalid, "malformed option")
		return false, nil
	}
	e := h.srv.find(name)
	if e == nil {
		h.refuseOption(opt, repErrUnknown, "no such export")
		return false, nil
	}
	if opt == optGo {
		if why := h.enter(e); why != nil {
			h.log.Warn("refused", "reason", why.Error())
			h.refuseOption(opt, why.reply, why.Error())
			return false, nil
		}
	}
	h.infos(opt, e, wanted)
	h.reply(opt, repAck, nil)
	return opt == optGo, nil
}

// infos tells about e: its size and block sizes always, the rest when asked
// for. What we do not know is ignored, as the document wants it.
func (h *handshake) infos(opt option, e *Export, wanted []byte) {
	b := binary.BigEndian.AppendUint16(nil, uint16(infoExport))
	b = binary.BigEndian.AppendUint64(b, uint64(e.size))
	h.reply(opt, repInfo, binary.BigEndian.AppendUint16(b, e.flags(h.agreed.structured)))

	b = binary.BigEndian.AppendUint16(nil, uint16(infoBlockSize))
	b = binary.BigEndian.AppendUint32(b, minBlock)
	b = binary.BigEndian.AppendUint32(b, uint32(max(e.caps.PhysicalBlock, preferredBlock)))
	h.reply(opt, repInfo, binary.BigEndian.AppendUint32(b, maxPayload))

	told := map[infoType]bool{}
	for ; len(wanted) > 0; wanted = wanted[2:] {
		t := infoType(binary.BigEndian.Uint16(wanted))
		text := map[infoType]string{infoName: e.name, infoDescription: e.description}[t]
		if told[t] || text == "" {
			continue
		}
		told[t] = true
		b := binary.BigEndian.AppendUint16(nil, uint16(t))
		h.reply(opt, repInfo, append(b, text...))
	}
}

// Block sizes, bytes: any request is served, but whole pages are served best.
const (
	minBlock       = 1
	preferredBlock = 4096
)

// parseInfo reads the data of INFO and GO: a name, and the types of information
// wanted, two bytes each.
func parseInfo(data []byte) (name string, wanted []byte, ok bool) {
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 2 {
		return "", nil, false
	}
	n := int(binary.BigEndian.Uint16(rest))
	rest = rest[2:]
	return name, rest, len(rest) == 2*n
}

// cutString reads a string with its length before it, "Conventions".
func cutString(b []byte) (s string, rest []byte, ok bool) {
	if len(b) < 4 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if n > maxString || int(n) > len(b)-4 {
		return "", nil, false
	}
	s = string(b[4 : 4+n])
	return s, b[4+n:], utf8.ValidString(s)
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}
