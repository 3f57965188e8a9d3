package overlay

import (
	"math/bits"
	"sync/atomic"
)

// set is a set of numbers from 0 on, of clusters or of pages. It is read and
// changed by several goroutines without a lock; each word for itself is exact.
type set []atomic.Uint64

const wordBits = 64

func newSet(n int64) set { return make(set, (n+wordBits-1)/wordBits) }

// mask has the bits of the n numbers from i on that are in i's word, and tells
// how many these are. n is at least 1.
func mask(i, n int64) (m uint64, k int64) {
	k = min(n, wordBits-i%wordBits)
	return ^uint64(0) >> (wordBits - k) << (i % wordBits), k
}

func (s set) has(i int64) bool { return s[i/wordBits].Load()>>(i%wordBits)&1 != 0 }

// all reports whether the n numbers from i on are all in s.
func (s set) all(i, n int64) bool {
	for n > 0 {
		m, k := mask(i, n)
		if s[i/wordBits].Load()&m != m {
			return false
		}
		i, n = i+k, n-k
	}
	return true
}

func (s set) add(i, n int64) {
	for n > 0 {
		m, k := mask(i, n)
		s[i/wordBits].Or(m)
		i, n = i+k, n-k
	}
}

// take removes i and reports whether it was there.
func (s set) take(i int64) bool {
	m := uint64(1) << (i % wordBits)
	return s[i/wordBits].And(^m)&m != 0
}

// run is how many of the numbers from i on, up to end, are in s as i is, or
// are not in it as i is not. i is less than end.
func (s set) run(i, end int64) (n int64, in bool) {
	in = s.has(i)
	for at := i; at < end; {
		w := s[at/wordBits].Load()
		if in {
			w = ^w
		}
		w >>= at % wordBits // ones: those that are other than i
		k := wordBits - at%wordBits
		if w != 0 {
			return max(min(at+int64(bits.TrailingZeros64(w)), end)-i, 1), in
		}
		at += k
	}
	return end - i, in
}

// next is the first number from i on that is in s, or -1.
func (s set) next(i int64) int64 {
	for w := i / wordBits; w < int64(len(s)); w++ {
		v := s[w].Load()
		if w == i/wordBits {
			v = v >> (i % wordBits) << (i % wordBits)
		}
		if v != 0 {
			return w*wordBits + int64(bits.TrailingZeros64(v))
		}
	}
	return -1
}
