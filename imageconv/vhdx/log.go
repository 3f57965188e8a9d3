package vhdx

import (
	"hash/crc32"
	"io"

	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/internal/le"
)

// "Log". It is a ring of sectors that holds entries, one after the other; each
// has descriptors of what is to be written where, and then the data. The entries
// that count, the active sequence, are those with the highest sequence numbers
// in a row; the last one tells where they begin.

const (
	logSector = 4 << 10

	entrySignature           = "loge"
	entryChecksum     le.U32 = 4
	entryLen          le.U32 = 8
	entryTail         le.U32 = 12
	entrySequence     le.U64 = 16
	entryDescriptors  le.U32 = 24
	entryGUID                = 32
	entryFlushedSize  le.U64 = 48
	entryLastSize     le.U64 = 56
	entryHeaderLen           = 64
	descriptorLen            = 32
	dataDescriptor           = "desc"
	zeroDescriptor           = "zero"
	descTrailing             = 4 // 4 bytes, "Data Descriptor"
	descLeading              = 8 // 8 bytes
	descZeroLen       le.U64 = 8 // "Zero Descriptor"
	descAt            le.U64 = 16
	descSequence      le.U64 = 24
	dataSignature            = "data" // "Data Sector"
	dataHigh          le.U32 = 4
	dataLow           le.U32 = logSector - 4
	dataLead                 = 8 // of a sector's data: from the descriptor, as is
	dataTrail                = 4 // this
	minLoggedOffset          = regions1At
	maxFile           uint64 = 128 << 40 // bytes, that a log may make of a file
	signatureLen             = 4
	sequenceHighShift        = 32
)

// Limits of what a log may cost. Hyper-V's and QEMU's logs have a MiB.
const (
	maxLog         = 64 << 20  // bytes
	maxDescriptors = 128 << 10 // in the active sequence
	// maxLogWork is how many times its own length of a log may be looked at
	// to find the active sequence: damaged entries can overlap.
	maxLogWork = 4
)

// logEntry is an entry that is not damaged.
type logEntry struct {
	at       int64 // in the log, bytes
	n        int64 // bytes
	tail     int64 // where its sequence begins, in the log
	sequence uint64
	count    int // descriptors
	flushed  uint64
	last     uint64
}

// logReader reads the log of an image.
type logReader struct {
	src  io.ReaderAt
	log  span
	id   guid
	work int64 // bytes that may be looked at yet
}

// replay returns the file as it is with its log replayed, how long that is, and
// how many entries were.
func replay(src io.ReaderAt, fileSize int64, h header) (io.ReaderAt, int64, int, error) {
	if h.logGUID == (guid{}) {
		return src, fileSize, 0, nil
	}
	if h.log.n > maxLog {
		return nil, 0, 0, unsupported("the image was not closed and has a log of %d bytes, the limit is %d: %s", h.log.n, maxLog, repair)
	}
	l := &logReader{src: src, log: h.log, id: h.logGUID, work: maxLogWork * h.log.n}
	active, err := l.active()
	if err != nil {
		return nil, 0, 0, err
	}
	if len(active) == 0 {
		return nil, 0, 0, corrupt("the image was not closed, and its log has no valid entry: %s", repair)
	}
	head := active[len(active)-1]
	switch {
	case head.flushed > uint64(fileSize):
		return nil, 0, 0, corrupt("the file has %d bytes, by its log it had %d: it is cut", fileSize, head.flushed)
	case head.last > maxFile:
		return nil, 0, 0, corrupt("the log wants a file of %d bytes, the limit is %d", head.last, maxFile)
	}
	size := max(fileSize, int64(head.last))
	var list []patch
	for _, e := range active {
		if list, err = l.appendPatches(list, e, size); err != nil {
			return nil, 0, 0, err
		}
	}
	return &patched{src: src, real: fileSize, size: size, patches: flatten(list)}, size, len(active), nil
}

// active finds the active sequence, "Log Replay": of all runs of valid entries
// with sequence numbers in a row that hold their own beginning, the one with the
// highest numbers, from that beginning on.
func (l *logReader) active() ([]logEntry, error) {
	var best []logEntry
	for at := int64(0); at < l.log.n; {
		run, err := l.sequence(at)
		if err != nil {
			return nil, err
		}
		if len(run) == 0 {
			at += logSector
			continue
		}
		head := run[len(run)-1]
		if from := indexOf(run, head.tail); from >= 0 && (best == nil || head.sequence > best[len(best)-1].sequence) {
			best = run[from:]
		}
		at += length(run)
	}
	return best, nil
}

// sequence reads the entries from at on that follow each other.
func (l *logReader) sequence(at int64) ([]logEntry, error) {
	var run []logEntry
	for room := l.log.n; room > 0; {
		e, ok, err := l.entry(at)
		if err != nil {
			return nil, err
		}
		if !ok || e.n > room || len(run) > 0 && e.sequence != run[len(run)-1].sequence+1 {
			break
		}
		run = append(run, e)
		room -= e.n
		at = (at + e.n) % l.log.n
	}
	return run, nil
}

func length(run []logEntry) int64 {
	n := int64(0)
	for _, e := range run {
		n += e.n
	}
	return n
}

// indexOf is which of the entries begins at, or -1.
func indexOf(run []logEntry, at int64) int {
	for i, e := range run {
		if e.at == at {
			return i
		}
	}
	return -1
}

// entry reads the entry at, if there is a good one.
func (l *logReader) entry(at int64) (e logEntry, ok bool, err error) {
	b := make([]byte, logSector)
	if err := l.read(b, at); err != nil {
		return e, false, err
	}
	e = logEntry{at: at, n: int64(entryLen.Get(b)), tail: int64(entryTail.Get(b)), sequence: entrySequence.Get(b),
		count: int(entryDescriptors.Get(b)), flushed: entryFlushedSize.Get(b), last: entryLastSize.Get(b)}
	switch {
	case string(b[:signatureLen]) != entrySignature || guid(b[entryGUID:]) != l.id:
		return e, false, nil
	case e.n == 0 || e.n%logSector != 0 || e.n > l.log.n || e.tail%logSector != 0 || e.tail >= l.log.n || e.sequence == 0:
		return e, false, nil
	case e.count > maxDescriptors || e.descriptorSectors()*logSector > e.n:
		return e, false, nil
	}
	sum, err := l.checksum(e, b)
	return e, sum == entryChecksum.Get(b), err
}

// descriptorSectors is how many sectors the header and the descriptors take.
func (e logEntry) descriptorSectors() int64 {
	return (entryHeaderLen + int64(e.count)*descriptorLen + logSector - 1) / logSector
}

// checksum is the CRC-32C of an entry whose first sector is b.
func (l *logReader) checksum(e logEntry, b []byte) (uint32, error) {
	if l.work -= e.n; l.work < 0 {
		return 0, corrupt("the log has too many damaged entries: %s", repair)
	}
	sum := checksum(b, entryChecksum)
	rest := make([]byte, logSector)
	for at := int64(logSector); at < e.n; at += logSector {
		if err := l.read(rest, e.at+at); err != nil {
			return 0, err
		}
		sum = crc32.Update(sum, castagnoli, rest)
	}
	return sum, nil
}

// read fills b, a sector, from offset at of the ring.
func (l *logReader) read(b []byte, at int64) error {
	return pages.ReadFull(l.src, b, l.log.off+at%l.log.n)
}

// appendPatches appends what the entry writes into a file of that size.
func (l *logReader) appendPatches(list []patch, e logEntry, size int64) ([]patch, error) {
	if len(list)+e.count > maxDescriptors {
		return nil, unsupported("a log of more than %d descriptors: %s", maxDescriptors, repair)
	}
	descriptors := make([]byte, e.descriptorSectors()*logSector)
	for at := int64(0); at < int64(len(descriptors)); at += logSector {
		if err := l.read(descriptors[at:][:logSector], e.at+at); err != nil {
			return nil, err
		}
	}
	next := e.at + int64(len(descriptors)) // the data sector that the next data descriptor means
	for i := range e.count {
		d := descriptors[entryHeaderLen+i*descriptorLen:][:descriptorLen]
		p, err := parseDescriptor(d, e, size)
		if err != nil {
			return nil, err
		}
		if string(d[:signatureLen]) == dataDescriptor {
			if next-e.at >= e.n {
				return nil, corrupt("log entry %d has more data descriptors than data", e.sequence)
			}
			if err := l.checkData(next, e); err != nil {
				return nil, err
			}
			p.data = l.log.off + next%l.log.n
			copy(p.lead[:], d[descLeading:])
			copy(p.trail[:], d[descTrailing:])
			next += logSector
		}
		list = append(list, p)
	}
	return list, nil
}

// parseDescriptor tells which range of the file a descriptor writes to.
func parseDescriptor(d []byte, e logEntry, size int64) (patch, error) {
	at, n := descAt.Get(d), uint64(logSector)
	switch string(d[:signatureLen]) {
	case dataDescriptor:
	case zeroDescriptor:
		n = descZeroLen.Get(d)
	default:
		return patch{}, corrupt("log entry %d has a descriptor %q", e.sequence, d[:signatureLen])
	}
	switch {
	case descSequence.Get(d) != e.sequence:
		return patch{}, corrupt("log entry %d has a descriptor of entry %d", e.sequence, descSequence.Get(d))
	case at%logSector != 0 || n%logSector != 0:
		return patch{}, corrupt("log entry %d writes %d bytes at %#x: must be in sectors of %d", e.sequence, n, at, logSector)
	case at < minLoggedOffset || at > uint64(size) || n > uint64(size)-at:
		return patch{}, corrupt("log entry %d writes %d bytes at %#x, outside of the file's %d", e.sequence, n, at, size)
	}
	return patch{off: int64(at), end: int64(at + n)}, nil
}

// checkData wants the data sector at offset at of the ring to be the entry's.
func (l *logReader) checkData(at int64, e logEntry) error {
	b := make([]byte, logSector)
	if err := l.read(b, at); err != nil {
		return err
	}
	sequence := uint64(dataHigh.Get(b))<<sequenceHighShift | uint64(dataLow.Get(b))
	if string(b[:signatureLen]) != dataSignature || sequence != e.sequence {
		return corrupt("log entry %d has no data sector at %#x of the log", e.sequence, at%l.log.n)
	}
	return nil
}
