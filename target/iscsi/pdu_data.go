package iscsi

import "github.com/containerdisk/containerdisk/internal/be"

// Data-In and Data-Out, RFC 7143 §11.7.
const (
	dataTTT      be.U32 = 20
	dataSN       be.U32 = 36
	dataOffset   be.U32 = 40 // bytes from the start of the command's data
	dataResidual be.U32 = 44 // Data-In with S only
	dataStatus          = 3  // Data-In with S only

	dataFlagStatus = 0x01 // byte 1, S: the PDU carries the command's status
)

// dataOut is a view of a BHS whose opcode is opDataOut.
type dataOut struct{ *BHS }

func (d dataOut) ttt() uint32    { return dataTTT.Get(d.BHS[:]) }
func (d dataOut) sn() uint32     { return dataSN.Get(d.BHS[:]) }
func (d dataOut) offset() uint32 { return dataOffset.Get(d.BHS[:]) }

// dataIn is what a Data-In says beside its numbers.
type dataIn struct {
	itt    uint32
	sn     uint32
	offset uint32
	n      int
	flags  byte // flagFinal at the end of a sequence; dataFlagStatus and a residual flag
	// The rest counts with dataFlagStatus only; the status is always GOOD.
	residual uint32
}

func (d dataIn) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opDataIn), bhsFlags: d.flags}
	bhsDataLen.Put(h[:], uint32(d.n))
	bhsITT.Put(h[:], d.itt)
	dataTTT.Put(h[:], reservedTag) // a tag would ask for an acknowledgement, never at level 0
	dataSN.Put(h[:], d.sn)
	dataOffset.Put(h[:], d.offset)
	dataResidual.Put(h[:], d.residual)
}

// Ready To Transfer, §11.8.
const (
	r2tTTT    be.U32 = 20
	r2tSN     be.U32 = 36
	r2tOffset be.U32 = 40 // bytes
	r2tLength be.U32 = 44 // bytes
)

// r2t asks for a part of a command's data-out.
type r2t struct {
	lun            uint64
	itt, ttt, sn   uint32
	offset, length uint32
}

func (r r2t) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opR2T), bhsFlags: flagFinal}
	bhsLUN.Put(h[:], r.lun)
	bhsITT.Put(h[:], r.itt)
	r2tTTT.Put(h[:], r.ttt)
	r2tSN.Put(h[:], r.sn)
	r2tOffset.Put(h[:], r.offset)
	r2tLength.Put(h[:], r.length)
}
