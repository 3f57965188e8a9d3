// Package client has the simplest client of each wire, for tests and
// measurements that must know exactly what was asked and when it was answered.
package client

import "time"

// SectorSize is the unit in which disks are addressed over iSCSI, in bytes.
const SectorSize = 512

// Disk is a disk over either wire, one request at a time. An error that is an
// Answer is the server's word on that request; any other is the connection's
// end.
type Disk interface {
	Read(off int64, p []byte) error
	Write(off int64, p []byte, how Durability) error
	Zero(off, n int64, how Durability) error
	Trim(off, n int64) error
	Flush() error
	Close() error
}

// Durability is what a change asks for.
type Durability int

const (
	Cached       Durability = iota
	ThroughCache            // FUA
)

// Answer is a request that the server answered with an error.
type Answer struct{ what string }

func (e Answer) Error() string { return e.what }

// ReplyLimit is how long a request may take before the server counts as hung.
const ReplyLimit = 30 * time.Second
