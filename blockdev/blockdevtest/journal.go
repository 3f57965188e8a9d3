package blockdevtest

import (
	"bytes"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// A Journal answers what a loss of power may leave behind.
//
// It records when each change of its devices was called and when it returned.
// A cut is a point in that order. A change is durable at a cut when a flush of
// the same device that was called after the change had returned has returned
// itself; a change that was called and is not durable is pending: of it any
// sectors may have reached the medium, and nothing of those that were not
// called yet. Sectors are never torn. A flush of one device says nothing about
// another, so that a missing order between data and metadata shows.
type Journal struct {
	mu      sync.Mutex // guards the fields below, and the times of all changes
	now     int        // events so far
	changes []*Change  // in the order of the calls
	flushes []*flush
	marks   []Mark
}

// Change is a change of a device that was recorded.
type Change struct {
	Dev      *Recorder
	Op       Op // OpWrite, OpZero or OpDiscard
	Off, Len int64

	data             []byte // what it leaves; nil: zeros
	called, returned int    // events; returned 0: not yet
}

func (c *Change) String() string {
	name := map[Op]string{OpWrite: "write", OpZero: "zero", OpDiscard: "discard"}[c.Op]
	return fmt.Sprintf("%s %s [%d, %d)", c.Dev.name, name, c.Off, c.Off+c.Len)
}

type flush struct {
	dev              *Recorder
	called, returned int
}

// Mark is a note that the test made between two events.
type Mark struct {
	At   int // cuts from At on are behind it
	Note any
}

// Mark notes that something is true from now on, such as "the flush was
// acknowledged".
func (j *Journal) Mark(note any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.marks = append(j.marks, Mark{j.now, note})
}

// tick counts an event and returns its number, from 1.
func (j *Journal) tick() int {
	j.now++
	return j.now
}

// Recorder is a device whose changes go into a Journal.
type Recorder struct {
	blockdev.Device
	name    string
	journal *Journal
	initial []byte
}

// Record returns dev with its changes recorded under that name. What it holds
// now is taken to be durable.
func (j *Journal) Record(t testing.TB, name string, dev blockdev.Device) *Recorder {
	t.Helper()
	r := &Recorder{Device: dev, name: name, journal: j, initial: make([]byte, dev.Size())}
	if _, err := dev.ReadAt(r.initial, 0); err != nil {
		t.Fatalf("record %s: %v", name, err)
	}
	return r
}

// change records a change around do. One that fails stays pending for ever: no
// flush can be asked to save it.
func (r *Recorder) change(op Op, off, n int64, data []byte, do func() error) error {
	j := r.journal
	c := &Change{Dev: r, Op: op, Off: off, Len: n, data: data}
	j.mu.Lock()
	c.called = j.tick()
	j.changes = append(j.changes, c)
	j.mu.Unlock()
	err := do()
	if err == nil {
		j.mu.Lock()
		c.returned = j.tick()
		j.mu.Unlock()
	}
	return err
}

func (r *Recorder) WriteAt(p []byte, off int64) (n int, err error) {
	err = r.change(OpWrite, off, int64(len(p)), bytes.Clone(p), func() error {
		n, err = r.Device.WriteAt(p, off)
		return err
	})
	return n, err
}

// TryWriteAt is always WriteAt, so that a write that would block leaves no
// change behind.
func (r *Recorder) TryWriteAt(p []byte, off int64) error {
	_, err := r.WriteAt(p, off)
	return err
}

func (r *Recorder) Zero(off, n int64, mode blockdev.ZeroMode) error {
	return r.change(OpZero, off, n, nil, func() error { return r.Device.Zero(off, n, mode) })
}

// Discard is a change only where it is one that can be told: where it zeroes.
func (r *Recorder) Discard(off, n int64) error {
	if !r.Caps().DiscardZeroes {
		return r.Device.Discard(off, n)
	}
	return r.change(OpDiscard, off, n, nil, func() error { return r.Device.Discard(off, n) })
}

func (r *Recorder) Flush() error {
	j := r.journal
	f := &flush{dev: r}
	j.mu.Lock()
	f.called = j.tick()
	j.mu.Unlock()
	err := r.Device.Flush()
	if err == nil {
		j.mu.Lock()
		f.returned = j.tick()
		j.flushes = append(j.flushes, f)
		j.mu.Unlock()
	}
	return err
}

var _ blockdev.Device = (*Recorder)(nil)

// Crash is a loss of power at one point of a journal.
type Crash struct {
	At      int
	Pending []*Change // may or may not be on the medium, in the order of the calls
	Marks   []Mark    // made before

	durable map[*Change]bool
	journal *Journal
}

// Crashes yields a loss of power before the first event and after each. The
// recording must be over.
func (j *Journal) Crashes() iter.Seq[*Crash] {
	return func(yield func(*Crash) bool) {
		for at := 0; at <= j.now; at++ {
			if !yield(j.Crash(at)) {
				return
			}
		}
	}
}

// Crash is the loss of power after that many events.
func (j *Journal) Crash(at int) *Crash {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := &Crash{At: at, durable: make(map[*Change]bool), journal: j}
	for _, ch := range j.changes {
		if ch.called > at {
			continue
		}
		if j.flushed(ch, at) {
			c.durable[ch] = true
		} else {
			c.Pending = append(c.Pending, ch)
		}
	}
	for _, m := range j.marks {
		if m.At <= at {
			c.Marks = append(c.Marks, m)
		}
	}
	return c
}

// flushed reports whether a flush that returned by at covers the change.
func (j *Journal) flushed(ch *Change, at int) bool {
	for _, f := range j.flushes {
		if f.dev == ch.Dev && f.returned <= at && ch.returned > 0 && ch.returned < f.called {
			return true
		}
	}
	return false
}

// Survival says which sectors of pending changes reached the medium: of the
// i-th pending change, that sector of the disk.
type Survival func(i int, sector int64) bool

// Nothing of what is pending survived.
func Nothing(int, int64) bool { return false }

// Everything that is pending survived.
func Everything(int, int64) bool { return true }

// Subset is whole changes: the i-th survived when bit i of mask is set.
func Subset(mask uint64) Survival {
	return func(i int, _ int64) bool { return mask>>(i%64)&1 != 0 }
}

// Killed is what the death of the process leaves, which takes nothing that the
// kernel was given: changes that had returned by then are whole. Those that
// were under way are whole, lost or torn. A change that failed counts as under
// way for ever.
func (c *Crash) Killed(rng *rand.Rand) Survival {
	random := c.Random(rng)
	return func(i int, sector int64) bool {
		returned := c.Pending[i].returned
		return returned > 0 && returned <= c.At || random(i, sector)
	}
}

// Random is a survival in which some changes are whole, some lost, and of some
// there are a few sectors.
func (c *Crash) Random(rng *rand.Rand) Survival {
	const lost, whole = 0, 1 // others: torn
	fate := make([]int, len(c.Pending))
	for i := range fate {
		fate[i] = rng.IntN(3)
	}
	seed := rng.Uint64()
	return func(i int, sector int64) bool {
		switch fate[i] {
		case lost:
			return false
		case whole:
			return true
		}
		return rand.New(rand.NewPCG(seed+uint64(i), uint64(sector))).IntN(2) == 0
	}
}

// Survivals yields every subset of the pending changes when there are no more
// than limit of them, or else nothing, everything and random ones, limit in
// all.
func (c *Crash) Survivals(rng *rand.Rand, limit int) iter.Seq[Survival] {
	return func(yield func(Survival) bool) {
		if n := len(c.Pending); n < 30 && 1<<n <= limit {
			for mask := range uint64(1) << n {
				if !yield(Subset(mask)) {
					return
				}
			}
			return
		}
		if !yield(Nothing) || !yield(Everything) {
			return
		}
		for range limit - 2 {
			if !yield(c.Random(rng)) {
				return
			}
		}
	}
}

// Disk is what the device holds when power comes back.
func (c *Crash) Disk(dev *Recorder, survived Survival) []byte {
	disk := bytes.Clone(dev.initial)
	pending := 0
	for _, ch := range c.journal.changes {
		switch {
		case ch.called > c.At:
			return disk
		case c.durable[ch]:
			if ch.Dev == dev {
				ch.apply(disk, func(int64) bool { return true })
			}
		default:
			i := pending
			pending++
			if ch.Dev == dev {
				ch.apply(disk, func(s int64) bool { return survived(i, s) })
			}
		}
	}
	return disk
}

// apply makes the change in the sectors that keep says.
func (ch *Change) apply(disk []byte, keep func(sector int64) bool) {
	for off := ch.Off; off < ch.Off+ch.Len; {
		n := min(ch.Off+ch.Len-off, sector-off%sector)
		if keep(off / sector) {
			if ch.data == nil {
				clear(disk[off:][:n])
			} else {
				copy(disk[off:][:n], ch.data[off-ch.Off:])
			}
		}
		off += n
	}
}
