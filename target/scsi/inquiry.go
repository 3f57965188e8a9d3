package scsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/internal/be"
)

// INQUIRY CDB, SPC "INQUIRY command".
const (
	inquiryFlags               = 1
	inquiryPage                = 2
	inquiryAllocation   be.U16 = 3
	inquiryFlagEVPD            = 0x01
	standardInquirySize        = 96
)

// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE in the first byte of all that
// INQUIRY returns.
const (
	peripheralDisk = 0x00 // connected, direct access block device
	peripheralDisc = 0x05 // connected, CD/DVD device
	peripheralNone = 0x3f // could be here, is not; no device type
	peripheralBad  = 0x7f // can not be here
)

func (t *Task) inquiry() error {
	page, allocation := t.cdb[inquiryPage], uint32(inquiryAllocation.Get(t.cdb[:]))
	if t.cdb[inquiryFlags]&inquiryFlagEVPD != 0 {
		data, ok := t.lun.vpd(t.data, page)
		if !ok {
			return invalidCDB(inquiryPage, wholeByte)
		}
		t.data = data
		return t.reply(allocation)
	}
	if page != 0 {
		return invalidCDB(inquiryPage, wholeByte)
	}
	t.data = appendInquiry(t.data, t.lun.peripheral(), t.lun.identity)
	return t.reply(allocation)
}

// inquiryNowhere answers for a logical unit that is not there. LUN 0 is where
// initiators look first, so there it is only not connected.
func (t *Task) inquiryNowhere(lun uint64) error {
	peripheral := byte(peripheralBad)
	if number, ok := lunNumber(lun); ok && number == 0 {
		peripheral = peripheralNone
	}
	if t.cdb[inquiryFlags]&inquiryFlagEVPD != 0 || t.cdb[inquiryPage] != 0 {
		return invalidCDB(inquiryPage, wholeByte)
	}
	t.data = appendInquiry(t.data, peripheral, t.at.identity())
	return t.reply(uint32(inquiryAllocation.Get(t.cdb[:])))
}

// appendInquiry appends SPC "Standard INQUIRY data".
func appendInquiry(b []byte, peripheral byte, id Identity) []byte {
	start, groups, removable := len(b), byte(0), byte(0)
	commands := []uint16{0x04c0} // SBC-3
	switch peripheral {
	case peripheralDisc:
		removable, commands = 0x80, nil // RMB; MMC is what the device type says
	case peripheralDisk:
		groups = 0x10 | 0x08 // TPGS 01b: implicit, REPORT TARGET PORT GROUPS answers; 3PC: EXTENDED COPY
	}
	b = append(b,
		peripheral,
		removable,
		6,                       // VERSION: SPC-4
		0x12,                    // HISUP, RESPONSE DATA FORMAT 2
		standardInquirySize-4-1, // ADDITIONAL LENGTH
		groups,                  // TPGS, 3PC; SCCS, PROTECT: none
		0,                       // MULTIP 0: one port
		0x02,                    // CMDQUE
	)
	b = appendText(b, id.Vendor, 8)
	b = appendText(b, id.Product, 16)
	b = appendText(b, id.Revision, 4)
	b = append(b, make([]byte, 22)...) // vendor specific, reserved
	for _, version := range append([]uint16{
		0x00a0, // SAM-5
		0x0960, // iSCSI
		0x0460, // SPC-4
	}, commands...) {
		b = binary.BigEndian.AppendUint16(b, version)
	}
	return append(b, make([]byte, standardInquirySize-(len(b)-start))...)
}

// peripheral is the first byte of all that INQUIRY returns.
func (l *LUN) peripheral() byte {
	if l.cd != nil {
		return peripheralDisc
	}
	return peripheralDisk
}

// identity is who the target is where there is no logical unit: what its
// logical units have in common.
func (t *Target) identity() Identity {
	if len(t.numbers) == 0 {
		return Identity{}
	}
	id := t.luns[t.numbers[0]].identity
	return Identity{Vendor: id.Vendor, Product: id.Product, Revision: id.Revision}
}

// appendText appends s in a field of n bytes, SPC "ASCII data field
// requirements": left-aligned, padded with spaces, printable.
func appendText(b []byte, s string, n int) []byte {
	for i := range n {
		c := byte(' ')
		if i < len(s) && s[i] >= ' ' && s[i] < 0x7f {
			c = s[i]
		}
		b = append(b, c)
	}
	return b
}
