package qcow2

import (
	"fmt"
	"iter"
	"time"

	"github.com/containerdisk/containerdisk/internal/be"
)

// "Snapshots": a table of entries of different lengths, one behind the other.
const (
	snapL1Offset  be.U64 = 0
	snapL1Size    be.U32 = 8 // entries
	snapIDLen     be.U16 = 12
	snapNameLen   be.U16 = 14
	snapSeconds   be.U32 = 16 // since 1970
	snapNanos     be.U32 = 20
	snapClock     be.U64 = 24 // of the guest, ns
	snapStateSize be.U32 = 32 // bytes of the state of the machine
	snapExtraLen  be.U32 = 36
	snapHeaderLen        = 40

	// "Optional extra data".
	extraStateSize   be.U64 = 0
	extraStateLen           = 8
	extraDiskSize    be.U64 = 8
	extraDiskSizeLen        = 16

	maxSnapshotExtra = 1024 // bytes; QEMU's limit
	// maxSnapshotTable bounds the table, and with it the names in it, bytes. A
	// usual entry has a hundred.
	maxSnapshotTable = 16 << 20
)

// Snapshot is an entry of the snapshot table: a disk as it once was.
type Snapshot struct {
	ID, Name string
	Time     time.Time
	Size     int64 // of the disk, bytes
	// StateSize is how much of the state of a running machine was kept, bytes.
	StateSize int64
	L1Offset  int64 // in the file, bytes
	L1Size    int   // entries
}

// Snapshots yields the snapshots of the image in the order of the table. What
// cannot be ends the sequence with an error.
func (r *Reader) Snapshots() iter.Seq2[Snapshot, error] {
	return func(yield func(Snapshot, error) bool) {
		at := r.header.SnapshotOffset
		end := min(r.fileSize, at+maxSnapshotTable)
		for i := range r.header.Snapshots {
			s, n, err := r.snapshotAt(at, end)
			if err != nil {
				yield(Snapshot{}, fmt.Errorf("entry %d of the snapshot table: %w", i, err))
				return
			}
			if !yield(s, nil) {
				return
			}
			at += n
		}
	}
}

// snapshotAt reads the entry at an offset of the table, which ends before end.
// It returns its length as well.
func (r *Reader) snapshotAt(at, end int64) (Snapshot, int64, error) {
	var b [snapHeaderLen]byte
	if at+snapHeaderLen > end {
		return Snapshot{}, 0, corrupt("the table does not end within %d bytes", end-r.header.SnapshotOffset)
	}
	if err := readFull(r.src, b[:], at); err != nil {
		return Snapshot{}, 0, err
	}
	extra := int64(snapExtraLen.Get(b[:]))
	id, name := int64(snapIDLen.Get(b[:])), int64(snapNameLen.Get(b[:]))
	n := snapHeaderLen + extra + id + name // and padding, which the last need not have
	if extra > maxSnapshotExtra {
		return Snapshot{}, 0, corrupt("%d bytes of extra data, the limit is %d", extra, maxSnapshotExtra)
	}
	if n > end-at {
		return Snapshot{}, 0, corrupt("the table does not end within %d bytes", end-r.header.SnapshotOffset)
	}
	rest := make([]byte, extra+id+name)
	if err := readFull(r.src, rest, at+snapHeaderLen); err != nil {
		return Snapshot{}, 0, err
	}
	size := uint64(r.header.Size)
	state := uint64(snapStateSize.Get(b[:]))
	if extra >= extraStateLen {
		state = extraStateSize.Get(rest)
	}
	if extra >= extraDiskSizeLen {
		size = extraDiskSize.Get(rest)
	}
	if size > 1<<63-1 || state > 1<<63-1 {
		return Snapshot{}, 0, corrupt("a disk of %d bytes with a state of %d", size, state)
	}
	s := Snapshot{
		ID:        string(rest[extra:][:id]),
		Name:      string(rest[extra+id:]),
		Time:      time.Unix(int64(snapSeconds.Get(b[:])), int64(snapNanos.Get(b[:]))).UTC(),
		Size:      int64(size),
		StateSize: int64(state),
		L1Offset:  int64(snapL1Offset.Get(b[:])),
		L1Size:    int(snapL1Size.Get(b[:])),
	}
	return s, (n + 7) &^ 7, r.geo.checkL1(fmt.Sprintf("snapshot %.100q has an L1 table", s.Name),
		snapL1Offset.Get(b[:]), snapL1Size.Get(b[:]), size, r.fileSize)
}

// useSnapshot makes r read a snapshot. As in QEMU, an ID goes before a name.
func (r *Reader) useSnapshot(which string) error {
	if r.header.DataFile != nil {
		return unsupported("a snapshot of an image whose data is in an external data file")
	}
	s, err := r.findSnapshot(which)
	if err != nil {
		return err
	}
	r.size, r.l1 = s.Size, s.L1Offset
	return nil
}

func (r *Reader) findSnapshot(which string) (Snapshot, error) {
	var named *Snapshot
	for s, err := range r.Snapshots() {
		switch {
		case err != nil:
			return Snapshot{}, err
		case s.ID == which:
			return s, nil
		case s.Name == which && named == nil:
			named = &s
		}
	}
	if named == nil {
		return Snapshot{}, unsupported("no snapshot has the ID or name %.100q; containerdisk inspect lists them", which)
	}
	return *named, nil
}
