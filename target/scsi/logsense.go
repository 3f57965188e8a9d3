package scsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/internal/be"
)

// LOG SENSE CDB, SPC. Nothing is counted that would survive a restart, and
// there are no thresholds.
const (
	logFlags             = 1 // SP; PPC is obsolete
	logFlagPPC           = 0x02
	logFlagSP            = 0x01
	logPage              = 2 // PC and PAGE CODE
	maskLogPage          = 0x3f
	logSubpage           = 3
	logPointer    be.U16 = 5
	logAllocation be.U16 = 7

	logSubpageFormat = 0x40 // SPF in the first byte of a page
	logSubpages      = 0xff
)

// logPages are in ascending order: the code, and what follows the header.
func logPageRows() []struct {
	code byte
	body []byte
} {
	return []struct {
		code byte
		body []byte
	}{
		{pageLogSupported, nil}, // filled from the rows
		{pageLogExceptions, []byte{
			0, 0, 0x03, 4, // parameter 0, a binary list of four bytes
			0, 0, // no informational exception
			0xff, // no temperature
			0,
		}},
	}
}

const (
	pageLogSupported  = 0x00
	pageLogExceptions = 0x2f
)

func (t *Task) logSense() error {
	switch flags := t.cdb[logFlags]; {
	case flags&logFlagSP != 0: // nothing is saved
		return invalidCDB(logFlags, 0)
	case flags&logFlagPPC != 0:
		return invalidCDB(logFlags, 1)
	}
	code, sub := t.cdb[logPage]&maskLogPage, t.cdb[logSubpage]
	for _, page := range logPageRows() {
		if page.code != code {
			continue
		}
		if sub != 0 && (sub != logSubpages || code != pageLogSupported) {
			return invalidCDB(logSubpage, wholeByte)
		}
		if logPointer.Get(t.cdb[:]) != 0 { // there is no parameter from there on
			return invalidCDB(int(logPointer), wholeByte)
		}
		body := page.body
		if code == pageLogSupported {
			body = supportedLogPages(sub)
		}
		b := append(t.data, code, sub)
		if sub != 0 {
			b[len(b)-2] |= logSubpageFormat
		}
		b = binary.BigEndian.AppendUint16(b, uint16(len(body)))
		t.data = append(b, body...)
		return t.reply(uint32(logAllocation.Get(t.cdb[:])))
	}
	return invalidCDB(logPage, 5)
}

// supportedLogPages is the body of SPC "Supported Log Pages log page", or with
// subpages of "Supported Log Pages and Subpages log page".
func supportedLogPages(sub byte) (b []byte) {
	for _, page := range logPageRows() {
		b = append(b, page.code)
		if sub != 0 {
			b = append(b, 0)
			if page.code == pageLogSupported {
				b = append(b, page.code, logSubpages)
			}
		}
	}
	return b
}
