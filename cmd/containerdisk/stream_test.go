package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// numbered is a disk whose every eight bytes are their own number, so that a
// piece in the wrong place cannot hide.
func numbered(size int) *blockdev.Mem {
	b := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		copy(b[i:], []byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i), 'd', 'i', 's', 'k'})
	}
	return blockdev.MemOf(b)
}

func TestStream(t *testing.T) {
	for _, size := range []int{0, 512, streamPiece, streamPiece + 512, 37*streamPiece - 512} {
		src := numbered(size)
		var got bytes.Buffer
		last := int64(-1)
		err := stream(t.Context(), &got, src, func(done, total int64) {
			if done <= last || total != int64(size) {
				t.Errorf("progress %d of %d after %d", done, total, last)
			}
			last = done
		})
		if err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		want := make([]byte, size)
		if _, err := src.ReadAt(want, 0); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%d bytes: the stream differs", size)
		}
		if size > 0 && last != int64(size) {
			t.Errorf("%d bytes: the last progress was %d", size, last)
		}
	}
}

// failing is a disk that cannot be read from an offset on.
type failing struct {
	*blockdev.Mem
	from int64
}

var errDefect = errors.New("defect")

func (f failing) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.from {
		return 0, errDefect
	}
	return f.Mem.ReadAt(p, off)
}

// closedPipe is a reader's end that has gone after some bytes.
type closedPipe struct{ left int }

var errPipe = errors.New("broken pipe")

func (w *closedPipe) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errPipe
	}
	return len(p), nil
}

// On every way out no worker is left behind; TestMain looks for them.
func TestStreamFails(t *testing.T) {
	ignore := func(int64, int64) {}
	src := numbered(20 * streamPiece)
	if err := stream(t.Context(), new(bytes.Buffer), failing{src, 11 * streamPiece}, ignore); !errors.Is(err, errDefect) {
		t.Errorf("a defect: %v", err)
	}
	if err := stream(t.Context(), &closedPipe{3 * streamPiece}, src, ignore); !errors.Is(err, errPipe) {
		t.Errorf("a reader that goes: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := stream(ctx, new(bytes.Buffer), src, func(done, _ int64) {
		if done == 5*streamPiece {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
