package le

import (
	"bytes"
	"testing"
)

func TestFields(t *testing.T) {
	b := make([]byte, 14)
	U16(0).Put(b, 0x0201)
	U32(2).Put(b, 0x06050403)
	U64(6).Put(b, 0x0e0d0c0b0a090807)
	want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}
	if !bytes.Equal(b, want) {
		t.Fatalf("put: got % x, want % x", b, want)
	}
	got := []uint64{uint64(U16(0).Get(b)), uint64(U32(2).Get(b)), U64(6).Get(b)}
	for i, want := range []uint64{0x0201, 0x06050403, 0x0e0d0c0b0a090807} {
		if got[i] != want {
			t.Errorf("field %d: got %#x, want %#x", i, got[i], want)
		}
	}
}
