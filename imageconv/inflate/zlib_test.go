package inflate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/klauspost/compress/zlib"
)

// zlibbed compresses p.
func zlibbed(t testing.TB, p []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := zlib.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	_, err = z.Write(p)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestZlib(t *testing.T) {
	z := new(Inflater)
	for _, n := range []int{0, 1, 511, 70_000} {
		for name, want := range samples(n) {
			for _, level := range []int{-2, 0, 1, 9} {
				in := zlibbed(t, want, level)
				t.Run(fmt.Sprintf("%s_%d_level%d", name, n, level), func(t *testing.T) {
					for _, room := range []int{n, n + 1, n + 1000} {
						got := make([]byte, room)
						k, err := z.Zlib(got, append(in[:len(in):len(in)], "behind"...))
						if err != nil || k != n || !bytes.Equal(got[:k], want) {
							t.Fatalf("room for %d: got %d bytes (%v)", room, k, err)
						}
					}
					if n == 0 {
						return
					}
					for _, room := range []int{n - 1, n / 2, 0} {
						if _, err := z.Zlib(make([]byte, room), in); !errors.Is(err, ErrLong) {
							t.Errorf("room for %d: got %v, want %v", room, err, ErrLong)
						}
					}
				})
			}
		}
	}
}

// TestZlibDamaged cuts a stream at every byte and flips every bit of it: a
// checksum lets nothing through but the bits that have no meaning.
func TestZlibDamaged(t *testing.T) {
	z := new(Inflater)
	for name, want := range samples(300) {
		for _, level := range []int{-2, 0, 9} {
			in := zlibbed(t, want, level)
			got := make([]byte, len(want))
			for n := range in {
				if _, err := z.Zlib(got, in[:n]); !errors.Is(err, ErrShort) {
					t.Fatalf("%s, level %d: cut at %d of %d: got %v", name, level, n, len(in), err)
				}
			}
			for i := range in {
				for bit := range 8 {
					in[i] ^= 1 << bit
					if n, err := z.Zlib(got, in); err == nil && !bytes.Equal(got[:n], want) {
						t.Fatalf("%s, level %d: bit %d of byte %d flipped: other bytes and no error", name, level, bit, i)
					}
					in[i] ^= 1 << bit
				}
			}
		}
	}
}

// FuzzZlib wants what the library makes of any stream: both refuse it, or both
// give the same bytes. But a block that cannot end is only refused by us, as by
// zlib itself.
func FuzzZlib(f *testing.F) {
	for _, want := range samples(600) {
		for _, level := range []int{-2, 0, 1, 9} {
			f.Add(zlibbed(f, want, level), uint16(600))
		}
	}
	z := new(Inflater)
	f.Fuzz(func(t *testing.T, in []byte, room uint16) {
		got := make([]byte, room)
		n, ours := z.Zlib(got, in)
		var want []byte
		r, theirs := zlib.NewReader(bytes.NewReader(in))
		if theirs == nil {
			want, theirs = io.ReadAll(io.LimitReader(r, int64(room)+1))
			if theirs == nil && len(want) > int(room) {
				theirs = ErrLong
			}
		}
		switch {
		case errors.Is(ours, errNoEnd):
		case (ours == nil) != (theirs == nil):
			t.Fatalf("got %v, the library %v", ours, theirs)
		case ours == nil && !bytes.Equal(got[:n], want):
			t.Fatalf("got % x, want % x", got[:n], want)
		}
	})
}
