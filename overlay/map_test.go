package overlay

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// newTestMap makes a map for a disk of that many clusters, in b.
func newTestMap(t *testing.T, clusters int64) (m *Map, b []byte) {
	t.Helper()
	h := header(clusters*testCluster-100, clusters*testCluster)
	l, err := layoutOf(h)
	if err != nil {
		t.Fatal(err)
	}
	b = make([]byte, l.size())
	m, err = createMap(ramOf(b, true), "map", h, "epoch 1")
	if err != nil {
		t.Fatal(err)
	}
	return m, b
}

func mustCommit(t *testing.T, m *Map) {
	t.Helper()
	if err := m.commit(m.freeze()); err != nil {
		t.Fatal(err)
	}
	m.wait()
}

func mustMark(t *testing.T, m *Map, first, n int64) {
	t.Helper()
	if err := m.mark(first, n, fromGuest); err != nil {
		t.Fatal(err)
	}
}

// have lists the clusters that are present.
func have(m *Map) (all []int64) {
	for c := range m.clusters {
		if m.present.has(c) {
			all = append(all, c)
		}
	}
	return all
}

func reopened(b []byte, epoch string) (*Map, error) {
	return openMap(ramOf(bytes.Clone(b), true), "the map", epoch)
}

func TestMapEpochs(t *testing.T) {
	m, b := newTestMap(t, 3*pageClusters)
	durable := []int64{0, 7, pageClusters - 1, pageClusters, 3*pageClusters - 1}
	for _, c := range durable {
		mustMark(t, m, c, 1)
	}
	mustCommit(t, m)
	mustMark(t, m, 8, 1)
	mustMark(t, m, 2*pageClusters, 1)
	all := append(slices.Clone(durable), 8, 2*pageClusters)
	slices.Sort(all)
	for epoch, want := range map[string][]int64{"epoch 1": all, "epoch 2": durable, "": durable} {
		m, err := reopened(b, epoch)
		if err != nil {
			t.Fatalf("%q: %v", epoch, err)
		}
		if got := have(m); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", epoch, got, want)
		}
		if m.fresh || m.Header() != header(3*pageClusters*testCluster-100, 3*pageClusters*testCluster) {
			t.Errorf("%q: fresh %v, header %+v", epoch, m.fresh, m.Header())
		}
	}
}

// TestMapEpochIsWritten: after a new start what becomes present belongs to the
// new epoch, and nothing of the old one comes back.
func TestMapEpochIsWritten(t *testing.T) {
	m, b := newTestMap(t, 100)
	mustMark(t, m, 1, 1)
	mustCommit(t, m)
	mustMark(t, m, 2, 1) // lost
	m, err := openMap(ramOf(b, true), "map", "epoch 2")
	if err != nil {
		t.Fatal(err)
	}
	mustMark(t, m, 3, 1)
	for epoch, want := range map[string][]int64{"epoch 2": {1, 3}, "epoch 1": {1}, "epoch 3": {1}} {
		m, err := reopened(b, epoch)
		if err != nil {
			t.Fatal(err)
		}
		if got := have(m); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", epoch, got, want)
		}
	}
}

// TestMapDamage changes every byte of a map, one at a time, and two together
// where there are two copies. What opens must be what was there.
func TestMapDamage(t *testing.T) {
	m, b := newTestMap(t, 600)
	mustMark(t, m, 3, 5)
	mustCommit(t, m)
	mustMark(t, m, 100, 1)
	mustCommit(t, m)
	want := have(m)
	step := 13
	if os.Getenv("OVERLAY_SEEDS") != "" {
		step = 1
	}
	for _, epoch := range []string{"epoch 1", "epoch 2"} {
		for at := 0; at < len(b); at += step {
			bad := bytes.Clone(b)
			bad[at] ^= 1 << (at % 8)
			m, err := reopened(bad, epoch)
			state := int64(at) >= m0(t).state(0)
			switch {
			case state && epoch == "epoch 1": // every value but two is wrong, and those are two bits apart
				wantDamaged(t, err, "states", at)
			case err != nil:
				t.Fatalf("%s, byte %d: %v", epoch, at, err)
			case !slices.Equal(have(m), want):
				t.Fatalf("%s, byte %d: have %v, want %v", epoch, at, have(m), want)
			}
		}
		for at := 0; at < pageSize; at += step { // the same place in both copies
			for part, page := range map[string][2]int64{"header": {0, 1}, "durable bitmap": {2, 3}} {
				bad := bytes.Clone(b)
				for _, p := range page {
					bad[p*pageSize+int64(at)] ^= 0x10
				}
				_, err := reopened(bad, epoch)
				wantDamaged(t, err, part, at)
			}
		}
	}
}

// m0 is the layout of TestMapDamage's map.
func m0(t *testing.T) layout {
	l, err := layoutOf(header(600*testCluster-100, 600*testCluster))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantDamaged(t *testing.T, err error, part string, at int) {
	t.Helper()
	var e *DamagedError
	if !errors.As(err, &e) || e.Part != part || e.File != "the map" {
		t.Fatalf("byte %d: got %v, want a damaged %s", at, err, part)
	}
}

// TestMapDamageIsMended: a page that was bad in one copy is good in both after
// the next commit.
func TestMapDamageIsMended(t *testing.T) {
	for _, page := range []int64{2, 3} {
		m, b := newTestMap(t, 600)
		mustMark(t, m, 3, 5)
		mustCommit(t, m)
		b[page*pageSize+1000] ^= 1
		m, err := openMap(ramOf(b, true), "map", "epoch 2")
		if err != nil {
			t.Fatal(err)
		}
		mustCommit(t, m)
		for _, p := range []int64{2, 3} {
			bad := bytes.Clone(b)
			bad[p*pageSize+1000] ^= 1
			if m, err := reopened(bad, "epoch 3"); err != nil || len(have(m)) != 5 {
				t.Errorf("page %d was bad, then page %d: %v", page, p, err)
			}
		}
	}
}

// TestMapLostWrite: a medium that forgot the last write to copy A.
func TestMapLostWrite(t *testing.T) {
	m, b := newTestMap(t, 600)
	mustMark(t, m, 3, 5)
	mustCommit(t, m)
	old := bytes.Clone(b[2*pageSize : 3*pageSize])
	mustMark(t, m, 50, 1)
	mustCommit(t, m)
	copy(b[2*pageSize:], old)
	m, err := reopened(b, "epoch 2")
	if err != nil || !slices.Equal(have(m), []int64{3, 4, 5, 6, 7, 50}) {
		t.Errorf("have %v (%v)", have(m), err)
	}
}

// TestMapOfAnother: pages of another map are no pages of this one.
func TestMapOfAnother(t *testing.T) {
	_, b := newTestMap(t, 600)
	other, o := newTestMap(t, 600)
	mustMark(t, other, 0, 600)
	mustCommit(t, other)
	copy(b[2*pageSize:4*pageSize], o[2*pageSize:])
	_, err := reopened(b, "epoch 2")
	wantDamaged(t, err, "durable bitmap", 0)
}

// TestMapWithoutState: a state that is missing where the bitmap has the
// cluster is damage, or what was flushed would read as the base.
func TestMapWithoutState(t *testing.T) {
	m, b := newTestMap(t, 600)
	mustMark(t, m, 3, 1)
	mustCommit(t, m)
	b[m.state(3)] = 0
	_, err := reopened(b, "epoch 1")
	wantDamaged(t, err, "states", 3)
}

func TestMapRefuses(t *testing.T) {
	_, b := newTestMap(t, 600)
	version := bytes.Clone(b)
	for _, p := range [][]byte{version[:pageSize], version[pageSize : 2*pageSize]} {
		hdVersion.Put(p, 9)
		seal(p)
	}
	for name, x := range map[string]struct {
		b    []byte
		want string
	}{
		"empty":         {nil, "only 0 bytes"},
		"cut":           {b[:len(b)-1], "should have"},
		"no map":        {make([]byte, len(b)), "does not begin as a cluster map"},
		"later version": {version, "version 9"},
	} {
		_, err := reopened(x.b, "epoch 1")
		if err == nil || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), "the map") {
			t.Errorf("%s: got %v, want %q", name, err, x.want)
		}
	}
}

func TestHeaderTooLong(t *testing.T) {
	h := header(testCluster, testCluster)
	h.Base = strings.Repeat("x", pageSize)
	if _, err := CreateMap(filepath.Join(t.TempDir(), "map"), h, "e"); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("got %v", err)
	}
}

func TestLayoutLimits(t *testing.T) {
	for _, x := range []struct {
		base, size int64
		cluster    int
		ok         bool
	}{
		{0, 1, 4096, true}, {1, 1, 65536, true}, {1 << 20, 64 << 40, 1 << 20, true}, {0, 4 << 40, 64 << 10, true},
		{0, 0, 65536, false}, {2, 1, 65536, false}, {-1, 1, 65536, false}, {0, 1, 0, false}, {0, 1, 512, false},
		{0, 1, 12288, false}, {0, 1, 8 << 20, false}, {0, 4<<40 + 1, 64 << 10, false}, {0, 1<<63 - 1, 4 << 20, false},
	} {
		_, err := layoutOf(Header{BaseSize: x.base, Size: x.size, ClusterSize: x.cluster})
		if (err == nil) != x.ok {
			t.Errorf("%+v: %v", x, err)
		}
	}
	for size, want := range map[int64]int{1: 64 << 10, 4 << 40: 64 << 10, 4<<40 + 1: 128 << 10, 64 << 40: 1 << 20, 1<<63 - 1: 4 << 20} {
		if got := ClusterSize(size); got != want {
			t.Errorf("ClusterSize(%d) = %d, want %d", size, got, want)
		}
	}
}

func TestMatch(t *testing.T) {
	m, _ := newTestMap(t, 600)
	good := m.Header()
	if err := m.Match(good); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*Header){
		"base image":   func(h *Header) { h.Base = "sha256:4567" },
		"image format": func(h *Header) { h.Format = "qcow2" },
		"image size":   func(h *Header) { h.BaseSize-- },
		"disk size":    func(h *Header) { h.Size++ },
		"cluster size": func(h *Header) { h.ClusterSize *= 2 },
	} {
		h := good
		change(&h)
		err := m.Match(h)
		if e := (*MismatchError)(nil); !errors.As(err, &e) || e.Field != field || e.Have == e.Got {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

// half writes the first half of the write that fails.
type half struct {
	blockdev.Device
	after *int
}

func (h half) WriteAt(p []byte, off int64) (int, error) {
	*h.after--
	if *h.after != 0 {
		return h.Device.WriteAt(p, off)
	}
	n, _ := h.Device.WriteAt(p[:len(p)/2], off)
	return n, blockdevtest.ErrInjected
}

// TestMarkAllOrNothing: states of which only some could be written are taken
// back, or a later process would believe them. If that fails as well it
// believes no states at all.
func TestMarkAllOrNothing(t *testing.T) {
	m, b := newTestMap(t, 600)
	mustMark(t, m, 9, 1)
	after := 1
	m.dev = half{m.dev, &after}
	if err := m.mark(10, 20, fromGuest); !errors.Is(err, blockdevtest.ErrInjected) || errors.As(err, new(*fatalError)) {
		t.Fatalf("got %v", err)
	}
	m2, err := reopened(b, "epoch 1")
	if err != nil || !slices.Equal(have(m2), []int64{9}) || !slices.Equal(have(m), []int64{9}) {
		t.Errorf("present: %v, and after a new start %v (%v)", have(m), have(m2), err)
	}

	m.dev = blockdevtest.Fail(ramOf(b, true), 1, blockdev.KindIO)
	m.dev.(*blockdevtest.Failing).Sticky = true
	if err := m.mark(10, 20, fromGuest); !errors.As(err, new(*fatalError)) {
		t.Errorf("undo failed: got %v", err)
	}
}

// TestDistrust: a process that comes after a failed sync believes only what is
// durable, for the kernel may have dropped the rest.
func TestDistrust(t *testing.T) {
	r := newRig(CopyOnWrite, true)
	file := r.newMapFile()
	b := make([]byte, file.Size())
	m, err := createMap(ramOf(b, true), "map", r.header(), "epoch 1")
	if err != nil {
		t.Fatal(err)
	}
	store := blockdevtest.Fail(r.newStore(), 2, blockdev.KindIO)
	store.Ops = blockdevtest.OpFlush
	d, err := r.open(r.image(), store, m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for c := range int64(2) {
		if _, err := d.WriteAt(make([]byte, testCluster), c*testCluster); err != nil {
			t.Fatal(err)
		}
		if err := d.Flush(); (err != nil) != (c == 1) {
			t.Fatalf("flush %d: %v", c, err)
		}
	}
	d.m.wait() // for what is written in the background to b
	if m, err := reopened(b, "epoch 1"); err != nil || !slices.Equal(have(m), []int64{0}) {
		t.Errorf("a later process has %v (%v), want cluster 0", have(m), err)
	}
	if _, err := d.WriteAt(make([]byte, 512), 0); blockdev.KindOf(err) != blockdev.KindIO {
		t.Errorf("write: got %v", err)
	}
	if _, err := d.ReadAt(make([]byte, 512), 0); err != nil {
		t.Errorf("read: %v", err)
	}
}

// TestMapCrash cuts the power in random runs of a map of several pages. What a
// commit has returned for is there, and nothing that was never marked.
func TestMapCrash(t *testing.T) {
	first, n := seeds(t, 3)
	for seed := first; seed < first+n; seed++ {
		rng := rand.New(rand.NewPCG(seed, 1))
		var j blockdevtest.Journal
		m, b := newTestMap(t, 2*pageClusters+100)
		rec := j.Record(t, "map", ramOf(b, true))
		m.dev = rec
		picks := []int64{0, 1, pageClusters - 1, pageClusters, pageClusters + 7, 2 * pageClusters, 2*pageClusters + 99}
		for range 6 {
			for range 1 + rng.IntN(2) {
				c := picks[rng.IntN(len(picks))]
				if !m.present.has(c) {
					mustMark(t, m, c, 1)
				}
			}
			epoch := have(m)
			if err := m.commit(m.freeze()); err != nil {
				t.Fatal(err)
			}
			j.Mark(epoch)
		}
		m.wait()
		all := have(m)
		for c := range j.Crashes() {
			var must []int64
			if n := len(c.Marks); n > 0 {
				must = c.Marks[n-1].Note.([]int64)
			}
			for s := range c.Survivals(rng, 6) {
				m, err := openMap(ramOf(c.Disk(rec, s), true), "map", "epoch 2")
				if err != nil {
					t.Fatalf("seed %d, event %d: %v", seed, c.At, err)
				}
				if err := between(have(m), must, all); err != nil {
					t.Fatalf("seed %d, event %d, pending %v: %v", seed, c.At, c.Pending, err)
				}
			}
		}
	}
}

// between wants all of must in got, and all of got in most.
func between(got, must, most []int64) error {
	for _, c := range must {
		if !slices.Contains(got, c) {
			return fmt.Errorf("cluster %d was committed and is absent", c)
		}
	}
	for _, c := range got {
		if !slices.Contains(most, c) {
			return fmt.Errorf("cluster %d was never present", c)
		}
	}
	return nil
}

// TestMapOpensFast: the time is bounded by what is used and not by the size.
func TestMapOpensFast(t *testing.T) {
	for _, gib := range []int64{1, 20, 200} {
		path := filepath.Join(tempDir(t), "map")
		size := gib << 30
		h := Header{Base: "b", Format: "qcow2", BaseSize: size, Size: size, ClusterSize: ClusterSize(size)}
		begin := time.Now()
		m, err := CreateMap(path, h, "epoch 1")
		if err != nil {
			t.Fatal(err)
		}
		made := time.Since(begin)
		for c := int64(0); c < m.clusters; c += 1001 {
			mustMark(t, m, c, 3)
		}
		mustCommit(t, m)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		for _, epoch := range []string{"epoch 1", "epoch 2"} {
			took := time.Hour // the fastest of some: the machine may be busy
			for range 5 {
				begin = time.Now()
				m, err := OpenMap(path, epoch)
				if err != nil {
					t.Fatal(err)
				}
				took = min(took, time.Since(begin))
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%d GiB, %s: made in %v, opened in %v", gib, epoch, made, took)
			if most := time.Second; took > most { // 5 ms on an idle machine; the race detector takes its time
				t.Errorf("%d GiB: opened in %v, want no more than %v", gib, took, most)
			}
		}
	}
}
