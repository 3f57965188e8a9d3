package pages

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// counting is a file that counts its reads, and fails them while bad is set.
type counting struct {
	io.ReaderAt
	bad   atomic.Bool
	reads atomic.Int64
}

var errBad = errors.New("bad sector")

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	c.reads.Add(1)
	if c.bad.Load() {
		return 0, errBad
	}
	return c.ReaderAt.ReadAt(p, off)
}

func numbered(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

func TestAt(t *testing.T) {
	file := numbered(3*Size + 100)
	src := &counting{ReaderAt: bytes.NewReader(file)}
	c := New(src, int64(len(file)), 2*Size)
	for _, tt := range []struct {
		off   int64
		n     int
		reads int64 // so far
	}{
		{0, Size, 1}, {10, Size - 10, 1}, {Size - 1, 1, 1}, {Size, Size, 2},
		{3*Size + 99, 1, 3}, // the page of byte 0 goes
		{Size + 5, Size - 5, 3}, {0, Size, 4},
	} {
		b, err := c.At(tt.off)
		if err != nil || len(b) != tt.n || !bytes.Equal(b, file[tt.off:][:tt.n]) {
			t.Errorf("at %d: got %d bytes, %v, want %d", tt.off, len(b), err, tt.n)
		}
		if got := src.reads.Load(); got != tt.reads {
			t.Errorf("at %d: %d reads so far, want %d", tt.off, got, tt.reads)
		}
	}
	if got := c.Kept(); got != 2*Size {
		t.Errorf("%d bytes are kept, want %d", got, 2*Size)
	}
	for _, off := range []int64{-1, int64(len(file)), 1 << 62} {
		if _, err := c.At(off); blockdev.KindOf(err) != blockdev.KindOutOfRange {
			t.Errorf("at %d: got %v, want out of range", off, err)
		}
	}
}

// TestErrorIsNotKept: the storage below may recover.
func TestErrorIsNotKept(t *testing.T) {
	src := &counting{ReaderAt: bytes.NewReader(numbered(Size))}
	c := New(src, Size, Size)
	src.bad.Store(true)
	if _, err := c.At(0); !errors.Is(err, errBad) || blockdev.KindOf(err) != blockdev.KindIO {
		t.Errorf("got %v, want an I/O error", err)
	}
	src.bad.Store(false)
	if _, err := c.At(0); err != nil {
		t.Errorf("after the error: %v", err)
	}
}

// TestShorterFile: what is not there is no page of zeros.
func TestShorterFile(t *testing.T) {
	c := New(bytes.NewReader(numbered(Size+10)), 2*Size, Size)
	if _, err := c.At(Size); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want %v", err, io.ErrUnexpectedEOF)
	}
}

func TestConcurrent(t *testing.T) {
	file := numbered(64*Size + 7)
	c := New(bytes.NewReader(file), int64(len(file)), 3*Size)
	var wg sync.WaitGroup
	for seed := range uint64(4) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 0))
			for range 1000 {
				off := rng.Int64N(int64(len(file)))
				if b, err := c.At(off); err != nil || !bytes.Equal(b, file[off:][:len(b)]) {
					t.Errorf("at %d: wrong bytes (%v)", off, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := c.Kept(); got > 3*Size {
		t.Errorf("%d bytes are kept, the limit is %d", got, 3*Size)
	}
}
