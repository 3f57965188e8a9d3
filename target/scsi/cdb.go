package scsi

import "github.com/containerdisk/containerdisk/internal/be"

// CDB is a command descriptor block, zero-filled behind its own length.
type CDB [16]byte

// size is the length of the CDB in bytes as its group code tells (SPC "Fixed
// length CDB formats"), or 0 for the groups that have no such length.
func (c *CDB) size() int {
	switch c[0] >> 5 {
	case 0:
		return 6
	case 1, 2:
		return 10
	case 4:
		return 16
	case 5:
		return 12
	}
	return 0
}

const controlNACA = 0x04 // in the CONTROL byte, SAM "CONTROL byte"

// The CDBs that name a range of blocks, SBC. Byte 1 holds the flags.
const (
	cdbFlags = 1

	cdb6LBA         be.U24 = 1 // 21 bits
	cdb6Length      be.U8  = 4
	cdb10LBA        be.U32 = 2
	cdb10Length     be.U16 = 7
	cdb12LBA        be.U32 = 2
	cdb12Length     be.U32 = 6
	cdb16LBA        be.U64 = 2
	cdb16Length     be.U32 = 10
	cdbCompareCount be.U8  = 13 // COMPARE AND WRITE

	maskLBA6 = 1<<21 - 1

	maskProtect = 0xe0 // RDPROTECT, WRPROTECT, VRPROTECT, ORPROTECT
	flagFUA     = 0x08
)

// transfer is the range of blocks that a command is about, with the byte of
// flags that the commands of this family keep in the same place.
type transfer struct {
	lba    uint64
	blocks uint32
	flags  byte
	length uint8 // the byte of the CDB at which the number of blocks begins
}

// transfer6 decodes READ (6) and WRITE (6), which have no flags and where no
// length means 256 blocks.
func (c *CDB) transfer6() transfer {
	t := transfer{uint64(cdb6LBA.Get(c[:]) & maskLBA6), uint32(cdb6Length.Get(c[:])), 0, uint8(cdb6Length)}
	if t.blocks == 0 {
		t.blocks = 256
	}
	return t
}

func (c *CDB) transfer10() transfer {
	return transfer{uint64(cdb10LBA.Get(c[:])), uint32(cdb10Length.Get(c[:])), c[cdbFlags], uint8(cdb10Length)}
}

func (c *CDB) transfer12() transfer {
	return transfer{uint64(cdb12LBA.Get(c[:])), cdb12Length.Get(c[:]), c[cdbFlags], uint8(cdb12Length)}
}

func (c *CDB) transfer16() transfer {
	return transfer{cdb16LBA.Get(c[:]), cdb16Length.Get(c[:]), c[cdbFlags], uint8(cdb16Length)}
}

// compareAndWrite decodes COMPARE AND WRITE, which counts blocks in one byte.
func (c *CDB) compareAndWrite() transfer {
	return transfer{cdb16LBA.Get(c[:]), uint32(cdbCompareCount.Get(c[:])), c[cdbFlags], uint8(cdbCompareCount)}
}
