package overlay

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Map says which clusters of a disk are present in its store. It says so twice:
//
//   - The *states* are written when a cluster's data is in the page cache, and
//     stay in the page cache themselves. They survive the process, so in the
//     epoch in which they were written (as long as the kernel runs) they are
//     the truth.
//   - The *durable bitmap* is written, in commit, when the data is on the
//     medium. It survives a loss of power; in another epoch nothing else is
//     believed.
//
// What is durable is present, always; a map that says otherwise is damaged. No
// cluster ever becomes absent again.
//
// The states are written with write(2) and not through a shared mapping: a
// mapping answers a full file system or a bad sector with a signal that ends
// the process, and makes the thread that marks a cluster wait for the journal
// where Go's scheduler does not see it.
type Map struct {
	dev  blockdev.Device
	name string // of the file, for messages
	layout

	headMu sync.Mutex // guards the number and the epoch of head; nothing else of it changes
	head   fileHeader
	fresh  bool // made now: the store has not been written yet

	present set // clusters, as the states say
	durable set // clusters, as copy A of the pages says
	dirty   set // pages that present is ahead of, or whose copy A is bad

	// urgent: a flush may not be acknowledged before what is present is
	// durable. What only was copied from the base is not urgent: it would be
	// copied again.
	urgent atomic.Bool

	// The fields below belong to who commits, one at a time.

	seq       []uint64      // of the pages
	stale     set           // pages whose copy B is behind copy A
	unsynced  bool          // pages of an earlier process may not be on the medium
	mirroring chan struct{} // closed when the background work is over; nil: there is none
	syncErr   error         // of a sync that failed: nothing is believed any more
}

// stPresent is the state of a cluster that is in the store, 0 that of one that
// is not. Anything else is damage.
const stPresent = 0xc5

// CreateMap makes the file of a new map, all absent, at path, where there must
// be none. Nothing is synced. epoch names the time in which what is in the page
// cache stays there: the kernel's boot ID.
func CreateMap(path string, h Header, epoch string) (*Map, error) {
	l, err := layoutOf(h)
	if err != nil {
		return nil, err
	}
	dev, err := blockdev.CreateFile(path, l.size())
	if err != nil {
		return nil, err
	}
	m, err := createMap(dev, path, h, epoch)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return m, nil
}

// OpenMap opens the map at path. A map that is not whole is a *DamagedError.
func OpenMap(path, epoch string) (*Map, error) {
	dev, err := blockdev.OpenFile(path, blockdev.ReadWrite)
	if err != nil {
		return nil, err
	}
	m, err := openMap(dev, path, epoch)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return m, nil
}

func newMap(dev blockdev.Device, name string, head fileHeader, l layout) *Map {
	return &Map{dev: dev, name: name, layout: l, head: head,
		present: newSet(l.clusters), durable: newSet(l.clusters),
		dirty: newSet(l.pages), stale: newSet(l.pages), seq: make([]uint64, l.pages)}
}

// createMap makes a map in dev, which has the layout's size and is all zeros.
func createMap(dev blockdev.Device, name string, h Header, epoch string) (*Map, error) {
	l, err := layoutOf(h)
	if err != nil {
		return nil, err
	}
	m := newMap(dev, name, fileHeader{Header: h, seq: 1, epoch: epoch}, l)
	m.fresh = true
	if _, err := rand.Read(m.head.id[:]); err != nil {
		return nil, err
	}
	if err := m.writeHeader(copyA, copyB); err != nil {
		return nil, err
	}
	return m, m.writeEmpty()
}

// writeEmpty writes every page in both copies, so that one that is lost later
// shows.
func (m *Map) writeEmpty() error {
	const batch = 64 // pages in a write
	buf := make([]byte, min(batch, m.pages)*pageSize)
	for i := int64(0); i < m.pages; {
		n := min(batch, m.pages-i)
		for k := range n {
			m.seq[i+k] = 1
			encodePage(buf[k*pageSize:][:pageSize], m.head.id, i+k, 1, nil)
		}
		for _, c := range []copyOf{copyA, copyB} {
			if _, err := m.dev.WriteAt(buf[:n*pageSize], m.page(c, i)); err != nil {
				return err
			}
		}
		i += n
	}
	return nil
}

func (m *Map) writeHeader(copies ...copyOf) error {
	p := make([]byte, pageSize)
	if err := m.head.encode(p); err != nil {
		return err
	}
	for _, c := range copies {
		if _, err := m.dev.WriteAt(p, m.header(c)); err != nil {
			return err
		}
	}
	return nil
}

// Header tells what the map belongs to.
func (m *Map) Header() Header { return m.head.Header }

// Match returns a *MismatchError unless the map belongs to what h describes.
func (m *Map) Match(h Header) error {
	have := m.head.Header
	for _, f := range []struct {
		name      string
		have, got any
	}{
		{"base image", have.Base, h.Base},
		{"image format", have.Format, h.Format},
		{"image size", have.BaseSize, h.BaseSize},
		{"disk size", have.Size, h.Size},
		{"cluster size", have.ClusterSize, h.ClusterSize},
	} {
		if f.have != f.got {
			return &MismatchError{File: m.name, Field: f.name, Have: f.have, Got: f.got}
		}
	}
	return nil
}

// Complete reports whether every cluster is present: the disk can then be
// opened without its base.
func (m *Map) Complete() bool { return m.present.all(0, m.clusters) }

// origin is who makes a cluster present.
type origin uint8

const (
	fromBase  origin = iota // the content is the base's, and may become durable at any time
	fromGuest               // the guest's, who may ask for it to be durable
)

var presentStates = bytes.Repeat([]byte{stPresent}, 64<<10)

// mark makes the n clusters from first on present. Their data is in the store,
// and the caller holds their locks.
//
// The order matters: the state first, so that what a reader finds present stays
// so when the process dies; the page is dirty before a flush that follows is
// told that it is urgent.
func (m *Map) mark(first, n int64, o origin) error {
	if err := m.writeStates(first, n); err != nil {
		return err
	}
	m.present.add(first, n)
	m.soil(first, n, o)
	return nil
}

// soil has the pages of those clusters written at the next commit.
func (m *Map) soil(first, n int64, o origin) {
	p := first / pageClusters
	m.dirty.add(p, (first+n-1)/pageClusters-p+1)
	if o == fromGuest {
		m.urgent.Store(true)
	}
}

// writeStates writes the states of present clusters, of all of them or none.
func (m *Map) writeStates(first, n int64) error {
	for at := first; at < first+n; {
		k := min(first+n-at, int64(len(presentStates)))
		if _, err := m.dev.WriteAt(presentStates[:k], m.state(at)); err != nil {
			// Some may be written. A later process would believe them.
			if _, undo := m.dev.WriteAt(make([]byte, at+k-first), m.state(first)); undo != nil {
				m.distrust()
				return &fatalError{fmt.Errorf("cluster map: %w", errors.Join(err, undo))}
			}
			return fmt.Errorf("cluster map: %w", err)
		}
		at += k
	}
	return nil
}

// distrust makes the states worthless: a later process believes only what is
// durable. If it cannot be written there is nothing else to be done.
func (m *Map) distrust() {
	m.headMu.Lock()
	defer m.headMu.Unlock()
	m.head.epoch = ""
	m.head.seq++
	_ = m.writeHeader(copyA, copyB)
}

// Close ends the map's background work and closes its file. It commits nothing.
func (m *Map) Close() error {
	m.wait()
	return m.dev.Close()
}
