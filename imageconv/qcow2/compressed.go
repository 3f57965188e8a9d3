package qcow2

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/containerdisk/containerdisk/imageconv/inflate"
)

// maxZstdWindow is the largest window in bytes that a zstd frame may ask for:
// what the zstd program decodes by default. It costs us no memory, because a
// cluster is decompressed in place.
const maxZstdWindow = 128 << 20

// readCompressed reads a run of a compressed cluster. A whole cluster goes
// straight to p; for less, the cluster is kept for the next read.
func (r *Reader) readCompressed(p []byte, run *run) error {
	if run.n == r.geo.cluster {
		return r.decompress(p, run)
	}
	b, err := r.clusters.Get(uint64(run.entry))
	if err != nil {
		return rangeError("read", run.off, run.n, err)
	}
	copy(p, b[run.off%r.geo.cluster:])
	return nil
}

func (r *Reader) decompress(p []byte, run *run) error {
	if err := r.decompressCluster(p, run.entry); err != nil {
		return rangeError("read", run.off, run.n, err)
	}
	return nil
}

// loadCluster decompresses a cluster for the cache.
func (r *Reader) loadCluster(key uint64) ([]byte, error) {
	b := make([]byte, r.geo.cluster)
	return b, r.decompressCluster(b, l2Entry(key))
}

// decompressCluster fills p, which is as long as a cluster.
func (r *Reader) decompressCluster(p []byte, e l2Entry) error {
	off, n := e.stream(r.geo.bits)
	n = min(n, r.fileSize-off) // the last sector of the file may be cut
	in := r.decompressor.buffer(int(n))
	defer r.decompressor.release(in)
	if err := readFull(r.src, *in, off); err != nil {
		return err
	}
	if err := r.decompressor.decompress(p, *in); err != nil {
		return fmt.Errorf("the compressed cluster at %#x: %w", off, err)
	}
	return nil
}

// decompressor makes clusters of streams, for several goroutines at a time.
type decompressor struct {
	zstd    *zstd.Decoder // or nil
	flate   sync.Pool     // of *inflate.Inflater
	buffers sync.Pool     // of *[]byte
}

func newDecompressor(c Compression) (*decompressor, error) {
	d := new(decompressor)
	if c == Zstd {
		var err error
		d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0),
			zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
	}
	return d, nil
}

// buffer returns n bytes, not much more than two clusters' worth: an L2 entry
// cannot ask for more.
func (d *decompressor) buffer(n int) *[]byte {
	b, _ := d.buffers.Get().(*[]byte)
	if b == nil {
		b = new([]byte)
	}
	if cap(*b) < n {
		*b = make([]byte, n)
	}
	*b = (*b)[:n]
	return b
}

func (d *decompressor) release(b *[]byte) { d.buffers.Put(b) }

// decompress fills p from the stream that begins in. It may end anywhere in it.
func (d *decompressor) decompress(p, in []byte) error {
	if d.zstd != nil {
		return d.unzstd(p, in)
	}
	z, _ := d.flate.Get().(*inflate.Inflater)
	if z == nil {
		z = new(inflate.Inflater)
	}
	defer d.flate.Put(z)
	return z.Inflate(p, in)
}

// zstdSlack is how much more room than it needs the library wants behind its
// output, bytes, to copy in blocks: that is a quarter of the time.
const zstdSlack = 16

var errLongCluster = errors.New("a zstd frame is larger than the cluster")

// unzstd fills p from the frames that in begins with. Each is cut out first:
// what follows may look like one more frame but belong to another cluster. The
// output goes by way of a buffer, because p has no room behind it.
func (d *decompressor) unzstd(p, in []byte) error {
	b := d.buffer(len(p) + zstdSlack)
	defer d.release(b)
	for len(p) > 0 {
		n, err := frameLen(in)
		if err != nil {
			return err
		}
		out, err := d.zstd.DecodeAll(in[:n], (*b)[:0:len(p)+zstdSlack])
		if err != nil {
			return err
		}
		if len(out) == 0 {
			return inflate.ErrShort
		}
		if len(out) > len(p) {
			return errLongCluster
		}
		p, in = p[copy(p, out):], in[n:]
	}
	return nil
}

// frameLen is how long the zstd frame is that b begins with: RFC 8878 §3.1.1.
func frameLen(b []byte) (int, error) {
	var h zstd.Header
	if err := h.Decode(b); err != nil {
		return 0, inflate.ErrShort
	}
	if h.Skippable {
		return 0, errors.New("a skippable zstd frame")
	}
	const (
		blockHeader  = 3 // bytes, little-endian: last, type (2 bits), size
		blockRLE     = 1 // one byte, repeated
		checksumSize = 4
	)
	for at := h.HeaderSize; at+blockHeader <= len(b); {
		word := uint32(b[at]) | uint32(b[at+1])<<8 | uint32(b[at+2])<<16
		size := int(word >> 3)
		if word>>1&3 == blockRLE {
			size = 1
		}
		at += blockHeader + size
		if last := word&1 != 0; !last {
			continue
		}
		if h.HasCheckSum {
			at += checksumSize
		}
		if at > len(b) {
			break
		}
		return at, nil
	}
	return 0, inflate.ErrShort
}
