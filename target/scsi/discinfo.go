package scsi

import (
	"encoding/binary"
	"math"

	"github.com/containerdisk/containerdisk/internal/be"
)

// What a drive tells of itself and of the disc: GET CONFIGURATION, READ
// TOC/PMA/ATIP, READ DISC INFORMATION, READ TRACK INFORMATION, READ DISC
// STRUCTURE.

// READ TOC/PMA/ATIP CDB, MMC.
const (
	tocFlags             = 1
	tocMSF               = 0x02
	tocFormat            = 2
	maskTOCFormat        = 0x0f
	tocTrack             = 6
	tocAllocation be.U16 = 7

	tocTracks   = 0
	tocSessions = 1
	tocFull     = 2

	trackLeadOut = 0xaa
	trackData    = 0x14 // ADR 1, CONTROL: a data track that may not be copied to
)

func (t *Task) readTOC() error {
	b, err := t.appendTOC(append(t.data, 0, 0, 1, 1)) // first and last track, or session
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	t.data = b
	return t.reply(uint32(tocAllocation.Get(t.cdb[:])))
}

func (t *Task) appendTOC(b []byte) ([]byte, error) {
	first := t.cdb[tocTrack]
	switch t.cdb[tocFormat] & maskTOCFormat {
	case tocTracks:
		if first > 1 && first != trackLeadOut {
			return nil, invalidCDB(tocTrack, wholeByte)
		}
		if first <= 1 {
			b = t.appendAddress(append(b, 0, trackData, 1, 0), 0)
		}
		return t.appendAddress(append(b, 0, trackData, trackLeadOut, 0), t.lun.blocks), nil
	case tocSessions:
		return t.appendAddress(append(b, 0, trackData, 1, 0), 0), nil
	case tocFull:
		if first > 1 {
			return nil, invalidCDB(tocTrack, wholeByte)
		}
		for _, point := range []struct {
			number byte
			msf    [3]byte
		}{
			{0xa0, [3]byte{1, 0, 0}}, // first track; a disc of CD-ROM type
			{0xa1, [3]byte{1, 0, 0}}, // last track
			{0xa2, msf(t.lun.blocks)},
			{1, msf(0)},
		} {
			b = append(b, 1, trackData, 0, point.number, 0, 0, 0, 0)
			b = append(b, point.msf[:]...)
		}
		return b, nil
	}
	return nil, invalidCDB(tocFormat, 3)
}

// appendAddress appends the address of a block in the form that the CDB asks
// for.
func (t *Task) appendAddress(b []byte, lba uint64) []byte {
	if t.cdb[tocFlags]&tocMSF == 0 {
		return binary.BigEndian.AppendUint32(b, uint32(min(lba, math.MaxUint32)))
	}
	m := msf(lba)
	return append(b, 0, m[0], m[1], m[2])
}

// msf is the address of a block in minutes, seconds and frames, or the last that
// can be said.
func msf(lba uint64) [3]byte {
	const minute = 60 * framesPerSecond
	lba = min(lba+leadIn, 256*minute-1)
	return [3]byte{byte(lba / minute), byte(lba / framesPerSecond % 60), byte(lba % framesPerSecond)}
}

// GET CONFIGURATION CDB, MMC.
const (
	configFlags             = 1
	maskConfigRT            = 0x03
	configFeature    be.U16 = 2
	configAllocation be.U16 = 7

	configAll     = 0 // RT: also those that are not current
	configCurrent = 1
	configOne     = 2

	profileNone = 0x0000
	profileCD   = 0x0008
	profileDVD  = 0x0010
)

// feature is a row of what a drive can do, MMC "Features".
type feature struct {
	code    uint16
	version byte // VERSION and PERSISTENT, in their places
	current bool
	data    []byte
}

const featurePersistent = 0x02

// profile is what the disc makes the drive be.
func (l *LUN) profile() uint16 {
	switch {
	case l.cd.ejected.Load():
		return profileNone
	case l.isDVD():
		return profileDVD
	}
	return profileCD
}

// features are those of the drive, in ascending order.
func (l *LUN) features() []feature {
	now := l.profile()
	is := func(profile uint16) byte {
		if now == profile {
			return 1
		}
		return 0
	}
	return []feature{
		{0x0000, featurePersistent, true, []byte{0, profileDVD, is(profileDVD), 0, 0, profileCD, is(profileCD), 0}}, // Profile List
		{0x0001, 2<<2 | featurePersistent, true, []byte{0, 0, 0, 1, 0, 0, 0, 0}},                                    // Core: SCSI family
		{0x0002, 1<<2 | featurePersistent, true, []byte{0, 0, 0, 0}},                                                // Morphing: polled
		{0x0003, featurePersistent, true, []byte{0x29, 0, 0, 0}},                                                    // Removable Medium: tray, eject, lock
		{0x0010, 0, now != profileNone, []byte{0, 0, discBlock >> 8, 0, 0, 1, 0, 0}},                                // Random Readable
		{0x001e, 2 << 2, now == profileCD, []byte{0, 0, 0, 0}},                                                      // CD Read
		{0x001f, 0, now == profileDVD, nil},                                                                         // DVD Read
		{0x0100, featurePersistent, true, nil},                                                                      // Power Management
		{0x0105, featurePersistent, true, nil},                                                                      // Time-out
	}
}

func (t *Task) getConfiguration() error {
	how, from := t.cdb[configFlags]&maskConfigRT, configFeature.Get(t.cdb[:])
	if how > configOne {
		return invalidCDB(configFlags, 1)
	}
	b := append(t.data, 0, 0, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, t.lun.profile())
	for _, f := range t.lun.features() {
		switch {
		case f.code < from, how == configCurrent && !f.current, how == configOne && f.code != from:
			continue
		}
		b = f.appendTo(b)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	t.data = b
	return t.reply(uint32(configAllocation.Get(t.cdb[:])))
}

func (f feature) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, f.code)
	flags := f.version
	if f.current {
		flags |= 0x01
	}
	return append(append(b, flags, byte(len(f.data))), f.data...)
}

// READ DISC INFORMATION and READ TRACK INFORMATION CDBs, MMC.
const (
	discInfoFlags           = 1
	maskDiscInfoType        = 0x07
	infoAllocation   be.U16 = 7
	discInfoLen             = 34

	trackInfoFlags           = 1
	maskTrackAddress         = 0x03
	trackInfoAddress  be.U32 = 2
	trackInfoLen             = 36
	trackInfoTrack           = 2
	trackInfoSession         = 3
	trackInfoMode            = 5
	trackInfoDataMode        = 6
	trackInfoSize     be.U32 = 24
)

func (t *Task) readDiscInformation() error {
	if t.cdb[discInfoFlags]&maskDiscInfoType != 0 { // only "Standard Disc Information"
		return invalidCDB(discInfoFlags, 2)
	}
	start := len(t.data)
	b := append(t.data, 0, discInfoLen-2,
		0x0e,       // the last session is complete, and so is the disc
		1, 1, 1, 1, // first track; sessions; first and last track of the last session
		0x20) // URU: may be used without restriction
	t.data = append(b, make([]byte, discInfoLen-(len(b)-start))...)
	return t.reply(uint32(infoAllocation.Get(t.cdb[:])))
}

// readTrackInformation tells about the one track, by any of its names: an LBA,
// its number, its session.
func (t *Task) readTrackInformation() error {
	const byLBA, byTrack, bySession = 0, 1, 2
	at := uint64(trackInfoAddress.Get(t.cdb[:]))
	switch kind := t.cdb[trackInfoFlags] & maskTrackAddress; {
	case kind == byLBA && at < t.lun.blocks:
	case (kind == byTrack || kind == bySession) && at == 1:
	default:
		return invalidCDB(int(trackInfoAddress), wholeByte)
	}
	start := len(t.data)
	t.data = append(t.data, make([]byte, trackInfoLen)...)
	b := t.data[start:]
	binary.BigEndian.PutUint16(b, trackInfoLen-2)
	b[trackInfoTrack], b[trackInfoSession] = 1, 1
	b[trackInfoMode], b[trackInfoDataMode] = 4, 1 // a data track; mode 1
	trackInfoSize.Put(b, uint32(min(t.lun.blocks, math.MaxUint32)))
	return t.reply(uint32(infoAllocation.Get(t.cdb[:])))
}

// READ DISC STRUCTURE CDB, MMC.
const (
	structureFlags             = 1
	maskStructureMedia         = 0x0f
	structureLayer             = 6
	structureFormat            = 7
	structureAllocation be.U16 = 8

	structurePhysical  = 0x00
	structureCopyright = 0x01
	physicalLen        = 2048
	firstDataSector    = 0x030000 // of a DVD, where LBA 0 is
)

// readDiscStructure tells of a DVD what tells it from others. A CD has none.
func (t *Task) readDiscStructure() error {
	switch {
	case !t.lun.isDVD():
		return errIncompatible
	case t.cdb[structureFlags]&maskStructureMedia != 0: // DVD
		return invalidCDB(structureFlags, 3)
	case t.cdb[structureLayer] != 0:
		return invalidCDB(structureLayer, wholeByte)
	}
	b := append(t.data, 0, 0, 0, 0)
	switch t.cdb[structureFormat] {
	case structurePhysical:
		b = t.lun.appendPhysical(b)
	case structureCopyright:
		b = append(b, 0, 0, 0, 0) // none, for all regions
	default:
		return invalidCDB(structureFormat, wholeByte)
	}
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	t.data = b
	return t.reply(uint32(structureAllocation.Get(t.cdb[:])))
}

// appendPhysical appends MMC "Physical format information" of a DVD-ROM with one
// layer.
func (l *LUN) appendPhysical(b []byte) []byte {
	start := len(b)
	last := uint32(min(firstDataSector+l.lastBlock(), 0xffffff)) // three bytes
	b = append(b,
		0x01, // DVD-ROM, version 1
		0x0f, // 120 mm, the maximum rate is not specified
		0x01, // one layer, embossed
		0x00) // densities
	b = binary.BigEndian.AppendUint32(b, firstDataSector)
	b = binary.BigEndian.AppendUint32(b, last)
	return append(b, make([]byte, physicalLen-(len(b)-start))...)
}
