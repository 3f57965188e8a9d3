package inflate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/flate"
)

// byLibrary is Inflate by another implementation.
func byLibrary(p, in []byte) error {
	_, err := io.ReadFull(flate.NewReader(bytes.NewReader(in)), p)
	return err
}

// deflated compresses p. Level -2 is Huffman codes only, 0 stores.
func deflated(t testing.TB, p []byte, level int) []byte {
	t.Helper()
	var b bytes.Buffer
	z, err := flate.NewWriter(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	_, err = z.Write(p)
	if err := errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// samples are contents of many kinds, n bytes each.
func samples(n int) map[string][]byte {
	rng := rand.New(rand.NewPCG(3, 3))
	s := make(map[string][]byte)
	add := func(name string, f func(i int) byte) {
		b := make([]byte, n)
		for i := range b {
			b[i] = f(i)
		}
		s[name] = b
	}
	add("zeros", func(int) byte { return 0 })
	add("random", func(int) byte { return byte(rng.Uint32()) })
	add("two values", func(int) byte { return byte(rng.IntN(2)) })
	add("period 3", func(i int) byte { return byte(i % 3) })
	add("period 9", func(i int) byte { return byte(i % 9) })
	add("far matches", func(i int) byte { return byte(i*i/4093) ^ byte(i%4099) })
	// Frequencies like Fibonacci numbers make codes of 15 bits.
	add("long codes", func(int) byte { return byte(rng.ExpFloat64() * 2.2) })
	add("text", func(i int) byte { return "the quick brown fox jumps over the lazy dog\n"[(i+rng.IntN(3))%44] })
	return s
}

func TestInflate(t *testing.T) {
	for n, levels := range map[int][]int{1: {-2, 0, 1, 9}, 511: {-2, 0, 1, 9}, 4096: {-2, 0, 1, 9}, 70_000: {0, 6}} {
		for name, want := range samples(n) {
			for _, level := range levels {
				t.Run(fmt.Sprintf("%s_%d_level%d", name, n, level), func(t *testing.T) {
					in := deflated(t, want, level)
					z := new(Inflater)
					for _, tail := range []string{"", "\xff\x00garbage behind the stream"} {
						got := make([]byte, n)
						if err := z.Inflate(got, append(in[:len(in):len(in)], tail...)); err != nil || !bytes.Equal(got, want) {
							t.Fatalf("wrong (%v)", err)
						}
					}
					if err := z.Inflate(make([]byte, n/2), in); err != nil {
						t.Errorf("the first half: %v", err)
					}
					if err := z.Inflate(make([]byte, n+1), in); !errors.Is(err, ErrShort) {
						t.Errorf("one byte more: got %v, want %v", err, ErrShort)
					}
				})
			}
		}
	}
}

// TestInflateCut cuts a stream at every byte.
func TestInflateCut(t *testing.T) {
	for name, want := range samples(300) {
		for _, level := range []int{0, 1, 9} {
			in := deflated(t, want, level)
			z := new(Inflater)
			for n := range in {
				got := make([]byte, len(want))
				err := z.Inflate(got, in[:n])
				if err == nil && !bytes.Equal(got, want) || err != nil && !errors.Is(err, ErrShort) {
					t.Fatalf("%s, level %d: cut at %d of %d: wrong bytes or error (%v)", name, level, n, len(in), err)
				}
				if err == nil && n < len(in)-8 { // without the end of the block, and of the stream
					t.Fatalf("%s, level %d: cut at %d of %d: no error", name, level, n, len(in))
				}
			}
		}
	}
}

func TestInflateDoesNotAllocate(t *testing.T) {
	want := samples(65536)["text"]
	in, p, z := deflated(t, want, 6), make([]byte, 65536), new(Inflater)
	if n := testing.AllocsPerRun(10, func() {
		if err := z.Inflate(p, in); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("inflate allocates %v times, want 0", n)
	}
}

// FuzzInflate wants what the library makes of any stream. The library reads on
// where the output is full already, so that only it may find an error; but it
// takes a block without a code for its end, which zlib, and so qemu, does not.
func FuzzInflate(f *testing.F) {
	for _, want := range samples(600) {
		for _, level := range []int{-2, 0, 1, 9} {
			f.Add(deflated(f, want, level), uint16(600))
		}
	}
	z := new(Inflater)
	f.Fuzz(func(t *testing.T, in []byte, n uint16) {
		got, want := make([]byte, n), make([]byte, n)
		ours, theirs := z.Inflate(got, in), byLibrary(want, in)
		if ours != nil && theirs == nil && !errors.Is(ours, errNoEnd) {
			t.Fatalf("got %v, the library had no error", ours)
		}
		if ours == nil && theirs == nil && !bytes.Equal(got, want) {
			t.Fatalf("got % x, want % x", got, want)
		}
	})
}

func BenchmarkInflate(b *testing.B) {
	for _, name := range []string{"text", "two values", "far matches", "random"} {
		want := samples(65536)[name]
		in, p, z := deflated(b, want, 6), make([]byte, len(want)), new(Inflater)
		r := flate.NewReader(nil)
		for who, run := range map[string]func() error{
			"ours": func() error { return z.Inflate(p, in) },
			"library": func() error {
				if err := r.(flate.Resetter).Reset(bytes.NewReader(in), nil); err != nil {
					return err
				}
				_, err := io.ReadFull(r, p)
				return err
			},
		} {
			b.Run(name+"/"+who, func(b *testing.B) {
				b.SetBytes(int64(len(p)))
				for b.Loop() {
					if err := run(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
