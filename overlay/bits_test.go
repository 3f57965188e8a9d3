package overlay

import (
	"math/rand/v2"
	"testing"
)

// TestSet compares a set with a slice of bools.
func TestSet(t *testing.T) {
	const size = 200
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		s, want := newSet(size), make([]bool, size)
		for range rng.IntN(6) {
			i := rng.Int64N(size)
			n := 1 + rng.Int64N(size-i)
			s.add(i, n)
			for k := i; k < i+n; k++ {
				want[k] = true
			}
			i = rng.Int64N(size)
			if got := s.take(i); got != want[i] {
				t.Fatalf("take(%d) = %v, want %v", i, got, want[i])
			}
			want[i] = false
		}
		for i := range int64(size) {
			end := i + 1 + rng.Int64N(size-i)
			n := int64(1)
			for i+n < end && want[i+n] == want[i] {
				n++
			}
			if got, in := s.run(i, end); got != n || in != want[i] {
				t.Fatalf("run(%d, %d) = %d, %v, want %d, %v", i, end, got, in, n, want[i])
			}
			if got := s.all(i, end-i); got != (want[i] && n == end-i) {
				t.Fatalf("all(%d, %d) = %v", i, end-i, got)
			}
			next := i
			for next < size && !want[next] {
				next++
			}
			if next == size {
				next = -1
			}
			if got := s.next(i); got != next || s.has(i) != want[i] {
				t.Fatalf("next(%d) = %d, want %d; has: %v", i, got, next, s.has(i))
			}
		}
	}
}
