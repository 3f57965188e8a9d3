package iscsi

import (
	"bytes"
	"testing"
)

// TestDigestVectors holds the examples of RFC 7143 Appendix A.4; the bytes are
// as they go on the wire.
func TestDigestVectors(t *testing.T) {
	up, down := make([]byte, 32), make([]byte, 32)
	for i := range up {
		up[i], down[i] = byte(i), byte(31-i)
	}
	read10 := []byte{
		0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
		0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
	}
	for _, v := range []struct {
		name string
		over []byte
		want []byte
	}{
		{"zeros", make([]byte, 32), []byte{0xaa, 0x36, 0x91, 0x8a}},
		{"ones", bytes.Repeat([]byte{0xff}, 32), []byte{0x43, 0xab, 0xa8, 0x62}},
		{"incrementing", up, []byte{0x4e, 0x79, 0xdd, 0x46}},
		{"decrementing", down, []byte{0x5c, 0xdb, 0x3f, 0x11}},
		{"SCSI Read (10) command PDU", read10, []byte{0x56, 0x3a, 0x96, 0xd9}},
	} {
		var got [4]byte
		putDigest(got[:], v.over)
		if !bytes.Equal(got[:], v.want) {
			t.Errorf("%s: got % x, want % x", v.name, got, v.want)
		}
		if !checkDigest(v.want, v.over) {
			t.Errorf("%s: its own digest is refused", v.name)
		}
		for bit := range 8 * len(v.over) {
			v.over[bit/8] ^= 1 << (bit % 8)
			if checkDigest(v.want, v.over) {
				t.Errorf("%s: bit %d flipped unnoticed", v.name, bit)
			}
			v.over[bit/8] ^= 1 << (bit % 8)
		}
	}
}
