package nbd

import "encoding/binary"

// The one metadata context that we have, and the number that it gets.
const (
	allocationName         = "base:allocation"
	allocationSpace        = "base:" // asks LIST for all of the name space
	allocationID    uint32 = 1
)

// metaContext answers LIST_META_CONTEXT and SET_META_CONTEXT. A SET forgets an
// earlier one even when it fails. What is not known is no error: it selects
// nothing.
func (h *handshake) metaContext(opt option, data []byte) (bool, error) {
	set := opt == optSetMetaContext
	if set {
		h.agreed.contexts, h.agreed.allocation = "", false
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
	if asksAllocation(set, queries) {
		id := uint32(0) // reserved in the answer to LIST
		if set {
			h.agreed.contexts, h.agreed.allocation = name, true
			id = allocationID
		}
		h.reply(opt, repMetaContext, append(binary.BigEndian.AppendUint32(nil, id), allocationName...))
	}
	h.reply(opt, repAck, nil)
	return false, nil
}

// asksAllocation reports whether one of the queries selects base:allocation. No
// query asks LIST for everything.
func asksAllocation(set bool, queries []string) bool {
	if !set && len(queries) == 0 {
		return true
	}
	for _, q := range queries {
		if q == allocationName || !set && q == allocationSpace {
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
