// Package le reads and writes little-endian fields at offsets that have a name,
// as package be does for big-endian ones.
package le

import "encoding/binary"

type (
	U16 int // offset of a two-byte field
	U32 int // offset of a four-byte field
	U64 int // offset of an eight-byte field
)

func (o U16) Get(b []byte) uint16    { return binary.LittleEndian.Uint16(b[o:]) }
func (o U16) Put(b []byte, v uint16) { binary.LittleEndian.PutUint16(b[o:], v) }

func (o U32) Get(b []byte) uint32    { return binary.LittleEndian.Uint32(b[o:]) }
func (o U32) Put(b []byte, v uint32) { binary.LittleEndian.PutUint32(b[o:], v) }

func (o U64) Get(b []byte) uint64    { return binary.LittleEndian.Uint64(b[o:]) }
func (o U64) Put(b []byte, v uint64) { binary.LittleEndian.PutUint64(b[o:], v) }
