package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/containerdisk/containerdisk/blockdev"
)

// senseKey is the class of what happened, SPC "SENSE KEY field".
type senseKey uint8

const (
	keyNoSense        senseKey = 0x0
	keyNotReady       senseKey = 0x2
	keyMediumError    senseKey = 0x3
	keyHardwareError  senseKey = 0x4
	keyIllegalRequest senseKey = 0x5
	keyUnitAttention  senseKey = 0x6
	keyDataProtect    senseKey = 0x7
	keyCopyAborted    senseKey = 0xa
	keyMiscompare     senseKey = 0xe
)

// senseCode is ADDITIONAL SENSE CODE and ADDITIONAL SENSE CODE QUALIFIER, SPC
// "ASC and ASCQ assignments".
type senseCode uint16

const (
	codeNone                   senseCode = 0x0000
	codeInProgress             senseCode = 0x0016 // OPERATION IN PROGRESS
	codeNeedsStart             senseCode = 0x0402 // INITIALIZING COMMAND REQUIRED
	codeFormatting             senseCode = 0x0404 // FORMAT IN PROGRESS
	codeSanitizing             senseCode = 0x041b // SANITIZE IN PROGRESS
	codeUnreachable            senseCode = 0x0804 // UNREACHABLE COPY TARGET
	codeWriteError             senseCode = 0x0c00
	codeThirdPartyFailure      senseCode = 0x0d01 // THIRD PARTY DEVICE FAILURE
	codeNotReachable           senseCode = 0x0d02 // COPY TARGET DEVICE NOT REACHABLE
	codeWrongDeviceType        senseCode = 0x0d03 // INCORRECT COPY TARGET DEVICE TYPE
	codeInvalidInformation     senseCode = 0x0e03 // INVALID FIELD IN COMMAND INFORMATION UNIT
	codeReadError              senseCode = 0x1100 // UNRECOVERED READ ERROR
	codeParameterListLength    senseCode = 0x1a00
	codeMiscompare             senseCode = 0x1d00
	codeInvalidOpcode          senseCode = 0x2000
	codeLBAOutOfRange          senseCode = 0x2100
	codeInvalidFieldInCDB      senseCode = 0x2400
	codeNoLogicalUnit          senseCode = 0x2500 // LOGICAL UNIT NOT SUPPORTED
	codeInvalidFieldInList     senseCode = 0x2600
	codeInvalidRelease         senseCode = 0x2604 // INVALID RELEASE OF PERSISTENT RESERVATION
	codeTooManyTargets         senseCode = 0x2606
	codeUnsupportedTarget      senseCode = 0x2607
	codeTooManySegments        senseCode = 0x2608
	codeUnsupportedSegment     senseCode = 0x2609
	codeInexactSegment         senseCode = 0x260a // UNEXPECTED INEXACT SEGMENT
	codeInlineTooLong          senseCode = 0x260b // INLINE DATA LENGTH EXCEEDED
	codeWriteProtected         senseCode = 0x2700
	codeSpaceAllocationFailed  senseCode = 0x2707
	codePowerOn                senseCode = 0x2900 // POWER ON, RESET, OR BUS DEVICE RESET OCCURRED
	codeTargetReset            senseCode = 0x2902 // SCSI BUS RESET OCCURRED
	codeLogicalUnitReset       senseCode = 0x2903 // BUS DEVICE RESET FUNCTION OCCURRED
	codeModeChanged            senseCode = 0x2a01 // MODE PARAMETERS CHANGED
	codeReservationsPreempted  senseCode = 0x2a03
	codeReservationsReleased   senseCode = 0x2a04
	codeRegistrationsPreempted senseCode = 0x2a05
	codeCommandsCleared        senseCode = 0x2f00 // COMMANDS CLEARED BY ANOTHER INITIATOR
	codeSanitizeFailed         senseCode = 0x3103 // SANITIZE COMMAND FAILED
	codeSavingNotSupported     senseCode = 0x3900
	codeUnitFailure            senseCode = 0x3e01 // LOGICAL UNIT FAILURE
	codeMediumChanged          senseCode = 0x2800 // NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED
	codeIncompatible           senseCode = 0x3002 // CANNOT READ MEDIUM - INCOMPATIBLE FORMAT
	codeNoMedium               senseCode = 0x3a02 // MEDIUM NOT PRESENT - TRAY OPEN
	codeRemovalPrevented       senseCode = 0x5302 // MEDIUM REMOVAL PREVENTED
	codeNoRegistrations        senseCode = 0x5504 // INSUFFICIENT REGISTRATION RESOURCES
	codeInternalFailure        senseCode = 0x4400 // INTERNAL TARGET FAILURE
)

// fault is sense data as a value. It is an error, so that whoever finds
// something wrong returns it and Task.fail reports it.
type fault struct {
	key  senseKey
	code senseCode

	// info goes to the INFORMATION field where hasInfo is set: an LBA, or an
	// offset in the data-out of COMPARE AND WRITE.
	info    uint64
	hasInfo bool

	field field

	// Of EXTENDED COPY: the number of the segment that failed, and the sense
	// data of the end that is to blame, if one is.
	segment    uint16
	hasSegment bool
	end        copyEnd
	inner      [fixedSense]byte
}

// fixedSense is the length of fixed format sense data without additional bytes.
const fixedSense = 18

// field points at what an ILLEGAL REQUEST objects to, SPC "Field pointer
// sense-key specific data", or is how far something that keeps the unit from
// being ready has come, "Progress indication". The zero value points at nothing.
type field struct {
	set      bool
	progress bool // byte is a part of 65536
	list     bool // in the parameter list, not in the CDB
	byte     uint16
	bit      int8 // the highest bit of the field, or negative: the whole byte
}

func (f fault) Error() string {
	return fmt.Sprintf("sense %x/%02x/%02x", uint8(f.key), uint8(f.code>>8), uint8(f.code))
}

// wholeByte stands for the bit number where a field begins at bit 7.
const wholeByte = -1

// invalidCDB is INVALID FIELD IN CDB, naming the byte at fault and the most
// significant bit of the field within it, or wholeByte.
func invalidCDB(at, bit int) error {
	return fault{key: keyIllegalRequest, code: codeInvalidFieldInCDB,
		field: field{set: true, byte: uint16(at), bit: int8(bit)}}
}

// invalidList is INVALID FIELD IN PARAMETER LIST, naming the place.
func invalidList(at, bit int) error {
	return fault{key: keyIllegalRequest, code: codeInvalidFieldInList,
		field: field{set: true, list: true, byte: uint16(at), bit: int8(bit)}}
}

var (
	errListLength       = fault{key: keyIllegalRequest, code: codeParameterListLength}
	errShortData        = fault{key: keyIllegalRequest, code: codeInvalidInformation}
	errInvalidOpcode    = fault{key: keyIllegalRequest, code: codeInvalidOpcode}
	errOutOfRange       = fault{key: keyIllegalRequest, code: codeLBAOutOfRange}
	errNoLogicalUnit    = fault{key: keyIllegalRequest, code: codeNoLogicalUnit}
	errNoSaving         = fault{key: keyIllegalRequest, code: codeSavingNotSupported}
	errInvalidRelease   = fault{key: keyIllegalRequest, code: codeInvalidRelease}
	errNoRegistrations  = fault{key: keyIllegalRequest, code: codeNoRegistrations}
	errProtected        = fault{key: keyDataProtect, code: codeWriteProtected}
	errInternal         = fault{key: keyHardwareError, code: codeInternalFailure}
	errSanitizeFailed   = fault{key: keyMediumError, code: codeSanitizeFailed}
	errNoMedium         = fault{key: keyNotReady, code: codeNoMedium}
	errIncompatible     = fault{key: keyIllegalRequest, code: codeIncompatible}
	errRemovalPrevented = fault{key: keyIllegalRequest, code: codeRemovalPrevented}
	errNeedsStart       = fault{key: keyNotReady, code: codeNeedsStart}
)

// statusError is a status without sense data, on its way to Task.fail.
type statusError Status

func (e statusError) Error() string { return Status(e).String() }

var errConflict error = statusError(ReservationConflict)

// access is what a command was doing to the disk when it failed.
type access uint8

const (
	reading access = iota
	writing
)

// senseOf is how an error of the disk looks to an initiator, and the only place
// that knows. [off, off+n) is the range of bytes that was asked for, of which
// the INFORMATION field gets the block where the disk says the trouble is.
func (l *LUN) senseOf(err error, a access, off, n int64) fault {
	switch blockdev.KindOf(err) {
	case blockdev.KindNoSpace:
		return fault{key: keyDataProtect, code: codeSpaceAllocationFailed}
	case blockdev.KindOutOfRange:
		return errOutOfRange
	case blockdev.KindReadOnly:
		return errProtected
	case blockdev.KindUnsupported:
		// The row says what the disk can do; a device that refuses a
		// request all the same refuses this form of it.
		return fault{key: keyIllegalRequest, code: codeInvalidFieldInCDB}
	case blockdev.KindClosed:
		return fault{key: keyHardwareError, code: codeUnitFailure}
	case blockdev.KindCorrupt:
		return fault{key: keyMediumError, code: codeReadError, info: l.lbaOf(err, off, n), hasInfo: n > 0}
	case blockdev.KindIO:
	}
	f := fault{key: keyMediumError, code: codeReadError, info: l.lbaOf(err, off, n), hasInfo: n > 0}
	if a == writing {
		f.code = codeWriteError
	}
	return f
}

// lbaOf is the block that err names, if that is one of [off, off+n), or else
// the first of these.
func (l *LUN) lbaOf(err error, off, n int64) uint64 {
	if e := (*blockdev.Error)(nil); errors.As(err, &e) && e.Off > off && e.Off-off < n {
		off = e.Off
	}
	return uint64(off) >> l.shift
}

// senseFormat is the layout of sense data.
type senseFormat uint8

const (
	fixedFormat senseFormat = iota
	descriptorFormat
)

// maxSense is the longest sense data we make: the descriptor format with a
// command specific information and a forwarded sense data descriptor.
const maxSense = 8 + 12 + 4 + fixedSense

// appendTo appends the sense data.
func (f fault) appendTo(b []byte, as senseFormat) []byte {
	if as == descriptorFormat {
		return f.appendDescriptors(b)
	}
	return f.appendFixed(b)
}

// SPC "Fixed format sense data". An INFORMATION that does not fit its four
// bytes is left out, which VALID tells.
func (f fault) appendFixed(b []byte) []byte {
	response, info := byte(0x70), uint32(0) // current information
	if f.hasInfo && f.info <= math.MaxUint32 {
		response, info = response|0x80, uint32(f.info) // VALID
	}
	b = append(b, response, 0, byte(f.key))
	b = binary.BigEndian.AppendUint32(b, info)
	b = append(b, byte(fixedSense-8+len(f.forwarded()))) // ADDITIONAL SENSE LENGTH
	b = append(b, f.specific()...)
	b = binary.BigEndian.AppendUint16(b, uint16(f.code))
	b = append(b, 0) // FIELD REPLACEABLE UNIT CODE
	return append(f.field.appendTo(b), f.forwarded()...)
}

// specific is COMMAND-SPECIFIC INFORMATION, of EXTENDED COPY: where sense data
// of the source begins, where that of the destination does, if there is any,
// and the segment. SPC "Errors detected during processing of segment
// descriptors".
func (f fault) specific() []byte {
	b := []byte{0, 0, byte(f.segment >> 8), byte(f.segment)}
	if f.end != 0 {
		b[f.end-copySource] = fixedSense
	}
	return b
}

// forwarded is sense data of one end of a copy.
func (f fault) forwarded() []byte {
	if f.end == 0 {
		return nil
	}
	return f.inner[:]
}

// SPC "Descriptor format sense data".
func (f fault) appendDescriptors(b []byte) []byte {
	start := len(b)
	b = append(b, 0x72, byte(f.key), byte(f.code>>8), byte(f.code), 0, 0, 0, 0)
	if f.hasInfo {
		b = append(b, 0x00, 10, 0x80, 0) // Information sense data descriptor, VALID
		b = binary.BigEndian.AppendUint64(b, f.info)
	}
	if f.field.set {
		b = append(b, 0x02, 6, 0, 0) // Sense key specific sense data descriptor
		b = f.field.appendTo(b)
		b = append(b, 0)
	}
	if f.hasSegment { // Command specific information sense data descriptor
		b = append(b, 0x01, 10, 0, 0, 0, 0, 0, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, f.segment)
	}
	if f.end != 0 { // Forwarded sense data descriptor
		b = append(b, 0x0c, 2+fixedSense, byte(f.end), byte(CheckCondition))
		b = append(b, f.inner[:]...)
	}
	b[start+7] = byte(len(b) - start - 8)
	return b
}

// appendTo appends the three bytes of SENSE KEY SPECIFIC.
func (f field) appendTo(b []byte) []byte {
	if !f.set {
		return append(b, 0, 0, 0)
	}
	v := byte(0x80) // SKSV
	if f.progress {
		b = append(b, v)
		return binary.BigEndian.AppendUint16(b, f.byte)
	}
	if !f.list {
		v |= 0x40 // C/D: in the CDB
	}
	if f.bit >= 0 {
		v |= 0x08 | byte(f.bit) // BPV and BIT POINTER
	}
	b = append(b, v)
	return binary.BigEndian.AppendUint16(b, f.byte)
}
