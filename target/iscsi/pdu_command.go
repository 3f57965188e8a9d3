package iscsi

import (
	"github.com/containerdisk/containerdisk/internal/be"
	"github.com/containerdisk/containerdisk/target/scsi"
)

// SCSI Command, RFC 7143 §11.3.
const (
	cmdEDTL be.U32 = 20 // Expected Data Transfer Length, bytes
	cmdCDB         = 32 // 16 bytes; longer CDBs go on in an AHS

	cmdFlagRead  = 0x40 // byte 1
	cmdFlagWrite = 0x20
)

// scsiCommand is a view of a BHS whose opcode is opSCSICommand.
type scsiCommand struct{ *BHS }

func (c scsiCommand) reads() bool    { return c.BHS[bhsFlags]&cmdFlagRead != 0 }
func (c scsiCommand) writes() bool   { return c.BHS[bhsFlags]&cmdFlagWrite != 0 }
func (c scsiCommand) edtl() uint32   { return cmdEDTL.Get(c.BHS[:]) }
func (c scsiCommand) cdb() *scsi.CDB { return (*scsi.CDB)(c.BHS[cmdCDB:]) }

// The AHS that says how much data-in a command expects that also writes, §11.2.2.4.
const (
	ahsLength       be.U16 = 0 // bytes behind the type
	ahsType                = 2
	ahsExpectedRead be.U32 = 4 // bytes

	ahsHeader     = 3
	ahsTypeMask   = 0x3f
	ahsTypeRead   = 2
	ahsReadLength = 5
)

// expectedRead finds the length in the segments. Without one nothing is expected.
func expectedRead(ahs []byte) uint32 {
	for len(ahs) > ahsHeader {
		n := ahsHeader + int(ahsLength.Get(ahs))
		n += padding(n)
		if n > len(ahs) {
			return 0
		}
		if ahs[ahsType]&ahsTypeMask == ahsTypeRead && ahsLength.Get(ahs) == ahsReadLength {
			return ahsExpectedRead.Get(ahs)
		}
		ahs = ahs[n:]
	}
	return 0
}

// SCSI Response, §11.4.
const (
	rspResponse         = 2
	rspStatus           = 3
	rspExpDataSN be.U32 = 36 // Data-In and R2T PDUs sent for the command
	rspReadResid be.U32 = 40 // bytes; of commands that read and write
	rspResidual  be.U32 = 44 // bytes

	rspFlagOverflow     = 0x04 // byte 1
	rspFlagUnderflow    = 0x02
	rspReadFlags        = 2    // what the flags are shifted by for rspReadResid
	rspCommandCompleted = 0x00 // byte 2, §11.4.3
)

// residual is the difference between what the initiator expected and what the
// command has to move, §11.4.5: the flag for it and the count in bytes.
func residual(edtl uint32, moves int64) (flag byte, count uint32) {
	switch d := int64(edtl) - moves; {
	case d > 0:
		return rspFlagUnderflow, uint32(d)
	case d < 0:
		return rspFlagOverflow, uint32(min(-d, 1<<32-1))
	}
	return 0, 0
}

// scsiResponse is what a SCSI Response says beside its numbers.
type scsiResponse struct {
	itt          uint32
	status       scsi.Status
	expDataSN    uint32
	residualFlag byte
	residual     uint32
	readResidual uint32 // of a command that reads and writes
}

func (r scsiResponse) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opSCSIResponse), bhsFlags: flagFinal | r.residualFlag,
		rspResponse: rspCommandCompleted, rspStatus: byte(r.status)}
	bhsITT.Put(h[:], r.itt)
	rspExpDataSN.Put(h[:], r.expDataSN)
	rspReadResid.Put(h[:], r.readResidual)
	rspResidual.Put(h[:], r.residual)
}
