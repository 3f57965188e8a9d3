package overlay

import (
	"iter"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Part is a piece of the disk, and whether it needs the base.
type Part struct {
	Off, Len int64 // bytes
	Local    bool  // reading it needs only the store, or nothing
}

// Hydration yields which parts of [off, off+n) need the base no more: in
// order, without gaps, neighbours joined. What the base knows to be zeros is
// local, for nothing will be copied there.
func (d *Disk) Hydration(off, n int64) iter.Seq2[Part, error] {
	return func(yield func(Part, error) bool) {
		j := blockdev.NewJoin(func(e blockdev.Extent, err error) bool {
			return yield(Part{e.Off, e.Len, e.Kind != blockdev.Data}, err)
		})
		if err := d.readable("map", off, n); err != nil {
			j.Fail(err)
			return
		}
		for at := off; at < off+n; {
			k, present := off+n-at, true
			if !d.plain.Load() {
				k, present = d.plan(at, off+n-at)
			}
			more, err := d.addParts(j, at, k, present)
			if err != nil {
				j.Fail(asError("map", off, n, err))
				return
			}
			if !more {
				return
			}
			at += k
		}
		j.Done()
	}
}

func (d *Disk) addParts(j *blockdev.Join, off, n int64, present bool) (bool, error) {
	if present || !d.base.enter() {
		return j.Add(blockdev.Extent{Off: off, Len: n, Kind: blockdev.Hole}), nil
	}
	defer d.base.leave()
	return addAll(j, d.base.extents(off, n))
}
