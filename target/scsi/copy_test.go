package scsi

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

const lun2 = uint64(2) << 48

// pair is a bench with a second disk, number 2, for copies between the two.
type pair struct {
	*bench
	disk2 *testDisk
	two   *LUN
}

func newPair(t *testing.T, change func(*testDisk, *LUNOptions)) pair {
	t.Helper()
	units := map[uint64]*LUN{}
	p := pair{bench: &bench{}}
	for n := range uint64(2) {
		d, o := newTestDisk(testBlocks), LUNOptions{Identity: testIdentity()}
		o.Identity.ID[1] = byte(n)
		if n == 1 && change != nil {
			change(d, &o)
		}
		l := NewLUN(d, o)
		t.Cleanup(l.Close)
		l.back.least = 0
		units[n+1] = l
		if n == 0 {
			p.disk, p.lun = d, l
		} else {
			p.disk2, p.two = d, l
		}
	}
	p.target = NewTarget(testName, units)
	p.a, p.b = p.target.NewNexus(firstClient), p.target.NewNexus(otherClient)
	for _, n := range []*Nexus{p.a, p.b} {
		do(n, lun1, tur, nil)
		do(n, lun2, tur, nil)
	}
	return p
}

// xcopy is an EXTENDED COPY between disks, which are numbered as the CSCD
// descriptors are: LUN 1 and LUN 2.
func (p pair) xcopy(id byte, segments ...[]byte) (*CDB, []byte) {
	list := make([]byte, copyHeader)
	list[copyListID] = id
	for _, l := range []*LUN{p.lun, p.two} {
		d := make([]byte, cscdSize)
		d[cscdType], d[cscdCodeSet], d[cscdDesignatorType], d[cscdDesignatorLength] = cscdIdentification, codeBinary, designatorNAA, 8
		copy(d[cscdDesignator:], l.naa())
		binary.BigEndian.PutUint16(d[30:], uint16(l.blockSize()))
		list = append(list, d...)
	}
	copyCSCDLength.Put(list, 2*cscdSize)
	for _, s := range segments {
		list = append(list, s...)
	}
	copySegmentsLength.Put(list, uint32(len(list)-copyHeader-2*cscdSize))
	c := cdb(opcodeCopy)
	copyLength.Put(c[:], uint32(len(list)))
	return c, list
}

func blockSeg(from, to uint16, blocks uint16, fromLBA, toLBA uint64) []byte {
	s := make([]byte, blockSegmentSize)
	s[segmentType] = segmentBlock
	segmentLength.Put(s, blockSegmentSize-segmentHeader)
	segmentSource.Put(s, from)
	segmentTarget.Put(s, to)
	segmentBlocks.Put(s, blocks)
	segmentSourceLBA.Put(s, fromLBA)
	segmentTargetLBA.Put(s, toLBA)
	return s
}

func byteSeg(from, to uint16, n uint32, fromByte, toByte int64) []byte {
	s := make([]byte, offsetSegmentSize)
	s[segmentType] = segmentOffset
	segmentLength.Put(s, offsetSegmentSize-segmentHeader)
	segmentSource.Put(s, from)
	segmentTarget.Put(s, to)
	segmentBytes.Put(s, n)
	segmentSourceLBA.Put(s, uint64(fromByte/512))
	segmentTargetLBA.Put(s, uint64(toByte/512))
	segmentSourceByte.Put(s, uint16(fromByte%512))
	segmentTargetByte.Put(s, uint16(toByte%512))
	return s
}

func (p pair) wantCopy(t *testing.T, n *Nexus, want string, segments ...[]byte) result {
	t.Helper()
	c, list := p.xcopy(1, segments...)
	r := do(n, lun1, c, list)
	if r.String() != want {
		t.Fatalf("got %v (sense % x), want %v", r, r.sense, want)
	}
	return r
}

// Random segments between and within two disks, against two slices of bytes.
func TestCopyModel(t *testing.T) {
	const seed = 3
	rng := rand.New(rand.NewPCG(seed, seed))
	p := newPair(t, nil)
	disks := []*testDisk{p.disk, p.disk2}
	model := [][]byte{p.disk.content(0, testBlocks*512), p.disk2.content(0, testBlocks*512)}
	for i := range model[1] {
		model[1][i] ^= 0xff
	}
	copy(p.disk2.b, model[1])
	clear(model[0][100*512 : 300*512]) // zeros are not written
	copy(p.disk.b, model[0])
	for round := range 100 {
		var segments [][]byte
		for range 1 + rng.IntN(3) {
			from, to := rng.IntN(2), rng.IntN(2)
			n := rng.IntN(testBlocks*7/8) * 512
			a, b := rng.Int64N(int64(testBlocks*512-n))&^511, rng.Int64N(int64(testBlocks*512-n))&^511
			if rng.IntN(3) == 0 { // close together
				b = min(max(0, a+int64(rng.IntN(20)-10)*512), int64(testBlocks*512-n))
			}
			if rng.IntN(2) == 0 {
				n = rng.IntN(n + 1)
				a, b = min(a+rng.Int64N(512), int64(testBlocks*512-n)), min(b+rng.Int64N(512), int64(testBlocks*512-n))
				segments = append(segments, byteSeg(uint16(from), uint16(to), uint32(n), a, b))
			} else {
				segments = append(segments, blockSeg(uint16(from), uint16(to), uint16(n/512), uint64(a/512), uint64(b/512)))
			}
			copy(model[to][b:], bytes.Clone(model[from][a:][:n]))
		}
		p.wantCopy(t, p.a, "good", segments...)
		for i, d := range disks {
			if at := differ(d.b, model[i]); at >= 0 {
				t.Fatalf("seed %d, round %d: disk %d differs at byte %d", seed, round, i+1, at)
			}
		}
	}
}

// The copy of a hole is a hole.
func TestCopyIsSparse(t *testing.T) {
	p := newPair(t, nil)
	clear(p.disk.b[:1<<20])
	p.wantCopy(t, p.a, "good", blockSeg(0, 1, 2048, 0, 0), blockSeg(0, 1, 2048, 2048, 2048))
	if p.disk2.mapped[0] || !p.disk2.mapped[(1<<20)/granule] || !bytes.Equal(p.disk2.b, p.disk.b) {
		t.Error("not the same disk")
	}
}

// The initiator needs to be let in at both ends, as if it sent READ and WRITE.
func TestCopyIsAdmitted(t *testing.T) {
	conflict := "0a/0d/01"
	for _, c := range []struct {
		name     string
		prepare  func(*testing.T, pair)
		from, to string // what copies from LUN 2 to LUN 1, and the other way, come to
	}{
		{"nothing", func(*testing.T, pair) {}, "good", "good"},
		{"RESERVE", func(t *testing.T, p pair) { doOn(t, p.b, lun2, reserve, nil) }, conflict, conflict},
		{"RESERVE by itself", func(t *testing.T, p pair) { doOn(t, p.a, lun2, reserve, nil) }, "good", "good"},
		{"Write Exclusive", func(t *testing.T, p pair) { reserveTwo(t, p, writeExclusive) }, "good", conflict},
		{"Exclusive Access", func(t *testing.T, p pair) { reserveTwo(t, p, exclusiveAccess) }, conflict, conflict},
		{"SWP", func(_ *testing.T, p pair) { p.two.mode.Store(uint32(modeSWP)) }, "good", "0a/00/00 07/27/00"},
		{"stopped", func(t *testing.T, p pair) { doOn(t, p.a, lun2, cdb(0x1b), nil) }, "0a/00/00 02/04/02", "0a/00/00 02/04/02"},
		{"sanitized", func(t *testing.T, p pair) {
			p.disk2.fail["zero"] = &blockdev.Error{Op: "zero", Kind: blockdev.KindIO}
			do(p.a, lun2, blockErase, nil)
		}, "0a/00/00 03/31/03", "0a/00/00 03/31/03"},
		{"a unit attention", func(_ *testing.T, p pair) { p.a.find(lun2).raise(codeModeChanged) }, "good", "good"},
		{"no space", func(_ *testing.T, p pair) {
			p.disk2.fail["write"] = &blockdev.Error{Op: "write", Kind: blockdev.KindNoSpace}
		},
			"good", "0a/00/00 07/27/07"},
		{"unreadable", func(_ *testing.T, p pair) { p.disk2.fail["read"] = &blockdev.Error{Op: "read", Kind: blockdev.KindIO} },
			"0a/00/00 03/11/00", "good"},
	} {
		for name, way := range map[string]struct {
			segment []byte
			want    string
			end     copyEnd
		}{
			"from": {blockSeg(1, 0, 1, 5, 0), c.from, copySource},
			"to":   {blockSeg(0, 1, 1, 5, 0), c.to, copyTarget},
		} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				p := newPair(t, nil)
				c.prepare(t, p)
				before := [][]byte{p.disk.content(0, 512), p.disk2.content(0, 512)}
				list, out := p.xcopy(1, blockSeg(0, 0, 1, 9, 9), way.segment)
				r := do(p.a, lun1, list, out)
				if got := describeCopy(r, way.end); got != way.want {
					t.Errorf("got %v (sense % x), want %v", got, r.sense, way.want)
				}
				if r.status != Good && (!bytes.Equal(p.disk.content(0, 512), before[0]) || !bytes.Equal(p.disk2.content(0, 512), before[1])) {
					t.Error("something was written")
				}
				if r.status != Good && binary.BigEndian.Uint16(r.sense[10:]) != 1 {
					t.Errorf("sense % x: want segment 1", r.sense)
				}
			})
		}
	}
}

// describeCopy is the result with the sense data of the end that is to blame.
func describeCopy(r result, end copyEnd) string {
	s := r.String()
	if r.status != CheckCondition || len(r.sense) < 2*fixedSense {
		return s
	}
	if at := r.sense[8+end-copySource]; at != fixedSense || r.sense[8+copyTarget-end] != 0 {
		return fmt.Sprintf("%s, but not of end %d", s, end)
	}
	return s + " " + result{status: CheckCondition, sense: r.sense[fixedSense:]}.String()
}

func doOn(t *testing.T, n *Nexus, lun uint64, c *CDB, out []byte) {
	t.Helper()
	if r := do(n, lun, c, out); r.status != Good {
		t.Fatalf("% x: %v", c[:], r)
	}
}

func reserveTwo(t *testing.T, p pair, kind reservationType) {
	t.Helper()
	c, list := prout(0, 0, 0, keyB, 0)
	doOn(t, p.b, lun2, c, list)
	c, list = prout(1, kind, keyB, 0, 0)
	doOn(t, p.b, lun2, c, list)
}

// In the descriptor format the end's sense data is in a descriptor of its own.
func TestCopySenseDescriptors(t *testing.T) {
	p := newPair(t, nil)
	p.lun.mode.Store(uint32(modeDescriptorSense))
	r := p.wantCopy(t, p.a, "0a/00/00", blockSeg(0, 0, 1, 9, 9), blockSeg(0, 1, 1, 0, testBlocks))
	want := append([]byte{0x72, 0x0a, 0, 0, 0, 0, 0, 34,
		0x01, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
		0x0c, 20, 2, 2}, errOutOfRange.appendTo(nil, fixedFormat)...)
	if !bytes.Equal(r.sense, want) {
		t.Errorf("sense % x\nwant % x", r.sense, want)
	}
}

// Blocks of different sizes meet where the number of bytes fits both, or where
// PAD allows what does not.
func TestCopyBetweenBlockSizes(t *testing.T) {
	const dc, cat = segmentDC, segmentCAT
	for _, c := range []struct {
		name     string
		from, to uint16
		blocks   uint16
		flags    byte
		pads     [2]bool
		want     string
		bytes    int // that differ from before on the destination, and zeros behind
		zeros    int
	}{
		{"eight to one", 0, 1, 8, 0, [2]bool{}, "good", 4096, 0},
		{"one to eight", 1, 0, 1, 0, [2]bool{}, "good", 4096, 0},
		{"to one, counted there", 0, 1, 1, dc, [2]bool{}, "good", 4096, 0},
		{"five to less than one", 0, 1, 5, 0, [2]bool{}, "0a/26/0a", 0, 0},
		{"five to one, PAD", 0, 1, 5, 0, [2]bool{false, true}, "good", 5 * 512, 3 * 512},
		{"five to one, PAD and CAT", 0, 1, 5, cat, [2]bool{false, true}, "0a/26/0a", 0, 0},
		{"less than one to five", 1, 0, 5, dc, [2]bool{}, "0a/26/0a", 0, 0},
		{"one to five, PAD", 1, 0, 5, dc, [2]bool{false, true}, "good", 5 * 512, 0},
		{"none", 0, 1, 0, 0, [2]bool{}, "good", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, func(_ *testDisk, o *LUNOptions) { o.BlockSize = 4096 })
			disks := []*testDisk{p.disk, p.disk2}
			for i := range p.disk2.b {
				p.disk2.b[i] ^= 0xff
			}
			s := blockSeg(c.from, c.to, c.blocks, 0, 0)
			s[segmentFlags] = c.flags
			cdb, list := p.xcopy(1, s)
			for i, pad := range c.pads {
				if pad { // of LUN 2, which is the one with large blocks
					list[copyHeader+i*cscdSize+cscdPad] = flagCSCDPad
				}
			}
			want := disks[c.to].content(0, 8192)
			copy(want, disks[c.from].content(0, c.bytes))
			clear(want[c.bytes:][:c.zeros])
			if r := do(p.a, lun1, cdb, list); r.String() != c.want {
				t.Fatalf("got %v, want %v", r, c.want)
			}
			if at := differ(disks[c.to].content(0, 8192), want); at >= 0 {
				t.Errorf("differs at byte %d", at)
			}
		})
	}
}

// A drive is no disk, neither by its designator nor for its commands.
func TestCopyFromDrive(t *testing.T) {
	p := newPair(t, func(_ *testDisk, o *LUNOptions) { o.Type = CDROM })
	p.wantCopy(t, p.a, "0a/0d/03", blockSeg(1, 0, 1, 0, 0))
	c, list := p.xcopy(1)
	if r := do(p.a, lun2, c, list); r.String() != "05/20/00" {
		t.Errorf("EXTENDED COPY to the drive: %v", r)
	}
}

// Without a write cache what is copied is on the medium when the status comes;
// that of the destination counts.
func TestCopyFlushes(t *testing.T) {
	p := newPair(t, nil)
	p.two.mode.Store(uint32(modeWriteThrough))
	p.wantCopy(t, p.a, "good", blockSeg(0, 1, 1, 0, 0), blockSeg(0, 1, 1, 1, 1), blockSeg(1, 0, 1, 0, 0))
	if one, two := p.disk.count("flush"), p.disk2.count("flush"); one != 0 || two != 1 {
		t.Errorf("flushes: %d and %d, want 0 and 1", one, two)
	}
}

// Copies in both directions, resets of both disks and exclusive commands: no
// deadlock, and what is aborted ends.
func TestCopiesAgainstResets(t *testing.T) {
	p := newPair(t, nil)
	var wg sync.WaitGroup
	for i, n := range []*Nexus{p.a, p.b} {
		wg.Go(func() {
			for range 100 {
				c, list := p.xcopy(byte(i), blockSeg(uint16(i), uint16(1-i), 2048, 0, 0))
				do(n, lun1, c, list)
				do(n, lun2, sparse(0x8b, 0, 13), block(1))
			}
		})
	}
	wg.Go(func() {
		for i := range 100 {
			p.b.LogicalUnitReset([]uint64{lun1, lun2}[i%2])
		}
	})
	wg.Wait()
	task := &Task{}
	c, list := p.xcopy(1, blockSeg(0, 1, 2048, 0, 0))
	for range 2 { // unit attentions
		task.Begin(p.a, lun1, c)
	}
	if err := task.Write(list, 0); err != nil {
		t.Fatal(err)
	}
	before := p.disk2.count("write")
	p.a.AbortTaskSet(lun1)
	task.Finish()
	if !task.Aborted() || p.disk2.count("write") != before {
		t.Error("an aborted copy has written")
	}
}

// Results are kept for the nexus by list identifier, until a reset or another
// copy of the same one.
func TestCopyResults(t *testing.T) {
	p := newPair(t, nil)
	status := func(n *Nexus, id byte) string {
		c := cdb(opcodeCopyResults, 0, id)
		resultsAllocation.Put(c[:], 255)
		r := do(n, lun1, c, nil)
		return fmt.Sprintf("%v % x", r, r.in)
	}
	const none = "05/24/00 "
	c, list := p.xcopy(9, blockSeg(0, 1, 2, 0, 0))
	doOn(t, p.a, lun1, c, list)
	if got, want := status(p.a, 9), "good 00 00 00 08 01 00 01 00 00 00 04 00"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := status(p.b, 9); got != none {
		t.Errorf("another nexus sees %s", got)
	}
	c, list = p.xcopy(9, blockSeg(0, 1, 2, 0, testBlocks))
	do(p.a, lun1, c, list)
	if got, want := status(p.a, 9), "good 00 00 00 08 02 00 00 00 00 00 00 00"; got != want {
		t.Errorf("after a second copy: got %s, want %s", got, want)
	}
	for id := range byte(maxResults) {
		c, list = p.xcopy(100+id, blockSeg(0, 1, 2, 0, 0))
		doOn(t, p.a, lun1, c, list)
	}
	if got := status(p.a, 9); got != none {
		t.Errorf("after %d others: %s", maxResults, got)
	}
	p.b.LogicalUnitReset(lun1)
	do(p.a, lun1, tur, nil)
	if got := status(p.a, 100); got != none {
		t.Errorf("after a reset: %s", got)
	}
}

// While a copy goes on its identifier is taken, and COPY STATUS tells how far
// it is.
func TestCopyInProgress(t *testing.T) {
	p := newPair(t, nil)
	c, list := p.xcopy(9, blockSeg(0, 1, 1, 0, 0), blockSeg(0, 1, 1, 1, 1))
	writes := 0
	p.disk2.hook = func(op string) {
		if op != "write" {
			return
		}
		if writes++; writes != 2 {
			return
		}
		if r := do(p.a, lun1, c, list); r.String() != "05/00/16" {
			t.Errorf("the same identifier: %v", r)
		}
		r := do(p.a, lun1, cdb(opcodeCopyResults, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255), nil)
		if want := []byte{0, 0, 0, 8, 0, 0, 1, 0, 0, 0, 2, 0}; !bytes.Equal(r.in, want) {
			t.Errorf("status % x, want % x", r.in, want)
		}
	}
	doOn(t, p.a, lun1, c, list)
	if writes != 2 {
		t.Errorf("%d writes", writes)
	}
}

// One descriptor more than there may be is too many, of either kind.
func TestCopyLimits(t *testing.T) {
	p := newPair(t, nil)
	segments := make([][]byte, maxSegments)
	for i := range segments {
		segments[i] = byteSeg(0, 1, 1, 0, 0)
	}
	p.wantCopy(t, p.a, "good", segments...)
	p.wantCopy(t, p.a, "05/26/08", append(segments, blockSeg(0, 1, 1, 0, 0))...)
	c, list := p.xcopy(1)
	cscd := list[copyHeader:][:cscdSize]
	for i := 2; i < maxCSCDs; i++ {
		list = append(list, cscd...)
	}
	for _, want := range []string{"good", "05/26/06"} {
		copyLength.Put(c[:], uint32(len(list)))
		copyCSCDLength.Put(list, uint16(len(list)-copyHeader))
		if r := do(p.a, lun1, c, list); r.String() != want {
			t.Errorf("%d CSCD descriptors: got %v, want %v", (len(list)-copyHeader)/cscdSize, r, want)
		}
		list = append(list, cscd...)
	}
}
