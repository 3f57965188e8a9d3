package blockdevtest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// write writes a sector of c at sector s.
func write(t *testing.T, d blockdev.Device, s int64, c byte) {
	t.Helper()
	if _, err := d.WriteAt(bytes.Repeat([]byte{c}, sector), s*sector); err != nil {
		t.Fatal(err)
	}
}

func flushed(t *testing.T, d blockdev.Device) {
	t.Helper()
	if err := d.Flush(); err != nil {
		t.Fatal(err)
	}
}

// sectors is a disk as a letter a sector; "." is zeros.
func sectors(disk []byte) string {
	var s strings.Builder
	for p := range slices.Chunk(disk, sector) {
		c := p[0]
		if !bytes.Equal(p, bytes.Repeat([]byte{c}, sector)) {
			c = '?'
		} else if c == 0 {
			c = '.'
		}
		s.WriteByte(c)
	}
	return s.String()
}

// outcomes are all disks that a crash may leave.
func outcomes(c *Crash, devs ...*Recorder) string {
	var all []string
	for s := range c.Survivals(rand.New(rand.NewPCG(1, 1)), 64) {
		var disks []string
		for _, d := range devs {
			disks = append(disks, sectors(c.Disk(d, s)))
		}
		if one := strings.Join(disks, "|"); !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func TestJournal(t *testing.T) {
	var j Journal
	d := j.Record(t, "disk", blockdev.MemOf(bytes.Repeat([]byte{'i'}, 3*sector)))
	write(t, d, 0, 'a') // events 1, 2
	flushed(t, d)       // 3, 4
	j.Mark("a is safe")
	write(t, d, 1, 'b') // 5, 6
	write(t, d, 0, 'c') // 7, 8
	if err := d.Zero(2*sector, sector, blockdev.ZeroMayUnmap); err != nil {
		t.Fatal(err) // 9, 10
	}
	flushed(t, d) // 11, 12
	want := map[int]string{
		0:  "iii",
		1:  "aii iii",
		2:  "aii iii",
		3:  "aii iii",
		4:  "aii",
		5:  "abi aii",
		6:  "abi aii",
		7:  "abi aii cbi cii",
		9:  "ab. abi ai. aii cb. cbi ci. cii",
		11: "ab. abi ai. aii cb. cbi ci. cii",
		12: "cb.",
	}
	last := -1
	for c := range j.Crashes() {
		last = c.At
		if w, ok := want[c.At]; ok && outcomes(c, d) != w {
			t.Errorf("after event %d: got %s, want %s", c.At, outcomes(c, d), w)
		}
		if got := len(c.Marks); got != 0 != (c.At >= 4) {
			t.Errorf("after event %d: %d marks", c.At, got)
		}
	}
	if last != 12 {
		t.Errorf("the last cut is at %d, want 12", last)
	}
}

// TestJournalTwoDevices: a flush of the data says nothing about the map.
func TestJournalTwoDevices(t *testing.T) {
	var j Journal
	data := j.Record(t, "data", blockdev.NewMem(sector))
	index := j.Record(t, "index", blockdev.NewMem(sector))
	write(t, data, 0, 'd')  // 1, 2
	write(t, index, 0, 'x') // 3, 4
	flushed(t, data)        // 5, 6
	flushed(t, index)       // 7, 8
	for at, want := range map[int]string{2: ".|. d|.", 4: ".|. .|x d|. d|x", 6: "d|. d|x", 8: "d|x"} {
		if got := outcomes(j.Crash(at), data, index); got != want {
			t.Errorf("after event %d: got %s, want %s", at, got, want)
		}
	}
}

// slow calls inside while it writes.
type slow struct {
	blockdev.Device
	inside func()
}

func (s slow) WriteAt(p []byte, off int64) (int, error) {
	s.inside()
	return s.Device.WriteAt(p, off)
}

// TestJournalFlushDuringWrite: a flush does not cover a write that has not
// returned when it is called.
func TestJournalFlushDuringWrite(t *testing.T) {
	var j Journal
	var d *Recorder
	d = j.Record(t, "disk", slow{blockdev.NewMem(sector), func() { flushed(t, d) }})
	write(t, d, 0, 'w')
	if got, want := outcomes(j.Crash(4), d), ". w"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	flushed(t, d)
	if got, want := outcomes(j.Crash(6), d), "w"; got != want {
		t.Errorf("after a flush: got %s, want %s", got, want)
	}
}

// TestJournalFailures: what failed may have happened, for ever, and a flush
// that failed covers nothing.
func TestJournalFailures(t *testing.T) {
	var j Journal
	fail := Fail(blockdev.NewMem(sector), 1, blockdev.KindIO)
	fail.Ops = OpZero | OpFlush
	d := j.Record(t, "disk", fail)
	write(t, d, 0, 'a')
	if err := d.Flush(); !errors.Is(err, ErrInjected) {
		t.Fatal(err)
	}
	if got, want := outcomes(j.Crash(3), d), ". a"; got != want {
		t.Errorf("after a flush that failed: got %s, want %s", got, want)
	}

	fail = Fail(blockdev.MemOf(bytes.Repeat([]byte{'i'}, sector)), 1, blockdev.KindIO)
	fail.Ops = OpZero
	d = j.Record(t, "other", fail)
	if err := d.Zero(0, sector, blockdev.ZeroMayUnmap); !errors.Is(err, ErrInjected) {
		t.Fatal(err)
	}
	flushed(t, d)
	if got, want := outcomes(j.Crash(j.now), d), ". i"; got != want {
		t.Errorf("after a zero that failed and a flush: got %s, want %s", got, want)
	}
}

// TestJournalTears: a write of several sectors may arrive in part, but sectors
// are whole, and what Random says does not change when it is asked again.
func TestJournalTears(t *testing.T) {
	var j Journal
	d := j.Record(t, "disk", blockdev.NewMem(8*sector))
	if _, err := d.WriteAt(bytes.Repeat([]byte{'w'}, 6*sector-100), 50); err != nil {
		t.Fatal(err)
	}
	c := j.Crash(2)
	rng := rand.New(rand.NewPCG(1, 1))
	seen := map[string]bool{}
	for range 300 {
		s := c.Random(rng)
		first, second := sectors(c.Disk(d, s)), sectors(c.Disk(d, s))
		if first != second {
			t.Fatalf("asked twice: %s and %s", first, second)
		}
		seen[first] = true
	}
	for _, want := range []string{"........", "?wwww?.."} {
		if !seen[want] {
			t.Errorf("never seen: %s", want)
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d of 64 outcomes in 300 tries", len(seen))
	}
}

// TestJournalKilled: a process that dies takes only what was under way with it.
func TestJournalKilled(t *testing.T) {
	var j Journal
	d := j.Record(t, "disk", blockdev.NewMem(2*sector))
	write(t, d, 0, 'a') // 1, 2
	write(t, d, 1, 'b') // 3, 4
	rng := rand.New(rand.NewPCG(1, 1))
	for at, want := range map[int]string{0: "..", 1: ".. a.", 2: "a.", 3: "a. ab", 4: "ab"} {
		seen := map[string]bool{}
		for range 50 {
			c := j.Crash(at)
			seen[sectors(c.Disk(d, c.Killed(rng)))] = true
		}
		if got := strings.Join(slices.Sorted(maps.Keys(seen)), " "); got != want {
			t.Errorf("killed after event %d: got %s, want %s", at, got, want)
		}
	}
}

func TestSurvivals(t *testing.T) {
	var j Journal
	d := j.Record(t, "disk", blockdev.NewMem(16*sector))
	for s := range int64(16) {
		write(t, d, s, 'a'+byte(s))
	}
	for at, want := range map[int]int{0: 1, 2: 2, 6: 8, 12: 64, 14: 64, 32: 64} {
		n := 0
		for range j.Crash(at).Survivals(rand.New(rand.NewPCG(1, 1)), 64) {
			n++
		}
		if n != want {
			t.Errorf("after event %d: %d survivals, want %d", at, n, want)
		}
	}
	if got := fmt.Sprint(j.Crash(1).Pending); got != "[disk write [0, 512)]" {
		t.Errorf("pending: %s", got)
	}
}

// TestRecorder: a recorder is a device like any other.
func TestRecorder(t *testing.T) {
	content := bytes.Repeat([]byte{'x', 0, 'y'}, 10_000)
	Run(t, content, func(t *testing.T) blockdev.Device {
		return new(Journal).Record(t, "disk", blockdev.MemOf(bytes.Clone(content)))
	})
}

// TestReplay: when everything survives, the disk is what the device holds, and
// what was flushed is there whatever survives.
func TestReplay(t *testing.T) {
	content := bytes.Repeat([]byte{'x', 0, 'y'}, 10_000)
	var j Journal
	d := j.Record(t, "disk", blockdev.MemOf(bytes.Clone(content)))
	m := &model{data: bytes.Clone(content), vague: make([]bool, len(content))}
	rng := rand.New(rand.NewPCG(7, 7))
	for range 300 {
		off := rng.Int64N(d.Size())
		if _, err := m.step(d, rng.IntN(4), off, rng.Int64N(d.Size()-off+1)); err != nil {
			t.Fatal(err)
		}
		if i := mismatch(j.Crash(j.now).Disk(d, Everything), m.data); i >= 0 {
			t.Fatalf("after event %d byte %d differs", j.now, i)
		}
	}
	flushed(t, d)
	if i := mismatch(j.Crash(j.now).Disk(d, Nothing), m.data); i >= 0 {
		t.Fatalf("after a flush byte %d differs", i)
	}
}
