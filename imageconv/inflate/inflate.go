// Package inflate decompresses deflate (RFC 1951) from memory to memory. A
// cluster of an image and its stream are both at hand as a whole, so that no
// window has to be kept and copied from: this is what makes it twice as fast as
// a reader of streams (docs/adr/0008).
//
// A code is looked up by the next bits of the stream. Codes longer than the
// table's index end in an entry that points to a second table. What must not
// stand in a stream has no entry, which is the entry 0.
package inflate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

const (
	litBits  = 11 // index of the first table for literals and lengths
	distBits = 8  // and for distances
	metaBits = 7  // for the lengths of the codes of these two

	maxCodeLen  = 15
	maxLit      = 286 // symbols; §3.2.5
	maxDist     = 30
	maxMeta     = 19
	endOfBlock  = 256
	firstLength = 257

	// A second table is used by at least two codes and is as large as the
	// longest code needs.
	litTable  = 1<<litBits + (maxLit/2)<<(maxCodeLen-litBits)
	distTable = 1<<distBits + (maxDist/2)<<(maxCodeLen-distBits)

	// symbolBits is the most that a length and its distance take: two codes
	// and their extra bits. A refill makes sure of as many, input permitting.
	symbolBits = 2*maxCodeLen + 5 + 13
)

// entry is an entry of a table.
type entry uint32

const (
	entryLen   = 0x1f     // bits 0 to 4: length of the whole code
	extraShift = 5        // bits 5 to 8: how many extra bits follow it
	extraMask  = 0xf      //
	isLiteral  = 1 << 9   // the value is a byte
	isEnd      = 1 << 10  // end of block
	isTable    = 1 << 11  // the value is where the second table begins, extra its index's bits
	valueShift = 16       // bits 16 to 31
	noEntry    = entry(0) // no code begins so
)

func (e entry) len() int    { return int(e & entryLen) }
func (e entry) extra() uint { return uint(e>>extraShift) & extraMask }
func (e entry) value() int  { return int(e >> valueShift) }

// litEntry is the entry of a literal or length symbol, but for the code's
// length.
func litEntry(symbol int) entry {
	switch {
	case symbol < endOfBlock:
		return isLiteral | entry(symbol)<<valueShift
	case symbol == endOfBlock:
		return isEnd
	case symbol == maxLit-1:
		return 258 << valueShift
	}
	// Eight lengths without extra bits, then four each with 1, 2 … 5.
	i := symbol - firstLength
	extra := max(i/4-1, 0)
	base := 3 + i
	if extra > 0 {
		base = 3 + (4+i%4)<<extra
	}
	return entry(extra)<<extraShift | entry(base)<<valueShift
}

// distEntry is the entry of a distance symbol, but for the code's length.
func distEntry(symbol int) entry {
	// Four distances without extra bits, then two each with 1, 2 … 13.
	extra := max(symbol/2-1, 0)
	base := 1 + symbol
	if extra > 0 {
		base = 1 + (2+symbol%2)<<extra
	}
	return entry(extra)<<extraShift | entry(base)<<valueShift
}

// metaEntry is the entry of a code length symbol, but for the code's length.
func metaEntry(symbol int) entry { return isLiteral | entry(symbol)<<valueShift }

// ErrShort is what a stream gives that ends before its output is whole.
var ErrShort = errors.New("the stream ends before the cluster does")

var (
	errCode  = errors.New("deflate: not a Huffman code")
	errNoEnd = errors.New("deflate: a block that cannot end") // zlib refuses it too
)

// fill fills a table whose index has that many bits with the code of which
// lens has the code lengths: §3.2.2.
func fill(table []entry, index int, lens []uint8, symbol func(int) entry) error {
	var count [maxCodeLen + 1]int
	for _, n := range lens {
		count[n]++
	}
	count[0] = 0
	longest, left, code := 0, 1, 0
	var next [maxCodeLen + 1]int
	for n := 1; n <= maxCodeLen; n++ {
		code = (code + count[n-1]) << 1
		next[n] = code
		left = left<<1 - count[n]
		if left < 0 {
			return errCode // more codes than there is room for
		}
		if count[n] > 0 {
			longest = n
		}
	}
	if left > 0 {
		if longest > 1 {
			return errCode // only no code at all, or a single bit, may be incomplete
		}
		clear(table[:1<<index])
	}
	end := 1 << index // of the second tables so far
	second := max(longest-index, 0)
	if second > 0 {
		clear(table[:1<<index])
	}
	for s, n := range lens {
		if n == 0 {
			continue
		}
		n := int(n)
		reversed := int(bits.Reverse16(uint16(next[n])) >> (16 - n)) // codes come most significant bit first
		next[n]++
		e := symbol(s) | entry(n)
		if n <= index {
			for i := reversed; i < 1<<index; i += 1 << n {
				table[i] = e
			}
			continue
		}
		first := &table[reversed&(1<<index-1)]
		if *first == noEntry {
			*first = isTable | entry(second)<<extraShift | entry(end)<<valueShift
			end += 1 << second
		}
		for i := reversed >> index; i < 1<<second; i += 1 << (n - index) {
			table[first.value()+i] = e
		}
	}
	return nil
}

// Inflater decompresses one stream after the other. Its zero value is ready for
// use; of several goroutines each needs its own. It takes some 30 KiB.
type Inflater struct {
	in []byte
	at int    // in in
	b  uint64 // bits taken from in but not used, from the lowest on
	n  int    // how many; negative: more were used than there are

	open bool // the last block has an end that was not looked at where p is full
	over bool // the last block had more than p has room for

	lit  [litTable]entry
	dist [distTable]entry
	meta [1 << metaBits]entry
	lens [maxLit + maxDist]uint8
}

// Inflate fills p from the stream that in begins with. What follows in either,
// once p is full, is not looked at.
func (z *Inflater) Inflate(p, in []byte) error {
	z.begin(in)
	defer z.end()
	for done, last := 0, false; done < len(p); {
		if last {
			return ErrShort
		}
		var err error
		if done, last, err = z.next(p, done); err != nil {
			return err
		}
	}
	return nil
}

func (z *Inflater) begin(in []byte) { z.in, z.at, z.b, z.n, z.over = in, 0, 0, 0, false }

// end lets go of the input.
func (z *Inflater) end() { z.in = nil }

// next decompresses the next block to p[done:], until it ends or p is full: then
// of a block that is not stored not even its end has been looked at. It returns
// how far it came, and whether this is the last block.
func (z *Inflater) next(p []byte, done int) (_ int, last bool, err error) {
	z.refill()
	last = z.take(1) != 0
	switch kind := z.take(2); kind { // §3.2.3
	case 0:
		z.open = false
		done, err = z.stored(p, done)
	case 1:
		z.open = true
		if err = z.fixedCodes(); err == nil {
			done, err = z.block(p, done)
		}
	case 2:
		z.open = true
		if err = z.dynamicCodes(); err == nil {
			done, err = z.block(p, done)
		}
	default:
		err = fmt.Errorf("deflate: block of type %d", kind)
	}
	if z.n < 0 {
		err = ErrShort
	}
	return done, last, err
}

// refill takes as many bits as there is room for: at least symbolBits, unless
// the input ends.
func (z *Inflater) refill() {
	if z.at+8 <= len(z.in) && z.n >= 0 {
		// Bits above n are those of the byte at at, and will be again.
		z.b |= binary.LittleEndian.Uint64(z.in[z.at:]) << (z.n & 63)
		z.at += (63 - z.n) >> 3
		z.n |= 56
		return
	}
	for z.n >= 0 && z.n <= 56 && z.at < len(z.in) {
		z.b |= uint64(z.in[z.at]) << (z.n & 63)
		z.at++
		z.n += 8
	}
}

// take uses the next n bits. Behind the end of the input they are zero.
func (z *Inflater) take(n uint) int {
	v := int(z.b & (1<<n - 1))
	z.b >>= n
	z.n -= int(n)
	return v
}

// stored is a block without compression: §3.2.4.
func (z *Inflater) stored(p []byte, done int) (int, error) {
	z.take(uint(z.n & 7))
	z.refill()
	size, inverted := z.take(16), z.take(16)
	if z.n < 0 {
		return done, ErrShort
	}
	if size != ^inverted&0xffff {
		return done, errors.New("deflate: length of a stored block")
	}
	z.at -= z.n / 8 // whole bytes that are in b
	z.b, z.n = 0, 0
	n := copy(p[done:], z.in[z.at:min(z.at+size, len(z.in))])
	z.at += n
	if done += n; n < size && done < len(p) {
		return done, ErrShort
	}
	z.over = n < size
	return done, nil
}

// fixedCodes are those of §3.2.6.
func (z *Inflater) fixedCodes() error {
	var lens [288]uint8
	for i := range lens {
		switch {
		case i < 144:
			lens[i] = 8
		case i < 256:
			lens[i] = 9
		case i < 280:
			lens[i] = 7
		default:
			lens[i] = 8
		}
	}
	err := fill(z.lit[:], litBits, lens[:], func(s int) entry {
		if s >= maxLit {
			return noEntry // part of the code, but not to be used
		}
		return litEntry(s)
	})
	var five [32]uint8
	for i := range five {
		five[i] = 5
	}
	return errors.Join(err, fill(z.dist[:], distBits, five[:], func(s int) entry {
		if s >= maxDist {
			return noEntry
		}
		return distEntry(s)
	}))
}

// metaOrder is the order in which the lengths of the code length codes come.
var metaOrder = [maxMeta]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}

// dynamicCodes reads the codes of a block: §3.2.7.
func (z *Inflater) dynamicCodes() error {
	lits, dists, metas := z.take(5)+257, z.take(5)+1, z.take(4)+4
	if lits > maxLit || dists > maxDist {
		return errCode
	}
	var meta [maxMeta]uint8
	for _, i := range metaOrder[:metas] {
		z.refill()
		meta[i] = uint8(z.take(3))
	}
	if err := fill(z.meta[:], metaBits, meta[:], metaEntry); err != nil {
		return err
	}
	lens := z.lens[:lits+dists]
	for i := 0; i < len(lens); {
		n, err := z.codeLens(lens, i)
		if err != nil {
			return err
		}
		i += n
	}
	if lens[endOfBlock] == 0 {
		return errNoEnd
	}
	return errors.Join(fill(z.lit[:], litBits, lens[:lits], litEntry), fill(z.dist[:], distBits, lens[lits:], distEntry))
}

// codeLens reads the next one or several code lengths to lens[i:].
func (z *Inflater) codeLens(lens []uint8, i int) (int, error) {
	z.refill()
	e := z.meta[z.b&(1<<metaBits-1)]
	z.take(uint(e.len()))
	if e == noEntry || z.n < 0 {
		return 0, errCode
	}
	var repeat int
	var value uint8
	switch v := e.value(); {
	case v <= maxCodeLen:
		lens[i] = uint8(v)
		return 1, nil
	case v == 16 && i == 0:
		return 0, errCode // nothing to repeat
	case v == 16:
		repeat, value = 3+z.take(2), lens[i-1]
	case v == 17:
		repeat = 3 + z.take(3)
	default:
		repeat = 11 + z.take(7)
	}
	if repeat > len(lens)-i {
		return 0, errCode
	}
	for k := range repeat {
		lens[i+k] = value
	}
	return repeat, nil
}

var (
	errNoCode   = errors.New("deflate: a code that means nothing")
	errDistance = errors.New("deflate: a distance to before the beginning")
)

// block decompresses the symbols of a block to p[o:], until the block ends or p
// is full. It is where the time goes: the state is in local variables, which
// therefore have one way out, and one refill serves several symbols.
func (z *Inflater) block(p []byte, o int) (int, error) {
	in, at, b, n := z.in, z.at, z.b, z.n
	var err error
	for o < len(p) {
		if n < symbolBits {
			if n < 0 {
				break
			}
			if at+8 <= len(in) { // refill, in line
				b |= binary.LittleEndian.Uint64(in[at:]) << (n & 63)
				at += (63 - n) >> 3
				n |= 56
			} else {
				for n <= 56 && at < len(in) {
					b |= uint64(in[at]) << (n & 63)
					at++
					n += 8
				}
			}
		}
		e := z.lit[b&(1<<litBits-1)]
		if e&isTable != 0 {
			e = z.lit[e.value()+int(b>>litBits&(1<<e.extra()-1))]
		}
		b >>= e & entryLen
		n -= e.len()
		if e&isLiteral != 0 {
			p[o] = byte(e >> valueShift)
			o++
			continue
		}
		if e&isEnd != 0 {
			break
		}
		length := e.value() + int(b&(1<<e.extra()-1))
		b >>= e.extra()
		n -= int(e.extra())
		d := z.dist[b&(1<<distBits-1)]
		if d&isTable != 0 {
			d = z.dist[d.value()+int(b>>distBits&(1<<d.extra()-1))]
		}
		b >>= d & entryLen
		distance := d.value() + int(b&(1<<d.extra()-1))
		b >>= d.extra()
		n -= d.len() + int(d.extra())
		if n < 0 || e.value() == 0 || d.value() == 0 || distance > o {
			err = matchError(e, d)
			break
		}
		o = repeat(p, o, length, distance)
	}
	z.at, z.b, z.n = at, b, n
	if o > len(p) {
		z.over, o = true, len(p)
	}
	if n < 0 {
		err = ErrShort
	}
	return o, err
}

// matchError is what is wrong with a match of that length and distance.
func matchError(length, distance entry) error {
	if length.value() == 0 || distance.value() == 0 {
		return errNoCode
	}
	return errDistance
}

// repeat copies length bytes, or as many as there is room for, from distance
// before o to o and on. It returns where they end, or would end.
func repeat(p []byte, o, length, distance int) int {
	if length <= 16 && distance >= 8 && len(p)-o >= 16 {
		// The usual case. What is written too much is overwritten later.
		dst, src := p[o:o+16], p[o-distance:][:16]
		binary.LittleEndian.PutUint64(dst, binary.LittleEndian.Uint64(src))
		binary.LittleEndian.PutUint64(dst[8:], binary.LittleEndian.Uint64(src[8:]))
		return o + length
	}
	from, end := o-distance, o+length
	for stop := min(end, len(p)); o < stop; {
		o += copy(p[o:stop], p[from:o]) // twice as much each time
	}
	return end
}
