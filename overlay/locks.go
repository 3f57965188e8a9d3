package overlay

import (
	"slices"
	"sync"
)

// Locks over runs of clusters.
//
// Who makes clusters present holds them meanwhile, and nobody else: two
// requests wait for each other only where they share a cluster. The order is
// that of arrival, so that no one starves, and who holds a run never asks for
// another, so that there is no deadlock.
//
// There are as many runs at a time as there are requests that fill clusters: a
// list that is walked is shorter than any cleverer structure.
type locks struct {
	mu   sync.Mutex // guards the list and the counts in it
	runs []*held    // that are held or waited for, in the order of arrival
}

// held is a run of clusters that is held or waited for.
type held struct {
	first, last int64         // both included
	before      int           // earlier ones that overlap
	turn        chan struct{} // closed when before is 0; nil: it was at once
}

func (h *held) overlaps(o *held) bool { return h.first <= o.last && o.first <= h.last }

// lock waits for the clusters from first to last, both included.
func (l *locks) lock(first, last int64) *held {
	h := &held{first: first, last: last}
	l.mu.Lock()
	for _, o := range l.runs {
		if o.overlaps(h) {
			h.before++
		}
	}
	if h.before > 0 {
		h.turn = make(chan struct{})
	}
	l.runs = append(l.runs, h)
	l.mu.Unlock()
	if h.turn != nil {
		<-h.turn
	}
	return h
}

// try is lock for those who do not wait: nil if they would have to.
func (l *locks) try(first, last int64) *held {
	h := &held{first: first, last: last}
	l.mu.Lock()
	defer l.mu.Unlock()
	if slices.ContainsFunc(l.runs, h.overlaps) {
		return nil
	}
	l.runs = append(l.runs, h)
	return h
}

func (l *locks) unlock(h *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.runs[:0]
	for _, o := range l.runs {
		switch {
		case o == h:
			continue
		case o.before > 0 && o.overlaps(h): // it came later: else h would not have held
			if o.before--; o.before == 0 {
				close(o.turn)
			}
		}
		kept = append(kept, o)
	}
	clear(l.runs[len(kept):])
	l.runs = kept
}
