package scsi

// VERIFY, WRITE AND VERIFY and COMPARE AND WRITE: the commands that compare.

const maskBytchk = 0x06

// What BYTCHK asks for, SBC "VERIFY (10) command".
const (
	bytchkNone     = 0x00 // that the blocks can be read
	bytchkData     = 0x02 // that they are equal to the data-out
	bytchkReserved = 0x04
	bytchkOneBlock = 0x06 // that each is equal to the one block of data-out
)

func (t *Task) bytchk() byte { return t.x.flags & maskBytchk }

// miscompare is a difference at the byte off of the disk.
func (t *Task) miscompare(off int64) error {
	return fault{key: keyMiscompare, code: codeMiscompare, info: uint64(off) >> t.lun.shift, hasInfo: true}
}

func (t *Task) beginVerify() error {
	switch t.bytchk() {
	case bytchkNone:
		return nil // no data, so no limit either
	case bytchkData:
		t.out = t.lun.bytes(t.x.blocks)
	case bytchkOneBlock:
		t.out = min(t.lun.bytes(t.x.blocks), int64(t.lun.blockSize()))
		return nil
	case bytchkReserved:
		return invalidCDB(cdbFlags, 2)
	}
	return t.checkLength()
}

// verifyPiece compares data-out with the disk as it comes, or keeps the one
// block that is compared with all of them.
func (t *Task) verifyPiece(p []byte, at int64, w patience) error {
	if t.bytchk() == bytchkOneBlock {
		return t.moveList(p, at, w)
	}
	if w == mustNotWait {
		return ErrWouldBlock
	}
	return t.compareDisk(t.base()+at, int64(len(p)), func(k int64) []byte { return p[k:] })
}

// verify does the forms of VERIFY that need nothing, or only one block, from
// the initiator.
func (t *Task) verify() error {
	switch t.bytchk() {
	case bytchkNone:
		return t.compareDisk(t.base(), t.lun.bytes(t.x.blocks), nil)
	case bytchkOneBlock:
		if t.moved < t.out {
			return errShortData
		}
		if t.out == 0 {
			return nil
		}
		same := repeat(t.data, step)
		return t.compareDisk(t.base(), t.lun.bytes(t.x.blocks), func(int64) []byte { return same })
	}
	return nil
}

// compareDisk reads [off, off+n) of the disk, in steps, and compares it with
// what want has: want(k) begins with the bytes for the disk from off+k on. k is
// a multiple of step. With no want, reading is all.
func (t *Task) compareDisk(off, n int64, want func(k int64) []byte) error {
	buf := make([]byte, min(n, step))
	start := off
	return t.inSteps(off, n, step, func(off, n int64) error {
		b := buf[:n]
		if err := t.load(b, off, mayWait); err != nil || want == nil {
			return err
		}
		if i := differ(b, want(off - start)[:n]); i >= 0 {
			return t.miscompare(off + int64(i))
		}
		return nil
	})
}

// repeat returns block again and again, n bytes or a little less.
func repeat(block []byte, n int) []byte {
	b := make([]byte, 0, n)
	for len(b)+len(block) <= n {
		b = append(b, block...)
	}
	return b
}

func (t *Task) beginWriteVerify() error {
	if c := t.bytchk(); c != bytchkNone && c != bytchkData {
		return invalidCDB(cdbFlags, 2)
	}
	t.out = t.lun.bytes(t.x.blocks)
	t.force = true // verified is what is on the medium, not in a cache
	return t.checkLength()
}

// writeVerifyPiece writes a piece and reads it back, and compares if asked to.
func (t *Task) writeVerifyPiece(p []byte, at int64, w patience) error {
	if w == mustNotWait {
		return ErrWouldBlock
	}
	if err := t.writePiece(p, at, w); err != nil {
		return err
	}
	want := func(k int64) []byte { return p[k:] }
	if t.bytchk() == bytchkNone {
		want = nil
	}
	return t.compareDisk(t.base()+at, int64(len(p)), want)
}

// maxCompare is the MAXIMUM COMPARE AND WRITE LENGTH in bytes: as data-out is
// twice that and has to be complete before anything is compared, it bounds the
// memory that a task takes.
const maxCompare = 128 << 10

// maxCompareBlocks is the same in blocks, for which there is one byte.
func (l *LUN) maxCompareBlocks() uint32 { return min(255, l.inBlocks(maxCompare)) }

func (t *Task) beginCompareAndWrite() error {
	if t.x.blocks > t.lun.maxCompareBlocks() {
		return invalidCDB(int(t.x.length), wholeByte)
	}
	t.out = 2 * t.lun.bytes(t.x.blocks)
	t.force = t.x.flags&flagFUA != 0
	return nil
}

// compareAndWrite writes the second half of the data-out if the first is what
// the disk holds, while no other piece of any task is on the disk.
func (t *Task) compareAndWrite() error {
	if t.moved < t.out {
		return errShortData
	}
	if t.out == 0 {
		return nil
	}
	want, data := t.data[:t.out/2], t.data[t.out/2:]
	have := make([]byte, len(want))
	if err := t.enterAlone(); err != nil {
		return err
	}
	defer t.exitAlone()
	if err := t.load(have, t.base(), mayWait); err != nil {
		return err
	}
	if i := differ(have, want); i >= 0 {
		// Here INFORMATION is an offset in the data-out, SBC "COMPARE AND
		// WRITE command".
		return fault{key: keyMiscompare, code: codeMiscompare, info: uint64(i), hasInfo: true}
	}
	return t.store(data, t.base(), mayWait)
}
