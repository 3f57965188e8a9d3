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

// SCSI Response, §11.4.
const (
	rspResponse         = 2
	rspStatus           = 3
	rspExpDataSN be.U32 = 36 // Data-In and R2T PDUs sent for the command
	rspResidual  be.U32 = 44 // bytes

	rspFlagOverflow     = 0x04 // byte 1
	rspFlagUnderflow    = 0x02
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
}

func (r scsiResponse) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opSCSIResponse), bhsFlags: flagFinal | r.residualFlag,
		rspResponse: rspCommandCompleted, rspStatus: byte(r.status)}
	bhsITT.Put(h[:], r.itt)
	rspExpDataSN.Put(h[:], r.expDataSN)
	rspResidual.Put(h[:], r.residual)
}
