package scsi

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/blockdev"
)

// LUNOptions are what a logical unit is besides its disk.
type LUNOptions struct {
	Type      DeviceType
	BlockSize int             // bytes of a disk's logical block: 512 (also when zero) or 4096
	Access    blockdev.Access // blockdev.ReadOnly: write protected
	Identity  Identity
	// Store is where Restore finds what survived the last restart. Without
	// one nothing does, and initiators that ask for that are refused.
	Store Store
}

// Identity is who the logical unit says it is. Text is cut to the size of its
// field and padded with spaces; what is not printable ASCII becomes a space.
type Identity struct {
	Vendor   string // T10 VENDOR IDENTIFICATION, 8 bytes
	Product  string // PRODUCT IDENTIFICATION, 16 bytes
	Revision string // PRODUCT REVISION LEVEL, 4 bytes
	Serial   string // PRODUCT SERIAL NUMBER, up to 64 bytes
	// ID makes the logical unit's name: the same disk must have the same ID
	// after a restart and on every path, and different disks different ones.
	// The name holds 60 bits of it, from the front (of a hash, any do).
	ID [16]byte
}

// Stats are a logical unit's counters since it was made.
type Stats struct {
	Reads, Writes         uint64 // commands ended with good status that moved user data
	ReadBytes, WriteBytes uint64 // user data
	Flushes               uint64
	Errors                uint64 // commands that the disk failed
}

// LUN is a logical unit: a disk with a block size, an identity and the state
// that its initiators share.
type LUN struct {
	disk     blockdev.Guard
	caps     blockdev.Caps
	identity Identity
	shift    uint   // log2 of the block size
	blocks   uint64 // number of logical blocks
	table    *table
	target   *Target // set by NewTarget

	stats counters

	mode    atomic.Uint32         // modeBits
	saved   atomic.Uint32         // modeBits that a reset brings back
	stopped atomic.Bool           // by START STOP UNIT
	holder  atomic.Pointer[Nexus] // who made RESERVE (6)

	back background
	cd   *drive // nil: a disk

	reserved atomic.Pointer[reservations] // persistent ones; never nil
	changing sync.Mutex                   // held while reserved or saved change, and while holder becomes somebody
	store    Store                        // or nil

	// dirty is set when something may be in a cache that is not on the
	// medium: after a write and before a flush that succeeds.
	dirty atomic.Bool

	// Lock order: LUN.changing, LUN.mu, itl.gate; the latter two are held across disk I/O, mu
	// only by lockAll, so neither may be taken where that must not wait.
	mu   sync.Mutex
	itls []*itl // guarded by mu
}

type counters struct {
	reads, writes, readBytes, writeBytes, flushes, errors atomic.Uint64
}

// NewLUN returns a logical unit that serves dev, and does not close it. The end
// of a disk that is no whole block is not visible.
func NewLUN(dev blockdev.Device, o LUNOptions) *LUN {
	size := o.BlockSize
	if o.Type == CDROM {
		size, o.Access = discBlock, blockdev.ReadOnly
	}
	switch size {
	case 0:
		size = 512
	case 512, 4096, discBlock:
	default:
		panic(fmt.Sprintf("scsi: logical blocks of %d bytes, want 512 or 4096", size))
	}
	l := &LUN{
		disk:     blockdev.NewGuard(dev, o.Access),
		identity: o.Identity,
		shift:    uint(bits.TrailingZeros(uint(size))),
	}
	l.store = o.Store
	l.reserved.Store(&reservations{})
	l.caps = l.disk.Caps()
	l.blocks = uint64(l.disk.Size()) >> l.shift
	l.saved.Store(uint32(defaultMode))
	l.mode.Store(l.saved.Load())
	l.dirty.Store(!l.caps.ReadOnly) // whoever had the disk before us may have written
	l.table = newTable(l.provisioning())
	if o.Type == CDROM {
		l.cd, l.table = new(drive), newDriveTable()
	}
	l.back.stop, l.back.least = make(chan struct{}), overwriteTime
	return l
}

// provisioning tells what can be done to the disk.
func (l *LUN) provisioning() provisioning {
	switch {
	case l.caps.ReadOnly:
		return unchangeable
	case l.caps.Discard:
		return hasThin
	}
	return fullyProvisioned
}

// unmaps reports whether blocks can be given back.
func (l *LUN) unmaps() bool { return l.provisioning() == hasThin }

// thin reports whether there may be blocks without space behind them. A
// write-protected disk has them too, and who copies it wants to know: it need
// not read them.
func (l *LUN) thin() bool { return l.unmaps() || l.caps.ReadOnly }

// Stats returns the counters.
func (l *LUN) Stats() Stats {
	c := &l.stats
	return Stats{
		Reads: c.reads.Load(), Writes: c.writes.Load(),
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(),
		Flushes: c.flushes.Load(), Errors: c.errors.Load(),
	}
}

// Flush brings everything that was written before to stable storage.
func (l *LUN) Flush() error {
	l.stats.flushes.Add(1)
	l.dirty.Store(false) // before the flush, or it would forget writes meanwhile
	err := l.disk.Flush()
	if err != nil {
		l.dirty.Store(true)
	}
	return err
}

// wrote notes that the cache may hold what the medium does not. It is called
// after the change and before anybody is told of it.
func (l *LUN) wrote() {
	if !l.dirty.Load() {
		l.dirty.Store(true)
	}
}

// bytes is the size of n blocks.
func (l *LUN) bytes(n uint32) int64 { return int64(n) << l.shift }

// inBlocks is the number of whole blocks in n bytes.
func (l *LUN) inBlocks(n int64) uint32 { return uint32(n >> l.shift) }

func (l *LUN) blockSize() int { return 1 << l.shift }

// offset is the first byte of a block that checkRange has accepted.
func (l *LUN) offset(lba uint64) int64 { return int64(lba) << l.shift }

// checkRange refuses what is not within the disk. A range of no blocks may
// begin right behind the last one.
func (l *LUN) checkRange(lba, blocks uint64) error {
	if lba > l.blocks || blocks > l.blocks-lba {
		return errOutOfRange
	}
	return nil
}

// attach makes the logical unit tell i what happens.
func (l *LUN) attach(i *itl) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.itls = append(l.itls, i)
}

func (l *LUN) detach(i *itl) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.itls = slices.DeleteFunc(l.itls, func(other *itl) bool { return other == i })
	if l.cd != nil {
		l.cd.prevent(i, false)
	}
}

// nexuses are those attached now.
func (l *LUN) nexuses() []*itl {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.itls)
}

// abortAll ends the tasks of these nexuses for the sake of one. Every task is
// made outdated before the first is waited for.
func (l *LUN) abortAll(itls []*itl, by *itl) {
	for _, i := range itls {
		how := silently
		if i != by && l.modes()&modeTAS != 0 {
			how = withTaskAborted
		}
		i.outdate(how)
	}
	for _, i := range itls {
		i.drain()
	}
}

// clear is abortAll where those whose tasks end without a word learn it from a
// unit attention: SAM "Aborting commands".
func (l *LUN) clear(itls []*itl, by *itl) {
	for _, i := range itls {
		if i != by && i.tasks.Load() > 0 && l.modes()&modeTAS == 0 {
			i.raise(codeCommandsCleared)
		}
	}
	l.abortAll(itls, by)
}

// lockAll keeps all tasks off the disk until unlockAll.
func (l *LUN) lockAll() {
	l.mu.Lock()
	for _, i := range l.itls {
		i.gate.Lock()
	}
}

func (l *LUN) unlockAll() {
	for _, i := range l.itls {
		i.gate.Unlock()
	}
	l.mu.Unlock()
}

// reset is SAM "Logical unit reset", for the sake of one nexus.
func (l *LUN) reset(why senseCode, by *itl) {
	all := l.nexuses()
	l.abortAll(all, by)
	l.mode.Store(l.saved.Load())
	l.stopped.Store(false)
	l.holder.Store(nil)
	if l.cd != nil {
		l.cd.reset()
	}
	for _, i := range all {
		i.forgetCopies()
		i.raise(why)
	}
}

// powerOn is SAM "Power on", for the sake of one nexus: a reset after which
// there are no persistent reservations but those for which an initiator asked
// that (APTPL), and PRGENERATION begins anew.
func (l *LUN) powerOn(by *itl) {
	l.reset(codePowerOn, by)
	l.changing.Lock()
	defer l.changing.Unlock()
	r := reservations{}
	if was := l.reserved.Load(); was.persist {
		r = *was
		r.generation = 0
	}
	l.reserved.Store(&r)
}

// release gives back what n reserved by RESERVE (6), if anything.
func (l *LUN) release(n *Nexus) { l.holder.CompareAndSwap(n, nil) }
