package scsi

import "github.com/containerdisk/containerdisk/internal/be"

// FORMAT UNIT, SBC. A format fills the disk with the initialization pattern,
// which is zeros if the initiator gives none, and gives the space back where
// that can be. It changes neither the block size nor the number of blocks, and
// knows no defects and no protection information.
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
	formatImmed     = 0x02
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
	pattern, immed, err := t.formatPattern()
	if err != nil {
		return err
	}
	o, err := t.lun.beginOperation(operationPlan{Pattern: pattern})
	if err != nil || immed {
		return err
	}
	return t.await(o)
}

// formatPattern checks the parameter list and returns the block that the disk
// is to be filled with, or nil for zeros, and IMMED.
func (t *Task) formatPattern() (pattern []byte, immed bool, err error) {
	if t.cdb[formatFlags]&formatData == 0 {
		return nil, false, nil
	}
	list, header := t.data, formatHeaderShort
	if t.cdb[formatFlags]&formatLongList != 0 {
		header = formatHeaderLong
	}
	if len(list) < header {
		return nil, false, errListLength
	}
	options := list[formatOptions]
	immed = options&formatImmed != 0
	switch {
	case list[formatUsage]&maskFormatUsage != 0:
		return nil, false, invalidList(formatUsage, 2)
	case options&formatFOV == 0 && options&formatNeedsFOV != 0:
		return nil, false, invalidList(formatOptions, 6)
	case header == formatHeaderShort && formatShortDefects.Get(list) != 0:
		return nil, false, invalidList(int(formatShortDefects), wholeByte)
	case header == formatHeaderLong && list[formatInterval] != 0:
		return nil, false, invalidList(formatInterval, wholeByte)
	case header == formatHeaderLong && formatLongDefects.Get(list) != 0:
		return nil, false, invalidList(int(formatLongDefects), wholeByte)
	case options&formatIP == 0:
		return nil, immed, nil
	}
	pattern, err = t.initializationPattern(list[header:], header)
	return pattern, immed, err
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
	return t.lun.patternBlock(d[patternHeader:][:n]), nil
}

// patternBlock is a block filled with a pattern, the last of which may be cut.
func (l *LUN) patternBlock(pattern []byte) []byte {
	block := make([]byte, l.blockSize())
	for i := 0; i < len(block); i += len(pattern) {
		copy(block[i:], pattern)
	}
	return block
}
