package be

import (
	"bytes"
	"testing"
)

func TestFields(t *testing.T) {
	b := make([]byte, 18)
	U8(0).Put(b, 0x01)
	U16(1).Put(b, 0x0203)
	U24(3).Put(b, 0xff040506) // the top byte does not fit and must not leak
	U32(6).Put(b, 0x0708090a)
	U64(10).Put(b, 0x0b0c0d0e0f101112)
	want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}
	if !bytes.Equal(b, want) {
		t.Fatalf("put: got % x, want % x", b, want)
	}
	got := []uint64{uint64(U8(0).Get(b)), uint64(U16(1).Get(b)), uint64(U24(3).Get(b)), uint64(U32(6).Get(b)), U64(10).Get(b)}
	for i, want := range []uint64{0x01, 0x0203, 0x040506, 0x0708090a, 0x0b0c0d0e0f101112} {
		if got[i] != want {
			t.Errorf("field %d: got %#x, want %#x", i, got[i], want)
		}
	}
}
