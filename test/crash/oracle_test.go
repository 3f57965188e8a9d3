//go:build e2e

package crash

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/containerdisk/containerdisk/test/client"
)

const sectorSize = client.SectorSize

// A version names what a sector holds: what the image has there, zeros, or
// what a certain write brought. Versions of writes are never used twice.
type version uint64

const (
	ofImage version = iota
	zeros
	firstWrite
)

// sector is what is known of one sector.
type sector struct {
	sure  version // kept whatever happens, unless one of later has replaced it
	later []event // the changes since, in their order
}

// event is a change of a sector.
type event struct {
	version version
	acked   int64 // when it was acknowledged, by the oracle's clock; 0: it was not, and may not have happened
}

// oracle knows what each sector of a disk may hold. Requests that change the
// same sector are never under way at the same time: busy sees to that.
type oracle struct {
	image []byte // what the disk began with
	kept  promise

	mu      sync.Mutex // guards all below
	clock   int64
	next    version
	sectors []sector
	dirty   map[int64]bool // sectors that have later events
	busy    []span
	dark    bool // the power is going: an acknowledgement is worth nothing
}

// promise is when a change is sure to be kept.
type promise int

const (
	whenAcknowledged promise = iota // the process dies
	whenFlushed                     // power is lost
)

// span is a range of sectors.
type span struct{ first, n int64 }

func (s span) overlaps(o span) bool { return s.first < o.first+o.n && o.first < s.first+s.n }
func (s span) off() int64           { return s.first * sectorSize }
func (s span) bytes() int64         { return s.n * sectorSize }
func (s span) String() string       { return fmt.Sprintf("[%d, %d)", s.first, s.first+s.n) }

func newOracle(image []byte, kept promise) *oracle {
	return &oracle{
		image: image, kept: kept, next: firstWrite,
		sectors: make([]sector, len(image)/sectorSize),
		dirty:   map[int64]bool{},
	}
}

// claim finds a range of up to most sectors in which nothing is under way. The
// choice prefers places near each other, so that requests meet in clusters.
func (o *oracle) claim(r *rand.Rand, most int64) span {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		n := 1 + r.Int64N(most)
		first := r.Int64N(int64(len(o.sectors)) - n)
		if r.IntN(2) == 0 { // whole clusters
			n = min((n+127)&^127, int64(len(o.sectors)))
			first &^= 127
			n = min(n, int64(len(o.sectors))-first)
		}
		s := span{first, n}
		if !slices.ContainsFunc(o.busy, s.overlaps) {
			o.busy = append(o.busy, s)
			return s
		}
	}
}

// release ends a claim.
func (o *oracle) release(s span) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy = slices.DeleteFunc(o.busy, func(b span) bool { return b == s })
}

// begin notes that a claimed range is about to change, and returns to what.
func (o *oracle) begin(s span, to version) version {
	o.mu.Lock()
	defer o.mu.Unlock()
	if to >= firstWrite {
		to = o.next
		o.next++
	}
	for i := s.first; i < s.first+s.n; i++ {
		o.sectors[i].later = append(o.sectors[i].later, event{version: to})
		o.dirty[i] = true
	}
	return to
}

// acknowledge notes that the change begun last on the range was acknowledged,
// and with durable that it was so as one that survives a loss of power.
func (o *oracle) acknowledge(s span, durable bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dark {
		return
	}
	o.clock++
	for i := s.first; i < s.first+s.n; i++ {
		last := &o.sectors[i].later[len(o.sectors[i].later)-1]
		last.acked = o.clock
		if durable || o.kept == whenAcknowledged {
			o.settle(i, o.clock)
		}
	}
}

// lightsOut is called before the power goes. How far a request got that is
// answered from now on nobody knows: ext4 that is shut down in the middle of an
// fsync may even report success.
func (o *oracle) lightsOut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dark = true
}

// flushing returns the time that a flush begins: all that was acknowledged
// until then is sure when the flush is acknowledged.
func (o *oracle) flushing() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.clock
}

// flushed notes that the flush that began then was acknowledged.
func (o *oracle) flushed(began int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dark {
		return
	}
	for i := range o.dirty {
		o.settle(i, began)
	}
}

// settle makes the newest version of a sector that was acknowledged by then the
// sure one.
func (o *oracle) settle(i, then int64) {
	s := &o.sectors[i]
	for k := len(s.later) - 1; k >= 0; k-- {
		if e := s.later[k]; e.acked > 0 && e.acked <= then {
			s.sure, s.later = e.version, slices.Clone(s.later[k+1:])
			break
		}
	}
	if len(s.later) == 0 {
		delete(o.dirty, i)
	}
}

// check compares what was read from a range in which nothing is under way with
// what a disk that did not crash has there.
func (o *oracle) check(s span, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := s.first; i < s.first+s.n; i++ {
		may := o.sectors[i].now()
		if o.match(i, p[(i-s.first)*sectorSize:][:sectorSize], may) < 0 {
			return o.wrong(i, p[(i-s.first)*sectorSize:][:sectorSize], may)
		}
	}
	return nil
}

// now lists what a sector may read as while nothing has crashed: what was
// acknowledged last, or anything later, which may have happened or not.
func (s *sector) now() []version {
	may := []version{s.sure}
	for _, e := range s.later {
		if e.acked > 0 {
			may = may[:0]
		}
		may = append(may, e.version)
	}
	return may
}

// crashed lists what a sector may read as after a crash.
func (s *sector) crashed() []version {
	may := []version{s.sure}
	for _, e := range s.later {
		may = append(may, e.version)
	}
	return may
}

// survey takes the whole disk as it was found after a crash: each sector must
// be one of its versions, and that is what it must be from now on.
func (o *oracle) survey(disk []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy, o.dark = nil, false
	for i := range o.sectors {
		p := disk[i*sectorSize:][:sectorSize]
		may := o.sectors[i].crashed()
		k := o.match(int64(i), p, may)
		if k < 0 {
			return o.wrong(int64(i), p, may)
		}
		o.sectors[i] = sector{sure: may[k]}
	}
	clear(o.dirty)
	return nil
}

// match returns the index of the version that p is, or -1.
func (o *oracle) match(i int64, p []byte, may []version) int {
	var want [sectorSize]byte
	return slices.IndexFunc(may, func(v version) bool {
		o.content(i, v, want[:])
		return bytes.Equal(p, want[:])
	})
}

// content fills p with a version of a sector.
func (o *oracle) content(i int64, v version, p []byte) {
	switch v {
	case ofImage:
		copy(p, o.image[i*sectorSize:])
	case zeros:
		clear(p)
	default:
		fillSector(p, i, v)
	}
}

// fillSector makes what a write brings: no other sector and no other write
// has the same, and every eight bytes of it are different.
func fillSector(p []byte, i int64, v version) {
	x := uint64(i)<<32 ^ uint64(v)
	binary.BigEndian.PutUint64(p, uint64(i))
	binary.BigEndian.PutUint64(p[8:], uint64(v))
	for k := 16; k < sectorSize; k += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.BigEndian.PutUint64(p[k:], x)
	}
}

// wrong tells what a sector holds instead of what it may.
func (o *oracle) wrong(i int64, p []byte, may []version) error {
	found := "neither the image's, nor zeros, nor of one write: torn or foreign"
	for v := version(0); v < o.next; v++ {
		if o.match(i, p, []version{v}) == 0 {
			found = fmt.Sprintf("version %d", v)
			break
		}
	}
	return fmt.Errorf("sector %d (byte %d) is %s; it may be of versions %v (0 is the image's, 1 zeros); it begins with % x",
		i, i*sectorSize, found, may, p[:16])
}
