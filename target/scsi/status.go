package scsi

import "fmt"

// Status is the byte that ends a command, SAM "Status codes".
type Status uint8

const (
	Good                Status = 0x00
	CheckCondition      Status = 0x02
	ConditionMet        Status = 0x04
	Busy                Status = 0x08
	ReservationConflict Status = 0x18
	TaskSetFull         Status = 0x28
	ACAActive           Status = 0x30
	TaskAborted         Status = 0x40
)

func (s Status) String() string {
	switch s {
	case Good:
		return "GOOD"
	case CheckCondition:
		return "CHECK CONDITION"
	case ConditionMet:
		return "CONDITION MET"
	case Busy:
		return "BUSY"
	case ReservationConflict:
		return "RESERVATION CONFLICT"
	case TaskSetFull:
		return "TASK SET FULL"
	case ACAActive:
		return "ACA ACTIVE"
	case TaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("Status(%#02x)", uint8(s))
}

// FunctionResponse is the answer to a task management function, with the
// values of RFC 7143 §11.6.1, which the transport copies.
type FunctionResponse uint8

const (
	FunctionComplete     FunctionResponse = 0
	FunctionNoLUN        FunctionResponse = 2
	FunctionNotSupported FunctionResponse = 5
	FunctionRejected     FunctionResponse = 255
)

func (r FunctionResponse) String() string {
	switch r {
	case FunctionComplete:
		return "FUNCTION COMPLETE"
	case FunctionNoLUN:
		return "INCORRECT LOGICAL UNIT NUMBER"
	case FunctionNotSupported:
		return "FUNCTION NOT SUPPORTED"
	case FunctionRejected:
		return "FUNCTION REJECTED"
	}
	return fmt.Sprintf("FunctionResponse(%d)", uint8(r))
}
