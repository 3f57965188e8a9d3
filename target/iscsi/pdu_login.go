package iscsi

import (
	"fmt"

	"github.com/containerdisk/containerdisk/internal/be"
)

// Login Request and Response, RFC 7143 §11.12 and §11.13.
const (
	loginVersionMax        = 2 // the active version in a response: byte 3
	loginVersionMin        = 3
	loginISID              = 8 // 6 bytes
	loginTSIH       be.U16 = 14
	loginCID        be.U16 = 20 // request only
	loginStatus     be.U16 = 36 // response only: class, detail

	loginTransit  = 0x80 // byte 1, T
	loginContinue = 0x40 // byte 1, C
)

// isid is the initiator's part of a session's name, §11.12.5.
type isid [6]byte

func (i isid) String() string { return fmt.Sprintf("0x%x", i[:]) }

// stage is a stage of the login phase, §11.12.3.
type stage uint8

const (
	stageSecurity    stage = 0
	stageOperational stage = 1
	stageFullFeature stage = 3
)

func (s stage) String() string {
	switch s {
	case stageSecurity:
		return "security negotiation"
	case stageOperational:
		return "operational negotiation"
	case stageFullFeature:
		return "full feature phase"
	}
	return fmt.Sprintf("stage %d", uint8(s))
}

// loginRequest is a view of a BHS whose opcode is opLogin.
type loginRequest struct{ *BHS }

func (l loginRequest) transit() bool   { return l.BHS[bhsFlags]&loginTransit != 0 }
func (l loginRequest) continues() bool { return l.BHS[bhsFlags]&loginContinue != 0 }
func (l loginRequest) csg() stage      { return stage(l.BHS[bhsFlags] >> 2 & 3) }
func (l loginRequest) nsg() stage      { return stage(l.BHS[bhsFlags] & 3) }
func (l loginRequest) versionMin() byte {
	return l.BHS[loginVersionMin]
}
func (l loginRequest) isid() isid   { return isid(l.BHS[loginISID:]) }
func (l loginRequest) tsih() uint16 { return loginTSIH.Get(l.BHS[:]) }
func (l loginRequest) cid() uint16  { return loginCID.Get(l.BHS[:]) }

// loginResponse is what a Login Response says beside its numbers.
type loginResponse struct {
	flags  byte // T, C, CSG, NSG
	isid   isid
	tsih   uint16
	itt    uint32
	status status
}

func (l loginResponse) header(h *BHS) {
	*h = BHS{bhsOpcode: byte(opLoginResponse), bhsFlags: l.flags} // both versions are 0, the only one
	copy(h[loginISID:], l.isid[:])
	loginTSIH.Put(h[:], l.tsih)
	bhsITT.Put(h[:], l.itt)
	loginStatus.Put(h[:], uint16(l.status))
}

// status is a login's Status-Class and Status-Detail, §11.13.5.
type status uint16

const (
	statusSuccess          status = 0x0000
	statusInitiatorError   status = 0x0200
	statusAuthFailure      status = 0x0201
	statusNotAuthorized    status = 0x0202
	statusNotFound         status = 0x0203
	statusVersion          status = 0x0205
	statusTooMany          status = 0x0206
	statusMissingParameter status = 0x0207
	statusCannotInclude    status = 0x0208
	statusSessionType      status = 0x0209
	statusNoSession        status = 0x020a
	statusDuringLogin      status = 0x020b
	statusTargetError      status = 0x0300
	statusUnavailable      status = 0x0301
	statusNoResources      status = 0x0302
)

func (s status) String() string {
	switch s {
	case statusSuccess:
		return "success"
	case statusInitiatorError:
		return "initiator error"
	case statusAuthFailure:
		return "authentication failure"
	case statusNotAuthorized:
		return "authorization failure"
	case statusNotFound:
		return "target not found"
	case statusVersion:
		return "unsupported version"
	case statusTooMany:
		return "too many connections"
	case statusMissingParameter:
		return "missing parameter"
	case statusCannotInclude:
		return "can't include in session"
	case statusSessionType:
		return "session type not supported"
	case statusNoSession:
		return "session does not exist"
	case statusDuringLogin:
		return "invalid during login"
	case statusTargetError:
		return "target error"
	case statusUnavailable:
		return "service unavailable"
	case statusNoResources:
		return "out of resources"
	}
	return fmt.Sprintf("status %#04x", uint16(s))
}
