package scsi

import (
	"errors"

	"github.com/containerdisk/containerdisk/blockdev"
)

// What an EXTENDED COPY does when its parameter list is known to be well
// formed: segment after segment, until one fails.
//
// The logical units are asked as if the initiator had sent them a READ and a
// WRITE: reservations, write protection and readiness are looked at for every
// piece, as they may change meanwhile. A piece holds one gate at a time: two
// copies in opposite directions could otherwise wait for each other.

// copyStep is the size of a piece in bytes.
const copyStep = 1 << 20

func (t *Task) copySegments() error {
	list, err := t.list()
	if err != nil || len(list) == 0 {
		return err // no list is no error, and nothing to do
	}
	l, err := parseCopyList(list)
	if err != nil {
		return err
	}
	r, err := t.itl.beginResult(l.id, l.keeps)
	if err != nil {
		return err
	}
	err = t.copyAll(&l, r)
	t.itl.endResult(r, err)
	return err
}

func (t *Task) copyAll(l *copyList, r *copyResult) error {
	written := map[*LUN]bool{}
	err := t.copyEach(l, r, written)
	for lun := range written {
		if lun.modes()&modeWriteThrough == 0 {
			continue
		}
		if flushErr := lun.Flush(); flushErr != nil && err == nil {
			err = thirdParty(lun.diskError(flushErr, writing, 0, 0), copyTarget)
		}
	}
	return err
}

// copyEach copies one segment after the other, and notes where it writes.
func (t *Task) copyEach(l *copyList, r *copyResult, written map[*LUN]bool) error {
	for i, s := range l.segments {
		err := t.copySegment(l, s, r, written)
		if f := (fault{}); errors.As(err, &f) {
			f.segment, f.hasSegment = uint16(i), true
			return f
		}
		if err != nil {
			return err
		}
		r.segments.Add(1)
	}
	return nil
}

// copyRun is a copy of n bytes, and pad zeros behind them.
type copyRun struct {
	source, target endpoint
	from, to       int64 // bytes
	n, pad         int64
}

func (t *Task) copySegment(l *copyList, s []byte, r *copyResult, written map[*LUN]bool) error {
	source, err := t.endpoint(l, segmentSource.Get(s))
	if err != nil {
		return err
	}
	target, err := t.endpoint(l, segmentTarget.Get(s))
	if err != nil {
		return err
	}
	c := copyRun{source: source, target: target}
	if s[segmentType] == segmentBlock {
		err = c.blocks(s)
	} else {
		err = c.offsets(s)
	}
	if err != nil {
		return err
	}
	written[target.lun] = true
	return t.copyRun(c, l.buffer(c.n+c.pad), r)
}

// blocks is the extent of a segment from blocks to blocks. The blocks of the
// two may differ in size: if the last one is not filled, PAD of the destination
// has it filled with zeros, and PAD of the source lets what is left of its last
// block go. CAT would keep that for the next segment, which we do not.
func (c *copyRun) blocks(s []byte) error {
	count, unit := uint32(segmentBlocks.Get(s)), c.source.lun
	if s[segmentFlags]&segmentDC != 0 {
		unit = c.target.lun
	}
	c.n = unit.bytes(count)
	sourceSize, targetSize := int64(c.source.lun.blockSize()), int64(c.target.lun.blockSize())
	left, missing := -c.n&(sourceSize-1), -c.n&(targetSize-1)
	if (left > 0 && !c.source.pad || missing > 0 && !c.target.pad) || (left > 0 || missing > 0) && s[segmentFlags]&segmentCAT != 0 {
		return fault{key: keyCopyAborted, code: codeInexactSegment}
	}
	c.pad = missing
	return c.place(segmentSourceLBA.Get(s), 0, c.n+left, segmentTargetLBA.Get(s), 0, c.n+missing)
}

// offsets is the extent of a segment with offsets in bytes.
func (c *copyRun) offsets(s []byte) error {
	c.n = int64(segmentBytes.Get(s))
	from, to := int64(segmentSourceByte.Get(s)), int64(segmentTargetByte.Get(s))
	if from >= int64(c.source.lun.blockSize()) || to >= int64(c.target.lun.blockSize()) {
		return fault{key: keyCopyAborted, code: codeInvalidFieldInList}
	}
	return c.place(segmentSourceLBA.Get(s), from, c.n, segmentTargetLBA.Get(s), to, c.n)
}

// place sets where the run begins, if it is within the disks: LBAs, offsets in
// bytes and the bytes that are touched.
func (c *copyRun) place(fromLBA uint64, fromByte, reads int64, toLBA uint64, toByte, writes int64) error {
	var err error
	if c.from, err = c.source.lun.placeBytes(fromLBA, fromByte, reads); err != nil {
		return thirdParty(errOutOfRange, copySource)
	}
	if c.to, err = c.target.lun.placeBytes(toLBA, toByte, writes); err != nil {
		return thirdParty(errOutOfRange, copyTarget)
	}
	return nil
}

// placeBytes is the offset on the disk of n bytes that begin that far in a
// block.
func (l *LUN) placeBytes(lba uint64, at, n int64) (int64, error) {
	size := int64(l.blockSize())
	return int64(lba)<<l.shift + at, l.checkRange(lba, uint64((at+n+size-1)/size))
}

// copyRun copies in pieces. Where the two overlap it goes the way in which it
// does not read what it has written.
func (t *Task) copyRun(c copyRun, buf []byte, r *copyResult) error {
	backwards := c.source.lun == c.target.lun && c.to > c.from && c.to-c.from < c.n
	for done := int64(0); done < c.n; {
		n := min(c.n-done, int64(len(buf)))
		at := done
		if backwards {
			at = c.n - done - n
		}
		if err := t.copyPiece(c, buf[:n], at); err != nil {
			return err
		}
		r.bytes.Add(n)
		done += n
	}
	if c.pad > 0 {
		clear(buf[:c.pad])
		return t.copyTo(c.target, buf[:c.pad], c.to+c.n)
	}
	return nil
}

func (t *Task) copyPiece(c copyRun, p []byte, at int64) error {
	if err := t.copyFrom(c.source, p, c.from+at); err != nil {
		return err
	}
	return t.copyTo(c.target, p, c.to+at)
}

func (t *Task) copyFrom(e endpoint, p []byte, off int64) error {
	return t.atEnd(e, readRow, conflictRead, copySource, func() error {
		if _, err := e.lun.disk.ReadAt(p, off); err != nil {
			return e.lun.diskError(err, reading, off, int64(len(p)))
		}
		e.lun.stats.readBytes.Add(uint64(len(p)))
		return nil
	})
}

// copyTo writes a piece. Zeros take no space where there is none to be taken:
// the copy of a sparse disk is sparse.
func (t *Task) copyTo(e endpoint, p []byte, off int64) error {
	return t.atEnd(e, writeRow, conflictAll, copyTarget, func() error {
		var err error
		if e.lun.unmaps() && isZero(p) {
			err = e.lun.disk.Zero(off, int64(len(p)), blockdev.ZeroMayUnmap)
		} else {
			_, err = e.lun.disk.WriteAt(p, off)
		}
		e.lun.wrote()
		if err != nil {
			return e.lun.diskError(err, writing, off, int64(len(p)))
		}
		e.lun.stats.writeBytes.Add(uint64(len(p)))
		return nil
	})
}

// atEnd does a piece at one end, within its gate and if its logical unit
// lets the initiator do such a thing.
func (t *Task) atEnd(e endpoint, as flags, c conflict, end copyEnd, f func() error) error {
	if err := t.enterAt(e.itl, mayWait); err != nil {
		if errors.Is(err, errAborted) {
			return err
		}
		return thirdParty(err, end)
	}
	defer e.gate.RUnlock()
	err := e.admit(as, c)
	if err == nil {
		err = f()
	}
	if err == nil {
		return nil
	}
	return thirdParty(err, end)
}

// copyEnd is which end of a copy failed, with the values of SENSE DATA SOURCE
// in SPC "Forwarded sense data descriptor".
type copyEnd uint8

const (
	copySource copyEnd = 1
	copyTarget copyEnd = 2
)

// thirdParty is the fault of a copy where one end refused, with the sense data
// that this end gives.
func thirdParty(err error, end copyEnd) error {
	f := fault{key: keyCopyAborted, end: end}
	inner := fault{}
	if !errors.As(err, &inner) { // a status: RESERVATION CONFLICT
		f.code, f.end = codeThirdPartyFailure, 0
		return f
	}
	inner.appendFixed(f.inner[:0])
	return f
}

func isZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
