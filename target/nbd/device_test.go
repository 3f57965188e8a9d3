package nbd

import (
	"iter"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/containerdisk/containerdisk/blockdev"
)

// waiting is a disk of which every n-th try would have to wait.
type waiting struct {
	blockdev.Device
	every   int           // 0: never
	gate    chan struct{} // what waits for, nil: nothing
	tries   atomic.Int32
	flushes atomic.Int32
}

func (d *waiting) wouldBlock() bool { return d.every > 0 && int(d.tries.Add(1))%d.every == 0 }

func (d *waiting) TryReadAt(p []byte, off int64) error {
	if d.wouldBlock() {
		clear(p) // undefined, says the contract
		return blockdev.ErrWouldBlock
	}
	return d.Device.TryReadAt(p, off)
}

func (d *waiting) TryWriteAt(p []byte, off int64) error {
	if d.wouldBlock() {
		return blockdev.ErrWouldBlock
	}
	return d.Device.TryWriteAt(p, off)
}

func (d *waiting) wait() {
	if d.gate != nil {
		<-d.gate
	}
}

func (d *waiting) ReadAt(p []byte, off int64) (int, error) {
	d.wait()
	return d.Device.ReadAt(p, off)
}

func (d *waiting) WriteAt(p []byte, off int64) (int, error) {
	d.wait()
	return d.Device.WriteAt(p, off)
}

func (d *waiting) Flush() error {
	d.wait()
	d.flushes.Add(1)
	return d.Device.Flush()
}

// striped is a disk whose every other sector is a hole, it says.
type striped struct{ *blockdev.Mem }

func (d *striped) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		for end := off + n; off < end; {
			e := blockdev.Extent{Off: off, Len: min(512-off%512, end-off), Kind: blockdev.Data}
			if off/512%2 == 1 {
				e.Kind = blockdev.Hole
			}
			if !yield(e, nil) {
				return
			}
			off = e.End()
		}
	}
}

func blocks(info os.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks }
