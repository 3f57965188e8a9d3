package vhdx

import (
	"errors"
	"fmt"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
	"github.com/containerdisk/containerdisk/internal/le"
)

// "BAT". After the entries of a chunk's payload blocks comes one for the chunk's
// sector bitmap, which only differencing disks use.
const (
	batEntryLen  = 8
	chunkSectors = 1 << 23 // logical ones, that a sector bitmap covers
)

// batEntry says where a payload block is.
type batEntry uint64

// state is what a batEntry says of its block.
type state uint8

const (
	stateNotPresent       state = 0
	stateUndefined        state = 1
	stateZero             state = 2
	stateUnmapped         state = 3
	stateFullyPresent     state = 6
	statePartiallyPresent state = 7
)

func (e batEntry) state() state { return state(e & 7) }

// offset is where the block begins in the file, bytes.
func (e batEntry) offset() uint64 { return uint64(e) &^ (unit - 1) }

// reserved are the bits that must be zero.
func (e batEntry) reserved() uint64 { return uint64(e) & (unit - 1) &^ 7 }

// empty reports whether the block reads as zeros: nobody wrote to it, or what
// was written does not matter any more.
func (e batEntry) empty() bool { return e.state() <= stateUnmapped }

// bat is the block allocation table.
type bat struct {
	file     *pages.Cache
	at       int64  // in the file, bytes
	block    int64  // bytes of a payload block
	chunk    int64  // payload blocks between two entries of sector bitmaps
	fileSize int64  // bytes
	taken    []span // of the file, by what is no payload
}

// check wants the table to be large enough for a disk of that size.
func (b *bat) check(size, room int64) error {
	blocks := (size + b.block - 1) / b.block
	entries := blocks + max(blocks-1, 0)/b.chunk
	if entries*batEntryLen > room {
		return corrupt("a block allocation table of %d bytes for a disk of %d in blocks of %d, which needs %d",
			room, size, b.block, entries*batEntryLen)
	}
	return nil
}

// lookup is runs.Disk.Lookup.
func (b *bat) lookup(off, n int64) (runs.Run, error) {
	number, in := off/b.block, off%b.block
	entries, err := b.file.At(b.at + (number+number/b.chunk)*batEntryLen)
	if err != nil {
		return runs.Run{}, fmt.Errorf("block allocation table, block %d: %w", number, err)
	}
	e := batEntry(le.U64(0).Get(entries))
	if e.empty() {
		blocks := min(empty(entries), b.chunk-number%b.chunk) // then comes a sector bitmap
		return runs.Run{Len: min(n, blocks*b.block-in), Kind: blockdev.Hole}, nil
	}
	if err := b.checkEntry(e); err != nil {
		return runs.Run{}, fmt.Errorf("block allocation table, block %d: %w", number, err)
	}
	host := int64(e.offset()) + in
	if host >= b.fileSize {
		return runs.Run{}, fmt.Errorf("block %d at %#x is not within the file's %d bytes", number, host, b.fileSize)
	}
	return runs.Run{Len: min(n, b.block-in, b.fileSize-host), Kind: blockdev.Data, Host: host}, nil
}

// empty is how many of the entries, from the first one on, are empty.
func empty(entries []byte) int64 {
	count := int64(0)
	for len(entries) >= batEntryLen && batEntry(le.U64(0).Get(entries)).empty() {
		entries, count = entries[batEntryLen:], count+1
	}
	return count
}

// checkEntry checks an entry that is not empty.
func (b *bat) checkEntry(e batEntry) error {
	switch {
	case e.state() == statePartiallyPresent:
		return errors.New("a part of the block is in a parent image, but there is none")
	case e.state() != stateFullyPresent:
		return fmt.Errorf("unknown state %d", e.state())
	case e.reserved() != 0:
		return fmt.Errorf("reserved bits %#x", e.reserved())
	case e.offset() >= uint64(b.fileSize):
		return fmt.Errorf("the block at %#x is not within the file's %d bytes", e.offset(), b.fileSize)
	}
	for _, s := range b.taken {
		if s.meets(span{int64(e.offset()), b.block}) {
			return fmt.Errorf("the block at %#x overlaps %d bytes at %#x that are no payload", e.offset(), s.n, s.off)
		}
	}
	return nil
}
