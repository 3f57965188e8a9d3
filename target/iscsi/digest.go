package iscsi

import (
	"encoding/binary"
	"hash/crc32"
)

// digestLen is the length of a header or data digest in bytes, RFC 7143 §13.1.
const digestLen = 4

// castagnoli is the table of CRC32C; the standard library takes the
// processor's instruction for it where there is one.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The digest goes on the wire with its least significant byte first: the
// RFC's bit order (§13.1) and CRC32C's reflected form together mean that.

func putDigest(p, over []byte) {
	binary.LittleEndian.PutUint32(p, crc32.Checksum(over, castagnoli))
}

func checkDigest(p, over []byte) bool {
	return binary.LittleEndian.Uint32(p) == crc32.Checksum(over, castagnoli)
}

// len returns what a digest that is on or off adds to a PDU.
func lenIf(on bool) int {
	if on {
		return digestLen
	}
	return 0
}
