package target

import (
	"fmt"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// AccessMode says how many clients may use the disks at a time, and how. It
// counts the clients of all wires together.
type AccessMode uint8

const (
	// WriteExclusive lets one client in at a time. The same client may come
	// again while it is there: over a second path, or to take the place of a
	// session that it has lost.
	WriteExclusive AccessMode = iota
	// WriteShared lets any number in, all of them writing: guests with a
	// cluster file system, or the two ends of a live migration.
	WriteShared
	// ReadShared lets any number in, and none of them may write.
	ReadShared
)

func (m AccessMode) String() string {
	switch m {
	case WriteExclusive:
		return "write-exclusive"
	case WriteShared:
		return "write-shared"
	case ReadShared:
		return "read-shared"
	}
	return fmt.Sprintf("AccessMode(%d)", uint8(m))
}

// ParseAccessMode is the inverse of String.
func ParseAccessMode(s string) (AccessMode, error) {
	for m := WriteExclusive; m <= ReadShared; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%q is not an access mode: write-exclusive, write-shared or read-shared", s)
}

// Disk is the access to the disks that the mode leaves.
func (m AccessMode) Disk() blockdev.Access {
	if m == ReadShared {
		return blockdev.ReadOnly
	}
	return blockdev.ReadWrite
}

// Clients counts who uses the disks, and refuses whom the mode does not let
// in.
type Clients struct {
	mode AccessMode

	mu    sync.Mutex     // guards inUse
	inUse map[string]int // sessions or connections by client
}

// NewClients returns an empty count.
func NewClients(mode AccessMode) *Clients {
	return &Clients{mode: mode, inUse: make(map[string]int)}
}

// InUseError is why a client is refused while another is there.
type InUseError struct{ Holder string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("the disk is in use by %s, and the access mode is %s", e.Holder, WriteExclusive)
}

// Admit lets a client in or tells who is in its way. release takes it out
// again; it may be called more than once.
func (c *Clients) Admit(client string) (release func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mode == WriteExclusive {
		for holder := range c.inUse {
			if holder != client {
				return nil, &InUseError{holder}
			}
		}
	}
	c.inUse[client]++
	return sync.OnceFunc(func() { c.leave(client) }), nil
}

func (c *Clients) leave(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inUse[client]--; c.inUse[client] == 0 {
		delete(c.inUse, client)
	}
}

// Count is the number of clients that are in.
func (c *Clients) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.inUse)
}
