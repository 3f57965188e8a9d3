package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// refusing is a device whose writes fail while refuse says so.
type refusing struct {
	blockdev.Device
	mu   sync.Mutex
	kind blockdev.Kind // 0: writes go on
}

func (r *refusing) set(k blockdev.Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kind = k
}

func (r *refusing) WriteAt(p []byte, off int64) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kind != 0 {
		return 0, &blockdev.Error{Op: "write", Off: off, Len: int64(len(p)), Kind: r.kind, Err: blockdevtest.ErrInjected}
	}
	return r.Device.WriteAt(p, off)
}

// TestHydrateWaitsForRoom: the disk serves its clients meanwhile, and is
// copied when there is room again.
func TestHydrateWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Clone, true)
		store := &refusing{Device: r.newStore()}
		d := r.newRAMDisk(t, r.image(), store, r.newMapFile(), Options{})
		write(t, d, 0, testCluster)
		store.set(blockdev.KindNoSpace)
		done := make(chan error, 1)
		go func() { done <- d.Hydrate(t.Context()) }()
		time.Sleep(10 * spaceRetry)
		if p := d.Progress(); p.State != NoSpace || p.Done >= p.Total {
			t.Errorf("without room: %+v", p)
		}
		if got, err := values(d); err != nil || got[20] != r.initial()[20] {
			t.Errorf("without room, a read: %v", err)
		}
		if _, err := d.WriteAt(make([]byte, 512), 4*testCluster); blockdev.KindOf(err) != blockdev.KindNoSpace {
			t.Errorf("without room, a write: %v", err)
		}
		if err := d.Flush(); err != nil {
			t.Errorf("without room, a flush: %v", err)
		}
		store.set(0)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if p := d.Progress(); p.State != Complete || p.Done != p.Total || p.Total == 0 {
			t.Errorf("in the end: %+v", p)
		}
	})
}

// TestHydratePauses and carries on; it ends with its context, and with the
// disk.
func TestHydratePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Clone, true)
		d := r.newRAMDisk(t, r.image(), r.newStore(), r.newMapFile(), Options{})
		d.Pause()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Hydrate(ctx) }()
		time.Sleep(time.Hour)
		if p := d.Progress(); p.State != Paused || p.Done != 0 || p.Total == 0 {
			t.Errorf("paused: %+v", p)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		if p := d.Progress(); p.State != Off {
			t.Errorf("cancelled: %+v", p)
		}
		go func() { done <- d.Hydrate(t.Context()) }()
		synctest.Wait()
		d.Resume()
		if err := <-done; err != nil || d.Progress().State != Complete {
			t.Errorf("resumed: %v, %+v", err, d.Progress())
		}

		d = r.newRAMDisk(t, r.image(), r.newStore(), r.newMapFile(), Options{})
		d.Pause()
		go func() { done <- d.Hydrate(t.Context()) }()
		synctest.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; blockdev.KindOf(err) != blockdev.KindClosed {
			t.Errorf("closed: %v", err)
		}
	})
}

// TestHydrateRate copies no faster than it is told, and does not rest longer.
func TestHydrateRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Clone, true)
		d := r.newRAMDisk(t, r.image(), r.newStore(), r.newMapFile(), Options{Rate: 4096})
		begin := time.Now()
		if err := d.Hydrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		total := d.Progress().Total
		took, want := time.Since(begin), time.Duration(total/4096)*time.Second
		if took < want*7/10 || took > want*3/2 {
			t.Errorf("%d bytes took %v, want about %v", total, took, want)
		}
	})
}

// TestHydrateGivesWay: a guest that never rests does not stop it, and slows it
// down.
func TestHydrateGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Clone, true)
		base := &sleeping{r.image(), time.Millisecond}
		d := r.newRAMDisk(t, base, r.newStore(), r.newMapFile(), Options{})
		begin := time.Now()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
					d.noteGuest()
				}
			}
		})
		time.Sleep(3 * tick)
		if err := d.Hydrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		took := time.Since(begin)
		close(stop)
		wg.Wait()
		pieces := time.Duration(r.size / d.hydrator.piece)
		if took < pieces*2*time.Millisecond || took > pieces*100*time.Millisecond {
			t.Errorf("%d pieces of a millisecond took %v", pieces, took)
		}
	})
}

type sleeping struct {
	blockdev.Device
	rest time.Duration
}

func (s *sleeping) ReadAt(p []byte, off int64) (int, error) {
	time.Sleep(s.rest)
	return s.Device.ReadAt(p, off)
}

// TestHydrateFollows: what the guest reads is copied first, with what is near.
func TestHydrateFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Clone, true)
		d := r.newRAMDisk(t, &sleeping{r.image(), time.Second}, r.newStore(), r.newMapFile(), Options{Rate: 1})
		if _, err := d.ReadAt(make([]byte, 512), 16*testCluster); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- d.Hydrate(ctx) }()
		time.Sleep(10 * time.Second)
		if !d.m.present.has(16) || d.m.present.has(0) {
			t.Errorf("cluster 16, which was read: %v; cluster 0: %v", d.m.present.has(16), d.m.present.has(0))
		}
		cancel()
		<-done
	})
}

// holed is a base some clusters of which cannot be read.
type holed struct {
	blockdev.Device
	bad func(off, n int64) bool
}

func (h *holed) ReadAt(p []byte, off int64) (int, error) {
	if h.bad(off, int64(len(p))) {
		return 0, &blockdev.Error{Op: "read", Off: off, Len: int64(len(p)), Kind: blockdev.KindCorrupt, Err: blockdevtest.ErrInjected}
	}
	return h.Device.ReadAt(p, off)
}

// TestHydrateSkips: what the base cannot give is left out and told; everything
// else is copied and the disk works on. When the guest has written there, the
// rest is only to be finished.
func TestHydrateSkips(t *testing.T) {
	r := newRig(Clone, true)
	base := &holed{r.image(), func(off, n int64) bool { return off < 6*testCluster && off+n > 5*testCluster }}
	d := r.newRAMDisk(t, base, r.newStore(), r.newMapFile(), Options{})
	err := d.Hydrate(t.Context())
	if !errors.Is(err, blockdevtest.ErrInjected) || blockdev.KindOf(err) != blockdev.KindCorrupt ||
		!strings.Contains(err.Error(), fmt.Sprint(testCluster)) {
		t.Fatalf("got %v", err)
	}
	if p := d.Progress(); p.State != Incomplete {
		t.Errorf("%+v", p)
	}
	for c := range d.m.clusters {
		zeros := !slices.ContainsFunc(r.base[min(c*testCluster, int64(len(r.base))):min((c+1)*testCluster, int64(len(r.base)))], func(b byte) bool { return b != 0 })
		if got := d.m.present.has(c); got != (c != 5) && !zeros {
			t.Errorf("cluster %d is present: %v", c, got)
		}
	}
	if _, err := d.ReadAt(make([]byte, 512), 5*testCluster); blockdev.KindOf(err) != blockdev.KindCorrupt {
		t.Errorf("read there: %v", err)
	}
	if _, err := d.WriteAt(make([]byte, 512), 5*testCluster); blockdev.KindOf(err) != blockdev.KindCorrupt {
		t.Errorf("write to a part of it: %v", err)
	}
	write(t, d, 5*testCluster, testCluster)
	if err := d.Hydrate(t.Context()); err != nil || d.Progress().State != Complete {
		t.Errorf("in the end: %v, %+v", err, d.Progress())
	}
}

// TestFinish is called when everything is durable, until it succeeds; nothing
// is let go before.
func TestFinish(t *testing.T) {
	r := newRig(Clone, true)
	file := make([]byte, r.newMapFile().Size())
	store := make([]byte, r.size)
	fail, calls := errors.New("rename"), 0
	src := &closer{Source: r.image()}
	var d *Disk
	d = r.newRAMDisk(t, src, ramOf(store, true), ramOf(file, true), Options{Finish: func() error {
		calls++
		d.m.wait() // the slice is read below, beside what is written in the background
		if m, err := reopened(file, "another epoch"); err != nil || !m.Complete() {
			t.Errorf("Finish is called and not everything is durable (%v)", err)
		}
		if !bytes.Equal(store[:len(r.base)], r.base) {
			t.Error("Finish is called and not everything is copied")
		}
		return fail
	}})
	if err := d.Hydrate(t.Context()); !errors.Is(err, fail) || src.closed.Load() != 0 || d.plain.Load() {
		t.Errorf("Finish failed: %v; base closed %d times", err, src.closed.Load())
	}
	write(t, d, 0, 512)
	flush(t, d)
	copy(r.base, bytes.Repeat([]byte{0x77}, 512))
	fail = nil
	if err := d.Hydrate(t.Context()); err != nil || src.closed.Load() != 1 || calls != 2 {
		t.Errorf("then: %v; base closed %d times, %d calls", err, src.closed.Load(), calls)
	}
	if err := d.Hydrate(t.Context()); err != nil || calls != 2 {
		t.Errorf("once more: %v, %d calls", err, calls)
	}
	// A process that dies between Finish and the end finds a map that is
	// complete, and needs no base.
	m, err := reopened(file, "epoch 1")
	if err != nil || !m.Complete() {
		t.Fatalf("the map: %v", err)
	}
	again, err := r.open(nil, ramOf(bytes.Clone(store), true), m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Hydrate(t.Context()); err != nil {
		t.Error(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestHydrateOnlyClones: the other modes keep what they were told to.
func TestHydrateOnlyClones(t *testing.T) {
	r := newRig(CopyOnWrite, true)
	d := r.newRAMDisk(t, r.image(), r.newStore(), r.newMapFile(), Options{})
	if err := d.Hydrate(t.Context()); err == nil || len(have(d.m)) != 0 {
		t.Errorf("got %v, present: %v", err, have(d.m))
	}
}

// TestCopyOnReadKeeps what was read, once, and reads on without room.
func TestCopyOnReadKeeps(t *testing.T) {
	r := newRig(CopyOnRead, true)
	base := &counting{Device: r.image()}
	store := &refusing{Device: r.newStore()}
	d := r.newRAMDisk(t, base, store, r.newMapFile(), Options{})
	p := make([]byte, 1024)
	for range 2 {
		if _, err := d.ReadAt(p, testCluster-512); err != nil || !bytes.Equal(p, r.base[testCluster-512:][:1024]) {
			t.Fatalf("wrong (%v)", err)
		}
		if got := base.reads.Load(); got != 2 {
			t.Errorf("%d reads of the base, want 2", got)
		}
	}
	store.set(blockdev.KindNoSpace)
	for range 2 {
		if _, err := d.ReadAt(p, 5*testCluster); err != nil || !bytes.Equal(p, r.base[5*testCluster:][:1024]) {
			t.Errorf("no room: wrong (%v)", err)
		}
	}
	if got := have(d.m); !slices.Equal(got, []int64{0, 1}) {
		t.Errorf("present: %v", got)
	}
}
