package imageconv

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

func TestCompare(t *testing.T) {
	const size = 3<<20 + 512
	one := disk(size)
	for _, x := range []struct {
		name   string
		change func(b []byte) []byte
		want   int64
	}{
		{"same", func(b []byte) []byte { return b }, Same},
		{"first byte", func(b []byte) []byte { b[0]++; return b }, 0},
		{"last byte", func(b []byte) []byte { b[size-1]++; return b }, size - 1},
		{"several", func(b []byte) []byte {
			for _, at := range []int{2 << 20, 700_001, 3 << 20} {
				b[at]++
			}
			return b
		}, 700_001},
		{"longer, zeros", func(b []byte) []byte { return append(b, make([]byte, 2<<20)...) }, Same},
		{"longer, data", func(b []byte) []byte { return append(append(b, make([]byte, 1000)...), 1) }, size + 1000},
		{"shorter, data", func(b []byte) []byte { return b[:260*4096] }, 260 * 4096},
		{"nothing", func([]byte) []byte { return nil }, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			two := x.change(bytes.Clone(one))
			for _, pair := range [][2][]byte{{one, two}, {two, one}} {
				got, err := Compare(t.Context(), blockdev.MemOf(pair[0]), blockdev.MemOf(pair[1]), CopyOptions{Workers: 3})
				if err != nil || got != x.want {
					t.Errorf("got %d, %v, want %d", got, err, x.want)
				}
			}
		})
	}
}

// TestCompareFails makes every operation of either disk fail in turn.
func TestCompareFails(t *testing.T) {
	for n := 1; ; n++ {
		src := blockdevtest.Fail(blockdev.MemOf(disk(2<<20)), n, blockdev.KindIO)
		got, err := Compare(t.Context(), blockdev.MemOf(disk(2<<20)), src, CopyOptions{Workers: 2})
		if !src.Fired() {
			if err != nil || got != Same || n < 8 {
				t.Errorf("after %d failures: %d, %v", n-1, got, err)
			}
			break
		}
		if !errors.Is(err, blockdevtest.ErrInjected) {
			t.Fatalf("operation %d failed: %d, %v", n, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compare(ctx, blockdev.NewMem(512), blockdev.NewMem(512), CopyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
