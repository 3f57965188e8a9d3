package overlay

import (
	"fmt"
)

// Making durable what is present.
//
// The order is the whole of it. Whoever commits
//
//	1  freezes: takes the pages that are dirty and notes their bits. Each of
//	   these clusters has its data in the page cache, for that is when its bit
//	   was set; bits that are set from here on wait for the next commit;
//	2  flushes the store: a bit must never be on the medium before its data, or
//	   a loss of power would turn the base's content into zeros;
//	3  writes the frozen pages over copy A and syncs the map; now they may be
//	   acknowledged. If this is cut short copy B still has all that ever was;
//	4  in the background: writes the same over copy B and syncs again. The next
//	   commit waits for this before it touches a copy A.
//
// A failed sync ends it all: the kernel reports lost pages once.

// frozen are the bits of one page at one time.
type frozen struct {
	page int64
	bits []uint64
}

// freeze takes the dirty pages.
func (m *Map) freeze() []frozen {
	var pages []frozen
	for p := m.dirty.next(0); p >= 0 && p < m.pages; p = m.dirty.next(p + 1) {
		m.dirty.take(p) // before its bits are read: a later one makes it dirty again
		words := m.present[p*pageWords : min((p+1)*pageWords, int64(len(m.present)))]
		f := frozen{p, make([]uint64, len(words))}
		for i := range words {
			f.bits[i] = words[i].Load()
		}
		pages = append(pages, f)
	}
	return pages
}

// thaw gives back what was frozen and not committed.
func (m *Map) thaw(pages []frozen) {
	for _, f := range pages {
		m.dirty.add(f.page, 1)
	}
}

// commit makes the frozen pages durable; the store has been flushed since. An
// error of a write may be one for want of room, and all may be tried again; one
// of a sync is a *fatalError.
func (m *Map) commit(pages []frozen) error {
	if err := m.settle(); err != nil {
		return err
	}
	if len(pages) == 0 {
		return nil
	}
	for _, f := range pages {
		m.seq[f.page]++
		if err := m.writePage(copyA, f.page, f.bits); err != nil {
			return err
		}
	}
	if err := m.sync(); err != nil {
		return err
	}
	for _, f := range pages {
		for i, w := range f.bits {
			m.words(f.page)[i].Store(w)
		}
		m.stale.add(f.page, 1)
	}
	done := make(chan struct{})
	m.mirroring = done
	go func() {
		defer close(done)
		_ = m.mirror() // the next commit sees what is still stale, and a sync that failed
	}()
	return nil
}

// settle returns when both copies of every page are equal and durable, so that
// one of them may be overwritten.
func (m *Map) settle() error {
	m.wait()
	if m.syncErr != nil {
		return m.syncErr
	}
	if m.unsynced {
		if err := m.sync(); err != nil {
			return err
		}
		m.unsynced = false
	}
	return m.mirror()
}

// wait ends the background work. What that could not write is still stale.
func (m *Map) wait() {
	if m.mirroring != nil {
		<-m.mirroring
		m.mirroring = nil
	}
}

// mirror brings the stale pages' copies B up.
func (m *Map) mirror() error {
	var written []int64
	for p := m.stale.next(0); p >= 0; p = m.stale.next(p + 1) {
		words := m.words(p)
		bits := make([]uint64, len(words))
		for i := range words {
			bits[i] = words[i].Load()
		}
		if err := m.writePage(copyB, p, bits); err != nil {
			return err
		}
		written = append(written, p)
	}
	if len(written) == 0 {
		return nil
	}
	if err := m.sync(); err != nil {
		return err
	}
	for _, p := range written {
		m.stale.take(p)
	}
	return nil
}

func (m *Map) writePage(c copyOf, i int64, bits []uint64) error {
	var p [pageSize]byte
	encodePage(p[:], m.head.id, i, m.seq[i], bits)
	if _, err := m.dev.WriteAt(p[:], m.page(c, i)); err != nil {
		return fmt.Errorf("cluster map: %w", err)
	}
	return nil
}

// sync makes what was written to the map durable.
func (m *Map) sync() error {
	if err := m.dev.Flush(); err != nil {
		m.syncErr = &fatalError{fmt.Errorf("cluster map: %w", err)}
	}
	return m.syncErr
}
