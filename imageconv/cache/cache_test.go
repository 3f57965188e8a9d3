package cache

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

func number(key uint64) []byte { return binary.BigEndian.AppendUint64(nil, key) }

// TestLeastUsedGoes: what was used last stays, within the limit.
func TestLeastUsedGoes(t *testing.T) {
	loads := map[uint64]int{}
	c := New(3, func(key uint64) ([]byte, error) { loads[key]++; return number(key), nil })
	for _, key := range []uint64{1, 2, 3, 1, 4, 1, 3, 2} { // 2 goes for 4, 4 for 2
		if b, err := c.Get(key); err != nil || binary.BigEndian.Uint64(b) != key {
			t.Fatalf("block %d: got %x, %v", key, b, err)
		}
		if c.Len() > 3 {
			t.Fatalf("%d blocks are kept", c.Len())
		}
	}
	for key, want := range map[uint64]int{1: 1, 2: 2, 3: 1, 4: 1} {
		if loads[key] != want {
			t.Errorf("block %d was loaded %d times, want %d", key, loads[key], want)
		}
	}
}

// TestOneLoad: who wants the block that is being loaded waits for it.
func TestOneLoad(t *testing.T) {
	var loads atomic.Int64
	begun, release := make(chan bool), make(chan bool)
	c := New(2, func(key uint64) ([]byte, error) {
		if loads.Add(1) == 1 {
			close(begun)
			<-release
		}
		return number(key), nil
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if b, err := c.Get(7); err != nil || binary.BigEndian.Uint64(b) != 7 {
				t.Errorf("got %x, %v", b, err)
			}
		})
	}
	<-begun
	close(release)
	wg.Wait()
	if loads.Load() != 1 {
		t.Errorf("%d loads, want 1", loads.Load())
	}
}

// TestErrorIsNotKept: the next Get tries again.
func TestErrorIsNotKept(t *testing.T) {
	errBad := errors.New("bad sector")
	bad := true
	c := New(2, func(key uint64) ([]byte, error) {
		if bad {
			return nil, errBad
		}
		return number(key), nil
	})
	if _, err := c.Get(1); !errors.Is(err, errBad) || c.Len() != 0 {
		t.Errorf("got %v, %d blocks kept", err, c.Len())
	}
	bad = false
	if _, err := c.Get(1); err != nil {
		t.Errorf("the second time: %v", err)
	}
}
