package scsi

import (
	"encoding/binary"

	"github.com/containerdisk/containerdisk/internal/be"
)

// REPORT TARGET PORT GROUPS CDB and parameter data, SPC. The one target port is
// a group of its own, and always the best way to the logical unit.
const (
	portGroupsFormat            = 1 // PARAMETER DATA FORMAT
	portGroupsAllocation be.U32 = 6

	formatLengthOnly = 0x00
	formatExtended   = 0x20
	maskPortFormat   = 0xe0

	portGroup          = 1
	stateOptimized     = 0x00 // ASYMMETRIC ACCESS STATE
	supportsOptimized  = 0x01 // AO_SUP, and no other state
	extendedHeaderType = 0x10
)

func (t *Task) reportTargetPortGroups() error {
	group := []byte{stateOptimized, supportsOptimized, 0, portGroup, 0, 0, 0, 1,
		0, 0, 0, relativePort}
	switch t.cdb[portGroupsFormat] & maskPortFormat {
	case formatLengthOnly:
	case formatExtended:
		group = append([]byte{extendedHeaderType, 0, 0, 0}, group...) // no transitions, so no time for them
	default:
		return invalidCDB(portGroupsFormat, 7)
	}
	t.data = append(binary.BigEndian.AppendUint32(t.data, uint32(len(group))), group...)
	return t.reply(portGroupsAllocation.Get(t.cdb[:]))
}
