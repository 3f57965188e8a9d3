package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// faulty is a disk one operation of whose parts fails.
type faulty struct {
	*rig
	*client
	store, file []byte // what the devices hold
	fail        *blockdevtest.Failing
	disk        *Disk
	failedFlush bool
	kind        blockdev.Kind
}

// parts are the devices of a disk.
var parts = []string{"store", "map", "base"}

// newFaulty makes a disk and breaks the n-th operation of that part.
func (r *rig) newFaulty(t *testing.T, part string, n int, kind blockdev.Kind, seed uint64) (*faulty, error) {
	f := &faulty{rig: r, kind: kind, client: r.newClients(1, seed, nil)[0]}
	store, file := r.newStore(), r.newMapFile()
	f.store, f.file = make([]byte, store.Size()), make([]byte, file.Size())
	store.ReadAt(f.store, 0)
	devs := map[string]blockdev.Device{
		"store": ramOf(f.store, r.sparse), "map": ramOf(f.file, true), "base": r.image(),
	}
	f.fail = blockdevtest.Fail(devs[part], n, kind)
	devs[part] = f.fail
	m, err := createMap(devs["map"], "map", r.header(), "epoch 1")
	if err != nil {
		return nil, err
	}
	f.disk, err = r.open(devs["base"], devs["store"], m, Options{})
	if err == nil {
		f.disk.hydrator.spaceRetry = time.Millisecond
	}
	return f, err
}

// run makes requests, hydrates in the middle, and wants every error to be the
// injected one or one that follows from it.
func (f *faulty) run(t *testing.T) error {
	for i := range 60 {
		if i == 30 && f.mode == Clone {
			if err := f.hydrate(); err != nil {
				return err
			}
		}
		flushes := f.flushed
		err := f.step(t, f.disk)
		if t.Failed() {
			return fmt.Errorf("step %d", i)
		}
		if err := f.plausible(err); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if f.failedFlush && f.flushed != flushes {
			return fmt.Errorf("step %d: a flush succeeded after a sync had failed", i)
		}
		f.noteFailure(err)
	}
	err := f.flush(f.disk)
	f.noteFailure(err)
	return f.plausible(err)
}

// noteFailure notes whether a sync has failed: the disk's, or that of its
// store when the disk is no more than that.
func (f *faulty) noteFailure(err error) {
	e := (*blockdev.Error)(nil)
	f.failedFlush = f.failedFlush || f.disk.failed.Load() ||
		f.disk.plain.Load() && errors.As(err, &e) && e.Op == "flush"
}

func (f *faulty) hydrate() error {
	err := f.disk.Hydrate(context.Background())
	if err == nil && f.disk.Progress().State != Complete {
		return fmt.Errorf("hydrated: %+v", f.disk.Progress())
	}
	if err != nil && f.kind == blockdev.KindNoSpace && !f.disk.failed.Load() && f.baseFine() {
		return fmt.Errorf("hydrate: want of room must not end it: %w", err)
	}
	return f.plausible(err)
}

// baseFine reports whether the fault is not the base's.
func (f *faulty) baseFine() bool {
	_, ok := f.fail.Device.(ram)
	return ok && f.fail != f.disk.base.src
}

func (f *faulty) plausible(err error) error {
	switch e := (*blockdev.Error)(nil); {
	case err == nil, errors.Is(err, blockdevtest.ErrInjected):
		return nil
	case !errors.As(err, &e):
		return fmt.Errorf("not a blockdev.Error: %w", err)
	case f.fail.Fired() && f.disk.failed.Load() && e.Kind == blockdev.KindIO:
		return nil
	}
	return fmt.Errorf("an error out of nothing: %w", err)
}

// end wants a disk that has not failed to work, and reopens it as after the
// death of the process and as after a loss of power.
func (f *faulty) end(t *testing.T) error {
	if err := f.read(t, f.disk, span{0, f.sectors()}); err != nil {
		if f.plausible(err) != nil {
			return err
		}
		// The fault may have been this very read.
		if err := f.read(t, f.disk, span{0, f.sectors()}); err != nil {
			return fmt.Errorf("reads do not go on: %w", err)
		}
	}
	if !f.failedFlush && f.fail.Fired() {
		if err := f.flush(f.disk); err != nil {
			return fmt.Errorf("flushes do not go on: %w", err)
		}
	}
	f.disk.m.wait() // for what is written in the background to the bytes that are copied here
	at := map[int]progress{0: {0, f.begun, f.acked, f.flushed}}
	store, file := bytes.Clone(f.store), bytes.Clone(f.file)
	if err := f.reopen(store, file, "epoch 1", func(s int64) []value { return f.now(s) }); err != nil {
		return fmt.Errorf("in a new process: %w", err)
	}
	store, file = bytes.Clone(f.store), bytes.Clone(f.file)
	if err := f.reopen(store, file, "epoch 2", func(s int64) []value { return f.allowed(s, at[0].flushed, f.begun) }); err != nil {
		return fmt.Errorf("without power: %w", err)
	}
	if !f.disk.plain.Load() && !f.failedFlush && f.fail.Fired() {
		all, err := values(f.disk)
		if err == nil {
			err = f.hydrated(f.disk, all)
		}
		// The fault may have been one in the background.
		if err != nil && (!f.disk.failed.Load() || f.plausible(err) != nil) {
			return fmt.Errorf("it does not go on: %w", err)
		}
	}
	err := f.disk.Close()
	if errors.Is(err, blockdevtest.ErrInjected) {
		err = nil
	}
	return err
}

func (f *faulty) reopen(store, file []byte, epoch string, want func(int64) []value) error {
	if f.disk.failed.Load() && epoch == "epoch 1" {
		// The states are not believed any more, so this is as without power.
		want = func(s int64) []value { return f.allowed(s, f.flushed, f.begun) }
	}
	m, err := openMap(ramOf(file, true), "map", epoch)
	if err != nil {
		return err
	}
	d, err := f.rig.open(f.image(), ramOf(store, f.sparse), m, Options{})
	if err != nil {
		return err
	}
	all, err := values(d)
	if err != nil {
		return err
	}
	for s, v := range all {
		if !slices.Contains(want(int64(s)), v) {
			return fmt.Errorf("sector %d (cluster %d) is %#x, want one of %#x", s, s*sector/testCluster, v, want(int64(s)))
		}
	}
	if err := f.hydrated(d, all); err != nil {
		return err
	}
	return d.Close()
}

// TestFaults makes every single operation of every part fail once.
func TestFaults(t *testing.T) {
	for _, part := range parts {
		for _, mode := range []Mode{CopyOnWrite, CopyOnRead, Clone} {
			for _, sparse := range []bool{true, false} {
				for _, kind := range []blockdev.Kind{blockdev.KindIO, blockdev.KindNoSpace} {
					t.Run(fmt.Sprintf("%s, mode %d, sparse %v, %v", part, mode, sparse, kind), func(t *testing.T) {
						t.Parallel()
						first, n := seeds(t, 2)
						ops := 0
						for seed := first; seed < first+n; seed++ {
							ops += sweep(t, part, mode, sparse, kind, seed)
						}
						if ops < 5 {
							t.Errorf("only %d operations of the %s could fail", ops, part)
						}
					})
				}
			}
		}
	}
}

// sweep fails the first, the second, … operation, and returns how many there are.
func sweep(t *testing.T, part string, mode Mode, sparse bool, kind blockdev.Kind, seed uint64) (ops int) {
	const most = 5000
	for n := 1; n < most; n++ {
		f, err := newRig(mode, sparse).newFaulty(t, part, n, kind, seed)
		if err != nil {
			if !errors.Is(err, blockdevtest.ErrInjected) {
				t.Fatalf("seed %d, fault %d: open: %v", seed, n, err)
			}
			continue
		}
		err = f.run(t)
		if err == nil {
			err = f.end(t)
		}
		if err != nil || t.Failed() {
			t.Fatalf("seed %d, fault %d: %v", seed, n, err)
		}
		if !f.fail.Fired() {
			return n - 1
		}
	}
	t.Fatalf("seed %d: more than %d operations", seed, most)
	return 0
}
