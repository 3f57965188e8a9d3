package inflate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
)

// The zlib format, RFC 1950 §2.2.
const (
	zlibHeaderLen  = 2
	zlibTrailerLen = 4 // Adler-32, big-endian
	methodMask     = 0x0f
	methodDeflate  = 8
	windowShift    = 4
	maxWindow      = 7 // 32 KiB
	headerModulus  = 31
	hasDictionary  = 0x20
)

// ErrLong is what a stream gives that has more than there is room for.
var ErrLong = errors.New("the stream has more than a cluster")

// Zlib decompresses the zlib stream that in begins with to the beginning of p,
// and returns how much that is. The stream must end, with the right checksum,
// and not hold more than p. What follows it in in is not looked at.
func (z *Inflater) Zlib(p, in []byte) (int, error) {
	if len(in) < zlibHeaderLen {
		return 0, ErrShort
	}
	switch cmf, flg := in[0], in[1]; {
	case cmf&methodMask != methodDeflate || cmf>>windowShift > maxWindow || (int(cmf)<<8|int(flg))%headerModulus != 0:
		return 0, fmt.Errorf("zlib: a header of %#02x%02x", cmf, flg)
	case flg&hasDictionary != 0:
		return 0, errors.New("zlib: the stream needs a dictionary")
	}
	z.begin(in[zlibHeaderLen:])
	defer z.end()
	n, err := z.whole(p)
	if err != nil {
		return 0, err
	}
	trailer := z.in[z.at-z.n/8:] // whole bytes that were taken but not used
	if len(trailer) < zlibTrailerLen {
		return 0, ErrShort
	}
	if got, want := adler32.Checksum(p[:n]), binary.BigEndian.Uint32(trailer); got != want {
		return 0, fmt.Errorf("zlib: the checksum is %#08x, must be %#08x", got, want)
	}
	return n, nil
}

// whole decompresses a stream to its end.
func (z *Inflater) whole(p []byte) (int, error) {
	done := 0
	for last := false; !last; {
		var err error
		if done, last, err = z.next(p, done); err != nil {
			return done, err
		}
		if z.over {
			return done, ErrLong
		}
		if z.open && done == len(p) {
			if err := z.endOfBlock(); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// endOfBlock wants the block to end here.
func (z *Inflater) endOfBlock() error {
	z.refill()
	e := z.lit[z.b&(1<<litBits-1)]
	if e&isTable != 0 {
		e = z.lit[e.value()+int(z.b>>litBits&(1<<e.extra()-1))]
	}
	z.take(uint(e.len()))
	switch {
	case z.n < 0:
		return ErrShort
	case e&isEnd != 0:
		return nil
	case e&isLiteral == 0 && e.value() == 0:
		return errNoCode
	}
	return ErrLong
}
