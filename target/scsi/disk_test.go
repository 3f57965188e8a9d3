package scsi

import (
	"encoding/binary"
	"errors"
	"iter"
	"sync"

	"github.com/containerdisk/containerdisk/blockdev"
)

// testDisk is a thin disk in memory whose every operation can be made to fail
// or to want waiting.
type testDisk struct {
	caps blockdev.Caps

	mu     sync.Mutex
	b      []byte
	mapped []bool // by granule
	calls  []string
	fail   map[string]error // by operation
	slow   bool             // the Try methods would block
	hook   func(op string)  // called without mu before each operation
}

const granule = 4096

// newTestDisk returns a disk of n blocks of 512 bytes, each of which carries
// its number.
func newTestDisk(blocks int) *testDisk {
	d := &testDisk{
		b:      make([]byte, blocks*512),
		mapped: make([]bool, (blocks*512+granule-1)/granule),
		fail:   map[string]error{},
		caps: blockdev.Caps{Discard: true, DiscardZeroes: true, FastZero: true,
			Granularity: granule, PhysicalBlock: granule},
	}
	if n := copy(d.b, numbered()); n < len(d.b) {
		panic("a longer disk than there are numbered blocks")
	}
	for i := range d.mapped {
		d.mapped[i] = true
	}
	return d
}

// numbered are the blocks of the largest test disk.
var numbered = sync.OnceValue(func() (b []byte) {
	for i := range testBlocks {
		b = append(b, block(i)...)
	}
	return b
})

// block is what block i of a new testDisk holds.
func block(i int) []byte {
	b := make([]byte, 512)
	for k := 0; k < len(b); k += 8 {
		binary.BigEndian.PutUint32(b[k:], uint32(i)+0x1000)
		binary.BigEndian.PutUint32(b[k+4:], uint32(k)+1)
	}
	return b
}

// start notes an operation and returns its error.
func (d *testDisk) start(op string) error {
	if d.hook != nil {
		d.hook(op)
	}
	d.mu.Lock()
	d.calls = append(d.calls, op)
	return d.fail[op]
}

// count is the number of operations of that name so far.
func (d *testDisk) count(op string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if c == op {
			n++
		}
	}
	return n
}

// content is a copy of [off, off+n).
func (d *testDisk) content(off, n int) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]byte(nil), d.b[off:][:n]...)
}

func (d *testDisk) Size() int64         { return int64(len(d.b)) }
func (d *testDisk) Caps() blockdev.Caps { return d.caps }

func (d *testDisk) ReadAt(p []byte, off int64) (int, error) {
	defer d.mu.Unlock()
	if err := d.start("read"); err != nil {
		return 0, err
	}
	return copy(p, d.b[off:]), nil
}

func (d *testDisk) WriteAt(p []byte, off int64) (int, error) {
	defer d.mu.Unlock()
	if err := d.start("write"); err != nil {
		return 0, err
	}
	d.touch(off, int64(len(p)))
	return copy(d.b[off:], p), nil
}

func (d *testDisk) touch(off, n int64) {
	for g := off / granule; g*granule < off+n; g++ {
		d.mapped[g] = true
	}
}

func (d *testDisk) TryReadAt(p []byte, off int64) error {
	if d.slow {
		return blockdev.ErrWouldBlock
	}
	_, err := d.ReadAt(p, off)
	return err
}

func (d *testDisk) TryWriteAt(p []byte, off int64) error {
	if d.slow {
		return blockdev.ErrWouldBlock
	}
	_, err := d.WriteAt(p, off)
	return err
}

func (d *testDisk) Zero(off, n int64, mode blockdev.ZeroMode) error {
	defer d.mu.Unlock()
	if err := d.start("zero"); err != nil {
		return err
	}
	clear(d.b[off:][:n])
	if mode == blockdev.ZeroMayUnmap {
		d.unmap(off, n)
	} else {
		d.touch(off, n)
	}
	return nil
}

func (d *testDisk) Discard(off, n int64) error {
	defer d.mu.Unlock()
	if err := d.start("discard"); err != nil {
		return err
	}
	if d.caps.DiscardZeroes {
		clear(d.b[off:][:n])
	}
	d.unmap(off, n)
	return nil
}

// unmap frees the whole granules within a range.
func (d *testDisk) unmap(off, n int64) {
	for g := (off + granule - 1) / granule; (g+1)*granule <= off+n; g++ {
		d.mapped[g] = false
	}
}

func (d *testDisk) Flush() error {
	defer d.mu.Unlock()
	return d.start("flush")
}

func (d *testDisk) Close() error { return errors.New("a LUN does not close its disk") }

func (d *testDisk) Extents(off, n int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) {
		err := d.start("map")
		d.mu.Unlock()
		if err != nil {
			yield(blockdev.Extent{}, err)
			return
		}
		j := blockdev.NewJoin(yield)
		for end := off + n; off < end; {
			next := min(end, off-off%granule+granule)
			kind := blockdev.Hole
			if d.mapped[off/granule] {
				kind = blockdev.Data
			}
			if !j.Add(blockdev.Extent{Off: off, Len: next - off, Kind: kind}) {
				return
			}
			off = next
		}
		j.Done()
	}
}

var _ blockdev.Device = (*testDisk)(nil)
