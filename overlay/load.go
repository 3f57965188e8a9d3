package overlay

import (
	"errors"
	"fmt"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/be"
)

// Opening a map that was made before.
//
//	epoch      what is present          what is durable
//	the same   the states               nothing yet: the pages may not be on the medium
//	another    the durable bitmap       the same; the states are written anew from it
//
// A page of the bitmap is the one of its two copies that is whole and has the
// higher number. Copy A is ahead between a commit and the end of its background
// work; copy B is, when the medium lost a write to copy A.

func openMap(dev blockdev.Device, name, epoch string) (*Map, error) {
	head, err := loadHeader(dev)
	if v := (*versionError)(nil); errors.As(err, &v) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	damaged := func(part string, err error) error {
		if err == nil || errors.As(err, new(*blockdev.Error)) {
			return err // it could not be read: that says nothing about what it holds
		}
		return &DamagedError{File: name, Part: part, Err: err}
	}
	if err != nil {
		return nil, damaged("header", err)
	}
	l, err := layoutOf(head.Header)
	if err == nil && dev.Size() != l.size() {
		err = fmt.Errorf("the file has %d bytes and should have %d", dev.Size(), l.size())
	}
	if err != nil {
		return nil, damaged("header", err)
	}
	m := newMap(dev, name, head, l)
	if err := m.loadPages(); err != nil {
		return nil, damaged("durable bitmap", err)
	}
	if epoch == "" || head.epoch != epoch {
		return m, m.beginEpoch(epoch)
	}
	if err := m.loadStates(); err != nil {
		return nil, damaged("states", err)
	}
	// What the pages say holds, but the process that wrote them may not have
	// lived to sync them.
	m.unsynced = true
	m.urgent.Store(true)
	return m, nil
}

// loadHeader reads the copy of the header that holds.
func loadHeader(dev blockdev.Device) (best fileHeader, err error) {
	if dev.Size() < 2*pageSize {
		return best, fmt.Errorf("the file has only %d bytes", dev.Size())
	}
	var errs [2]error
	p := make([]byte, pageSize)
	for c := range errs {
		if _, err := dev.ReadAt(p, (layout{}).header(copyOf(c))); err != nil {
			return best, err
		}
		var h fileHeader
		if h, errs[c] = decodeHeader(p); errs[c] == nil && h.seq >= best.seq {
			best = h
		}
	}
	if errs[copyA] != nil && errs[copyB] != nil {
		return best, errs[copyA]
	}
	return best, nil
}

// loadPages reads the durable bitmap.
func (m *Map) loadPages() error {
	const batch = 64 // pages in a read
	n := min(batch, m.pages)
	a, b := make([]byte, n*pageSize), make([]byte, n*pageSize)
	for i := int64(0); i < m.pages; i += n {
		n := min(n, m.pages-i)
		for c, p := range [][]byte{a, b} {
			if _, err := m.dev.ReadAt(p[:n*pageSize], m.page(copyOf(c), i)); err != nil {
				return err
			}
		}
		for k := range n {
			if err := m.loadPage(i+k, a[k*pageSize:][:pageSize], b[k*pageSize:][:pageSize]); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadPage takes the better copy of page i, and notes if the other one must be
// written.
func (m *Map) loadPage(i int64, a, b []byte) error {
	seqA, okA := decodePage(a, m.head.id, i)
	seqB, okB := decodePage(b, m.head.id, i)
	good := a
	switch {
	case !okA && !okB:
		return fmt.Errorf("both copies of page %d, which has the clusters from %d on, are bad", i, i*pageClusters)
	case okA && okB && seqA == seqB:
	case okA && (!okB || seqA > seqB):
		m.stale.add(i, 1)
	default:
		good, seqA = b, seqB
		m.dirty.add(i, 1)
	}
	m.seq[i] = seqA
	words := m.words(i)
	for w := range words {
		words[w].Store(pageWord(good, w))
	}
	if last := m.clusters - i*pageClusters; last < pageClusters && beyond(words, last) {
		return fmt.Errorf("page %d names clusters behind the disk's end", i)
	}
	return nil
}

// words is the part of the durable bitmap that page i holds.
func (m *Map) words(i int64) set {
	return m.durable[i*pageWords : min((i+1)*pageWords, int64(len(m.durable)))]
}

// beyond reports whether s has a number from n on.
func beyond(s set, n int64) bool { return n < int64(len(s))*wordBits && s.next(n) >= 0 }

// loadStates reads what is present, and compares it with what is durable.
func (m *Map) loadStates() error {
	buf := make([]byte, min(m.clusters, 1<<20))
	for e, err := range m.dev.Extents(m.state(0), m.clusters) {
		if err != nil {
			return err
		}
		if e.Kind.ReadsZero() {
			continue
		}
		for off := e.Off; off < e.End(); {
			p := buf[:min(int64(len(buf)), e.End()-off)]
			if _, err := m.dev.ReadAt(p, off); err != nil {
				return err
			}
			if err := m.takeStates(p, off-m.state(0)); err != nil {
				return err
			}
			off += int64(len(p))
		}
	}
	for w := range m.durable {
		if lost := m.durable[w].Load() &^ m.present[w].Load(); lost != 0 {
			return fmt.Errorf("a cluster from %d on is durable and not present", w*wordBits)
		}
		if m.durable[w].Load() != m.present[w].Load() {
			m.dirty.add(int64(w)/pageWords, 1)
		}
	}
	return nil
}

var eightPresent = be.U64(0).Get(presentStates)

// takeStates takes the states p of the clusters from first on.
func (m *Map) takeStates(p []byte, first int64) error {
	for len(p) > 0 {
		n := int64(1)
		switch {
		case len(p) >= 8 && be.U64(0).Get(p) == 0:
			n = 8
		case len(p) >= 8 && be.U64(0).Get(p) == eightPresent:
			n = 8
			m.present.add(first, n)
		case p[0] == stPresent:
			m.present.add(first, n)
		case p[0] != 0:
			return fmt.Errorf("that of cluster %d is %#02x, which is none", first, p[0])
		}
		p, first = p[n:], first+n
	}
	return nil
}

// beginEpoch makes what is durable the truth, and writes the states so. The
// header comes last: a process that dies before leaves the old epoch there.
func (m *Map) beginEpoch(epoch string) error {
	if err := m.dev.Zero(m.state(0), m.clusters, blockdev.ZeroMayUnmap); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	for c := m.durable.next(0); c >= 0; {
		n, _ := m.durable.run(c, m.clusters)
		if err := m.writeStates(c, n); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		m.present.add(c, n)
		if c += n; c >= m.clusters {
			break
		}
		c = m.durable.next(c)
	}
	m.head.epoch = epoch
	m.head.seq++
	if err := m.writeHeader(copyA); err != nil {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	return nil
}
