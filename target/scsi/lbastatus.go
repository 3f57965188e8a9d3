package scsi

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/be"
)

// GET LBA STATUS CDB and parameter data, SBC.
const (
	statusLBA        be.U64 = 2
	statusAllocation be.U32 = 10
	statusHeader            = 8
	statusDescriptor        = 16

	// maxStatus is the most descriptors in one answer. It is about statusScan
	// bytes of the disk at least, and goes on for statusTime: a hole of many
	// terabytes is one descriptor, but the map of a whole disk may be long to
	// walk. An initiator asks again from where the answer ends.
	maxStatus  = 64
	statusScan = 1 << 30
	statusTime = 5 * time.Millisecond
)

// provisioningStatus is the PROVISIONING STATUS of a run of blocks.
type provisioningStatus byte

const (
	statusMapped      provisioningStatus = 0
	statusDeallocated provisioningStatus = 1
	statusAnchored    provisioningStatus = 2
)

// statusRun is a run of blocks of one status.
type statusRun struct {
	lba, end uint64
	status   provisioningStatus
}

// lbaStatus builds the reply while the command begins: the map is in memory or
// in the file system's caches, and the walk is bounded.
func (t *Task) lbaStatus() error {
	lba := statusLBA.Get(t.cdb[:])
	if lba >= t.lun.blocks {
		return errOutOfRange
	}
	allocation := statusAllocation.Get(t.cdb[:])
	want := max(1, min(maxStatus, (int64(allocation)-statusHeader)/statusDescriptor))
	runs, err := t.statusRuns(lba, int(want))
	if err != nil {
		return err
	}
	// PARAMETER DATA LENGTH counts what follows it.
	b := binary.BigEndian.AppendUint32(t.data, uint32(statusHeader-4+len(runs)*statusDescriptor))
	b = append(b, 0, 0, 0, 0)
	for _, r := range runs {
		b = binary.BigEndian.AppendUint64(b, r.lba)
		b = binary.BigEndian.AppendUint32(b, uint32(r.end-r.lba))
		b = append(b, byte(r.status), 0, 0, 0)
	}
	t.data = b
	return t.reply(allocation)
}

// statusRuns returns the first runs from lba on, no more than want of them.
func (t *Task) statusRuns(lba uint64, want int) ([]statusRun, error) {
	begun, end := time.Now(), t.lun.offset(t.lun.blocks)
	runs := make([]statusRun, 0, want)
	for off := t.lun.offset(lba); off < end; off += statusScan {
		n := min(end-off, statusScan)
		for e, err := range t.lun.disk.Extents(off, n) {
			if err != nil {
				return nil, t.lun.diskError(err, reading, off, n)
			}
			if runs = t.lun.addExtent(runs, lba, e); len(runs) > want {
				return runs[:want], nil
			}
		}
		// NUMBER OF LOGICAL BLOCKS has four bytes.
		if time.Since(begun) > statusTime || runs[len(runs)-1].end-lba > math.MaxUint32-statusScan {
			break
		}
	}
	return runs, nil
}

// addExtent appends the blocks of the next extent to the runs from lba on. A
// block that is in several extents is mapped if one of them is data.
func (l *LUN) addExtent(runs []statusRun, lba uint64, e blockdev.Extent) []statusRun {
	status := statusMapped // every block of a fully provisioned disk is
	if l.thin() {
		status = statusOf(e.Kind)
	}
	first := uint64(e.Off) >> l.shift
	end := uint64(e.End()+int64(l.blockSize())-1) >> l.shift
	if first < lba { // cannot be: extents are clipped
		first = lba
	}
	if n := len(runs); n > 0 && first < runs[n-1].end {
		last := &runs[n-1]
		shared := statusRun{first, last.end, mixed(last.status, status)}
		if last.end = first; last.lba == last.end {
			runs = runs[:n-1]
		}
		runs = joinRun(runs, shared)
		first = shared.end
	}
	if first < end {
		runs = joinRun(runs, statusRun{first, end, status})
	}
	return runs
}

func joinRun(runs []statusRun, r statusRun) []statusRun {
	if n := len(runs); n > 0 && runs[n-1].status == r.status {
		runs[n-1].end = r.end
		return runs
	}
	return append(runs, r)
}

// mixed is the status of a block whose parts have two.
func mixed(a, b provisioningStatus) provisioningStatus {
	if a == b {
		return a
	}
	if a == statusMapped || b == statusMapped {
		return statusMapped
	}
	return statusAnchored // zeros, some with space
}

func statusOf(k blockdev.ExtentKind) provisioningStatus {
	switch k {
	case blockdev.Hole:
		return statusDeallocated
	case blockdev.Zero:
		return statusAnchored
	case blockdev.Data:
	}
	return statusMapped
}
