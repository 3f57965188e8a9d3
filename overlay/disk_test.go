package overlay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// newRAMDisk makes a disk in memory.
func (r *rig) newRAMDisk(t testing.TB, base blockdev.Source, store, file blockdev.Device, o Options) *Disk {
	t.Helper()
	m, err := createMap(file, "map", r.header(), "epoch 1")
	if err != nil {
		t.Fatal(err)
	}
	d, err := r.open(base, store, m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, blockdevtest.ErrInjected) {
			t.Errorf("close: %v", err)
		}
	})
	return d
}

func write(t testing.TB, d blockdev.Device, off, n int64) {
	t.Helper()
	if _, err := d.WriteAt(bytes.Repeat([]byte{0x77}, int(n)), off); err != nil {
		t.Fatal(err)
	}
}

func flush(t testing.TB, d blockdev.Device) {
	t.Helper()
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
}

// counting counts what reaches a device.
type counting struct {
	blockdev.Device
	reads, writes, flushes, zeroes atomic.Int64
	closes                         atomic.Int64
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	c.reads.Add(1)
	return c.Device.ReadAt(p, off)
}

func (c *counting) WriteAt(p []byte, off int64) (int, error) {
	c.writes.Add(1)
	return c.Device.WriteAt(p, off)
}

func (c *counting) TryWriteAt(p []byte, off int64) error {
	c.writes.Add(1)
	return c.Device.TryWriteAt(p, off)
}

func (c *counting) Zero(off, n int64, m blockdev.ZeroMode) error {
	c.zeroes.Add(1)
	return c.Device.Zero(off, n, m)
}

func (c *counting) Flush() error { c.flushes.Add(1); return c.Device.Flush() }
func (c *counting) Close() error { c.closes.Add(1); return c.Device.Close() }

// TestTryDoesNotAllocate: of a disk that is not complete yet, and of one that
// is. Clusters that are absent are never waited for.
func TestTryDoesNotAllocate(t *testing.T) {
	for _, complete := range []bool{false, true} {
		d := newDisk(t, blockdev.MemOf(content(40*testCluster)), 0, Options{Mode: Clone})
		defer d.Close()
		p := make([]byte, 4096)
		if err := d.TryReadAt(p, 0); !errors.Is(err, blockdev.ErrWouldBlock) {
			t.Errorf("read of an absent cluster: %v", err)
		}
		if err := d.TryWriteAt(p[:512], 0); !errors.Is(err, blockdev.ErrWouldBlock) {
			t.Errorf("write to a part of an absent cluster: %v", err)
		}
		write(t, d, 0, 2*testCluster)
		if complete {
			if err := d.Hydrate(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		for name, do := range map[string]func() error{
			"read":  func() error { return d.TryReadAt(p, testCluster-1024) },
			"write": func() error { return d.TryWriteAt(p, testCluster-1024) },
		} {
			if n := testing.AllocsPerRun(100, func() {
				if err := do(); err != nil && !(name == "read" && errors.Is(err, blockdev.ErrWouldBlock)) {
					t.Fatal(err)
				}
			}); n != 0 {
				t.Errorf("complete: %v: %s allocates %v times", complete, name, n)
			}
		}
	}
}

// TestFlushPrice: a flush costs a sync of the map only when a cluster that the
// guest has changed is not durable yet.
func TestFlushPrice(t *testing.T) {
	r := newRig(CopyOnRead, true)
	file := &counting{Device: r.newMapFile()}
	store := &counting{Device: r.newStore()}
	d := r.newRAMDisk(t, r.image(), store, file, Options{})
	for i, x := range []struct {
		name string
		do   func()
		want int64 // syncs of the map, with those of copy B
	}{
		{"nothing", func() {}, 0},
		{"a write", func() { write(t, d, 0, 512) }, 2},
		{"again there", func() { write(t, d, 1024, 512) }, 0},
		{"kept what was read", func() { d.ReadAt(make([]byte, 512), testCluster) }, 0},
		{"written then", func() { write(t, d, testCluster, 512) }, 2},
		{"and again", func() { write(t, d, testCluster, 512) }, 0},
	} {
		x.do()
		before, data := file.flushes.Load(), store.flushes.Load()
		flush(t, d)
		d.m.wait()
		if got := file.flushes.Load() - before; got != x.want {
			t.Errorf("%d, %s: %d syncs of the map, want %d", i, x.name, got, x.want)
		}
		if got := store.flushes.Load() - data; got != 1 {
			t.Errorf("%d, %s: %d syncs of the store, want 1", i, x.name, got)
		}
	}
}

// gated is a device whose writes or flushes wait until they may go on.
type gated struct {
	blockdev.Device
	entered chan string // takes what waits
	leave   chan struct{}
	which   func(op string, off int64) bool
}

func (g *gated) wait(op string, off int64) {
	if g.which(op, off) {
		g.entered <- op
		<-g.leave
	}
}

func (g *gated) ReadAt(p []byte, off int64) (int, error) {
	g.wait("read", off)
	return g.Device.ReadAt(p, off)
}

func (g *gated) WriteAt(p []byte, off int64) (int, error) {
	g.wait("write", off)
	return g.Device.WriteAt(p, off)
}

func (g *gated) Flush() error {
	g.wait("flush", 0)
	return g.Device.Flush()
}

func newGated(dev blockdev.Device, which func(op string, off int64) bool) *gated {
	return &gated{dev, make(chan string, 100), make(chan struct{}), which}
}

// TestWritesDoNotWait: while the hydrator reads a piece from the base, a guest
// writes to it; while it stores one of its clusters, the guest writes to the
// others.
func TestWritesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Clone, true)
		base := newGated(r.image(), func(op string, off int64) bool { return op == "read" && off == 0 })
		store := newGated(r.newStore(), func(op string, off int64) bool { return op == "write" && off == testCluster })
		d := r.newRAMDisk(t, base, store, r.newMapFile(), Options{})
		done := make(chan error, 1)
		go func() { done <- d.Hydrate(context.Background()) }()
		if <-base.entered != "read" {
			t.Error("the hydrator does not read")
		}
		write(t, d, 0, testCluster) // its piece has clusters 0 and 1
		close(base.leave)
		<-store.entered // it stores cluster 1
		write(t, d, 2*testCluster, testCluster)
		write(t, d, 0, 512)
		waited := make(chan bool)
		go func() { write(t, d, testCluster, 512); close(waited) }()
		synctest.Wait()
		select {
		case <-waited:
			t.Error("a write to the cluster that is being stored did not wait for it")
		default:
		}
		close(store.leave)
		<-waited
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		want := bytes.Clone(r.base)
		for _, at := range []int{0, 2 * testCluster} {
			copy(want[at:], bytes.Repeat([]byte{0x77}, testCluster))
		}
		copy(want[testCluster:], bytes.Repeat([]byte{0x77}, 512))
		got := make([]byte, len(want))
		if _, err := d.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the disk is wrong (%v)", err)
		}
	})
}

// TestFlushesShare: flushes that come while one is under way are one, and none
// is answered by one that began before it.
func TestFlushesShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(CopyOnWrite, true)
		store := newGated(r.newStore(), func(op string, _ int64) bool { return op == "flush" })
		d := r.newRAMDisk(t, r.image(), store, r.newMapFile(), Options{})
		var answered atomic.Int64
		start := func() {
			go func() {
				if err := d.Flush(); err != nil {
					t.Error(err)
				}
				answered.Add(1)
			}()
			synctest.Wait()
		}
		start()
		write(t, d, 0, 512)
		for range 5 {
			start()
		}
		store.leave <- struct{}{}
		synctest.Wait()
		if got := answered.Load(); got != 1 {
			t.Errorf("%d flushes are answered after the first, want 1", got)
		}
		if d.m.durable.has(0) {
			t.Error("the first flush has committed what came after it")
		}
		store.leave <- struct{}{}
		synctest.Wait()
		if got := answered.Load(); got != 6 || !d.m.durable.has(0) {
			t.Errorf("%d flushes are answered after the second, want 6; durable: %v", got, d.m.durable.has(0))
		}
	})
}

// closer is a base that can be closed.
type closer struct {
	blockdev.Source
	closed atomic.Int64
}

func (c *closer) Close() error { c.closed.Add(1); return nil }

// TestBaseIsClosed: when the disk is its store, and its last reader has left.
func TestBaseIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(Clone, true)
		slow := atomic.Bool{}
		base := newGated(r.image(), func(op string, off int64) bool { return op == "read" && slow.Load() })
		src := &closer{Source: base}
		file := &counting{Device: r.newMapFile()}
		d := r.newRAMDisk(t, src, r.newStore(), file, Options{})
		slow.Store(true)
		read := make(chan error)
		go func() { _, err := d.ReadAt(make([]byte, 512), 0); read <- err }()
		<-base.entered
		slow.Store(false)
		if err := d.Hydrate(context.Background()); err != nil {
			t.Fatal(err)
		}
		if src.closed.Load() != 0 || file.closes.Load() != 1 {
			t.Errorf("with a reader: base closed %d times, map %d", src.closed.Load(), file.closes.Load())
		}
		close(base.leave)
		if err := <-read; err != nil {
			t.Error(err)
		}
		if src.closed.Load() != 1 {
			t.Errorf("without readers: base closed %d times", src.closed.Load())
		}
	})
}

// TestDiscard: a whole cluster becomes a hole without a look at the base, and
// of a part of one only that part changes. One of 20 GiB takes no longer than
// it must.
func TestDiscard(t *testing.T) {
	const gib = 1 << 30
	size := int64(20 * gib)
	base := &counting{Device: newFile(t, filepath.Join(tempDir(t), "base"), size)}
	write(t, base, 100*testCluster, testCluster)
	dir := tempDir(t)
	h := Header{Base: "b", Format: "raw", BaseSize: size, Size: size, ClusterSize: 64 << 10}
	m, err := CreateMap(filepath.Join(dir, "map"), h, "e")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(base, newFile(t, filepath.Join(dir, "store"), size), m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := d.Discard(100*testCluster+1024, 1024); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, testCluster)
	if _, err := d.ReadAt(got, 100*testCluster); err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte{0x77}, testCluster)
	clear(want[1024:2048])
	if !bytes.Equal(got, want) {
		t.Error("a discarded part has changed the rest, or not itself")
	}
	reads := base.reads.Load()
	begin := time.Now()
	if err := d.Discard(0, size); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("a discard of 20 GiB took %v", took)
	}
	if base.reads.Load() != reads {
		t.Error("a discard of the whole disk has read from the base")
	}
	flush(t, d)
	if !m.Complete() {
		t.Error("not all of the disk is present")
	}
}

// TestExtents tells of absent clusters what the base has, of present ones what
// the store has.
func TestExtents(t *testing.T) {
	const c = testCluster
	b := make([]byte, 6*c)
	copy(b[c:], bytes.Repeat([]byte{1}, 2*c))
	d := newDisk(t, ramOf(b, true), 2*c, Options{})
	defer d.Close()
	if err := d.Zero(c, c, blockdev.ZeroMayUnmap); err != nil {
		t.Fatal(err)
	}
	write(t, d, 7*c, 100)
	var got []blockdev.Extent
	for e, err := range d.Extents(0, d.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	want := []blockdev.Extent{{Len: 2 * c, Kind: blockdev.Hole}, {Off: 2 * c, Len: c, Kind: blockdev.Data},
		{Off: 3 * c, Len: 4 * c, Kind: blockdev.Hole}, {Off: 7 * c, Len: c, Kind: blockdev.Data}}
	if !slices.Equal(got, want) {
		t.Errorf("extents: got %v, want %v", got, want)
	}
	var parts []Part
	for p, err := range d.Hydration(c, 4*c) {
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	if want := []Part{{c, c, true}, {2 * c, c, false}, {3 * c, 2 * c, true}}; !slices.Equal(parts, want) {
		t.Errorf("hydration: got %v, want %v", parts, want)
	}
}

// TestOpenRefuses: parts that do not belong together are closed again.
func TestOpenRefuses(t *testing.T) {
	r := newRig(Clone, true)
	for name, x := range map[string]struct {
		base  blockdev.Source
		store blockdev.Device
		want  string
	}{
		"no base":    {nil, r.newStore(), "missing"},
		"other base": {blockdev.NewMem(4096), r.newStore(), "image size"},
		"store":      {r.image(), blockdev.NewMem(4096), "store's size"},
		"read-only":  {r.image(), blockdev.NewGuard(r.newStore(), blockdev.ReadOnly), "read-only"},
	} {
		m, err := createMap(r.newMapFile(), "the map", r.header(), "e")
		if err != nil {
			t.Fatal(err)
		}
		_, err = Open(x.base, x.store, m, Options{})
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := x.store.ReadAt(make([]byte, 1), 0); blockdev.KindOf(err) != blockdev.KindClosed {
			t.Errorf("%s: the store is still open: %v", name, err)
		}
	}
}

// TestAnchor: after the first commit is on the medium and before it is
// acknowledged; again when there was no room; and its failure fails the disk.
func TestAnchor(t *testing.T) {
	r := newRig(CopyOnWrite, true)
	file := &counting{Device: r.newMapFile()}
	var errs []error
	calls := 0
	d := r.newRAMDisk(t, r.image(), r.newStore(), file, Options{Anchor: func() error {
		calls++
		if file.flushes.Load() == 0 {
			t.Error("Anchor is called before the map is on the medium")
		}
		if len(errs) > 0 {
			err := errs[0]
			errs = errs[1:]
			return err
		}
		return nil
	}})
	flush(t, d)
	if calls != 0 {
		t.Error("Anchor is called with nothing to acknowledge")
	}
	write(t, d, 0, 512)
	errs = []error{&blockdev.Error{Op: "anchor", Kind: blockdev.KindNoSpace}}
	if err := d.Flush(); blockdev.KindOf(err) != blockdev.KindNoSpace || calls != 1 {
		t.Fatalf("no room: got %v after %d calls", err, calls)
	}
	flush(t, d)
	write(t, d, testCluster, 512)
	flush(t, d)
	if calls != 2 {
		t.Errorf("%d calls, want 2", calls)
	}

	d = r.newRAMDisk(t, r.image(), r.newStore(), r.newMapFile(), Options{Anchor: func() error { return io.ErrUnexpectedEOF }})
	write(t, d, 0, 512)
	for range 2 {
		if err := d.Flush(); blockdev.KindOf(err) != blockdev.KindIO {
			t.Errorf("Anchor failed: got %v", err)
		}
	}
}

// TestConcurrently runs clients and the hydrator against a disk, closes it and
// opens it again, in the same epoch and in another.
func TestConcurrently(t *testing.T) {
	first, n := seeds(t, 4)
	for seed := first; seed < first+n && !t.Failed(); seed++ {
		for _, mode := range []Mode{CopyOnWrite, CopyOnRead, Clone} {
			r := newRig(mode, seed%2 == 0)
			store, file := make([]byte, r.size), make([]byte, r.newMapFile().Size())
			r.newStore().ReadAt(store, 0)
			m, err := createMap(ramOf(file, true), "map", r.header(), "epoch 0")
			if err != nil {
				t.Fatal(err)
			}
			clients := r.newClients(4, seed, nil)
			for life := range 4 {
				d, err := r.open(slowly{r.image()}, slowly{ramOf(store, r.sparse)}, m, Options{})
				if err != nil {
					t.Fatal(err)
				}
				r.live(t, d, clients)
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
				epoch := []string{"epoch 0", "epoch 0", "epoch 1"}[life%3]
				if m, err = openMap(ramOf(file, true), "map", epoch); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
	}
}

// live is one life of the disk: the clients, the hydrator part of the time, and
// a flush at the end.
func (r *rig) live(t *testing.T, d *Disk, clients []*client) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg, hydrator sync.WaitGroup
	if r.mode == Clone {
		hydrator.Go(func() {
			if err := d.Hydrate(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("hydrate: %v", err)
			}
		})
	}
	for _, c := range clients {
		wg.Go(func() {
			for range 25 {
				if err := c.step(t, d); err != nil {
					t.Errorf("client %d: %v", c.id, err)
					return
				}
			}
			if err := c.flush(d); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	cancel()
	hydrator.Wait()
	flush(t, d)
}

// TestTryCover: a write of whole absent clusters needs no base and waits for
// nobody, unless one of them is being filled.
func TestTryCover(t *testing.T) {
	r := newRig(Clone, true)
	d := r.newRAMDisk(t, r.image(), r.newStore(), r.newMapFile(), Options{})
	p := filled(2*testCluster, 7)
	if err := d.TryWriteAt(p[:testCluster+512], testCluster); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("a part of a cluster: got %v, want %v", err, blockdev.ErrWouldBlock)
	}
	l := d.locks.lock(2, 2)
	if err := d.TryWriteAt(p, testCluster); !errors.Is(err, blockdev.ErrWouldBlock) {
		t.Errorf("while the second is filled: got %v, want %v", err, blockdev.ErrWouldBlock)
	}
	d.locks.unlock(l)
	if d.m.present.has(1) || d.m.present.has(2) {
		t.Fatal("present without a write")
	}
	if err := d.TryWriteAt(p, testCluster); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(p))
	if err := d.TryReadAt(got, testCluster); err != nil || !bytes.Equal(got, p) {
		t.Errorf("read back: %v, equal: %v", err, bytes.Equal(got, p))
	}
	if len(d.locks.runs) != 0 || !d.m.urgent.Load() {
		t.Errorf("%d locks are left; urgent: %v, want true", len(d.locks.runs), d.m.urgent.Load())
	}
}
