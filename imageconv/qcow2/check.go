package qcow2

import (
	"context"
	"fmt"
	"math"

	"github.com/containerdisk/containerdisk/internal/be"
)

// Check looks at all of an image's bookkeeping, as `qemu-img check` does: who
// uses each cluster of the file is counted and set beside the refcounts.
//
//	1. the tables that are found by the header: who they are, and which L2
//	   tables the L1 tables lead to
//	2. each L2 table once, however many snapshots share it
//	3. the copied flags of the active disk
//	4. every cluster: its refcount, and whether two use it that may not
//
// A damaged image must not cost more than a good one: an L2 table is read once,
// and tables that must not overlap are not read for more than the file's length.

// maxCheckClusters bounds the memory of a Check, which is four bytes and two
// bits a cluster of the file.
const maxCheckClusters = 12 << 20

// maxFindings is how many findings are kept as texts; all are counted.
const maxFindings = 100

// Health is what Check has found.
type Health struct {
	// Corruptions are entries that cannot be, clusters that two use, and
	// refcounts that are too low: writing to the image would do damage, and
	// some of the disk may not be what it was.
	Corruptions int64 `json:"corruptions"`
	// Leaks are clusters of the file that nothing uses but that have a
	// refcount, or one too high: lost space, and no more.
	Leaks int64 `json:"leaks"`
	// Findings are the first corruptions and leaks in words.
	Findings []string `json:"findings,omitempty"`

	Clusters   int64 `json:"clusters"`   // of the file
	Used       int64 `json:"used"`       // of them, by anything
	Data       int64 `json:"data"`       // entries of L2 tables that have data
	Compressed int64 `json:"compressed"` // of these
}

// Sound reports whether nothing is wrong but perhaps lost space.
func (h Health) Sound() bool { return h.Corruptions == 0 }

// Check checks the image's refcounts and tables, those of all snapshots
// included. An error means that it could not be done to the end.
func (r *Reader) Check(ctx context.Context) (Health, error) {
	n := (r.fileSize + r.geo.cluster - 1) >> r.geo.bits
	if n > maxCheckClusters {
		return Health{}, unsupported("the file has %d clusters, the limit for a check is %d: use qemu-img check", n, maxCheckClusters)
	}
	c := &checker{r: r, ctx: ctx, refs: make([]uint16, n), l2s: make([]uint16, n),
		meta: make([]uint64, (n+63)/64), budget: n << r.geo.bits, health: Health{Clusters: n}}
	err := c.run()
	return c.health, err
}

type checker struct {
	r      *Reader
	ctx    context.Context
	health Health

	refs []uint16 // who uses each cluster of the file, at most math.MaxUint16
	l2s  []uint16 // how many L1 entries lead to the L2 table in it
	meta []uint64 // a bit for each cluster: it has a table, of which there is one owner

	budget int64 // bytes that tables which must not overlap may still have
}

func (c *checker) run() error {
	for _, phase := range []func() error{c.header, c.refcountTable, c.l1Tables, c.bitmaps, c.l2Tables, c.copiedFlags, c.compare} {
		if err := phase(); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) corrupt(format string, a ...any) {
	c.health.Corruptions++
	c.find(format, a...)
}

func (c *checker) find(format string, a ...any) {
	if len(c.health.Findings) < maxFindings {
		c.health.Findings = append(c.health.Findings, fmt.Sprintf(format, a...))
	}
}

// use counts a use of the n bytes at off. It reports whether they are within
// the file.
func (c *checker) use(off, n int64, what string, a ...any) bool {
	if off < 0 || n < 0 || !within(off, n, int64(len(c.refs))<<c.r.geo.bits) {
		c.corrupt("%s, %d bytes at %#x, is not within the file", fmt.Sprintf(what, a...), n, off)
		return false
	}
	for i := off >> c.r.geo.bits; i<<c.r.geo.bits < off+n; i++ {
		c.refs[i] += min(1, math.MaxUint16-c.refs[i])
	}
	return true
}

// own is use for a table that nothing else may share. It reports whether the
// table can be read: within the file, and not more of them than it has room for.
func (c *checker) own(off, n int64, what string, a ...any) bool {
	if n > c.budget {
		c.corrupt("%s, %d bytes: the tables are larger than the file, so they overlap", fmt.Sprintf(what, a...), n)
		return false
	}
	if !c.use(off, n, what, a...) {
		return false
	}
	c.budget -= n
	for i := off >> c.r.geo.bits; i<<c.r.geo.bits < off+n; i++ {
		c.meta[i/64] |= 1 << (i % 64)
	}
	return true
}

func (c *checker) isMeta(i int64) bool { return c.meta[i/64]>>(i%64)&1 != 0 }

// entries calls visit for each of the n 64-bit entries of the table at off, of
// which the end may be cut off by the file's.
func (c *checker) entries(off, n int64, visit func(i int64, entry uint64)) error {
	buf := make([]byte, min(n*8, 64<<10))
	for done := int64(0); done < n; {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		b := buf[:min(int64(len(buf)), (n-done)*8)]
		b = b[:max(0, min(int64(len(b)), c.r.fileSize-off-done*8))]
		if len(b) < 8 {
			return nil
		}
		if err := readFull(c.r.src, b, off+done*8); err != nil {
			return err
		}
		for ; len(b) >= 8; b = b[8:] {
			visit(done, be.U64(0).Get(b))
			done++
		}
	}
	return nil
}

func (c *checker) header() error {
	c.own(0, c.r.geo.cluster, "the header")
	return nil
}

func (c *checker) refcountTable() error {
	h := c.r.header
	n := h.refcountClusters << c.r.geo.bits
	if n == 0 || h.refcountOffset == 0 {
		c.corrupt("there is no refcount table")
		return nil
	}
	if !c.own(h.refcountOffset, n, "the refcount table") {
		return nil
	}
	return c.entries(h.refcountOffset, n/8, func(i int64, entry uint64) {
		switch {
		case entry == 0:
		case entry&(1<<9-1) != 0 || entry > maxHostOffset:
			c.corrupt("refcount table, entry %d: reserved bits in %#x", i, entry)
		case entry%uint64(c.r.geo.cluster) != 0:
			c.corrupt("refcount table, entry %d: the block at %#x is not aligned to a cluster", i, entry)
		default:
			c.own(int64(entry), c.r.geo.cluster, "refcount block %d", i)
		}
	})
}

// l1Tables counts the L1 tables and what they lead to: that of the active disk,
// and those of the snapshots.
func (c *checker) l1Tables() error {
	h := c.r.header
	if err := c.l1Table("the L1 table", h.L1Offset, int64(h.L1Size)); err != nil {
		return err
	}
	at := h.SnapshotOffset
	for i := range h.Snapshots {
		s, n, err := c.r.snapshotAt(at, min(c.r.fileSize, h.SnapshotOffset+maxSnapshotTable))
		if err != nil {
			c.corrupt("entry %d of the snapshot table: %v", i, err)
			break
		}
		if err := c.l1Table(fmt.Sprintf("the L1 table of snapshot %.40q", s.Name), s.L1Offset, int64(s.L1Size)); err != nil {
			return err
		}
		at += n
	}
	if at > h.SnapshotOffset {
		c.own(h.SnapshotOffset, at-h.SnapshotOffset, "the snapshot table")
	}
	return nil
}

func (c *checker) l1Table(what string, off, n int64) error {
	if n == 0 || !c.own(off, n*8, "%s", what) {
		return nil
	}
	return c.entries(off, n, func(i int64, entry uint64) {
		e := l1Entry(entry)
		switch {
		case e.reserved() != 0:
			c.corrupt("%s, entry %d: reserved bits %#x", what, i, e.reserved())
		case e.offset()%c.r.geo.cluster != 0:
			c.corrupt("%s, entry %d: the L2 table at %#x is not aligned to a cluster", what, i, e.offset())
		case e.offset() == 0:
		case c.use(e.offset(), c.r.geo.cluster, "%s, entry %d: the L2 table", what, i):
			k := e.offset() >> c.r.geo.bits
			c.l2s[k] += min(1, math.MaxUint16-c.l2s[k])
		}
	})
}

// "Bitmaps extension": a directory of tables of clusters.
const (
	bitmapCount     be.U32 = 0
	bitmapDirSize   be.U64 = 8
	bitmapDirOffset be.U64 = 16
	bitmapExtLen           = 24

	bitmapTableOffset be.U64 = 0
	bitmapTableSize   be.U32 = 8 // entries
	bitmapNameSize    be.U16 = 18
	bitmapExtraSize   be.U32 = 20
	bitmapHeaderLen          = 24

	maxBitmapDirectory = 64 << 20 // bytes; QEMU's limit
)

func (c *checker) bitmaps() error {
	ext := c.r.header.bitmaps
	if len(ext) < bitmapExtLen {
		return nil
	}
	off, n := bitmapDirOffset.Get(ext), bitmapDirSize.Get(ext)
	if n > maxBitmapDirectory || off > maxHostOffset {
		c.corrupt("a bitmap directory of %d bytes at %#x", n, off)
		return nil
	}
	if !c.own(int64(off), int64(n), "the bitmap directory") {
		return nil
	}
	at, end := int64(off), int64(off+n)
	for i := range bitmapCount.Get(ext) {
		var b [bitmapHeaderLen]byte
		if at+bitmapHeaderLen > end {
			c.corrupt("the bitmap directory ends before bitmap %d", i)
			return nil
		}
		if err := readFull(c.r.src, b[:], at); err != nil {
			return err
		}
		at += bitmapHeaderLen + (int64(bitmapNameSize.Get(b[:]))+int64(bitmapExtraSize.Get(b[:]))+7)&^7
		table, entries := bitmapTableOffset.Get(b[:]), int64(bitmapTableSize.Get(b[:]))
		if table > maxHostOffset || !c.own(int64(table), entries*8, "the table of bitmap %d", i) {
			continue
		}
		if err := c.entries(int64(table), entries, func(k int64, entry uint64) {
			if at := int64(entry & entryOffset); at != 0 {
				c.own(at, c.r.geo.cluster, "bitmap %d, cluster %d", i, k)
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// l2Tables counts what the L2 tables lead to, as often as they are led to.
func (c *checker) l2Tables() error {
	for i, times := range c.l2s {
		if times == 0 {
			continue
		}
		table := int64(i) << c.r.geo.bits
		if err := c.l2Table(table, func(k int64, e l2Entry, s subclusters) {
			c.entry(fmt.Sprintf("L2 table at %#x, entry %d", table, k), e, s, times)
		}); err != nil {
			return err
		}
	}
	return nil
}

// l2Table calls visit for each entry of an L2 table that is not empty.
func (c *checker) l2Table(off int64, visit func(i int64, e l2Entry, s subclusters)) error {
	if !c.r.header.ExtendedL2 {
		return c.entries(off, c.r.geo.cluster/8, func(i int64, entry uint64) {
			if entry != 0 {
				visit(i, l2Entry(entry), 0)
			}
		})
	}
	var first uint64
	return c.entries(off, c.r.geo.cluster/8, func(i int64, entry uint64) {
		switch {
		case i%2 == 0:
			first = entry
		case first != 0 || entry != 0:
			visit(i/2, l2Entry(first), subclusters(entry))
		}
	})
}

// entry counts what an L2 entry leads to.
func (c *checker) entry(where string, e l2Entry, s subclusters, times uint16) {
	off, n := e.offset(), c.r.geo.cluster
	inData := c.r.header.DataFile != nil
	switch {
	case e.compressed():
		if inData || s != 0 {
			c.corrupt("%s: a compressed cluster cannot be here", where)
			return
		}
		off, n = e.stream(c.r.geo.bits)
		n = min(n, max(c.r.fileSize-off, 1)) // the last sector may be cut
		c.health.Compressed++
	case c.r.checkEntry(e) != nil:
		c.corrupt("%s: %v", where, c.r.checkEntry(e))
		return
	case c.r.header.ExtendedL2 && s.allocated()&s.zero() != 0:
		c.corrupt("%s: subclusters %#08x are both data and zero", where, s.allocated()&s.zero())
	case s.allocated() != 0 && !c.r.allocated(e):
		c.corrupt("%s: subclusters %#08x have data but no cluster", where, s.allocated())
	}
	if off == 0 && !e.compressed() || inData {
		return
	}
	c.health.Data++
	if !c.use(off, n, "%s: the cluster", where) {
		return
	}
	for i := off >> c.r.geo.bits; i<<c.r.geo.bits < off+n; i++ {
		c.refs[i] += min(times-1, math.MaxUint16-c.refs[i])
	}
}

// copiedFlags checks that the copied flag of the active disk's entries says
// whether their cluster has one user: a writer goes by it.
func (c *checker) copiedFlags() error {
	h := c.r.header
	var tables []int64
	check := func(copied bool, off int64, format string, a ...any) {
		if i := off >> c.r.geo.bits; i < int64(len(c.refs)) && copied != (c.refs[i] == 1) {
			c.corrupt("%s: the copied flag is %t, but the cluster at %#x is used %d times", fmt.Sprintf(format, a...), copied, off, c.refs[i])
		}
	}
	flush := func() error {
		for _, table := range tables {
			if err := c.l2Table(table, func(k int64, e l2Entry, _ subclusters) {
				if !e.compressed() && e.offset() != 0 && e.offset()%c.r.geo.cluster == 0 && h.DataFile == nil {
					check(e&entryCopied != 0, e.offset(), "L2 table at %#x, entry %d", table, k)
				}
			}); err != nil {
				return err
			}
		}
		tables = tables[:0]
		return nil
	}
	const step = 4096 // entries of the L1 table at a time
	for first := int64(0); first < int64(h.L1Size); first += step {
		if err := c.entries(h.L1Offset+first*8, min(step, int64(h.L1Size)-first), func(i int64, entry uint64) {
			e := l1Entry(entry)
			if k := e.offset() >> c.r.geo.bits; e.offset() != 0 && e.offset()%c.r.geo.cluster == 0 && k < int64(len(c.refs)) {
				check(e&entryCopied != 0, e.offset(), "the L1 table, entry %d", first+i)
				if c.l2s[k] == 1 { // one that is shared would be read again and again
					tables = append(tables, e.offset())
				}
			}
		}); err != nil {
			return err
		}
		if err := flush(); err != nil {
			return err
		}
	}
	return nil
}

// compare sets the refcounts beside what was counted.
func (c *checker) compare() error {
	counts := refcounts{c: c}
	for i := range c.refs {
		used := uint64(c.refs[i])
		if used > 0 {
			c.health.Used++
		}
		if c.isMeta(int64(i)) && (used > 1 || c.l2s[i] > 0) || c.l2s[i] > 0 && used != uint64(c.l2s[i]) {
			c.corrupt("the cluster at %#x has a table and is used for something else", int64(i)<<c.r.geo.bits)
		}
		stored, err := counts.at(int64(i))
		if err != nil {
			return err
		}
		switch stored = min(stored, math.MaxUint16); {
		case stored < used:
			c.corrupt("the cluster at %#x has refcount %d and is used %d times", int64(i)<<c.r.geo.bits, stored, used)
		case stored > used:
			c.health.Leaks++
			c.find("the cluster at %#x has refcount %d and is used %d times: lost space", int64(i)<<c.r.geo.bits, stored, used)
		}
	}
	return nil
}

// refcounts reads the refcounts of clusters in order.
type refcounts struct {
	c     *checker
	first int64 // cluster that block begins with
	block []byte
	none  bool // there is no such block
}

// at is the refcount of the i-th cluster of the file.
func (f *refcounts) at(i int64) (uint64, error) {
	r := f.c.r
	order := r.header.refcountOrder
	perBlock := r.geo.cluster * 8 >> order
	if f.block == nil || i >= f.first+perBlock {
		if err := f.load(i / perBlock); err != nil {
			return 0, err
		}
		f.first = i / perBlock * perBlock
	}
	if f.none {
		return 0, nil
	}
	bit := (i - f.first) << order
	if order >= 3 {
		var v uint64
		for _, b := range f.block[bit/8:][:1<<(order-3)] {
			v = v<<8 | uint64(b)
		}
		return v, nil
	}
	return uint64(f.block[bit/8]>>(bit%8)) & (1<<(1<<order) - 1), nil
}

// load reads the refcount block of that number.
func (f *refcounts) load(number int64) error {
	r := f.c.r
	if f.block == nil {
		f.block = make([]byte, r.geo.cluster)
	}
	f.none = true
	at := r.header.refcountOffset + number*8
	if number*8 >= r.header.refcountClusters<<r.geo.bits || !within(at, 8, r.fileSize) {
		return nil
	}
	var b [8]byte
	if err := readFull(r.src, b[:], at); err != nil {
		return err
	}
	off := be.U64(0).Get(b[:])
	if off == 0 || off%uint64(r.geo.cluster) != 0 || off > maxHostOffset || int64(off) >= r.fileSize {
		return nil // a finding already, or no block
	}
	f.none = false
	n := min(r.geo.cluster, r.fileSize-int64(off))
	clear(f.block[n:])
	return readFull(r.src, f.block[:n], int64(off))
}
