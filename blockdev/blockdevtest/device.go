package blockdevtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

func testCaps(t *testing.T, dev blockdev.Device) {
	c := dev.Caps()
	if c != dev.Caps() {
		t.Errorf("caps changed: %+v, then %+v", c, dev.Caps())
	}
	for name, n := range map[string]int{"granularity": c.Granularity, "physical block": c.PhysicalBlock} {
		if n <= 0 || bits.OnesCount(uint(n)) != 1 {
			t.Errorf("%s: %d is not a power of two", name, n)
		}
	}
	if c.DiscardZeroes && !c.Discard {
		t.Errorf("discard zeroes but does not work: %+v", c)
	}
}

// change is one way to change a device.
type change struct {
	name string
	do   func(dev blockdev.Device, off, n int64) error
}

func changes() []change {
	return []change{
		{"write", func(dev blockdev.Device, off, n int64) error {
			_, err := dev.WriteAt(make([]byte, n), off)
			return err
		}},
		{"write without waiting", func(dev blockdev.Device, off, n int64) error {
			return dev.TryWriteAt(make([]byte, n), off)
		}},
		{"zero", func(dev blockdev.Device, off, n int64) error { return dev.Zero(off, n, blockdev.ZeroMayUnmap) }},
		{"zero allocated", func(dev blockdev.Device, off, n int64) error { return dev.Zero(off, n, blockdev.ZeroKeepAllocated) }},
		{"discard", func(dev blockdev.Device, off, n int64) error { return dev.Discard(off, n) }},
	}
}

func testReadOnly(t *testing.T, dev blockdev.Device, content []byte) {
	g := blockdev.NewGuard(dev, blockdev.ReadOnly)
	if !g.Caps().ReadOnly {
		t.Error("caps do not say read-only")
	}
	for _, c := range changes() {
		wantKind(t, c.name, [2]int64{0, sector}, c.do(g, 0, sector), blockdev.KindReadOnly)
	}
	if err := g.Flush(); err != nil {
		t.Errorf("flush: %v", err)
	}
	wantRead(t, g, content, 0, len(content))
}

// testChangeOutOfRange: the gate refuses, and the device does not change.
func testChangeOutOfRange(t *testing.T, dev blockdev.Device, content []byte) {
	g := blockdev.NewGuard(dev, blockdev.ReadWrite)
	for _, r := range outside(dev.Size()) {
		for _, c := range changes() {
			wantKind(t, c.name, r, c.do(g, r[0], r[1]), blockdev.KindOutOfRange)
		}
		wantKind(t, "read without waiting", r, g.TryReadAt(make([]byte, r[1]), r[0]), blockdev.KindOutOfRange)
	}
	wantRead(t, dev, content, 0, len(content))
}

func testClosed(t *testing.T, dev blockdev.Device) {
	if err := dev.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	r := [2]int64{0, sector}
	_, err := dev.ReadAt(make([]byte, sector), 0)
	wantKind(t, "read", r, err, blockdev.KindClosed)
	wantKind(t, "read without waiting", r, dev.TryReadAt(make([]byte, sector), 0), blockdev.KindClosed)
	wantKind(t, "flush", r, dev.Flush(), blockdev.KindClosed)
	for _, c := range changes() {
		wantKind(t, c.name, r, c.do(dev, 0, sector), blockdev.KindClosed)
	}
	for _, err := range dev.Extents(0, sector) {
		wantKind(t, "extents", r, err, blockdev.KindClosed)
	}
}

// model is what a device should hold.
type model struct {
	data  []byte
	vague []bool // discarded: any content will do
	stamp uint64 // of the last write
}

// stampPiece fills p with a number that no other write has used.
func (m *model) stampPiece(p []byte) {
	m.stamp++
	for len(p) >= 8 {
		binary.BigEndian.PutUint64(p, m.stamp<<32|uint64(len(p)))
		p = p[8:]
	}
	for i := range p {
		p[i] = byte(m.stamp)
	}
}

func (m *model) set(off int64, p []byte) {
	copy(m.data[off:], p)
	clear(m.vague[off:][:len(p)])
}

func (m *model) zero(off, n int64) {
	clear(m.data[off:][:n])
	clear(m.vague[off:][:n])
}

// testModel makes random requests and compares with a model.
func testModel(t *testing.T, dev blockdev.Device, content []byte, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	m := &model{data: bytes.Clone(content), vague: make([]bool, len(content))}
	for i := range 150 {
		off := rng.Int64N(dev.Size())
		n := rng.Int64N(dev.Size() - off + 1)
		if rng.IntN(2) == 0 {
			n = min(n, 1+rng.Int64N(3*sector))
		}
		if rng.IntN(2) == 0 {
			off &^= 4095
		}
		what, err := m.step(dev, rng.IntN(8), off, n)
		if err != nil {
			t.Fatalf("seed %d, step %d: %s of %d bytes at %d: %v", seed, i, what, n, off, err)
		}
	}
	if err := m.check(dev, 0, dev.Size()); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	for e, err := range dev.Extents(0, dev.Size()) {
		if err != nil {
			t.Fatalf("seed %d: extents: %v", seed, err)
		}
		if e.Kind.ReadsZero() && !m.mayBeZero(e.Off, e.Len) {
			t.Fatalf("seed %d: %v is not zero", seed, e)
		}
	}
}

// step makes one request of the device, and of the model.
func (m *model) step(dev blockdev.Device, op int, off, n int64) (string, error) {
	p := make([]byte, n)
	switch op {
	case 0:
		m.stampPiece(p)
		m.set(off, p)
		_, err := dev.WriteAt(p, off)
		return "write", err
	case 1:
		m.stampPiece(p)
		err := dev.TryWriteAt(p, off)
		if errors.Is(err, blockdev.ErrWouldBlock) {
			return "write without waiting", m.check(dev, off, n) // nothing may have changed
		}
		m.set(off, p)
		return "write without waiting", err
	case 2:
		m.zero(off, n)
		return "zero", dev.Zero(off, n, blockdev.ZeroMayUnmap)
	case 3:
		m.zero(off, n)
		return "zero allocated", dev.Zero(off, n, blockdev.ZeroKeepAllocated)
	case 4:
		m.zero(off, n)
		if !dev.Caps().DiscardZeroes {
			for i := off; i < off+n; i++ {
				m.vague[i] = true
			}
		}
		return "discard", dev.Discard(off, n)
	case 5:
		return "flush", dev.Flush()
	case 6:
		err := dev.TryReadAt(p, off)
		if errors.Is(err, blockdev.ErrWouldBlock) {
			err = nil
		} else if err == nil {
			err = m.compare(p, off)
		}
		return "read without waiting", err
	default:
		return "read", m.check(dev, off, n)
	}
}

func (m *model) check(dev blockdev.Device, off, n int64) error {
	p := bytes.Repeat([]byte{0xa5}, int(n))
	if k, err := dev.ReadAt(p, off); err != nil || k != len(p) {
		return fmt.Errorf("read of %d bytes at %d: got %d, %w", n, off, k, err)
	}
	return m.compare(p, off)
}

func (m *model) compare(p []byte, off int64) error {
	for i, got := range p {
		if want := m.data[off+int64(i)]; got != want && !m.vague[off+int64(i)] {
			return fmt.Errorf("byte %d is %#02x, want %#02x", off+int64(i), got, want)
		}
	}
	return nil
}

func (m *model) mayBeZero(off, n int64) bool {
	for i := off; i < off+n; i++ {
		if m.data[i] != 0 && !m.vague[i] {
			return false
		}
	}
	return true
}

// testWriteConcurrently writes disjoint stripes from several goroutines.
func testWriteConcurrently(t *testing.T, dev blockdev.Device) {
	const writers = 4
	stripes := int(dev.Size() / sector)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			p := make([]byte, sector)
			for i := w; i < stripes; i += writers {
				for k := range p {
					p[k] = byte(i)
				}
				if _, err := dev.WriteAt(p, int64(i)*sector); err != nil {
					t.Errorf("write of stripe %d: %v", i, err)
					return
				}
				if i%16 == w {
					if err := dev.Flush(); err != nil {
						t.Errorf("flush: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	p := make([]byte, sector)
	for i := range stripes {
		if _, err := dev.ReadAt(p, int64(i)*sector); err != nil || mismatch(p, bytes.Repeat([]byte{byte(i)}, sector)) >= 0 {
			t.Fatalf("stripe %d is wrong (%v)", i, err)
		}
	}
}
