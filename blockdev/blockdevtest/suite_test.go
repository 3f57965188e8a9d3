package blockdevtest

import (
	"bytes"
	"iter"
	"os"
	"os/exec"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// broken are devices with one fault each, which Run must find.
func broken() map[string]func(good blockdev.Device) blockdev.Device {
	return map[string]func(blockdev.Device) blockdev.Device{
		"reads one byte off": func(d blockdev.Device) blockdev.Device { return readOff{d} },
		"reads short":        func(d blockdev.Device) blockdev.Device { return readShort{d} },
		"maps data as holes": func(d blockdev.Device) blockdev.Device { return allHoles{d} },
		"maps with a gap":    func(d blockdev.Device) blockdev.Device { return gap{d} },
		"loses writes":       func(d blockdev.Device) blockdev.Device { return losesWrites{d} },
		"blocks half way":    func(d blockdev.Device) blockdev.Device { return halfWrites{d} },
		"does not zero":      func(d blockdev.Device) blockdev.Device { return noZero{d} },
		"does not discard":   func(d blockdev.Device) blockdev.Device { return noDiscard{d} },
		"never closes":       func(d blockdev.Device) blockdev.Device { return neverCloses{d} },
		"odd granularity":    func(d blockdev.Device) blockdev.Device { return oddCaps{d} },
	}
}

type readOff struct{ blockdev.Device }

func (d readOff) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.Device.ReadAt(p, off)
	if n > 1 {
		copy(p, p[1:])
	}
	return n, err
}

type readShort struct{ blockdev.Device }

func (d readShort) ReadAt(p []byte, off int64) (int, error) {
	return d.Device.ReadAt(p[:len(p)/2], off)
}

type allHoles struct{ blockdev.Device }

func (d allHoles) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		for e, err := range d.Device.Extents(off, n) {
			e.Kind = blockdev.Hole
			if !yield(e, err) {
				return
			}
		}
	}
}

type gap struct{ blockdev.Device }

func (d gap) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return d.Device.Extents(off, n/2)
}

type losesWrites struct{ blockdev.Device }

func (d losesWrites) WriteAt(p []byte, off int64) (int, error) {
	if err := blockdev.CheckRange("write", off, int64(len(p)), d.Size()); err != nil || len(p)%2 == 0 {
		return len(p), err
	}
	return d.Device.WriteAt(p, off)
}

type halfWrites struct{ blockdev.Device }

func (d halfWrites) TryWriteAt(p []byte, off int64) error {
	if _, err := d.Device.WriteAt(p[:len(p)/2], off); err != nil {
		return err
	}
	return blockdev.ErrWouldBlock
}

type noZero struct{ blockdev.Device }

func (d noZero) Zero(off, n int64, _ blockdev.ZeroMode) error { return d.Discard(off, n) }

type noDiscard struct{ blockdev.Device }

func (d noDiscard) Caps() blockdev.Caps {
	c := d.Device.Caps()
	c.Discard, c.DiscardZeroes = true, true
	return c
}

type neverCloses struct{ blockdev.Device }

func (d neverCloses) Close() error { return nil }

type oddCaps struct{ blockdev.Device }

func (d oddCaps) Caps() blockdev.Caps { return blockdev.Caps{Granularity: 1000, PhysicalBlock: 512} }

const brokenName = "BLOCKDEVTEST_BROKEN"

// TestBroken runs the suite over one broken device; TestRunFinds starts it.
func TestBroken(t *testing.T) {
	name := os.Getenv(brokenName)
	if name == "" {
		t.SkipNow() // a helper process of TestRunFinds
	}
	content := bytes.Repeat([]byte{1, 2, 3}, 5000)
	Run(t, content, func(*testing.T) blockdev.Device {
		good := blockdev.MemOf(bytes.Clone(content))
		if name == "good" {
			return good
		}
		return broken()[name](good)
	})
}

// TestRunFinds wants the suite to fail for each broken device and to pass for
// the good one.
func TestRunFinds(t *testing.T) {
	names := []string{"good"}
	for name := range broken() {
		names = append(names, name)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestBroken$")
			cmd.Env = append(os.Environ(), brokenName+"="+name)
			out, err := cmd.CombinedOutput()
			if want := name == "good"; want != (err == nil) {
				t.Errorf("got %v, want it to pass: %v\n%s", err, want, out)
			}
		})
	}
}
