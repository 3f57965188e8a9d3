package scsi

import (
	"bytes"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/be"
)

// UNMAP and WRITE SAME: long ranges without data.

// UNMAP CDB and parameter list, SBC "UNMAP command".
const (
	unmapFlags              = 1
	unmapAnchor             = 0x01
	unmapListLength  be.U16 = 7
	unmapHeader             = 8
	unmapDescriptors be.U16 = 2 // UNMAP BLOCK DESCRIPTOR DATA LENGTH
	unmapDescriptor         = 16
	unmapLBA         be.U64 = 0
	unmapBlocks      be.U32 = 8
	maxUnmapList            = unmapHeader + maxUnmapDescriptors*unmapDescriptor
)

func (t *Task) beginUnmap() error {
	if t.cdb[unmapFlags]&unmapAnchor != 0 { // ANC_SUP is 0
		return invalidCDB(unmapFlags, 0)
	}
	return t.expect(int(unmapListLength.Get(t.cdb[:])))
}

// unmap gives ranges back, none of them if one is not good.
func (t *Task) unmap() error {
	list, err := t.list()
	if err != nil || len(list) == 0 {
		return err
	}
	descriptors, err := t.unmapDescriptors(list)
	if err != nil {
		return err
	}
	for ; len(descriptors) > 0; descriptors = descriptors[unmapDescriptor:] {
		off := t.lun.offset(unmapLBA.Get(descriptors))
		n := t.lun.bytes(unmapBlocks.Get(descriptors))
		if err := t.inSteps(off, n, zeroStep, t.discard); err != nil {
			return err
		}
	}
	return nil
}

// unmapDescriptors checks a parameter list and returns its whole descriptors.
// An incomplete one at the end is to be ignored.
func (t *Task) unmapDescriptors(list []byte) ([]byte, error) {
	if len(list) < unmapHeader {
		return nil, errListLength
	}
	n := int(unmapDescriptors.Get(list))
	if n > len(list)-unmapHeader {
		return nil, errListLength
	}
	n -= n % unmapDescriptor
	if n > maxUnmapList-unmapHeader {
		return nil, invalidList(int(unmapDescriptors), wholeByte)
	}
	total := uint64(0)
	for at := unmapHeader; at < unmapHeader+n; at += unmapDescriptor {
		d := list[at:]
		blocks := uint64(unmapBlocks.Get(d))
		if err := t.lun.checkRange(unmapLBA.Get(d), blocks); err != nil {
			return nil, err
		}
		if total += blocks; total > maxUnmapBlocks {
			return nil, invalidList(at+int(unmapBlocks), wholeByte)
		}
	}
	return list[unmapHeader : unmapHeader+n], nil
}

// WRITE SAME flags, SBC.
const (
	writeSameAnchor   = 0x10
	writeSameUnmap    = 0x08
	writeSameObsolete = 0x06 // PBDATA and LBDATA of WRITE SAME (10)
	writeSameNoData   = 0x01 // NDOB of WRITE SAME (16)
)

func (t *Task) beginWriteSame10() error {
	if t.x.flags&writeSameObsolete != 0 {
		return invalidCDB(cdbFlags, 2)
	}
	t.x.flags &^= writeSameNoData // reserved here
	return t.beginWriteSame()
}

func (t *Task) beginWriteSame16() error { return t.beginWriteSame() }

func (t *Task) beginWriteSame() error {
	switch {
	case t.x.flags&writeSameAnchor != 0: // ANC_SUP is 0
		return invalidCDB(cdbFlags, 4)
	case t.x.flags&writeSameUnmap != 0 && !t.lun.unmaps(): // LBPWS is 0
		return invalidCDB(cdbFlags, 3)
	case t.x.blocks == 0:
		// WSNZ is 1. To some this would mean "up to the end of the disk",
		// which is too much to do for a number that is missing.
		return invalidCDB(int(t.x.length), wholeByte)
	}
	if t.x.flags&writeSameNoData == 0 {
		t.out = int64(t.lun.blockSize())
	}
	return nil
}

// writeSame writes the block again and again. A block of zeros needs no
// writing; whether its space may go is what UNMAP says. Blocks of anything
// else are written even with UNMAP, as they must read as that block.
func (t *Task) writeSame() error {
	if t.moved < t.out {
		return errShortData
	}
	off, n := t.base(), t.lun.bytes(t.x.blocks)
	if len(bytes.TrimLeft(t.data, "\x00")) > 0 {
		return t.writePattern(off, n)
	}
	mode := blockdev.ZeroKeepAllocated
	if t.x.flags&writeSameUnmap != 0 {
		mode = blockdev.ZeroMayUnmap
	}
	return t.inSteps(off, n, zeroStep, func(off, n int64) error { return t.zero(off, n, mode) })
}

func (t *Task) writePattern(off, n int64) error {
	same := repeat(t.data, int(min(n, step)))
	return t.inSteps(off, n, step, func(off, n int64) error { return t.store(same[:n], off, mayWait) })
}
