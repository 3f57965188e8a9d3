package blockdevtest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

func TestFail(t *testing.T) {
	p := bytes.Repeat([]byte{7}, 2048)
	steps := []struct {
		op Op
		do func(blockdev.Device) error
	}{
		{OpWrite, func(d blockdev.Device) error { _, err := d.WriteAt(p, 0); return err }},
		{OpRead, func(d blockdev.Device) error { _, err := d.ReadAt(make([]byte, 512), 0); return err }},
		{OpRead, func(d blockdev.Device) error { return d.TryReadAt(make([]byte, 512), 0) }},
		{OpWrite, func(d blockdev.Device) error { return d.TryWriteAt(p, 4096) }},
		{OpZero, func(d blockdev.Device) error { return d.Zero(0, 512, blockdev.ZeroMayUnmap) }},
		{OpDiscard, func(d blockdev.Device) error { return d.Discard(0, 512) }},
		{OpExtents, func(d blockdev.Device) error {
			for _, err := range d.Extents(0, 512) {
				return err
			}
			return nil
		}},
		{OpFlush, func(d blockdev.Device) error { return d.Flush() }},
	}
	for n := 1; ; n++ {
		f := Fail(blockdev.NewMem(8192), n, blockdev.KindNoSpace)
		for i, s := range steps {
			err := s.do(f)
			if failed := i+1 == n; failed != errors.Is(err, ErrInjected) || failed && blockdev.KindOf(err) != blockdev.KindNoSpace {
				t.Errorf("n = %d: operation %d: got %v", n, i+1, err)
			}
		}
		if f.Fired() != (n <= len(steps)) {
			t.Errorf("n = %d: fired is %v", n, f.Fired())
		}
		if !f.Fired() {
			break
		}
	}
	for _, s := range steps { // only the operations asked for count
		f := Fail(blockdev.NewMem(8192), 1, blockdev.KindIO)
		f.Ops = s.op
		for i, other := range steps {
			if err := other.do(f); other.op != s.op && err != nil {
				t.Errorf("only %b fails: operation %d: %v", s.op, i+1, err)
			}
		}
		if !f.Fired() {
			t.Errorf("only %b fails: it did not", s.op)
		}
	}
}

func TestFailWritesHalf(t *testing.T) {
	dev := blockdev.NewMem(8192)
	f := Fail(dev, 1, blockdev.KindIO)
	if _, err := f.WriteAt(bytes.Repeat([]byte{1}, 4096), 0); !errors.Is(err, ErrInjected) {
		t.Fatal(err)
	}
	want := append(bytes.Repeat([]byte{1}, 2048), make([]byte, 6144)...)
	wantRead(t, dev, want, 0, len(want))
}

func TestFailedFlushStays(t *testing.T) {
	f := Fail(blockdev.NewMem(512), 2, blockdev.KindIO)
	for i, want := range []bool{false, true, true} {
		if err := f.Flush(); (err != nil) != want {
			t.Errorf("flush %d: got %v, want an error: %v", i+1, err, want)
		}
	}
}

func TestSticky(t *testing.T) {
	f := Fail(blockdev.NewMem(512), 2, blockdev.KindIO)
	f.Ops, f.Sticky = OpRead, true
	for i, want := range []bool{false, true, true, true} {
		if err := f.TryReadAt(make([]byte, 1), 0); (err != nil) != want {
			t.Errorf("read %d: got %v, want an error: %v", i+1, err, want)
		}
	}
}
