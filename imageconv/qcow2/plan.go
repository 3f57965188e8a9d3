package qcow2

import (
	"errors"
	"fmt"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/be"
)

// geometry is what follows from the cluster size and the kind of L2 entries.
// All are bytes but for the entry counts.
type geometry struct {
	bits       int   // cluster == 1 << bits
	cluster    int64 // of the disk, that an L2 entry maps
	subcluster int64 // cluster, without extended L2 entries
	entryLen   int64 // of an L2 entry
	page       int64 // of a table, that is read at once
	perPage    int64 // of the disk, that a page of an L2 table maps
	perL1      int64 // of the disk, that an L1 entry maps
}

func newGeometry(bits int, extended bool) geometry {
	g := geometry{bits: bits, cluster: 1 << bits, subcluster: 1 << bits, entryLen: 8}
	if extended {
		g.subcluster /= subclustersPerCluster
		g.entryLen = 16
	}
	g.page = min(g.cluster, maxPage)
	g.perPage = g.page / g.entryLen * g.cluster
	g.perL1 = g.cluster / g.entryLen * g.cluster
	return g
}

func (h Header) geometry() geometry { return newGeometry(h.ClusterBits, h.ExtendedL2) }

type runKind uint8

const (
	runHole       runKind = iota // zeros, and no space in the file
	runZero                      // zeros, with space in the file
	runData                      // in the file as it is
	runCompressed                // a part or all of one compressed cluster
	runBacking                   // in no table: what the backing file has there
)

// run is a piece of the disk that comes from one place.
type run struct {
	off, n int64 // bytes of the disk
	kind   runKind
	host   int64   // runZero, runData: the offset in the file, or the external data file
	entry  l2Entry // runCompressed
}

func (r *run) end() int64 { return r.off + r.n }

// extent is what the run holds; that of a runBacking only its file knows.
func (r *run) extent() blockdev.Extent {
	e := blockdev.Extent{Off: r.off, Len: r.n, Kind: blockdev.Data}
	switch r.kind {
	case runHole:
		e.Kind = blockdev.Hole
	case runZero:
		e.Kind = blockdev.Zero
	case runData, runCompressed, runBacking:
	}
	return e
}

// joins reports whether next goes on where r ends, in the file as well.
func (r *run) joins(next *run) bool {
	switch {
	case r.kind != next.kind:
		return false
	case r.kind == runHole, r.kind == runZero, r.kind == runBacking:
		return true
	}
	return r.kind == runData && r.host+r.n == next.host
}

// plan is a list of runs, in order, without gaps, neighbours joined. It is a
// value of fixed size so that a read need not allocate one. Once a run had no
// room, it takes no more.
type plan struct {
	buf  [16]run
	n    int
	full bool
}

func (p *plan) runs() []run { return p.buf[:p.n] }

func (p *plan) add(next *run) {
	switch {
	case p.full:
	case p.n > 0 && p.buf[p.n-1].joins(next):
		p.buf[p.n-1].n += next.n
	case p.n == len(p.buf):
		p.full = true
	default:
		p.buf[p.n] = *next
		p.n++
	}
}

// plan fills p with what the disk has from off on, at most n bytes of it, which
// are within the disk: at least one run. An error is about the cluster at off;
// one further on ends the plan before it.
func (r *Reader) plan(p *plan, off, n int64) error {
	*p = plan{}
	for end := off + n; off < end && !p.full; {
		next, err := r.planPage(p, off, end)
		switch {
		case err != nil && p.n > 0:
			return nil
		case err != nil:
			return rangeError("map", next, min(r.geo.cluster, end-next), err)
		}
		off = next
	}
	return nil
}

// Place is where in a file a piece of the disk is kept as it is.
type Place struct {
	Off, Len int64 // bytes; Len is 0 where the piece is not kept as it is
	DataFile bool  // it is the external data file, not the image's own
}

// Place tells where the disk's content from off on is, of n bytes at most,
// which are within the disk.
func (r *Reader) Place(off, n int64) (Place, error) {
	var p plan
	if err := r.plan(&p, off, n); err != nil {
		return Place{}, err
	}
	first := p.runs()[0]
	if first.kind != runData {
		return Place{}, nil
	}
	return Place{Off: first.host, Len: first.n, DataFile: r.header.DataFile != nil}, nil
}

// planPage plans from off to the end of what one page of an L2 table maps, or
// to end. It returns how far it came.
func (r *Reader) planPage(p *plan, off, end int64) (int64, error) {
	table, err := r.l2Table(off / r.geo.perL1)
	if err != nil {
		return off, err
	}
	if table == 0 {
		stop := min(end, (off/r.geo.perL1+1)*r.geo.perL1)
		p.add(&run{off: off, n: stop - off, kind: r.absent})
		return stop, nil
	}
	at := off % r.geo.perL1 / r.geo.perPage * r.geo.page
	page, err := r.tables.Get(uint64(table + at))
	if err != nil {
		return off, fmt.Errorf("L2 table %d at %#x: %w", off/r.geo.perL1, table, err)
	}
	stop := min(end, (off/r.geo.perPage+1)*r.geo.perPage)
	for off < stop && !p.full {
		i := off % r.geo.perPage / r.geo.cluster * r.geo.entryLen
		n := min(stop-off, r.geo.cluster-off%r.geo.cluster)
		if err := r.planCluster(p, page[i:][:r.geo.entryLen], off, n); err != nil {
			return off, fmt.Errorf("L2 table %d at %#x, entry for byte %d: %w", off/r.geo.perL1, table, off, err)
		}
		off += n
	}
	return off, nil
}

// l2Table is where in the file the i-th L2 table begins; 0: it does not exist.
func (r *Reader) l2Table(i int64) (int64, error) {
	at := r.l1 + i*8
	page, err := r.tables.Get(uint64(at &^ (r.geo.page - 1)))
	if err != nil {
		return 0, fmt.Errorf("L1 table at %#x: %w", r.l1, err)
	}
	e := l1Entry(be.U64(at & (r.geo.page - 1)).Get(page))
	switch table := e.offset(); {
	case e.reserved() != 0:
		return 0, corruptEntry("L1 entry %d has reserved bits %#x", i, e.reserved())
	case table%r.geo.cluster != 0:
		return 0, corruptEntry("L1 entry %d: the L2 table at %#x is not aligned to a cluster", i, table)
	case table > 0 && !within(table, r.geo.cluster, r.fileSize):
		return 0, corruptEntry("L1 entry %d: the L2 table at %#x is not within the file's %d bytes", i, table, r.fileSize)
	default:
		return table, nil
	}
}

// planCluster plans n bytes at off, within the cluster that the L2 entry in b
// maps.
func (r *Reader) planCluster(p *plan, b []byte, off, n int64) error {
	e := l2Entry(be.U64(0).Get(b))
	switch {
	case r.header.ExtendedL2:
		return r.planSubclusters(p, e, subclusters(be.U64(8).Get(b)), off, n)
	case e.compressed():
		return r.planCompressed(p, e, off, n)
	}
	if err := r.checkEntry(e); err != nil {
		return err
	}
	next := run{off: off, n: n, kind: runData, host: e.offset() + off%r.geo.cluster}
	switch {
	case e.zero() && !r.allocated(e):
		next.kind = runHole
	case e.zero():
		next.kind = runZero
	case !r.allocated(e):
		next.kind = r.absent
	}
	return r.addRun(p, &next)
}

// allocated reports whether an uncompressed cluster has a place. Offset 0 is
// none, but in an external data file it is the first one.
func (r *Reader) allocated(e l2Entry) bool {
	return e.offset() != 0 || r.header.DataFile != nil && e&entryCopied != 0
}

// checkEntry refuses an uncompressed cluster's entry that cannot be.
func (r *Reader) checkEntry(e l2Entry) error {
	switch {
	case e.reserved() != 0:
		return corruptEntry("reserved bits %#x", e.reserved())
	case e.zero() && (r.header.Version < 3 || r.header.ExtendedL2):
		return corruptEntry("reserved bits %#x", entryZero)
	case e.offset()%r.geo.cluster != 0:
		return corruptEntry("the cluster at %#x is not aligned", e.offset())
	}
	return nil
}

// addRun adds a run if its bytes are within the file. In an external data file
// they must be where they are on the disk: QEMU 5 and later want it so.
func (r *Reader) addRun(p *plan, next *run) error {
	switch {
	case next.kind != runData && next.kind != runZero:
	case r.header.DataFile != nil && next.host != next.off:
		return corruptEntry("the external data file has the bytes at %#x, not where the disk has them", next.host)
	case next.kind == runData && !within(next.host, next.n, r.dataSize):
		return corruptEntry("%d bytes at %#x are not within the file's %d bytes", next.n, next.host, r.dataSize)
	}
	p.add(next)
	return nil
}

func (r *Reader) planCompressed(p *plan, e l2Entry, off, n int64) error {
	if r.header.DataFile != nil {
		return corruptEntry("a compressed cluster where the data is in an external data file")
	}
	if host, _ := e.stream(r.geo.bits); host >= r.fileSize {
		return corruptEntry("the compressed cluster at %#x is not within the file's %d bytes", host, r.fileSize)
	}
	p.add(&run{off: off, n: n, kind: runCompressed, entry: e})
	return nil
}

// planSubclusters is planCluster for "Extended L2 Entries".
func (r *Reader) planSubclusters(p *plan, e l2Entry, s subclusters, off, n int64) error {
	if e.compressed() {
		if s != 0 {
			return corruptEntry("a compressed cluster has subclusters %#016x", uint64(s))
		}
		return r.planCompressed(p, e, off, n)
	}
	if err := r.checkEntry(e); err != nil {
		return err
	}
	switch {
	case s.allocated()&s.zero() != 0:
		return corruptEntry("subclusters %#08x are both data and zero", s.allocated()&s.zero())
	case s.allocated() != 0 && !r.allocated(e):
		return corruptEntry("subclusters %#08x have data but no cluster", s.allocated())
	}
	for end := off + n; off < end; {
		in := off % r.geo.cluster
		i := int(in / r.geo.subcluster)
		stop := min(end, off-in+int64(i+s.streak(i))*r.geo.subcluster)
		next := run{off: off, n: stop - off, kind: r.absent, host: e.offset() + in}
		switch {
		case s.allocated()>>i&1 != 0:
			next.kind = runData
		case s.zero()>>i&1 != 0 && r.allocated(e):
			next.kind = runZero
		case s.zero()>>i&1 != 0:
			next.kind = runHole
		}
		if err := r.addRun(p, &next); err != nil {
			return err
		}
		off = stop
	}
	return nil
}

// loadTable reads a page of an L1 or L2 table for the cache.
func (r *Reader) loadTable(at uint64) ([]byte, error) {
	// The last page of an L1 table need not be whole, or be within the file.
	b := make([]byte, r.geo.page)
	return b, readFull(r.src, b[:min(r.geo.page, r.fileSize-int64(at))], int64(at))
}

// within reports whether a file of size bytes has n bytes at off.
func within(off, n, size int64) bool { return off <= size && n <= size-off }

// corruptEntry is the cause of a KindCorrupt error; rangeError says where.
func corruptEntry(format string, a ...any) error { return fmt.Errorf(format, a...) }

// rangeError is the error for a range of the disk: of the kind that reading
// the file gave, or else the image is corrupt.
func rangeError(op string, off, n int64, err error) error {
	kind := blockdev.KindCorrupt
	if e := (*blockdev.Error)(nil); errors.As(err, &e) {
		kind = e.Kind
	}
	return &blockdev.Error{Op: op, Off: off, Len: n, Kind: kind, Err: err}
}
