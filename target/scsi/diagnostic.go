package scsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/internal/be"
)

// SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS, SPC. There is the default
// self-test, which reads a block and flushes, so that a disk that has failed is
// found out; and the one diagnostic page that lists itself.
const (
	diagnosticFlags           = 1
	diagnosticCode            = 0xe0 // SELF-TEST CODE: background and extended self-tests
	diagnosticPF              = 0x10
	diagnosticSelfTest        = 0x04
	diagnosticLength   be.U16 = 3

	resultsFlags             = 1
	resultsPCV               = 0x01
	resultsPage              = 2
	resultsLength     be.U16 = 3
	diagnosticHeader         = 4
	pageDiagnostics          = 0x00 // Supported Diagnostic Pages
	diagnosticPageLen be.U16 = 2
)

func (t *Task) beginDiagnostic() error {
	flags, n := t.cdb[diagnosticFlags], diagnosticLength.Get(t.cdb[:])
	switch {
	case flags&diagnosticCode != 0:
		return invalidCDB(diagnosticFlags, 7)
	case flags&diagnosticSelfTest != 0 && n != 0:
		return invalidCDB(int(diagnosticLength), wholeByte)
	case n != 0 && flags&diagnosticPF == 0: // a page in a vendor's own format
		return invalidCDB(diagnosticFlags, 4)
	case n != 0 && n != diagnosticHeader:
		return errListLength
	}
	return t.expect(int(n))
}

func (t *Task) diagnostic() error {
	if t.cdb[diagnosticFlags]&diagnosticSelfTest != 0 {
		return t.selfTest()
	}
	list, err := t.list()
	switch {
	case err != nil || len(list) == 0:
		return err
	case list[0] != pageDiagnostics:
		return invalidList(0, wholeByte)
	case diagnosticPageLen.Get(list) != 0:
		return invalidList(int(diagnosticPageLen), wholeByte)
	}
	return nil
}

func (t *Task) selfTest() error {
	if err := t.compareDisk(0, min(t.lun.offset(t.lun.blocks), int64(t.lun.blockSize())), nil); err != nil {
		return err
	}
	return t.flush()
}

func (t *Task) receiveDiagnostic() error {
	if t.cdb[resultsFlags]&resultsPCV != 0 && t.cdb[resultsPage] != pageDiagnostics {
		return invalidCDB(resultsPage, wholeByte)
	}
	t.data = append(binary.BigEndian.AppendUint16(append(t.data, pageDiagnostics, 0), 1), pageDiagnostics)
	return t.reply(uint32(resultsLength.Get(t.cdb[:])))
}
