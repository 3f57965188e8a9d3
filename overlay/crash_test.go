package overlay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// seeds is how many random runs a test makes: a few, or OVERLAY_SEEDS.
func seeds(t *testing.T, few uint64) (first, n uint64) {
	if s := os.Getenv("OVERLAY_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		return rand.Uint64() >> 1, n
	}
	return 1, few
}

// recorded is a run of a rig whose changes were recorded.
type recorded struct {
	*rig
	journal *blockdevtest.Journal
	store   *blockdevtest.Recorder
	file    *blockdevtest.Recorder // the map's
	clients []*client
}

// anchoredNote is the mark of the Anchor.
type anchoredNote struct{}

// record runs clients against the disk, and the hydrator if there is one.
func (r *rig) record(t *testing.T, clients, steps int, seed uint64) *recorded {
	t.Helper()
	var j blockdevtest.Journal
	rec := &recorded{rig: r, journal: &j,
		store: j.Record(t, "store", r.newStore()),
		file:  j.Record(t, "map", r.newMapFile()),
	}
	rec.clients = r.newClients(clients, seed, func(p progress) { j.Mark(p) })
	m, err := createMap(slowly{rec.file}, "map", r.header(), "epoch 1")
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.open(slowly{r.image()}, slowly{rec.store}, m, Options{
		Anchor: func() error { j.Mark(anchoredNote{}); return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, c := range rec.clients {
		wg.Go(func() {
			for range steps {
				if err := c.step(t, d); err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
			}
		})
	}
	if r.mode == Clone {
		if err := d.Hydrate(context.Background()); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	return rec
}

// TestCrash cuts the power, or kills the process, at every point of random
// runs, and opens the disk again.
func TestCrash(t *testing.T) {
	for _, x := range []struct {
		mode    Mode
		sparse  bool
		clients int
	}{
		{CopyOnWrite, true, 1}, {CopyOnWrite, true, 3}, {CopyOnRead, true, 3},
		{Clone, true, 1}, {Clone, true, 3}, {Clone, false, 3}, {CopyOnWrite, false, 1},
	} {
		t.Run(fmt.Sprintf("mode %d, sparse %v, %d clients", x.mode, x.sparse, x.clients), func(t *testing.T) {
			t.Parallel()
			first, n := seeds(t, 1)
			for seed := first; seed < first+n && !t.Failed(); seed++ {
				rec := newRig(x.mode, x.sparse).record(t, x.clients, 40/x.clients, seed)
				rec.crashes(t, seed)
			}
		})
	}
}

// crashes opens what every crash leaves.
func (r *recorded) crashes(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 9))
	cuts := 0
	for c := range r.journal.Crashes() {
		at, anchored := map[int]progress{}, false
		for _, m := range c.Marks {
			switch n := m.Note.(type) {
			case progress:
				at[n.client] = n
			case anchoredNote:
				anchored = true
			}
		}
		cuts++
		if seed == 1 && c.At%3 != 0 && c.At > 30 { // a third of them, where it is only to be quick
			continue
		}
		for s := range c.Survivals(rng, 4) {
			err := r.reopen(c, s, "epoch 2", at, func(p progress) int { return p.flushed })
			if damaged := new(DamagedError); errors.As(err, &damaged) && !anchored && nothingFlushed(at) {
				continue // the files had no names yet
			}
			if err != nil {
				t.Fatalf("seed %d: no power after event %d, pending %v: %v", seed, c.At, c.Pending, err)
			}
		}
		if !created(c) {
			continue
		}
		if err := r.reopen(c, c.Killed(rng), "epoch 1", at, func(p progress) int { return p.acked }); err != nil {
			t.Fatalf("seed %d: killed after event %d: %v", seed, c.At, err)
		}
	}
	if cuts < 20 {
		t.Errorf("seed %d: only %d cuts", seed, cuts)
	}
}

func nothingFlushed(at map[int]progress) bool {
	for _, p := range at {
		if p.flushed > 0 {
			return false
		}
	}
	return true
}

// created reports whether the map had been made.
func created(c *blockdevtest.Crash) bool {
	const writes = 4 // two headers, and the one page in both copies
	return c.At >= 2*writes
}

// reopen opens what a crash has left and compares it with the model. Then it
// makes more requests and hydrates: nothing that was lost may come back.
func (r *recorded) reopen(c *blockdevtest.Crash, s blockdevtest.Survival, epoch string, at map[int]progress, from func(progress) int) error {
	m, err := openMap(ramOf(c.Disk(r.file, s), true), "map", epoch)
	if err != nil {
		return err
	}
	d, err := r.open(r.image(), ramOf(c.Disk(r.store, s), r.sparse), m, Options{})
	if err != nil {
		return err
	}
	all, err := values(d)
	if err != nil {
		return err
	}
	if err := checkAll(all, r.clients, at, from); err != nil {
		return err
	}
	if err := r.goOn(d, all); err != nil {
		return err
	}
	return d.Close()
}

// goOn writes and zeroes where the base is zero, which is where the overlay is
// tempted to do nothing, and hydrates.
func (r *recorded) goOn(d *Disk, want []value) error {
	n := r.sectors()
	for _, q := range []span{{2 * 8, 2*8 + 3}, {7*8 + 7, 8 * 8}, {12 * 8, 13 * 8}, {22*8 + 1, 23*8 - 1}} {
		if err := d.Zero(q.first*sector, (q.end-q.first)*sector, blockdev.ZeroMayUnmap); err != nil {
			return err
		}
		for s := q.first; s < q.end; s++ {
			want[s] = 0
		}
	}
	p := make([]byte, sector)
	value(77).put(p)
	want[n-2] = 77
	if _, err := d.WriteAt(p, (n-2)*sector); err != nil {
		return err
	}
	got, err := values(d)
	if err != nil {
		return err
	}
	for s := range want {
		if got[s] != want[s] {
			return fmt.Errorf("written to, sector %d is %#x, want %#x", s, got[s], want[s])
		}
	}
	return r.hydrated(d, want)
}
