package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"unsafe"
)

// TestIn moves a stream through the buffer in messages and reads of random
// sizes: what comes out is what went in, and the buffer stays within bounds.
func TestIn(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	stream := make([]byte, 4<<20)
	for i := range stream {
		stream[i] = byte(r.Uint32())
	}
	var in In
	var out []byte
	for rest := stream; len(out) < len(stream); {
		need := 1 + r.IntN(300<<10)
		need = min(need, len(in.Bytes())+len(rest))
		for len(in.Bytes()) < need {
			room := in.Room(need)
			if len(in.Bytes())+len(room) < need {
				t.Fatalf("room for %d bytes behind %d, want %d in all", len(room), len(in.Bytes()), need)
			}
			n := copy(room[:1+r.IntN(len(room))], rest)
			in.Got(n)
			rest = rest[n:]
		}
		out = append(out, in.Bytes()[:need]...)
		in.Skip(need)
		if limit := max(InMost, need+2*InRoom); in.Cap() > limit {
			t.Fatalf("buffer of %d bytes for a message of %d", in.Cap(), need)
		}
	}
	if !bytes.Equal(out, stream) {
		t.Fatal("the stream came out changed")
	}
}

func TestOut(t *testing.T) {
	var o Out
	var want, got bytes.Buffer
	for i := range 2000 {
		n := i * 7 % 1500
		p := o.Reserve(n + 10)
		for k := range p {
			p[k] = byte(i)
		}
		if i%3 == 0 {
			continue // given up: leaves nothing
		}
		o.Commit(n)
		want.Write(bytes.Repeat([]byte{byte(i)}, n))
	}
	if o.Empty() || !o.Full() {
		t.Errorf("Empty() = %v, Full() = %v with %d bytes", o.Empty(), o.Full(), want.Len())
	}
	if err := o.Flush(&got); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("Flush: %v, %d bytes, want %d", err, got.Len(), want.Len())
	}
	if !o.Empty() {
		t.Error("not empty after Flush")
	}
}

// TestOutPayload: payload is aligned and nothing is sent twice or left out,
// with gaps in the buffer and without.
func TestOutPayload(t *testing.T) {
	for _, solid := range []bool{false, true} {
		o := Out{Solid: solid}
		var want, got bytes.Buffer
		for i := range 3000 {
			n, at := 1+i*7%1500, i%49
			at = min(at, n)
			p := o.Reserve(n)
			if i%4 > 0 {
				p = o.ReservePayload(n, at)
			}
			for k := range p {
				p[k] = byte(i + k)
			}
			if a := uintptr(unsafe.Pointer(unsafe.SliceData(p))) + uintptr(at); i%4 > 0 && !solid && a%lineSize != 0 {
				t.Fatalf("payload at address %#x", a)
			}
			if i%5 == 0 {
				continue // given up: leaves nothing
			}
			o.Commit(n - n%3)
			want.Write(p[:n-n%3])
			if i%100 == 99 {
				if err := o.Flush(&got); err != nil || !o.Empty() {
					t.Fatal(err)
				}
			}
		}
		if err := o.Flush(&got); err != nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("solid %v: %v, %d bytes, want %d", solid, err, got.Len(), want.Len())
		}
	}
}

// TestInAligned: what comes behind a part of a message is read to an aligned
// address.
func TestInAligned(t *testing.T) {
	var in In
	in.Room(0)
	for held := range 200 {
		in.Skip(len(in.Bytes()))
		want := make([]byte, held)
		for i := range want {
			want[i] = byte(i + held)
		}
		in.Got(copy(in.Room(held), want))
		room := in.Room(1)
		if a := uintptr(unsafe.Pointer(unsafe.SliceData(room))); a%lineSize != 0 || !bytes.Equal(in.Bytes(), want) {
			t.Errorf("behind %d bytes: address %#x, content kept: %v", held, a, bytes.Equal(in.Bytes(), want))
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestOutFailure(t *testing.T) {
	var o Out
	o.Reserve(1)
	o.Commit(1)
	if err := o.Flush(failingWriter{}); err == nil || !o.Empty() {
		t.Errorf("Flush: %v, Empty() = %v; want the writer's error and an empty batch", err, o.Empty())
	}
}

func TestPiece(t *testing.T) {
	for _, n := range []int{0, 1, smallPiece, smallPiece + 1, PieceSize} {
		data := bytes.Repeat([]byte{7}, n)
		p := CopyPiece(data)
		if !bytes.Equal(p, data) {
			t.Errorf("copy of %d bytes differs", n)
		}
		if n > 0 {
			data[0] = 8
			if p[0] != 7 {
				t.Errorf("copy of %d bytes shares memory", n)
			}
		}
		FreePiece(p)
	}
	if n := len(Piece()); n != PieceSize {
		t.Errorf("a used piece has %d bytes, want %d", n, PieceSize)
	}
}

func TestKnown(t *testing.T) {
	var k Known
	if k.Has("a") {
		t.Error("somebody is known from the start")
	}
	k.Add("a")
	k.Add("a")
	if !k.Has("a") || k.Has("b") || len(k) != 1 {
		t.Errorf("known: %v, want a", k)
	}
	for i := range 10 * maxKnown {
		k.Add(strconv.Itoa(i))
		if len(k) > maxKnown || !k.Has(strconv.Itoa(i)) {
			t.Fatalf("%d known after %d; the last is among them: %v", len(k), i, k.Has(strconv.Itoa(i)))
		}
	}
}
