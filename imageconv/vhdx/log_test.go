package vhdx

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/le"
)

// sectorOf is the sector of the file at off, with a BAT entry changed.
func (im *image) sectorOf(off int, block int, e uint64) []byte {
	b := bytes.Clone(im.b[off:][:logSector])
	le.U64(block*batEntryLen).Put(b, e)
	return b
}

// dirty is an image that was not closed: its BAT has blocks 2 and 4 only in the
// log, in two entries, of which the second undoes a part of the first. Before
// them are two entries of before, and one of another log.
func dirty() ([]byte, *image) {
	disk, im := small()
	whole := bytes.Clone(im.b[builtBAT:][:logSector])
	im.setBAT(2, 0)
	im.setBAT(4, uint64(stateZero))
	wrong := bytes.Repeat([]byte{0xee}, logSector)
	at := im.logged(testGUID, 0, 0, 3, write{builtBAT, wrong, 0})
	at = im.logged(guid{9}, at, 0, 99, write{builtBAT, wrong, 0})
	at = im.logged(testGUID, at, 0, 8, write{builtBAT, wrong, 0}) // before the tail
	tail := at
	at = im.logged(testGUID, at, tail, 9, write{builtBAT, wrong, 0}, write{builtBAT + logSector, wrong, 0})
	im.logged(testGUID, at, tail, 10, write{builtBAT, whole, 0}, write{builtBAT + logSector, nil, 2 * logSector})
	im.seal(testGUID)
	return disk, im
}

func TestReplay(t *testing.T) {
	disk, im := dirty()
	r := wantDisk(t, im.b, disk)
	if got := r.Info().Replayed; got != 2 {
		t.Errorf("%d entries replayed, want 2", got)
	}
	// Without the log it is another disk.
	im.seal(guid{})
	other, err := open(im.b)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 512)
	if _, err := other.ReadAt(p, 2<<20); err != nil || !bytes.Equal(p, make([]byte, 512)) {
		t.Errorf("without the log: % x, %v", p[:8], err)
	}
}

// TestReplayAround: a sequence that goes over the end of the ring.
func TestReplayAround(t *testing.T) {
	for _, back := range []int{1, 2, 3} { // sectors before the end
		disk, im := small()
		whole := bytes.Clone(im.b[builtBAT:][:logSector])
		im.setBAT(2, 0)
		tail := 1<<20 - back*logSector
		at := im.logged(testGUID, tail, tail, 5, write{builtBAT, bytes.Repeat([]byte{1}, logSector), 0})
		im.logged(testGUID, at, tail, 6, write{builtBAT, whole, 0})
		im.seal(testGUID)
		wantDisk(t, im.b, disk)
	}
}

// TestReplayNewest: an older sequence counts neither before nor behind the newest.
func TestReplayNewest(t *testing.T) {
	for _, at := range []int{0, 100 * logSector} {
		disk, im := small()
		whole := bytes.Clone(im.b[builtBAT:][:logSector])
		im.setBAT(2, 0)
		im.logged(testGUID, at, at, 3, write{builtBAT, bytes.Repeat([]byte{1}, logSector), 0})
		im.logged(testGUID, 50*logSector, 50*logSector, 7, write{builtBAT, whole, 0})
		im.seal(testGUID)
		wantDisk(t, im.b, disk)
	}
}

// TestReplayGrows: the log may make the file longer, by zeros.
func TestReplayGrows(t *testing.T) {
	disk, im := small()
	bat := im.sectorOf(builtBAT, 1, uint64(len(im.b))|6)
	whole := len(im.b)
	im.b = append(im.b, make([]byte, 1<<20)...) // for the entry's sizes
	im.logged(testGUID, 0, 0, 5, write{builtBAT, bat, 0})
	im.b = im.b[:whole]
	im.seal(testGUID)
	if _, err := open(im.b); err == nil || !strings.Contains(err.Error(), "it is cut") {
		t.Errorf("the file that was flushed is longer: got %v", err)
	}
	e := im.b[builtLog:][:2*logSector]
	entryFlushedSize.Put(e, uint64(whole))
	entryChecksum.Put(e, checksum(e, entryChecksum))
	wantDisk(t, im.b, disk)
}

// TestLogRefused changes one thing of the last entry each.
func TestLogRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(e []byte) // its header, descriptors and data
		want   string
	}{
		{"checksum", func(e []byte) { entryChecksum.Put(e, 1) }, "no valid entry"},
		{"guid", func(e []byte) { e[entryGUID]++ }, "no valid entry"},
		{"length", func(e []byte) { entryLen.Put(e, 1<<32-1) }, "no valid entry"},
		{"no length", func(e []byte) { entryLen.Put(e, 0) }, "no valid entry"},
		{"tail outside", func(e []byte) { entryTail.Put(e, 1<<20) }, "no valid entry"},
		{"tail elsewhere", func(e []byte) { entryTail.Put(e, 4*logSector) }, "no valid entry"},
		{"sequence 0", func(e []byte) { entrySequence.Put(e, 0) }, "no valid entry"},
		{"descriptors", func(e []byte) { entryDescriptors.Put(e, 255) }, "no valid entry"},
		{"descriptors overflow", func(e []byte) { entryDescriptors.Put(e, 1<<32-1) }, "no valid entry"},
		{"descriptor of another", func(e []byte) { descSequence.Put(e[entryHeaderLen:], 4) }, "a descriptor of entry 4"},
		{"descriptor unknown", func(e []byte) { e[entryHeaderLen] = 'x' }, `a descriptor "xesc"`},
		{"unaligned", func(e []byte) { descAt.Put(e[entryHeaderLen:], builtBAT+512) }, "must be in sectors"},
		{"headers", func(e []byte) { descAt.Put(e[entryHeaderLen:], header1At) }, "outside of the file"},
		{"outside", func(e []byte) { descAt.Put(e[entryHeaderLen:], 1<<62) }, "outside of the file"},
		{"overflow", func(e []byte) { descAt.Put(e[entryHeaderLen:], 1<<64-logSector) }, "outside of the file"},
		{"zeros outside", func(e []byte) { descZeroLen.Put(e[entryHeaderLen+descriptorLen:], 1<<62) }, "outside of the file"},
		{"zeros overflow", func(e []byte) { descZeroLen.Put(e[entryHeaderLen+descriptorLen:], 1<<64-logSector) }, "outside of the file"},
		{"more data than there is", func(e []byte) { copy(e[entryHeaderLen+descriptorLen:], dataDescriptor) }, "more data descriptors than data"},
		{"data unknown", func(e []byte) { e[logSector] = 'x' }, "has no data sector"},
		{"data of another", func(e []byte) { dataLow.Put(e[logSector:], 4) }, "has no data sector"},
		{"cut", func(e []byte) { entryFlushedSize.Put(e, 1<<40) }, "it is cut"},
		{"file too long", func(e []byte) { entryLastSize.Put(e, maxFile+1) }, "the limit is"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, im := small()
			im.logged(testGUID, 0, 0, 5, write{builtBAT, bytes.Clone(im.b[builtBAT:][:logSector]), 0},
				write{builtBAT + logSector, nil, logSector})
			im.seal(testGUID)
			e := im.b[builtLog:][:2*logSector]
			tt.change(e)
			if tt.name != "checksum" {
				entryChecksum.Put(e, checksum(e, entryChecksum))
			}
			_, err := open(im.b)
			if blockdev.KindOf(err) != blockdev.KindCorrupt || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a corrupt image: %q", err, tt.want)
			}
		})
	}
}

// TestLogLimits: logs that would take long or much memory.
func TestLogLimits(t *testing.T) {
	_, im := small()
	im.b = append(im.b, make([]byte, maxLog+unit)...)
	at := uint64(len(im.b)) &^ (unit - 1)
	im.headers(func(b []byte) { headLogLen.Put(b, maxLog+unit); headLogAt.Put(b, at-maxLog-unit); b[headLogGUID] = 1 })
	if _, err := open(im.b); blockdev.KindOf(err) != blockdev.KindUnsupported || !strings.Contains(err.Error(), "the limit is 67108864") {
		t.Errorf("a long log: got %v", err)
	}
	// Each sector looks like an entry of all the log.
	_, im = small()
	for at := 0; at < 1<<20; at += logSector {
		e := im.b[builtLog+at:][:logSector]
		copy(e, entrySignature)
		entryLen.Put(e, 1<<20)
		entrySequence.Put(e, 1)
		copy(e[entryGUID:], testGUID[:])
	}
	im.seal(testGUID)
	if _, err := open(im.b); blockdev.KindOf(err) != blockdev.KindCorrupt || !strings.Contains(err.Error(), "too many damaged entries") {
		t.Errorf("overlapping entries: got %v", err)
	}
}

// TestPatched compares with a file that was written.
func TestPatched(t *testing.T) {
	const sectors = 40
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		base := numbered(sectors * logSector)
		want := make([]byte, (sectors+5)*logSector)
		copy(want, base)
		file := bytes.Clone(base)
		var list []patch
		for range rng.IntN(20) {
			off := rng.IntN(sectors + 5)
			p := patch{off: int64(off) * logSector, end: int64(off+1+rng.IntN(sectors+5-off)) * logSector}
			if rng.IntN(2) == 0 {
				p.end, p.data = p.off+logSector, int64(len(file))
				sector := make([]byte, logSector)
				for i := range sector {
					sector[i] = byte(rng.Uint32())
				}
				copy(p.lead[:], "LEADLEAD")
				copy(p.trail[:], "TAIL")
				file = append(file, sector...)
				copy(sector, p.lead[:])
				copy(sector[logSector-dataTrail:], p.trail[:])
				copy(want[p.off:], sector)
			} else {
				clear(want[p.off:p.end])
			}
			list = append(list, p)
		}
		f := &patched{src: bytes.NewReader(file), real: int64(len(base)), size: int64(len(want)), patches: flatten(list)}
		for i := range f.patches[:max(0, len(f.patches)-1)] {
			if f.patches[i].end > f.patches[i+1].off {
				t.Fatalf("seed %d: patches overlap", seed)
			}
		}
		for range 50 {
			off := rng.IntN(len(want))
			p := bytes.Repeat([]byte{0xa5}, rng.IntN(len(want)-off+1)+rng.IntN(2)*10)
			n, err := f.ReadAt(p, int64(off))
			if !bytes.Equal(p[:n], want[off:min(len(want), off+len(p))]) || (n < len(p)) != (err == io.EOF) || n == len(p) && err != nil {
				t.Fatalf("seed %d: read of %d bytes at %d: %d, %v", seed, len(p), off, n, err)
			}
		}
	}
}
