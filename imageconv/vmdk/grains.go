package vmdk

import (
	"fmt"
	"io"
	"sync"

	"github.com/containerdisk/containerdisk/imageconv/cache"
	"github.com/containerdisk/containerdisk/imageconv/inflate"
	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/imageconv/runs"
	"github.com/containerdisk/containerdisk/internal/le"
)

// "Stream-Optimized Compressed Sparse Extents": a grain marker, with the
// grain's stream behind it.
const (
	grainSector    le.U64 = 0 // of the disk
	grainDataSize  le.U32 = 8 // bytes
	grainMarkerLen        = 12

	// maxPacked is how many times a grain its stream may take. Deflate makes
	// a thousandth more of what it cannot compress.
	maxPacked = 2
)

// grainMemory bounds the decompressed grains that are kept for reads of less
// than a grain, in bytes; two are kept in any case.
const grainMemory = 4 << 20

// grains decompresses, for several goroutines at a time.
type grains struct {
	src      io.ReaderAt
	fileSize int64
	header   sparseHeader
	find     func(off int64) (host int64, err error) // the marker of the grain at off

	kept    *cache.Cache // by where they begin on the disk
	flate   sync.Pool    // of *inflate.Inflater
	buffers sync.Pool    // of *[]byte
}

func newGrains(src io.ReaderAt, fileSize int64, h sparseHeader, find func(off int64) (int64, error)) *grains {
	g := &grains{src: src, fileSize: fileSize, header: h, find: find}
	g.kept = cache.New(max(grainMemory/int(h.grain), 2), g.load)
	return g
}

// unpack is the Unpack of runs.Disk. A whole grain goes straight to p; for
// less, the grain is kept for the next read. The last grain of the disk may be
// stored whole or not, so that it is always kept.
func (g *grains) unpack(p []byte, off int64, r runs.Run) error {
	in := off % g.header.grain
	start := off - in
	if int64(len(p)) == g.header.grain {
		n, err := g.inflate(p, start, r.Host)
		if err == nil && n < len(p) {
			err = g.short(r.Host, n, len(p))
		}
		return err
	}
	b, err := g.kept.Get(uint64(start))
	if err != nil {
		return err
	}
	copy(p, b[in:])
	return nil
}

// load decompresses the grain that begins at that offset of the disk, as much of
// it as the disk has.
func (g *grains) load(key uint64) ([]byte, error) {
	start := int64(key)
	host, err := g.find(start)
	if err != nil {
		return nil, err
	}
	b := make([]byte, g.header.grain)
	n, err := g.inflate(b, start, host)
	if err != nil {
		return nil, err
	}
	if need := int(min(g.header.grain, g.header.size-start)); n < need {
		return nil, g.short(host, n, need)
	}
	return b, nil
}

func (g *grains) short(host int64, n, need int) error {
	return fmt.Errorf("the compressed grain at sector %d has %d bytes, must be %d", host/sectorSize, n, need)
}

// inflate decompresses the grain whose marker is at host to the beginning of b,
// and returns how much it has.
func (g *grains) inflate(b []byte, start, host int64) (int, error) {
	in := g.buffer()
	defer g.buffers.Put(in)
	marker := *in
	if err := pages.ReadFull(g.src, marker[:grainMarkerLen], host); err != nil {
		return 0, err
	}
	sector, size := grainSector.Get(marker), int64(grainDataSize.Get(marker))
	at := host + grainMarkerLen
	switch {
	case sector != uint64(start)/sectorSize:
		return 0, fmt.Errorf("the marker at sector %d is of the grain for sector %d, must be for %d", host/sectorSize, sector, start/sectorSize)
	case size == 0 || size > maxPacked*g.header.grain:
		return 0, fmt.Errorf("the compressed grain at sector %d takes %d bytes, the limit is %d", host/sectorSize, size, maxPacked*g.header.grain)
	case size > g.fileSize-at:
		return 0, fmt.Errorf("the compressed grain at sector %d, %d bytes, is not within the file's %d bytes", host/sectorSize, size, g.fileSize)
	}
	if int64(cap(*in)) < size {
		*in = make([]byte, size)
	}
	stream := (*in)[:size]
	if err := pages.ReadFull(g.src, stream, at); err != nil {
		return 0, err
	}
	z, _ := g.flate.Get().(*inflate.Inflater)
	if z == nil {
		z = new(inflate.Inflater)
	}
	defer g.flate.Put(z)
	n, err := z.Zlib(b, stream)
	if err != nil {
		err = fmt.Errorf("the compressed grain at sector %d: %w", host/sectorSize, err)
	}
	return n, err
}

// buffer returns a buffer for a stream of a grain's size, or larger.
func (g *grains) buffer() *[]byte {
	b, _ := g.buffers.Get().(*[]byte)
	if b == nil {
		b = new([]byte)
		*b = make([]byte, g.header.grain)
	}
	return b
}
