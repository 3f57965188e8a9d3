package scsi

import (
	"math"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/be"
)

// FORMAT UNIT, SBC. A format fills the disk with the initialization pattern,
// which is zeros if the initiator gives none, and gives the space back where
// that can be. It changes neither the block size nor the number of blocks, and
// knows no defects and no protection information. IMMED may be ignored: the
// status comes when the format is done, and until then every other command is
// told so.
const (
	formatFlags     = 1
	formatProtect   = 0xc0 // FMTPINFO
	formatLongList  = 0x20
	formatData      = 0x10 // FMTDATA: there is a parameter list
	formatListFlags = 0x2f // what describes the list: LONGLIST, CMPLST, DEFECT LIST FORMAT

	// The header of the parameter list, short and long.
	formatHeaderShort         = 4
	formatHeaderLong          = 8
	formatUsage               = 0 // PROTECTION FIELDS USAGE
	formatOptions             = 1
	formatShortDefects be.U16 = 2
	formatInterval            = 3 // of the long one: P_I_INFORMATION and PROTECTION INTERVAL EXPONENT
	formatLongDefects  be.U32 = 4

	formatFOV       = 0x80
	formatNeedsFOV  = 0x78 // DPRY, DCRT, STPF, IP
	formatIP        = 0x08
	maskFormatUsage = 0x07

	// The initialization pattern descriptor.
	patternHeader         = 4
	patternSI             = 0 // SI, and obsolete bits
	patternType           = 1
	patternLength  be.U16 = 2
	patternDefault        = 0x00
	patternRepeat         = 0x01
)

// beginFormat takes as much of a parameter list as the initiator announces: the
// CDB does not say how long it is.
func (t *Task) beginFormat() error {
	flags := t.cdb[formatFlags]
	t.force = true // what is formatted stays so
	switch {
	case flags&formatProtect != 0:
		return invalidCDB(formatFlags, 7)
	case flags&formatData == 0 && flags&formatListFlags != 0:
		return invalidCDB(formatFlags, 5)
	case flags&formatData == 0:
		return nil
	}
	return t.expect(formatHeaderLong + patternHeader + t.lun.blockSize())
}

func (t *Task) format() error {
	pattern, err := t.formatPattern()
	if err != nil {
		return err
	}
	if !t.lun.formatting.CompareAndSwap(false, true) {
		return t.lun.errFormatting()
	}
	defer t.lun.formatting.Store(false)
	t.lun.formatted.Store(0)
	if pattern != nil {
		same := repeat(pattern, step)
		return t.formatSteps(int64(len(same)), func(off, n int64) error { return t.store(same[:n], off, mayWait) })
	}
	mode := blockdev.ZeroKeepAllocated
	if t.lun.thin() {
		mode = blockdev.ZeroMayUnmap
	}
	return t.formatSteps(zeroStep, func(off, n int64) error { return t.zero(off, n, mode) })
}

// formatSteps is inSteps for the whole disk, with progress.
func (t *Task) formatSteps(size int64, f func(off, n int64) error) error {
	all := t.lun.offset(t.lun.blocks)
	return t.inSteps(0, all, size, func(off, n int64) error {
		t.lun.formatted.Store(uint32(float64(off) / float64(all) * math.MaxUint16))
		return f(off, n)
	})
}

// errFormatting is what other commands are told, with the part of 65536 that
// is done.
func (l *LUN) errFormatting() fault {
	return fault{key: keyNotReady, code: codeFormatting,
		field: field{set: true, progress: true, byte: uint16(l.formatted.Load())}}
}

// formatPattern checks the parameter list and returns the block that the disk
// is to be filled with, or nil for zeros.
func (t *Task) formatPattern() ([]byte, error) {
	if t.cdb[formatFlags]&formatData == 0 {
		return nil, nil
	}
	list, header := t.data, formatHeaderShort
	if t.cdb[formatFlags]&formatLongList != 0 {
		header = formatHeaderLong
	}
	if len(list) < header {
		return nil, errListLength
	}
	options := list[formatOptions]
	switch {
	case list[formatUsage]&maskFormatUsage != 0:
		return nil, invalidList(formatUsage, 2)
	case options&formatFOV == 0 && options&formatNeedsFOV != 0:
		return nil, invalidList(formatOptions, 6)
	case header == formatHeaderShort && formatShortDefects.Get(list) != 0:
		return nil, invalidList(int(formatShortDefects), wholeByte)
	case header == formatHeaderLong && list[formatInterval] != 0:
		return nil, invalidList(formatInterval, wholeByte)
	case header == formatHeaderLong && formatLongDefects.Get(list) != 0:
		return nil, invalidList(int(formatLongDefects), wholeByte)
	case options&formatIP == 0:
		return nil, nil
	}
	return t.initializationPattern(list[header:], header)
}

// initializationPattern decodes the descriptor that begins d, at an offset of
// the list.
func (t *Task) initializationPattern(d []byte, at int) ([]byte, error) {
	if len(d) < patternHeader {
		return nil, errListLength
	}
	n := int(patternLength.Get(d))
	switch kind := d[patternType]; {
	case d[patternSI] != 0: // there are no blocks but those that can be seen
		return nil, invalidList(at+patternSI, wholeByte)
	case kind == patternDefault && n == 0:
		return nil, nil
	case kind != patternRepeat:
		return nil, invalidList(at+patternType, wholeByte)
	case n == 0 || n > t.lun.blockSize():
		return nil, invalidList(at+int(patternLength), wholeByte)
	case len(d) < patternHeader+n:
		return nil, errListLength
	}
	block := make([]byte, t.lun.blockSize())
	for i := 0; i < len(block); i += n {
		copy(block[i:], d[patternHeader:][:n])
	}
	return block, nil
}
