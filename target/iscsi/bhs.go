package iscsi

import (
	"fmt"

	"github.com/containerdisk/containerdisk/internal/be"
)

// Opcode is the kind of a PDU, RFC 7143 §11.2.1.2.
type Opcode uint8

const (
	opNopOut      Opcode = 0x00 // §11.18
	opSCSICommand Opcode = 0x01 // §11.3
	opTaskRequest Opcode = 0x02 // §11.5
	opLogin       Opcode = 0x03 // §11.12
	opText        Opcode = 0x04 // §11.10
	opDataOut     Opcode = 0x05 // §11.7
	opLogout      Opcode = 0x06 // §11.14
	opSNACK       Opcode = 0x10 // §11.16

	opNopIn         Opcode = 0x20 // §11.19
	opSCSIResponse  Opcode = 0x21 // §11.4
	opTaskResponse  Opcode = 0x22 // §11.6
	opLoginResponse Opcode = 0x23 // §11.13
	opTextResponse  Opcode = 0x24 // §11.11
	opDataIn        Opcode = 0x25 // §11.7
	opLogoutResp    Opcode = 0x26 // §11.15
	opR2T           Opcode = 0x31 // §11.8
	opAsync         Opcode = 0x32 // §11.9
	opReject        Opcode = 0x3f // §11.17
)

func (o Opcode) String() string {
	if name, ok := opcodeNames[o]; ok {
		return name
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

var opcodeNames = map[Opcode]string{
	opNopOut: "NOP-Out", opSCSICommand: "SCSI Command", opTaskRequest: "Task Management Request",
	opLogin: "Login Request", opText: "Text Request", opDataOut: "Data-Out", opLogout: "Logout Request",
	opSNACK: "SNACK Request", opNopIn: "NOP-In", opSCSIResponse: "SCSI Response",
	opTaskResponse: "Task Management Response", opLoginResponse: "Login Response",
	opTextResponse: "Text Response", opDataIn: "Data-In", opLogoutResp: "Logout Response", opR2T: "R2T",
	opAsync: "Async Message", opReject: "Reject",
}

// bhsLen is the length of every basic header segment, §11.2.1.
const bhsLen = 48

// BHS is a basic header segment. Each kind of PDU has a view type that names
// the fields of its own; those that all share are here.
type BHS [bhsLen]byte

// Fields common to all PDUs, §11.2.1.
const (
	bhsOpcode            = 0 // with the immediate bit
	bhsFlags             = 1 // opcode-specific, F first
	bhsAHSLen     be.U8  = 4 // four-byte words
	bhsDataLen    be.U24 = 5 // bytes, without padding
	bhsLUN        be.U64 = 8 // or opcode-specific
	bhsITT        be.U32 = 16
	flagImmediate        = 0x40 // byte 0
	flagFinal            = 0x80 // byte 1
	opcodeMask           = 0x3f
	reservedTag   uint32 = 0xffffffff
)

// Numbering fields of requests, §11.2.1 and each request's section.
const (
	reqCmdSN     be.U32 = 24
	reqExpStatSN be.U32 = 28
)

// Numbering fields of responses.
const (
	rspStatSN   be.U32 = 24
	rspExpCmdSN be.U32 = 28
	rspMaxCmdSN be.U32 = 32
)

func (h *BHS) opcode() Opcode    { return Opcode(h[bhsOpcode] & opcodeMask) }
func (h *BHS) immediate() bool   { return h[bhsOpcode]&flagImmediate != 0 }
func (h *BHS) final() bool       { return h[bhsFlags]&flagFinal != 0 }
func (h *BHS) ahsLen() int       { return int(bhsAHSLen.Get(h[:])) * 4 }
func (h *BHS) dataLen() int      { return int(bhsDataLen.Get(h[:])) }
func (h *BHS) lun() uint64       { return bhsLUN.Get(h[:]) }
func (h *BHS) itt() uint32       { return bhsITT.Get(h[:]) }
func (h *BHS) cmdSN() uint32     { return reqCmdSN.Get(h[:]) }
func (h *BHS) expStatSN() uint32 { return reqExpStatSN.Get(h[:]) }

// pdu is a PDU that has arrived as a whole. Its slices point into the
// connection's buffer and hold until more is read.
type pdu struct {
	*BHS
	ahs  []byte // additional header segments, §11.2.2
	data []byte // without padding and digest

	badData bool // the data digest did not match
}

// padding is the number of bytes that fill n up to a multiple of four, §11.2.3.
func padding(n int) int { return -n & 3 }
