package nbd

import (
	"encoding/binary"
	"iter"
	"strings"

	"github.com/containerdisk/containerdisk/blockdev"
)

// metaContext is one thing that BLOCK_STATUS can tell of a range.
type metaContext struct {
	name string
	// runs is what it tells: in order, without gaps, clipped to the range. An
	// error ends it.
	runs func(e *Export, off, n int64) iter.Seq2[run, error]
}

// run is a stretch of n bytes with the same status flags.
type run struct {
	n     int64
	flags uint32
}

// metaContexts are those that we have. A context's number is its place here
// plus one, for 0 is reserved.
var metaContexts = [...]metaContext{
	{"base:allocation", (*Export).allocation},
	{"containerdisk:hydration", (*Export).hydrated},
}

// contextSet is a set of places in metaContexts.
type contextSet uint8

func (s contextSet) has(i int) bool { return s>>i&1 == 1 }

// allocation is base:allocation: what the disk holds.
func (e *Export) allocation(off, n int64) iter.Seq2[run, error] {
	return func(yield func(run, error) bool) {
		for x, err := range e.dev.Extents(off, n) {
			if !yield(run{x.Len, allocationFlags(x.Kind)}, err) {
				return
			}
		}
	}
}

func allocationFlags(k blockdev.ExtentKind) uint32 {
	switch k {
	case blockdev.Hole:
		return stateHole | stateZero
	case blockdev.Zero:
		return stateZero
	case blockdev.Data:
	}
	return 0
}

// hydrated is containerdisk:hydration: which part still comes from the image.
func (e *Export) hydrated(off, n int64) iter.Seq2[run, error] {
	return func(yield func(run, error) bool) {
		if e.hydration == nil {
			yield(run{n, 0}, nil)
			return
		}
		for k, local := range e.hydration(off, n) {
			flags := stateRemote
			if local {
				flags = 0
			}
			if !yield(run{k, flags}, nil) {
				return
			}
		}
	}
}

// metaContext answers LIST_META_CONTEXT and SET_META_CONTEXT. A SET forgets an
// earlier one even when it fails. What is not known is no error: it selects
// nothing.
func (h *handshake) metaContext(opt option, data []byte) (bool, error) {
	set := opt == optSetMetaContext
	if set {
		h.agreed.contextsOf, h.agreed.contexts = "", 0
	}
	name, queries, ok := parseQueries(data)
	switch {
	case !h.agreed.structured:
		h.refuseOption(opt, repErrInvalid, "STRUCTURED_REPLY comes first")
		return false, nil
	case !ok:
		h.refuseOption(opt, repErrInvalid, "malformed option")
		return false, nil
	case h.srv.find(name) == nil:
		h.refuseOption(opt, repErrUnknown, "no such export")
		return false, nil
	}
	for i, m := range metaContexts {
		if !m.selected(set, queries) {
			continue
		}
		id := uint32(0) // reserved in the answer to LIST
		if set {
			id = uint32(i + 1)
			h.agreed.contextsOf, h.agreed.contexts = name, h.agreed.contexts|1<<i
		}
		h.reply(opt, repMetaContext, append(binary.BigEndian.AppendUint32(nil, id), m.name...))
	}
	h.reply(opt, repAck, nil)
	return false, nil
}

// selected reports whether one of the queries selects the context. LIST also
// takes the name of a space, with its colon, and without any query tells all.
func (m *metaContext) selected(set bool, queries []string) bool {
	if !set && len(queries) == 0 {
		return true
	}
	space := m.name[:strings.IndexByte(m.name, ':')+1]
	for _, q := range queries {
		if q == m.name || !set && q == space {
			return true
		}
	}
	return false
}

// parseQueries reads the data of the two options: an export's name and a list
// of queries.
func parseQueries(data []byte) (name string, queries []string, ok bool) {
	name, rest, ok := cutString(data)
	if !ok || len(rest) < 4 {
		return "", nil, false
	}
	n := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	if int64(n) > int64(len(rest)/4) { // each has its length at least
		return "", nil, false
	}
	for range n {
		var q string
		if q, rest, ok = cutString(rest); !ok {
			return "", nil, false
		}
		queries = append(queries, q)
	}
	return name, queries, len(rest) == 0
}
