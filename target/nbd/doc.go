// Package nbd serves disks over the NBD protocol, as its document describes it
// for a server: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md.
// Citations name its headings.
//
// A connection has two phases, and one goroutine for both.
//
// The handshake (handshake.go, options.go, metacontext.go, starttls.go) is slow
// and small: one option after the other, all of it within one deadline. A
// client is counted, and may touch a disk, only once a GO or EXPORT_NAME has
// succeeded.
//
// The transmission (transmit.go) is the loop that all wires here have: work
// through everything that has arrived, do at once what needs no waiting, give
// the rest to goroutines of its own (worker.go), send all answers in one write,
// wait for more. Payload moves once: a read goes from the disk into the batch
// of answers, a write from the receive buffer to the disk. No payload is ever
// held as a whole, however large: it goes in pieces of at most wire.PieceSize.
//
// What an answer looks like depends on what was negotiated. With structured
// replies a read is a row of chunks, and an error in its middle can be told.
// Without, its header with "no error" goes first and the data has to follow:
// such a read is either in the batch as a whole before anything is sent, or is
// read twice, first to see whether it can be (worker.go).
//
// Flushes go to the device, which is the same for all connections: that is why
// CAN_MULTI_CONN is true.
//
// What is left out: EXTENDED_HEADERS (an extension that no client here speaks:
// refused with ERR_UNSUP) and RESIZE (a draft).
package nbd
