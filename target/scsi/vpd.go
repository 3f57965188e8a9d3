package scsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/internal/be"
)

// vpdPage is a page of vital product data: body appends what follows the
// header.
type vpdPage struct {
	code byte
	body func(*LUN, []byte) []byte
}

// vpdPages are in ascending order, as the Supported VPD Pages page lists them.
func vpdPages() []vpdPage {
	return []vpdPage{
		{0x00, (*LUN).supportedPages},
		{0x80, (*LUN).unitSerialNumber},
		{0x83, (*LUN).deviceIdentification},
		{0x85, (*LUN).managementAddresses},
		{0x86, (*LUN).extendedInquiry},
		{0x87, (*LUN).modePagePolicy},
		{0x88, (*LUN).scsiPorts},
		{0x8f, (*LUN).thirdPartyCopy},
		{0xb0, (*LUN).blockLimits},
		{0xb1, (*LUN).blockCharacteristics},
		{0xb2, (*LUN).blockProvisioning},
		{0xb7, (*LUN).blockLimitsExtension},
	}
}

// vpdPages are those that the logical unit has: the last ones are about disks.
func (l *LUN) vpdPages() []vpdPage {
	all := vpdPages()
	if l.cd != nil {
		return all[:3]
	}
	return all
}

const vpdLength be.U16 = 2 // PAGE LENGTH: what follows these four bytes

// vpd appends a page, if there is one of that code.
func (l *LUN) vpd(b []byte, code byte) ([]byte, bool) {
	for _, page := range l.vpdPages() {
		if page.code == code {
			start := len(b)
			b = page.body(l, append(b, l.peripheral(), code, 0, 0))
			vpdLength.Put(b[start:], uint16(len(b)-start-4))
			return b, true
		}
	}
	return b, false
}

// SPC "Supported VPD Pages VPD page".
func (l *LUN) supportedPages(b []byte) []byte {
	for _, page := range l.vpdPages() {
		b = append(b, page.code)
	}
	return b
}

// maxSerial is the longest serial number in bytes.
const maxSerial = 64

func (l *LUN) appendSerial(b []byte) []byte {
	s := l.identity.Serial
	return appendText(b, s, min(len(s), maxSerial))
}

// SPC "Unit Serial Number VPD page".
func (l *LUN) unitSerialNumber(b []byte) []byte { return l.appendSerial(b) }

// The first two bytes of a designation descriptor, SPC "Designation
// descriptor".
const (
	codeBinary = 0x01 // CODE SET
	codeASCII  = 0x02
	codeUTF8   = 0x03

	protocolISCSI = 0x50 // PROTOCOL IDENTIFIER 5, valid with PIV

	ofLogicalUnit = 0x00 // ASSOCIATION and PIV
	ofTargetPort  = 0x90
	ofTarget      = 0xa0

	designatorT10          = 0x1 // DESIGNATOR TYPE
	designatorNAA          = 0x3
	designatorRelativePort = 0x4
	designatorPortGroup    = 0x5
	designatorSCSIName     = 0x8
)

// SPC "Device Identification VPD page".
func (l *LUN) deviceIdentification(b []byte) []byte {
	for _, d := range l.designators() {
		b = appendDesignator(b, d.code, d.kind, d.designator)
	}
	if l.target != nil {
		b = appendDesignator(b, protocolISCSI|codeBinary, ofTargetPort|designatorRelativePort, []byte{0, 0, 0, relativePort})
		b = appendDesignator(b, protocolISCSI|codeBinary, ofTargetPort|designatorPortGroup, []byte{0, 0, 0, portGroup})
		b = l.appendPortName(b)
		b = appendDesignator(b, protocolISCSI|codeUTF8, ofTarget|designatorSCSIName, scsiName(l.target.name))
	}
	return b
}

// designator is a name of the logical unit.
type designator struct {
	code, kind byte
	designator []byte
}

func (l *LUN) designators() []designator {
	return []designator{
		{codeBinary, ofLogicalUnit | designatorNAA, l.naa()},
		{codeASCII, ofLogicalUnit | designatorT10, l.t10()},
	}
}

// appendPortName appends the designator with the name of the target port.
func (l *LUN) appendPortName(b []byte) []byte {
	return appendDesignator(b, protocolISCSI|codeUTF8, ofTargetPort|designatorSCSIName, scsiName(l.target.name+",t,0x0001"))
}

func appendDesignator(b []byte, code, kind byte, designator []byte) []byte {
	b = append(b, code, kind, 0, byte(len(designator)))
	return append(b, designator...)
}

// naa is the name of the logical unit: a locally assigned NAA identifier (SPC
// "NAA Locally Assigned designator format", eight bytes). The registered
// formats, of which there is one of 16 bytes, need an IEEE company identifier.
func (l *LUN) naa() []byte {
	b := append([]byte(nil), l.identity.ID[:8]...)
	b[0] = 0x30 | b[0]&0x0f
	return b
}

// t10 is SPC "T10 vendor ID based designator": the serial number makes it
// unique among those of the vendor.
func (l *LUN) t10() []byte {
	b := appendText(nil, l.identity.Vendor, 8)
	b = appendText(b, l.identity.Product, 16)
	return l.appendSerial(b)
}

// scsiName is SPC "SCSI name string designator": ends with a null, and is
// padded with more of them to a multiple of four.
func scsiName(s string) []byte {
	b := append([]byte(s), 0)
	return append(b, make([]byte, -len(b)&3)...)
}

// SPC "Management Network Addresses VPD page": there are none.
func (l *LUN) managementAddresses(b []byte) []byte { return b }

// SPC "Mode Page Policy VPD page": all pages are shared by all nexuses, and by
// no other logical unit.
func (l *LUN) modePagePolicy(b []byte) []byte { return append(b, pageAll, subpageAll, 0, 0) }

// SPC "SCSI Ports VPD page": the one target port.
func (l *LUN) scsiPorts(b []byte) []byte {
	if l.target == nil {
		return b
	}
	name := l.appendPortName(nil)
	b = append(b, 0, 0, 0, relativePort, 0, 0,
		0, 0, // no initiator port TransportID
		0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
	return append(b, name...)
}

// SPC "Extended INQUIRY Data VPD page".
func (l *LUN) extendedInquiry(b []byte) []byte {
	start := len(b)
	b = append(b,
		0,    // no protection information
		0x01, // SIMPSUP; the transport knows no order of tasks
		0x01, // V_SUP: there is a volatile cache
		0,    // P_I_I_SUP, LUICLR
		0,    // R_SUP, CBCS
		0,    // multi I_T nexus microcode download
		0, 0, // no extended self-test
		0,        // POA_SUP, HRA_SUP, VSA_SUP
		maxSense, // MAXIMUM SUPPORTED SENSE DATA LENGTH
	)
	return append(b, make([]byte, 0x3c-(len(b)-start))...)
}

// The limits of UNMAP, in blocks and in descriptors.
const (
	maxUnmapBlocks      = 1 << 20
	maxUnmapDescriptors = 256
)

const (
	adviseAlignment = 4096    // bytes; OPTIMAL TRANSFER LENGTH GRANULARITY at least
	optimalTransfer = 1 << 20 // bytes
)

// SBC "Block Limits VPD page".
func (l *LUN) blockLimits(b []byte) []byte {
	granularity := max(l.caps.PhysicalBlock, adviseAlignment)
	b = append(b, 0x01, byte(l.maxCompareBlocks())) // WSNZ
	b = binary.BigEndian.AppendUint16(b, uint16(l.inBlocks(int64(granularity))))
	b = binary.BigEndian.AppendUint32(b, maxTransferBlocks)
	b = binary.BigEndian.AppendUint32(b, l.inBlocks(optimalTransfer))
	b = binary.BigEndian.AppendUint32(b, 0) // MAXIMUM PREFETCH LENGTH: not limited
	if l.unmaps() {
		b = binary.BigEndian.AppendUint32(b, maxUnmapBlocks)
		b = binary.BigEndian.AppendUint32(b, maxUnmapDescriptors)
		b = binary.BigEndian.AppendUint32(b, max(1, l.inBlocks(int64(l.caps.Granularity))))
		b = binary.BigEndian.AppendUint32(b, 1<<31) // UGAVALID, aligned at LBA 0
	} else {
		b = append(b, make([]byte, 16)...)
	}
	// MAXIMUM WRITE SAME LENGTH: not limited, as it works in steps. No WRITE
	// ATOMIC: no disk here promises that a write is whole after a
	// power loss.
	return append(b, make([]byte, 28)...)
}

// SBC "Block Device Characteristics VPD page".
func (l *LUN) blockCharacteristics(b []byte) []byte {
	start, afterErase := len(b), byte(0)
	if l.unmaps() {
		afterErase = 0x40 // WABEREQ 01b: after BLOCK ERASE reads succeed
	}
	b = binary.BigEndian.AppendUint16(b, 1) // MEDIUM ROTATION RATE: does not rotate
	b = append(b, 0, afterErase,
		0x02) // FUAB: SYNCHRONIZE CACHE and FUA reach the medium; VBULS 0
	return append(b, make([]byte, 0x3c-(len(b)-start))...)
}

// SBC "Logical Block Provisioning VPD page".
func (l *LUN) blockProvisioning(b []byte) []byte {
	flags, kind := byte(0), byte(0)
	if l.thin() {
		kind = 0x02 // thin provisioned
	}
	if l.unmaps() {
		flags = 0xe0 // LBPU, LBPWS, LBPWS10
	}
	if l.readsZeros() {
		flags |= 0x04 // LBPRZ 001b
	}
	return append(b, 0, flags, kind, 0) // no thresholds, no group descriptor
}

// SBC "Block Limits Extension VPD page": no streams, no scattered writes.
func (l *LUN) blockLimitsExtension(b []byte) []byte { return append(b, make([]byte, 0x3c)...) }

// readsZeros reports whether blocks without space behind them read as zeros:
// where nothing can be given back, those that never had any do.
func (l *LUN) readsZeros() bool { return l.thin() && (l.caps.DiscardZeroes || !l.unmaps()) }
