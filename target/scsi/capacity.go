package scsi

import (
	"encoding/binary"
	"math"

	"github.com/containerdisk/containerdisk/internal/be"
)

// READ CAPACITY CDBs, SBC. PMI and the LBA are obsolete: without PMI the LBA
// must be 0, and with it there is nothing on this medium that slows down
// between an LBA and the last one.
const (
	capacity10PMI        = 8
	capacity16Allocation = be.U32(10)
	capacity16PMI        = 14
	flagPMI              = 0x01
)

func (t *Task) readCapacity10() error {
	if t.cdb[capacity10PMI]&flagPMI == 0 && cdb10LBA.Get(t.cdb[:]) != 0 {
		return invalidCDB(int(cdb10LBA), wholeByte)
	}
	last := uint32(min(t.lun.lastBlock(), math.MaxUint32)) // more: use READ CAPACITY (16)
	t.data = binary.BigEndian.AppendUint32(t.data, last)
	t.data = binary.BigEndian.AppendUint32(t.data, uint32(t.lun.blockSize()))
	return t.reply(8)
}

func (t *Task) readCapacity16() error {
	if t.cdb[capacity16PMI]&flagPMI == 0 && cdb16LBA.Get(t.cdb[:]) != 0 {
		return invalidCDB(int(cdb16LBA), wholeByte)
	}
	provisioning := byte(0)
	if t.lun.thin() {
		provisioning |= 0x80 // LBPME
	}
	if t.lun.readsZeros() {
		provisioning |= 0x40 // LBPRZ
	}
	b := binary.BigEndian.AppendUint64(t.data, t.lun.lastBlock())
	b = binary.BigEndian.AppendUint32(b, uint32(t.lun.blockSize()))
	// No protection, one logical block per physical block. An exponent would
	// say that smaller writes are slow; they are not. VPD page B0 has the
	// advice on alignment.
	b = append(b, 0, 0, provisioning, 0)
	t.data = append(b, make([]byte, 16)...)
	return t.reply(capacity16Allocation.Get(t.cdb[:]))
}

// lastBlock is the LBA of the last block. A disk without any cannot be
// described; it looks like one block, which no command can reach.
func (l *LUN) lastBlock() uint64 { return max(l.blocks, 1) - 1 }
