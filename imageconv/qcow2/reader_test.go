package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// numbered returns a disk that no offset error can hide in: every 8 bytes carry
// their own offset, and every third cluster is incompressible.
func numbered(size, cluster int) []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		if i/cluster%3 == 0 {
			binary.BigEndian.PutUint64(b[i:], rng.Uint64())
			continue
		}
		binary.BigEndian.PutUint64(b[i:], uint64(i))
	}
	return b
}

// build makes an image of the disk. Every second cluster is compressed.
func build(t testing.TB, disk []byte, bits int, c Compression) []byte {
	t.Helper()
	cluster := 1 << bits
	align := func(b []byte) []byte { return append(b, make([]byte, -len(b)&(cluster-1))...) }
	clusters := (len(disk) + cluster - 1) / cluster
	tables := (clusters*8 + cluster - 1) / cluster

	f := make([]byte, 112)
	hdrMagic.Put(f, magic)
	hdrVersion.Put(f, 3)
	hdrClusterBits.Put(f, uint32(bits))
	hdrSize.Put(f, uint64(len(disk)))
	hdrL1Size.Put(f, uint32(tables))
	hdrL1Offset.Put(f, uint64(cluster))
	hdrRefcountOrder.Put(f, 4)
	hdrLength.Put(f, 112)
	if c == Zstd {
		hdrIncompatible.Put(f, incompatCompression)
		hdrCompression.Put(f, uint8(Zstd))
	}
	f = align(f)
	l2 := len(align(make([]byte, tables*8))) + cluster
	for i := range tables {
		f = binary.BigEndian.AppendUint64(f, uint64(l2+i*cluster)|entryCopied)
	}
	f = append(f, make([]byte, l2+tables*cluster-len(f))...)
	compress := compressor(t, c)
	for i := range clusters {
		p := make([]byte, cluster)
		copy(p, disk[i*cluster:])
		if i%2 == 0 {
			f = align(f)
			binary.BigEndian.PutUint64(f[l2+i*8:], uint64(len(f))|entryCopied)
			f = append(f, p...)
			continue
		}
		p = compress(p)
		sectors := (len(f)%512+len(p)+511)/512 - 1
		binary.BigEndian.PutUint64(f[l2+i*8:], entryCompressed|uint64(sectors)<<(62-(bits-8))|uint64(len(f)))
		f = append(f, p...)
	}
	return f
}

// compressor returns a function that compresses a cluster.
func compressor(t testing.TB, c Compression) func(p []byte) []byte {
	t.Helper()
	if c == Zstd {
		z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		return func(p []byte) []byte { return z.EncodeAll(p, nil) }
	}
	var b bytes.Buffer
	z, err := flate.NewWriter(&b, 6)
	if err != nil {
		t.Fatal(err)
	}
	return func(p []byte) []byte {
		b.Reset()
		z.Reset(&b)
		_, err := z.Write(p)
		if err = errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
}

// TestConformance: the contract of a Source, with every third cluster missing.
func TestConformance(t *testing.T) {
	const bits = 12
	disk := numbered(40<<bits+300, 1<<bits)
	for i := 0; i < len(disk); i += 3 << bits {
		clear(disk[i:min(i+1<<bits, len(disk))])
	}
	file := build(t, disk, bits, Zlib)
	l2 := file[2<<bits:]
	for i := 0; i < 41; i += 3 {
		binary.BigEndian.PutUint64(l2[i*8:], 0)
	}
	blockdevtest.RunSource(t, disk, func(t *testing.T) blockdev.Source {
		r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
		if err != nil {
			t.Fatal(err)
		}
		return r
	})
}

func TestGeometry(t *testing.T) {
	for bits := minClusterBits; bits <= maxClusterBits; bits++ {
		for _, c := range []Compression{Zlib, Zstd} {
			t.Run(fmt.Sprintf("%d_%s", 1<<bits, c), func(t *testing.T) {
				disk := numbered(3<<bits+1000, 1<<bits) // two L2 tables where clusters are small
				if bits == minClusterBits {
					disk = numbered(100<<10+8, 1<<bits)
				}
				file := build(t, disk, bits, c)
				r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
				if err != nil {
					t.Fatal(err)
				}
				for off := 0; off < len(disk); {
					p := make([]byte, min(len(disk)-off, 1+(off*7+13)%(2<<bits)))
					if _, err := r.ReadAt(p, int64(off)); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(p, disk[off:][:len(p)]) {
						t.Fatalf("wrong bytes in %d at %d", len(p), off)
					}
					off += len(p)
				}
			})
		}
	}
}

// TestConcurrentReads reads from several goroutines, more clusters than the
// cache keeps.
func TestConcurrentReads(t *testing.T) {
	for _, c := range []Compression{Zlib, Zstd} {
		const bits = 12
		disk := numbered(600<<bits, 1<<bits)
		file := build(t, disk, bits, c)
		r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
		if err != nil {
			t.Fatal(err)
		}
		r.clusters.Limit = 3
		r.tables.Limit = 1
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(g), 0))
				for range 300 {
					off := rng.IntN(len(disk))
					p := make([]byte, 1+rng.IntN(min(3<<bits, len(disk)-off)))
					if _, err := r.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, disk[off:][:len(p)]) {
						t.Errorf("%s: read of %d bytes at %d is wrong (%v)", c, len(p), off, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
}

// flaky is a file whose reads fail while bad is set.
type flaky struct {
	io.ReaderAt
	bad   atomic.Bool
	reads atomic.Int64
}

var errFlaky = errors.New("bad sector")

func (f *flaky) ReadAt(p []byte, off int64) (int, error) {
	f.reads.Add(1)
	if f.bad.Load() {
		return 0, errFlaky
	}
	return f.ReaderAt.ReadAt(p, off)
}

// TestReadErrorIsNotKept: the storage below may recover, and what it said is
// neither a corrupt image nor remembered.
func TestReadErrorIsNotKept(t *testing.T) {
	const bits = 9
	disk := numbered(64<<bits, 1<<bits)
	src := &flaky{ReaderAt: bytes.NewReader(build(t, disk, bits, Zlib))}
	r, err := Open(src, int64(len(build(t, disk, bits, Zlib))), Options{MaxSize: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 100)
	for _, off := range []int64{0, 600} { // a plain cluster, a part of a compressed one
		src.bad.Store(true)
		_, err := r.ReadAt(p, off)
		if !errors.Is(err, errFlaky) || blockdev.KindOf(err) != blockdev.KindIO {
			t.Errorf("read at %d: got %v, want an I/O error", off, err)
		}
		src.bad.Store(false)
		if _, err := r.ReadAt(p, off); err != nil || !bytes.Equal(p, disk[off:][:100]) {
			t.Errorf("read at %d after the error: %v", off, err)
		}
	}
}

// TestSmallReadsDecompressOnce: reads of a part of a cluster share the work.
func TestSmallReadsDecompressOnce(t *testing.T) {
	const bits = 16
	disk := numbered(2<<bits, 1<<bits)
	file := build(t, disk, bits, Zlib)
	src := &flaky{ReaderAt: bytes.NewReader(file)}
	r, err := Open(src, int64(len(file)), Options{MaxSize: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	before := src.reads.Load()
	for off := int64(1 << bits); off < 2<<bits; off += 4096 {
		if _, err := r.ReadAt(make([]byte, 4096), off); err != nil {
			t.Fatal(err)
		}
	}
	if n := src.reads.Load() - before; n > 3 { // L1, L2, the stream
		t.Errorf("16 reads within a compressed cluster read the file %d times, want 3", n)
	}
}

func TestRange(t *testing.T) {
	file := build(t, numbered(4096, 512), 9, Zlib)
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []int64{-1, 4000, 4097, 1 << 62} {
		if _, err := r.ReadAt(make([]byte, 200), off); blockdev.KindOf(err) != blockdev.KindOutOfRange {
			t.Errorf("read of 200 bytes at %d: got %v, want out of range", off, err)
		}
		for _, err := range r.Extents(off, 200) {
			if blockdev.KindOf(err) != blockdev.KindOutOfRange {
				t.Errorf("extents of 200 bytes at %d: got %v, want out of range", off, err)
			}
		}
	}
	if _, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 4095}); blockdev.KindOf(err) != blockdev.KindUnsupported {
		t.Errorf("open with a limit of 4095 bytes: got %v, want not supported", err)
	}
}

func TestReadDoesNotAllocate(t *testing.T) {
	const bits = 16
	disk := numbered(2<<bits, 1<<bits)
	file := build(t, disk, bits, Zlib)
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 4096)
	for name, off := range map[string]int64{"plain": 0, "kept": 1 << bits} {
		if n := testing.AllocsPerRun(100, func() {
			if _, err := r.ReadAt(p, off); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: a read allocates %v times, want 0", name, n)
		}
	}
}
