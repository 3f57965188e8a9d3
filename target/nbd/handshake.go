package nbd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
)

// handshake is what a client has negotiated so far.
type handshake struct {
	*conn
	ctx      context.Context // of the server
	noZeroes bool            // no padding behind the answer to EXPORT_NAME
	secure   bool            // STARTTLS is done
	options  int             // how many have come

	agreed negotiated // forgotten when TLS begins, "STARTTLS"
}

// negotiated is what options before GO have settled.
type negotiated struct {
	structured bool
	contextsOf string     // the export whose contexts are chosen
	contexts   contextSet // which
}

// Haggling of a sane client: a few options, and where there are several
// exports a few for each of them.
const (
	maxOptions       = 32
	optionsPerExport = 4
)

// errors that end a handshake.
var (
	errAborted     = errors.New("the client aborted")
	errManyOptions = errors.New("too many options")
)

// handshake is the first phase: it ends with an export and a place on it, or
// with an error.
func (c *conn) handshake(ctx context.Context) error {
	h := &handshake{conn: c, ctx: ctx}
	if err := h.greet(); err != nil {
		return err
	}
	most := maxOptions + optionsPerExport*len(c.srv.o.Exports)
	for done := false; !done; {
		if h.options++; h.options > most {
			return errManyOptions
		}
		opt, data, err := h.next()
		if err == nil {
			done, err = h.handle(opt, data)
		}
		if err == nil {
			err = h.send()
		}
		if err != nil {
			return errors.Join(err, h.abandon())
		}
	}
	return nil
}

// abandon gives back the place of a client that did not take the answer.
func (h *handshake) abandon() error {
	if h.release != nil {
		h.release()
		h.release = nil
	}
	return nil
}

// greet exchanges the flags, "Newstyle negotiation".
func (h *handshake) greet() error {
	b := binary.BigEndian.AppendUint64(nil, magicInit)
	b = binary.BigEndian.AppendUint64(b, magicOption)
	b = binary.BigEndian.AppendUint16(b, flagFixedNewstyle|flagNoZeroes)
	if _, err := h.nc.Write(b); err != nil {
		return err
	}
	p, err := h.take(4)
	if err != nil {
		return err
	}
	flags := binary.BigEndian.Uint32(p)
	if unknown := flags &^ (clientFixedNewstyle | clientNoZeroes); unknown != 0 {
		return fmt.Errorf("unknown client flags %#x", unknown)
	}
	h.noZeroes = flags&clientNoZeroes != 0
	return nil
}

// take returns the next n bytes from the client. They hold until the next take.
func (h *handshake) take(n int) ([]byte, error) {
	h.need = n
	for len(h.in.Bytes()) < n {
		if err := h.fill(); err != nil {
			return nil, err
		}
	}
	b := h.in.Bytes()[:n]
	h.in.Skip(n)
	return b, nil
}

// next reads an option. No client has use for more data than the limit, and
// nobody gets us to read it.
func (h *handshake) next() (option, []byte, error) {
	b, err := h.take(optHdrLen)
	if err != nil {
		return 0, nil, err
	}
	if m := optMagic.Get(b); m != magicOption {
		return 0, nil, fmt.Errorf("an option begins with %#016x", m)
	}
	opt, n := option(optNumber.Get(b)), optLen.Get(b)
	if n > maxOptionData {
		return 0, nil, fmt.Errorf("option %d with %d bytes of data, limit %d", opt, n, maxOptionData)
	}
	data, err := h.take(int(n))
	return opt, data, err
}

// reply appends an option reply.
func (h *handshake) reply(opt option, rep optionReply, data []byte) {
	b := h.out.Reserve(repHdrLen + len(data))
	repMagic.Put(b, magicReply)
	repOption.Put(b, uint32(opt))
	repType.Put(b, uint32(rep))
	repLen.Put(b, uint32(len(data)))
	copy(b[repHdrLen:], data)
	h.out.Commit(len(b))
}

// refuseOption answers with an error and words for people.
func (h *handshake) refuseOption(opt option, rep optionReply, why string) {
	h.reply(opt, rep, []byte(why))
}

// send sends the answers to an option.
func (h *handshake) send() error {
	if h.out.Empty() {
		return nil
	}
	return h.out.Flush(h.nc)
}
