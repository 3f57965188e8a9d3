package scsi

import (
	"bytes"

	"github.com/containerdisk/containerdisk/internal/be"
)

// EXTENDED COPY (LID1), SPC: blocks go from one place to another within the
// target, and not over the wire. Every logical unit is a copy manager for all
// of its target. This file reads the parameter list; copyrun.go copies.
//
// There are identification descriptors of our own logical units (CSCD E4h), and
// segments from blocks to blocks (02h), also with offsets in bytes (0Ah).
// There are no streams, no inline data, no held data and no tokens.

// EXTENDED COPY CDB and the header of its parameter list.
const (
	copyLength be.U32 = 10

	copyListID                = 0
	copyListFlags             = 1
	copyListUsage             = 0x18
	copyUsageReserved         = 0x08
	copyUsageNone             = 0x18 // no list identifier, and no results
	copyCSCDLength     be.U16 = 2
	copySegmentsLength be.U32 = 8
	copyInlineLength   be.U32 = 12
	copyHeader                = 16
)

// What RECEIVE COPY RESULTS and the Third-party Copy VPD page say of the list.
const (
	maxCSCDs          = 16
	maxSegments       = 64
	maxCopyDescriptor = maxCSCDs*cscdSize + maxSegments*blockSegmentSize // bytes of all descriptors
)

// The identification CSCD descriptor.
const (
	cscdType                    = 0
	cscdIdentification          = 0xe4
	cscdDeviceType              = 1 // and bits that are obsolete
	maskDeviceType              = 0x1f
	cscdCodeSet                 = 4
	cscdDesignatorType          = 5 // and ASSOCIATION
	cscdDesignatorLength        = 7
	cscdDesignator              = 8
	maxDesignator               = 20
	cscdPad                     = 28
	flagCSCDPad                 = 0x04
	cscdBlockLength      be.U24 = 29
	cscdSize                    = 32

	// cscdManager is the CSCD descriptor ID of the logical unit that has the
	// command.
	cscdManager = 0xffff
)

// Segment descriptors.
const (
	segmentType              = 0
	segmentFlags             = 1
	segmentDC                = 0x02 // the number of blocks is of the destination's
	segmentCAT               = 0x01
	segmentLength     be.U16 = 2 // without these four bytes
	segmentHeader            = 4
	segmentSource     be.U16 = 4
	segmentTarget     be.U16 = 6
	segmentBlocks     be.U16 = 10 // of 02h
	segmentBytes      be.U32 = 8  // of 0Ah
	segmentSourceLBA  be.U64 = 12
	segmentTargetLBA  be.U64 = 20
	segmentSourceByte be.U16 = 28 // of 0Ah
	segmentTargetByte be.U16 = 30

	segmentBlock      = 0x02
	blockSegmentSize  = 28
	segmentOffset     = 0x0a
	offsetSegmentSize = 32
)

// copyDescriptors are the types of descriptors that there are, as they are
// reported.
func copyDescriptors() []byte { return []byte{segmentBlock, segmentOffset, cscdIdentification} }

// copyList is a parameter list of which the form has been checked.
type copyList struct {
	id       byte
	keeps    bool     // what comes of it is kept under id
	cscds    []byte   // whole descriptors
	segments [][]byte // each whole
	buf      []byte   // one for all segments
}

// buffer is memory for pieces of n bytes together.
func (l *copyList) buffer(n int64) []byte {
	if n = min(n, copyStep); int64(len(l.buf)) < n {
		l.buf = make([]byte, n)
	}
	return l.buf[:n]
}

func (t *Task) beginCopy() error {
	n := copyLength.Get(t.cdb[:])
	if n > copyHeader+maxCopyDescriptor {
		return errListLength
	}
	return t.expect(int(n))
}

// parseCopyList checks the form of a parameter list, in the order in which SPC
// "EXTENDED COPY parameter list" names what can be wrong.
func parseCopyList(list []byte) (l copyList, err error) {
	if len(list) < copyHeader {
		return l, errListLength
	}
	usage := list[copyListFlags] & copyListUsage
	l.id, l.keeps = list[copyListID], usage != copyUsageNone
	cscds, segments := int64(copyCSCDLength.Get(list)), int64(copySegmentsLength.Get(list))
	inline := int64(copyInlineLength.Get(list))
	switch {
	case usage == copyUsageReserved:
		return l, invalidList(copyListFlags, 4)
	case !l.keeps && l.id != 0:
		return l, invalidList(copyListID, wholeByte)
	case inline > 0:
		return l, fault{key: keyIllegalRequest, code: codeInlineTooLong}
	case copyHeader+cscds+segments > int64(len(list)), cscds%cscdSize != 0:
		return l, errListLength
	case cscds > maxCSCDs*cscdSize:
		return l, fault{key: keyIllegalRequest, code: codeTooManyTargets}
	}
	l.cscds = list[copyHeader:][:cscds]
	for at := 0; at < len(l.cscds); at += cscdSize {
		if err := checkCSCD(l.cscds[at:][:cscdSize], copyHeader+at); err != nil {
			return l, err
		}
	}
	l.segments, err = splitSegments(list[copyHeader+cscds:][:segments], copyHeader+int(cscds))
	return l, err
}

// inList is a fault at a place of the parameter list.
func inList(code senseCode, at int) error {
	return fault{key: keyIllegalRequest, code: code,
		field: field{set: true, list: true, byte: uint16(at), bit: wholeByte}}
}

func checkCSCD(d []byte, at int) error {
	switch {
	case d[cscdType] != cscdIdentification:
		return inList(codeUnsupportedTarget, at)
	case d[cscdDesignatorLength] > maxDesignator:
		return invalidList(at+cscdDesignatorLength, wholeByte)
	}
	return nil
}

// splitSegments splits a segment descriptor list, which is at an offset of the
// parameter list.
func splitSegments(b []byte, at int) (segments [][]byte, err error) {
	for len(b) > 0 {
		if len(segments) == maxSegments {
			return nil, fault{key: keyIllegalRequest, code: codeTooManySegments}
		}
		size := 0
		switch b[segmentType] {
		case segmentBlock:
			size = blockSegmentSize
		case segmentOffset:
			size = offsetSegmentSize
		default:
			return nil, inList(codeUnsupportedSegment, at)
		}
		if len(b) < size {
			return nil, errListLength
		}
		if int(segmentLength.Get(b)) != size-segmentHeader {
			return nil, invalidList(at+int(segmentLength), wholeByte)
		}
		segments, b, at = append(segments, b[:size]), b[size:], at+size
	}
	return segments, nil
}

// endpoint is a logical unit that is copied from or to.
type endpoint struct {
	*itl
	pad bool // PAD: what is left over of its last block does not matter
}

// endpoint finds the logical unit that a CSCD descriptor ID of the list names.
func (t *Task) endpoint(l *copyList, id uint16) (endpoint, error) {
	if id == cscdManager {
		return endpoint{t.itl, false}, nil
	}
	if int(id) >= len(l.cscds)/cscdSize {
		return endpoint{}, fault{key: keyCopyAborted, code: codeUnreachable}
	}
	d := l.cscds[int(id)*cscdSize:][:cscdSize]
	if d[cscdDeviceType]&maskDeviceType != peripheralDisk {
		return endpoint{}, fault{key: keyCopyAborted, code: codeWrongDeviceType}
	}
	var found *itl
	t.from.all(func(i *itl) {
		if i.lun.isNamed(d) {
			found = i
		}
	})
	switch {
	case found == nil:
		return endpoint{}, fault{key: keyCopyAborted, code: codeNotReachable}
	case found.lun.cd != nil:
		return endpoint{}, fault{key: keyCopyAborted, code: codeWrongDeviceType}
	}
	if n := cscdBlockLength.Get(d); n != 0 && int(n) != found.lun.blockSize() {
		return endpoint{}, fault{key: keyCopyAborted, code: codeInvalidFieldInList}
	}
	return endpoint{found, d[cscdPad]&flagCSCDPad != 0}, nil
}

// isNamed reports whether an identification CSCD descriptor has a designator of
// the logical unit, as the Device Identification VPD page has it.
func (l *LUN) isNamed(d []byte) bool {
	designator := d[cscdDesignator:][:d[cscdDesignatorLength]]
	code, kind := d[cscdCodeSet]&0x0f, d[cscdDesignatorType]&0x3f
	for _, own := range l.designators() {
		if own.code == code && own.kind == kind && bytes.Equal(own.designator, designator) {
			return true
		}
	}
	return false
}
