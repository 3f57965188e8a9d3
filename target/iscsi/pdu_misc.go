package iscsi

import (
	"fmt"

	"github.com/containerdisk/containerdisk/internal/be"
	"github.com/containerdisk/containerdisk/target/scsi"
)

// NOP-Out and NOP-In, RFC 7143 §11.18 and §11.19.
const nopTTT be.U32 = 20

// nopOut is a view of a BHS whose opcode is opNopOut.
type nopOut struct{ *BHS }

func (n nopOut) ttt() uint32 { return nopTTT.Get(n.BHS[:]) }

// nopIn answers a NOP-Out (itt) or asks for one (ttt).
type nopIn struct {
	lun      uint64
	itt, ttt uint32
	n        int // bytes of ping data
}

func (n nopIn) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opNopIn), bhsFlags: flagFinal}
	bhsDataLen.Put(h[:], uint32(n.n))
	bhsLUN.Put(h[:], n.lun)
	bhsITT.Put(h[:], n.itt)
	nopTTT.Put(h[:], n.ttt)
}

// Task Management Function Request and Response, §11.5 and §11.6.
const (
	tmfRefTag   be.U32 = 20
	tmfRefCmdSN be.U32 = 32
	tmfFunction        = 0x7f // byte 1
	tmfResponse        = 2
)

// taskFunction is a task management function, §11.5.1.
type taskFunction uint8

const (
	tmfAbortTask    taskFunction = 1
	tmfAbortTaskSet taskFunction = 2
	tmfClearACA     taskFunction = 3
	tmfClearTaskSet taskFunction = 4
	tmfLUReset      taskFunction = 5
	tmfWarmReset    taskFunction = 6
	tmfColdReset    taskFunction = 7
	tmfTaskReassign taskFunction = 8
)

// Responses that only the transport gives, §11.6.1; the others are the
// device server's.
const (
	tmfNoTask           scsi.FunctionResponse = 1
	tmfReassignNotGiven scsi.FunctionResponse = 4
)

// taskRequest is a view of a BHS whose opcode is opTaskRequest.
type taskRequest struct{ *BHS }

func (t taskRequest) function() taskFunction { return taskFunction(t.BHS[bhsFlags] & tmfFunction) }
func (t taskRequest) refTag() uint32         { return tmfRefTag.Get(t.BHS[:]) }
func (t taskRequest) refCmdSN() uint32       { return tmfRefCmdSN.Get(t.BHS[:]) }

// taskResponse answers a task management request.
type taskResponse struct {
	itt      uint32
	response scsi.FunctionResponse
}

func (t taskResponse) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opTaskResponse), bhsFlags: flagFinal, tmfResponse: byte(t.response)}
	bhsITT.Put(h[:], t.itt)
}

// Text Request and Response, §11.10 and §11.11.
const (
	textTTT      be.U32 = 20
	textContinue        = 0x40 // byte 1, C
)

// textRequest is a view of a BHS whose opcode is opText.
type textRequest struct{ *BHS }

func (t textRequest) continues() bool { return t.BHS[bhsFlags]&textContinue != 0 }
func (t textRequest) ttt() uint32     { return textTTT.Get(t.BHS[:]) }

// textResponse is what a Text Response says beside its numbers and its text.
type textResponse struct {
	flags    byte // F, C
	lun      uint64
	itt, ttt uint32
	n        int // bytes of text
}

func (t textResponse) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opTextResponse), bhsFlags: t.flags}
	bhsDataLen.Put(h[:], uint32(t.n))
	bhsLUN.Put(h[:], t.lun)
	bhsITT.Put(h[:], t.itt)
	textTTT.Put(h[:], t.ttt)
}

// Logout Request and Response, §11.14 and §11.15.
const (
	logoutCID      be.U16 = 20
	logoutReason          = 0x7f // byte 1
	logoutResponse        = 2
)

// Reasons, §11.14.1, and responses, §11.15.1.
const (
	logoutSession    = 0
	logoutConnection = 1
	logoutRecovery   = 2

	logoutDone       = 0
	logoutNoCID      = 1
	logoutNoRecovery = 2
)

// logoutRequest is a view of a BHS whose opcode is opLogout.
type logoutRequest struct{ *BHS }

func (l logoutRequest) reason() byte { return l.BHS[bhsFlags] & logoutReason }
func (l logoutRequest) cid() uint16  { return logoutCID.Get(l.BHS[:]) }

// logoutReply answers a logout request. Time2Wait and Time2Retain are 0:
// nothing is kept, so there is nothing to wait for.
type logoutReply struct {
	itt      uint32
	response byte
}

func (l logoutReply) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opLogoutResp), bhsFlags: flagFinal, logoutResponse: l.response}
	bhsITT.Put(h[:], l.itt)
}

// Reject, §11.17.
const rejectReasonByte = 2

// rejectReason says why a PDU is rejected, §11.17.1.
type rejectReason uint8

const (
	rejectDataDigest   rejectReason = 0x02
	rejectSNACK        rejectReason = 0x03
	rejectProtocol     rejectReason = 0x04
	rejectUnsupported  rejectReason = 0x05
	rejectImmediates   rejectReason = 0x06
	rejectTaskInUse    rejectReason = 0x07
	rejectInvalidField rejectReason = 0x09
)

func (r rejectReason) String() string {
	switch r {
	case rejectDataDigest:
		return "data digest error"
	case rejectSNACK:
		return "SNACK reject"
	case rejectProtocol:
		return "protocol error"
	case rejectUnsupported:
		return "command not supported"
	case rejectImmediates:
		return "too many immediate commands"
	case rejectTaskInUse:
		return "task in progress"
	case rejectInvalidField:
		return "invalid PDU field"
	}
	return fmt.Sprintf("reason %#02x", uint8(r))
}

// reject carries the header of the PDU it rejects as its data.
type reject struct {
	reason rejectReason
	n      int // bytes of the rejected header
}

func (r reject) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opReject), bhsFlags: flagFinal, rejectReasonByte: byte(r.reason)}
	bhsDataLen.Put(h[:], uint32(r.n))
	bhsITT.Put(h[:], reservedTag)
}

// Asynchronous Message, §11.9.
const (
	asyncEventByte        = 36
	asyncParam1    be.U16 = 38
	asyncParam2    be.U16 = 40 // Time2Wait, seconds
	asyncParam3    be.U16 = 42 // Time2Retain, seconds
)

// asyncEvent is the kind of an asynchronous message, §11.9.1.
type asyncEvent uint8

const (
	asyncLogout      asyncEvent = 1
	asyncDropSession asyncEvent = 3
)

// async is an asynchronous message about the whole session.
type async struct {
	event asyncEvent
	// seconds the initiator has to log out (asyncLogout).
	seconds uint16
}

func (a async) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opAsync), bhsFlags: flagFinal, asyncEventByte: byte(a.event)}
	bhsITT.Put(h[:], reservedTag)
	asyncParam3.Put(h[:], a.seconds)
}
