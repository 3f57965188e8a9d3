package iscsi

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/containerdisk/containerdisk/target/wire"
)

// received is a PDU with bytes of its own, for comparison.
type received struct {
	header, ahs, data string
	badData           bool
}

// feedReceiver gives in to a receiver in pieces of the sizes (the last of them
// for all the rest) and returns the PDUs that come out, and the error.
func feedReceiver(t *testing.T, r *receiver, in []byte, sizes []int) (out []received, rest int, err error) {
	t.Helper()
	for {
		for {
			p, ok, err := r.next()
			if err != nil {
				return out, len(r.Bytes()), err
			}
			if !ok {
				break
			}
			out = append(out, received{string(p.BHS[:]), string(p.ahs), string(p.data), p.badData})
		}
		if len(in) == 0 {
			return out, len(r.Bytes()), nil
		}
		n := len(in)
		if len(sizes) > 0 {
			n, sizes = min(max(sizes[0], 1), len(in)), sizes[1:]
		}
		room := r.Room(r.need)
		if len(room) == 0 {
			t.Fatal("no room to read into")
		}
		n = copy(room[:min(n, len(room))], in)
		r.Got(n)
		in = in[n:]
		if limit := 2*wire.InMost + r.maxData; r.Cap() > limit {
			t.Fatalf("buffer of %d bytes", r.Cap())
		}
	}
}

func TestReceiver(t *testing.T) {
	for _, digests := range []struct{ header, data bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", digests), func(t *testing.T) {
			var stream []byte
			var want []received
			for i, n := range []int{0, 1, 2, 3, 4, 511, 8192, 100000, ourMaxRecvSegment, 0} {
				p := newPacket(0x05, 0x80).itt(uint32(i)).with(pattern(uint32(i), n, 1))
				if i%3 == 1 {
					p.ahs = bytes.Repeat([]byte{byte(i)}, 4*i)
				}
				b := p.bytes(digests.header, digests.data)
				stream = append(stream, b...)
				want = append(want, received{string(b[:48]), string(p.ahs), string(p.data), false})
			}
			cuts := rand.New(rand.NewPCG(3, 4))
			for range 30 {
				var sizes []int
				for range 2000 {
					sizes = append(sizes, 1+cuts.IntN(1<<cuts.IntN(15)))
				}
				r := &receiver{maxData: ourMaxRecvSegment, headerDigest: digests.header, dataDigest: digests.data}
				got, rest, err := feedReceiver(t, r, stream, sizes)
				if err != nil || rest != 0 || len(got) != len(want) {
					t.Fatalf("%d PDUs, %d bytes left, %v; want %d PDUs", len(got), rest, err, len(want))
				}
				for i := range got {
					if got[i] != want[i] {
						t.Fatalf("PDU %d differs: data of %d bytes, want %d; bad %v", i, len(got[i].data), len(want[i].data), got[i].badData)
					}
				}
			}
		})
	}
}

// TestReceiverStops: the reader takes no byte of what follows a PDU, whatever
// it is, so that digests can be switched on between two PDUs.
func TestReceiverStops(t *testing.T) {
	first := newPacket(0x03, 0x87).with(text("A=b")).bytes(false, false)
	second := newPacket(0x05, 0).with([]byte("12345")).bytes(true, true)
	r := &receiver{maxData: 8192}
	copy(r.Room(r.need), append(bytes.Clone(first), second...))
	r.Got(len(first) + len(second))
	if p, ok, err := r.next(); !ok || err != nil || p.opcode() != opLogin {
		t.Fatalf("first: %v, %v", ok, err)
	}
	r.headerDigest, r.dataDigest = true, true
	p, ok, err := r.next()
	if !ok || err != nil || string(p.data) != "12345" || p.badData {
		t.Fatalf("second: %v, %v, %q, bad %v", ok, err, p.data, p.badData)
	}
	if n := len(r.Bytes()); n > 0 {
		t.Fatalf("%d bytes left", n)
	}
}

func TestReceiverDigestErrors(t *testing.T) {
	p := newPacket(0x01, 0x80).with([]byte("data!"))
	p.ahs = []byte{0, 1, 2, 3}
	good := p.bytes(true, true)
	headerEnd, dataEnd := 48+4+4, 48+4+4+8+4
	for bit := range 8 * len(good) {
		if at := bit / 8; at >= 4 && at <= 7 {
			continue // the lengths: the PDU is another one then
		}
		b := bytes.Clone(good)
		b[bit/8] ^= 1 << (bit % 8)
		got, _, err := feedReceiver(t, &receiver{maxData: 8192, headerDigest: true, dataDigest: true}, b, nil)
		switch at := bit / 8; {
		case at < headerEnd && !errors.Is(err, errHeaderDigest):
			t.Fatalf("bit %d of the header flipped: %v, %v", bit, got, err)
		case at >= headerEnd && (err != nil || len(got) != 1 || !got[0].badData):
			t.Fatalf("bit %d of the data flipped: %v, %v", bit, got, err)
		}
	}
	if len(good) != dataEnd {
		t.Fatalf("the test's own PDU has %d bytes", len(good))
	}
}

func TestReceiverLimit(t *testing.T) {
	r := &receiver{maxData: 8192}
	if _, _, err := feedReceiver(t, r, newPacket(3, 0).with(make([]byte, 8193)).bytes(false, false)[:48], nil); err == nil {
		t.Error("a data segment beyond the limit is accepted")
	}
	if r.Cap() > 64<<10 {
		t.Errorf("buffer of %d bytes for it", r.Cap())
	}
	got, _, err := feedReceiver(t, &receiver{maxData: 8192}, newPacket(3, 0).with(make([]byte, 8192)).bytes(false, false), nil)
	if err != nil || len(got) != 1 {
		t.Errorf("a data segment of the limit: %d PDUs, %v", len(got), err)
	}
}

// FuzzPDUStream: whatever the bytes and however they are cut, the same PDUs
// come out; together with what is left they are the bytes that went in; and
// the buffer stays within bounds.
func FuzzPDUStream(f *testing.F) {
	for _, v := range vectors(f, "*.hex") {
		f.Add(v.bytes, uint64(1), byte(0))
		f.Add(append(bytes.Clone(v.bytes), v.bytes...), uint64(2), byte(3))
	}
	p := newPacket(0x01, 0x80).with([]byte("data!"))
	p.ahs = []byte{0, 1, 2, 3}
	f.Add(p.bytes(true, true), uint64(7), byte(3))
	f.Fuzz(func(t *testing.T, in []byte, cut uint64, digests byte) {
		const maxData = 70000
		make1 := func() *receiver {
			return &receiver{maxData: maxData, headerDigest: digests&1 != 0, dataDigest: digests&2 != 0}
		}
		rng := rand.New(rand.NewPCG(cut, 0))
		var sizes []int
		for range len(in) {
			sizes = append(sizes, 1+rng.IntN(1<<rng.IntN(12)))
		}
		r := make1()
		whole, wholeRest, wholeErr := feedReceiver(t, r, in, nil)
		cutUp, cutRest, cutErr := feedReceiver(t, make1(), in, sizes)
		if fmt.Sprint(wholeErr) != fmt.Sprint(cutErr) {
			t.Fatalf("whole: %v; cut: %v", wholeErr, cutErr)
		}
		if len(whole) != len(cutUp) || wholeErr == nil && wholeRest != cutRest {
			t.Fatalf("whole: %d PDUs, %d bytes left; cut: %d, %d", len(whole), wholeRest, len(cutUp), cutRest)
		}
		at := 0
		for i, p := range whole {
			if p != cutUp[i] {
				t.Fatalf("PDU %d differs", i)
			}
			at += checkPlace(t, in[at:], p, digests)
		}
		if wholeErr == nil && at+wholeRest != len(in) {
			t.Fatalf("PDUs take %d of %d bytes, %d left", at, len(in), wholeRest)
		}
		if limit := max(wire.InMost, 2*len(in)+wire.InRoom+maxData); r.Cap() > limit {
			t.Fatalf("buffer of %d bytes for %d", r.Cap(), len(in))
		}
	})
}

// checkPlace checks p against the bytes it must have come from, and returns
// how many those are.
func checkPlace(t *testing.T, b []byte, p received, digests byte) int {
	t.Helper()
	ahs := int(b[4]) * 4
	n := int(b[5])<<16 | int(b[6])<<8 | int(b[7])
	start := 48 + ahs + 4*int(digests&1)
	end := start + (n+3)&^3
	if digests&2 != 0 && n > 0 {
		end += 4
	}
	if p.header != string(b[:48]) || p.ahs != string(b[48:48+ahs]) || p.data != string(b[start:start+n]) {
		t.Fatalf("PDU with %d bytes of data is not what the stream holds", len(p.data))
	}
	return end
}
