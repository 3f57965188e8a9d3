package overlay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// What the tests of crashes, faults and concurrency share: a disk in memory
// whose sectors each hold one number, and a model that knows which numbers a
// sector may hold.

const sector = 512

// value is what a sector holds, 64 times; 0 is zeros.
type value uint64

const torn = ^value(0) // a sector that does not hold one value

func (v value) put(p []byte) {
	for i := 0; i < sector; i += 8 {
		binary.BigEndian.PutUint64(p[i:], uint64(v))
	}
}

func valueOf(p []byte) value {
	v := value(binary.BigEndian.Uint64(p))
	for i := 8; i < sector; i += 8 {
		if value(binary.BigEndian.Uint64(p[i:])) != v {
			return torn
		}
	}
	return v
}

// Values of the base and of what was in the store before. Writes count from 1.
const (
	fromTheBase = value(0xb << 32)
	garbage     = value(0x6 << 32)
)

// filled is n bytes of sectors with that value and their number.
func filled(n int64, v value) []byte {
	p := make([]byte, n)
	for s := int64(0); s < n/sector; s++ {
		(v + value(s)).put(p[s*sector:])
	}
	return p
}

// baseContent has clusters of data, of zeros and of both.
func baseContent(n int64) []byte {
	p := filled(n, fromTheBase)
	for s := int64(0); s < n/sector; s++ {
		switch c := s * sector / testCluster; {
		case c%5 == 2, c%5 == 4 && s%8 > 4, c%5 == 3 && s%8 < 3:
			value(0).put(p[s*sector:])
		}
	}
	return p
}

// ram is a disk in memory that knows of holes, as a sparse file does, or knows
// nothing, as a block device.
type ram struct {
	*blockdev.Mem
	sparse bool
}

func ramOf(b []byte, sparse bool) ram { return ram{blockdev.MemOf(b), sparse} }

func (r ram) Caps() blockdev.Caps {
	return blockdev.Caps{Discard: r.sparse, DiscardZeroes: r.sparse, FastZero: r.sparse, Granularity: 4096, PhysicalBlock: 4096}
}

func (r ram) Discard(off, n int64) error {
	if !r.sparse {
		return nil
	}
	return r.Zero(off, n, blockdev.ZeroMayUnmap)
}

func (r ram) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	if !r.sparse {
		return r.Mem.Extents(off, n)
	}
	return func(yield func(blockdev.Extent, error) bool) {
		j := blockdev.NewJoin(yield)
		p := make([]byte, 4096)
		for end := off + n; off < end; {
			k := min(end-off, 4096-off%4096)
			if _, err := r.ReadAt(p[:k], off); err != nil {
				j.Fail(err)
				return
			}
			kind := blockdev.Data
			if bytes.Equal(p[:k], make([]byte, k)) {
				kind = blockdev.Hole
			}
			if !j.Add(blockdev.Extent{Off: off, Len: k, Kind: kind}) {
				return
			}
			off += k
		}
		j.Done()
	}
}

// slowly gives other goroutines a turn in the middle of everything.
type slowly struct{ blockdev.Device }

func (s slowly) WriteAt(p []byte, off int64) (int, error) {
	runtime.Gosched()
	n, err := s.Device.WriteAt(p, off)
	runtime.Gosched()
	return n, err
}

func (s slowly) ReadAt(p []byte, off int64) (int, error) {
	runtime.Gosched()
	n, err := s.Device.ReadAt(p, off)
	runtime.Gosched()
	return n, err
}

// rig is a disk under test.
type rig struct {
	base   []byte
	size   int64
	mode   Mode
	sparse bool // the store is like a file
	next   atomic.Uint64
}

// newRig has sizes that end within a cluster and within a unit of zeros.
func newRig(mode Mode, sparse bool) *rig {
	return &rig{base: baseContent(21*testCluster + 1536), size: 24*testCluster + 2560, mode: mode, sparse: sparse}
}

func (r *rig) header() Header { return header(int64(len(r.base)), r.size) }

func (r *rig) sectors() int64 { return r.size / sector }

// newStore is the store before its first use, newMapFile the map's file.
func (r *rig) newStore() ram {
	if r.sparse {
		return ramOf(make([]byte, r.size), true)
	}
	return ramOf(filled(r.size, garbage), false)
}

func (r *rig) newMapFile() ram {
	l, err := layoutOf(r.header())
	if err != nil {
		panic(err)
	}
	return ramOf(make([]byte, l.size()), true)
}

// image is the base as a source.
func (r *rig) image() blockdev.Device { return ramOf(bytes.Clone(r.base), true) }

// open opens the disk over these parts.
func (r *rig) open(base blockdev.Source, store blockdev.Device, m *Map, o Options) (*Disk, error) {
	o.Mode = r.mode
	d, err := Open(base, store, m, o)
	if err == nil {
		d.hydrator.piece = 2 * testCluster // several pieces in so small a disk
	}
	return d, err
}

// initial is what the sectors hold at first.
func (r *rig) initial() []value {
	all := make([]value, r.sectors())
	for s := range int64(len(r.base)) / sector {
		all[s] = valueOf(r.base[s*sector:])
	}
	return all
}

// values reads all sectors of a disk.
func values(src blockdev.Source) ([]value, error) {
	p := make([]byte, src.Size())
	if _, err := src.ReadAt(p, 0); err != nil {
		return nil, err
	}
	all := make([]value, len(p)/sector)
	for s := range all {
		all[s] = valueOf(p[s*sector:])
	}
	return all, nil
}

// entry is what a sector may hold after an operation.
type entry struct {
	op   int
	poss []value
}

// client is one who uses the disk, one request at a time, and alone has the
// sectors that are its own.
type client struct {
	*rig
	id  int
	rng *rand.Rand
	own []span // of sectors, in which its requests are

	hist    map[int64][]entry // of its sectors
	begun   int               // operations
	acked   int
	flushed int // the last operation that a flush has covered
	note    func(progress)
}

// span is sectors from first to end, that one not included.
type span struct{ first, end int64 }

// progress is how far a client is.
type progress struct{ client, begun, acked, flushed int }

// newClients returns n clients who share the disk in stripes, which share
// clusters.
func (r *rig) newClients(n int, seed uint64, note func(progress)) []*client {
	const stripe = 5 // sectors
	init := r.initial()
	all := make([]*client, n)
	for i := range all {
		c := &client{rig: r, id: i, rng: rand.New(rand.NewPCG(seed, uint64(i))), hist: map[int64][]entry{}, note: note}
		if n == 1 {
			c.own = []span{{0, r.sectors()}}
		} else {
			for s := int64(i) * stripe; s < r.sectors(); s += int64(n) * stripe {
				c.own = append(c.own, span{s, min(s+stripe, r.sectors())})
			}
		}
		for _, o := range c.own {
			for s := o.first; s < o.end; s++ {
				c.hist[s] = []entry{{0, []value{init[s]}}}
			}
		}
		all[i] = c
	}
	return all
}

// now is what sector s may hold.
func (c *client) now(s int64) []value { h := c.hist[s]; return h[len(h)-1].poss }

// allowed is what sector s may hold if all operations up to from have happened
// and any of those up to to.
func (c *client) allowed(s int64, from, to int) (all []value) {
	for i, e := range c.hist[s] {
		last := i+1 == len(c.hist[s])
		if e.op <= to && (last || c.hist[s][i+1].op > from) {
			all = append(all, e.poss...)
		}
	}
	return all
}

// request is a piece of the client's sectors.
func (c *client) request() span {
	o := c.own[c.rng.IntN(len(c.own))]
	first := o.first + c.rng.Int64N(o.end-o.first)
	n := o.end - first
	if c.rng.IntN(8) > 0 {
		n = min(n, 12)
	}
	end := first + 1 + c.rng.Int64N(n)
	const k = testCluster / sector
	if c.rng.IntN(3) == 0 && o.end-o.first > k { // whole clusters
		first = first / k * k
		end = min((end+k-1)/k*k, o.end)
	}
	return span{first, end}
}

// result is what a request came to.
func (c *client) result(q span, err error, of func(s int64) value) {
	for s := q.first; s < q.end; s++ {
		poss := []value{of(s)}
		if err != nil {
			for _, v := range c.now(s) {
				if !slices.Contains(poss, v) {
					poss = append(poss, v)
				}
			}
		}
		c.hist[s] = append(c.hist[s], entry{c.begun, poss})
	}
}

// step makes one random request. Its error is of the request; what is wrong
// with the disk is told to t.
func (c *client) step(t *testing.T, d blockdev.Device) error {
	op := c.rng.IntN(12)
	if op >= 10 {
		return c.flush(d)
	}
	if op >= 7 {
		return c.read(t, d, c.request())
	}
	q := c.request()
	off, n := q.first*sector, (q.end-q.first)*sector
	if op == 6 && !d.Caps().DiscardZeroes { // ours keep what was there
		return d.Discard(off, n)
	}
	c.begun++
	c.tell()
	stamp := value(c.next.Add(1)) << 8
	of := func(s int64) value { return 0 }
	var err error
	switch op {
	case 0, 1, 2, 3:
		p := make([]byte, n)
		of = func(s int64) value { return stamp + value(s-q.first) }
		for s := q.first; s < q.end; s++ {
			of(s).put(p[(s-q.first)*sector:])
		}
		err = blockdev.ErrWouldBlock
		if op == 0 {
			err = d.TryWriteAt(p, off)
		}
		if errors.Is(err, blockdev.ErrWouldBlock) {
			_, err = d.WriteAt(p, off)
		}
	case 4:
		err = d.Zero(off, n, blockdev.ZeroMayUnmap)
	case 5:
		err = d.Zero(off, n, blockdev.ZeroKeepAllocated)
	case 6:
		err = d.Discard(off, n)
	}
	c.result(q, err, of)
	c.acked = c.begun
	c.tell()
	return err
}

func (c *client) tell() {
	if c.note != nil {
		c.note(progress{c.id, c.begun, c.acked, c.flushed})
	}
}

func (c *client) flush(d blockdev.Device) error {
	at := c.acked
	err := d.Flush()
	if err == nil {
		c.flushed = at
		c.tell()
	}
	return err
}

// read compares a piece of the disk. What was read once is what is there: a
// sector that a failed write has left in doubt must not change by itself.
func (c *client) read(t *testing.T, d blockdev.Device, q span) error {
	p := make([]byte, (q.end-q.first)*sector)
	err := blockdev.ErrWouldBlock
	if c.rng.IntN(2) == 0 {
		err = d.TryReadAt(p, q.first*sector)
	}
	if errors.Is(err, blockdev.ErrWouldBlock) {
		_, err = d.ReadAt(p, q.first*sector)
	}
	if err != nil {
		return err
	}
	for s := q.first; s < q.end; s++ {
		got := valueOf(p[(s-q.first)*sector:])
		if !slices.Contains(c.now(s), got) {
			t.Errorf("client %d: sector %d is %#x, want one of %#x", c.id, s, got, c.now(s))
			return fmt.Errorf("wrong content")
		}
		h := c.hist[s]
		h[len(h)-1].poss = []value{got}
	}
	return nil
}

// checkAll compares all of the clients' sectors with what they may hold when
// the operations up to from have happened and any up to to.
func checkAll(all []value, clients []*client, at map[int]progress, from func(progress) int) error {
	for _, c := range clients {
		p := at[c.id]
		for s := range c.hist {
			if want := c.allowed(s, from(p), p.begun); !slices.Contains(want, all[s]) {
				return fmt.Errorf("sector %d (cluster %d) is %#x, want one of %#x (%+v)", s, s*sector/testCluster, all[s], want, p)
			}
		}
	}
	return nil
}

// hydrated hydrates the disk and wants it to be what it was.
func (r *rig) hydrated(d *Disk, want []value) error {
	d.opts.Mode = Clone
	if err := d.Hydrate(context.Background()); err != nil {
		return fmt.Errorf("hydrate: %w", err)
	}
	got, err := values(d.store)
	if err != nil {
		return err
	}
	for s := range want {
		if got[s] != want[s] {
			return fmt.Errorf("hydrated, sector %d is %#x, was %#x", s, got[s], want[s])
		}
	}
	return nil
}
