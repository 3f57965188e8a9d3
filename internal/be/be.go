// Package be reads and writes big-endian fields at offsets that have a name.
//
// A wire structure is described by a block of typed constants that reads like
// the figure in its specification; the compiler removes the bounds checks when
// the bytes are an array.
package be

import "encoding/binary"

type (
	U8  int // offset of a one-byte field
	U16 int // offset of a two-byte field
	U24 int // offset of a three-byte field
	U32 int // offset of a four-byte field
	U64 int // offset of an eight-byte field
)

func (o U8) Get(b []byte) uint8    { return b[o] }
func (o U8) Put(b []byte, v uint8) { b[o] = v }

func (o U16) Get(b []byte) uint16    { return binary.BigEndian.Uint16(b[o:]) }
func (o U16) Put(b []byte, v uint16) { binary.BigEndian.PutUint16(b[o:], v) }

func (o U24) Get(b []byte) uint32 {
	_ = b[o+2]
	return uint32(b[o])<<16 | uint32(b[o+1])<<8 | uint32(b[o+2])
}

// Put writes the low 24 bits of v.
func (o U24) Put(b []byte, v uint32) {
	_ = b[o+2]
	b[o], b[o+1], b[o+2] = byte(v>>16), byte(v>>8), byte(v)
}

func (o U32) Get(b []byte) uint32    { return binary.BigEndian.Uint32(b[o:]) }
func (o U32) Put(b []byte, v uint32) { binary.BigEndian.PutUint32(b[o:], v) }

func (o U64) Get(b []byte) uint64    { return binary.BigEndian.Uint64(b[o:]) }
func (o U64) Put(b []byte, v uint64) { binary.BigEndian.PutUint64(b[o:], v) }
