// Package iscsi is an iSCSI target: RFC 7143 at error recovery level 0, with
// one connection a session and any number of sessions.
//
// The rooms within, from the wire inwards:
//
//	bhs.go, pdu_*.go   the bytes of a PDU: one view type for each kind
//	receive.go         PDUs out of what has arrived
//	digest.go          CRC32C
//	text.go            key=value text, parsed and formatted
//	keys.go, params.go the key table and the values it leads to
//	login.go, chap.go  the login phase
//	conn.go            one connection: the loop, and what it has received
//	send.go            one connection: what it sends
//	sequence.go        CmdSN, StatSN and the command window
//	command.go, …      full feature phase, one file a kind of request
//	session.go         who is logged in; reinstatement
//	server.go          what all sessions share; shutdown.go: how it ends
//
// # The loop
//
// One goroutine a connection parses everything that has arrived, executes
// inline what cannot block, and answers the whole batch with one write. What
// would block goes to a goroutine of its own (worker.go), which takes the
// connection's lock only to hand over its answer. Measured against a write for
// each response the batch nearly doubles the rate of small reads, and reading
// straight into the output buffer makes a response's payload move once. The
// buffers for that are target/wire's, as other protocols work in the same way.
//
// # Locks
//
// conn.mu is held by the connection's goroutine while it works on what it has
// received, and by a worker while it sends its answer. Server.mu guards the
// tables of sessions and connections; it is never held while waiting for a
// conn.mu, and no lock is held while waiting for a disk but conn.mu for the
// short inline requests.
//
// What this package deliberately does not do: error recovery levels 1 and 2
// (SNACK is rejected), several connections a session, markers, and names other
// than its one target.
package iscsi
