package scsi

import (
	"encoding/binary"
	"math"

	"github.com/containerdisk/containerdisk/internal/be"
)

// MODE SENSE and MODE SELECT CDBs, SPC.
const (
	modeFlags                   = 1
	modePageCode                = 2 // PC and PAGE CODE
	modeSubpage                 = 3
	mode6Allocation             = 4
	mode10Allocation     be.U16 = 7
	modeFlagLLBAA               = 0x10 // MODE SENSE (10)
	modeFlagDBD                 = 0x08
	modePS                      = 0x80 // in the first byte of a page: it can be saved
	modeFlagPF                  = 0x10 // MODE SELECT
	modeFlagSP                  = 0x01
	maskModePage                = 0x3f
	shiftPC                     = 6
	modeWP                      = 0x80 // DEVICE-SPECIFIC PARAMETER, SBC
	modeDPOFUA                  = 0x10
	shortBlockDescriptor        = 8
	longBlockDescriptor         = 16
	modeHeader6                 = 4
	modeHeader10                = 8
	modeHeader10LongLBA         = 4 // LONGLBA
	modeHeader6Blocks           = 3 // BLOCK DESCRIPTOR LENGTH
	modeHeader10Blocks   be.U16 = 6
)

// PAGE CONTROL.
const (
	valuesCurrent = iota
	valuesChangeable
	valuesDefault
	valuesSaved
)

func (t *Task) modeSense6() error {
	descriptor := shortBlockDescriptor
	if t.cdb[modeFlags]&modeFlagDBD != 0 || t.lun.cd != nil {
		descriptor = 0
	}
	start := len(t.data)
	b := append(t.data, 0, 0, t.lun.deviceSpecific(), byte(descriptor))
	b, err := t.appendModePages(t.lun.appendBlockDescriptor(b, descriptor))
	if err != nil {
		return err
	}
	b[start] = byte(len(b) - start - 1) // all there is fits
	t.data = b
	return t.reply(uint32(t.cdb[mode6Allocation]))
}

func (t *Task) modeSense10() error {
	descriptor, longLBA := shortBlockDescriptor, byte(0)
	switch flags := t.cdb[modeFlags]; {
	case flags&modeFlagDBD != 0, t.lun.cd != nil: // MMC has no block descriptors
		descriptor = 0
	case flags&modeFlagLLBAA != 0:
		descriptor, longLBA = longBlockDescriptor, 1
	}
	start := len(t.data)
	b := append(t.data, 0, 0, 0, t.lun.deviceSpecific(), longLBA, 0, 0, byte(descriptor))
	b, err := t.appendModePages(t.lun.appendBlockDescriptor(b, descriptor))
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint16(b[start:], uint16(len(b)-start-2))
	t.data = b
	return t.reply(uint32(mode10Allocation.Get(t.cdb[:])))
}

// deviceSpecific is SBC "DEVICE-SPECIFIC PARAMETER field": DPO and FUA are
// taken; WP tells that writes are refused for whatever reason.
func (l *LUN) deviceSpecific() byte {
	if l.cd != nil {
		return 0 // MMC "Mode Parameter Header": reserved
	}
	if l.protected() {
		return modeDPOFUA | modeWP
	}
	return modeDPOFUA
}

// appendBlockDescriptor appends SBC "Mode parameter block descriptors" of that
// size in bytes: none, short or long.
func (l *LUN) appendBlockDescriptor(b []byte, size int) []byte {
	switch size {
	case shortBlockDescriptor:
		b = binary.BigEndian.AppendUint32(b, uint32(min(l.blocks, math.MaxUint32)))
	case longBlockDescriptor:
		b = binary.BigEndian.AppendUint64(b, l.blocks)
		b = append(b, 0, 0, 0, 0)
	default:
		return b
	}
	return binary.BigEndian.AppendUint32(b, uint32(l.blockSize())) // 24 bits and a reserved byte before
}

// appendModePages appends the pages that the CDB asks for.
func (t *Task) appendModePages(b []byte) ([]byte, error) {
	code, control := t.cdb[modePageCode]&maskModePage, t.cdb[modePageCode]>>shiftPC
	if control == valuesSaved && t.lun.store == nil {
		return nil, errNoSaving
	}
	sub, known, found := t.cdb[modeSubpage], false, false
	for _, p := range t.lun.modePages() {
		known = known || p.asked(code, subpageAll)
		if !p.asked(code, sub) {
			continue
		}
		found = true
		start := len(b)
		switch control {
		case valuesCurrent:
			b = p.body(b, t.lun.modes())
		case valuesChangeable:
			b = p.changeable(b)
		case valuesDefault:
			b = p.body(b, defaultMode)
		case valuesSaved:
			b = p.body(b, modeBits(t.lun.saved.Load()))
		}
		if t.lun.store != nil && p.parse != nil {
			b[start] |= modePS
		}
	}
	switch {
	case !known:
		return nil, invalidCDB(modePageCode, 5)
	case !found, code == pageAll && sub != subpageNone && sub != subpageAll:
		return nil, invalidCDB(modeSubpage, wholeByte)
	}
	return b, nil
}
