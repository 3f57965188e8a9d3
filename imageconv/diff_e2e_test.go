//go:build e2e

package imageconv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// TestDifferentialQCOW2 makes images with qemu-img and qemu-io in random ways
// and wants the reader to find the bytes that qemu-img convert finds and the
// extents that qemu-img map tells. E2E_IMAGES sets how many, E2E_SEED from
// which seed on.
func TestDifferentialQCOW2(t *testing.T) {
	requireTools(t, "qemu-img", "qemu-io")
	count, first := envInt(t, "E2E_IMAGES", 300), envInt(t, "E2E_SEED", 1)
	sources := patternFiles(t)
	var seen tally
	for seed := first; seed < first+count; seed++ {
		im := randomImage(rand.New(rand.NewPCG(uint64(seed), 0)))
		seen.add(im)
		t.Run(fmt.Sprintf("seed%d_%s", seed, im), func(t *testing.T) {
			t.Parallel()
			im.make(t, sources)
			im.check(t)
		})
	}
	if count >= 100 {
		seen.check(t)
	}
}

// testImage is how an image is made.
type testImage struct {
	rng        *rand.Rand
	version    int
	bits       int
	size       int64
	zstd       bool
	extended   bool
	prealloc   string
	compressed bool       // begins with a compressed write
	batches    [][]string // qemu-io commands; a snapshot is made after each but the last

	touched map[int64]bool // clusters that were written, by number
	path    string
}

func randomImage(rng *rand.Rand) *testImage {
	im := &testImage{rng: rng, version: 2 + min(rng.IntN(4), 1), bits: 9 + rng.IntN(13), prealloc: "off", touched: make(map[int64]bool)}
	if rng.IntN(4) == 0 {
		im.bits = 16 // what nearly all images have
	}
	if im.version == 3 {
		im.zstd = rng.IntN(2) == 0
		im.extended = rng.IntN(3) == 0 && im.bits >= 14
	}
	if im.compressed = rng.IntN(2) == 0; !im.compressed && rng.IntN(3) == 0 {
		im.prealloc = []string{"metadata", "falloc"}[rng.IntN(2)]
	}
	// Up to some 40 clusters, of any number of sectors.
	im.size = (1 + rng.Int64N(40<<im.bits/512)) * 512
	if im.prealloc == "off" && rng.IntN(10) == 0 {
		im.size += 1 << (im.bits + 10) // far apart: several L2 tables
		im.size = min(im.size, 200<<20)
	}
	if im.prealloc != "off" {
		im.touch(0, im.size)
	}
	for range 1 + rng.IntN(3) {
		var cmds []string
		if im.compressed {
			cmds = append(cmds, im.compressedWrite()) // succeeds in an image without data
		}
		for range 1 + rng.IntN(25) {
			cmds = append(cmds, im.randomCommand())
		}
		im.batches = append(im.batches, cmds)
	}
	return im
}

func (im *testImage) String() string {
	s := fmt.Sprintf("v%d_%d", im.version, 1<<im.bits)
	if im.zstd {
		s += "_zstd"
	}
	if im.extended {
		s += "_extl2"
	}
	return s
}

// randomCommand is one qemu-io command.
func (im *testImage) randomCommand() string {
	cluster := int64(1) << im.bits
	sectors := im.size / 512
	off := im.rng.Int64N(sectors) * 512
	if im.rng.IntN(3) == 0 {
		off &^= cluster - 1
	}
	n := min(im.size-off, (1+im.rng.Int64N(3*cluster/512))*512)
	if im.rng.IntN(3) == 0 {
		n = min(im.size-off, cluster)
	}
	op := im.rng.IntN(10)
	if op < 6 {
		im.touch(off, n)
	}
	switch op {
	case 0, 1:
		return fmt.Sprintf("write -s {%d} %d %d", im.rng.IntN(patterns), off, n)
	case 2:
		return fmt.Sprintf("write -P %d %d %d", im.rng.IntN(256), off, n)
	case 3:
		return fmt.Sprintf("write -z %d %d", off, n)
	case 4:
		return fmt.Sprintf("write -z -u %d %d", off, n)
	case 5:
		return fmt.Sprintf("discard %d %d", off, n)
	}
	return im.compressedWrite()
}

// compressedWrite writes compressed clusters where nothing was written yet, or
// a plain one where no such place is found: QEMU 7.2 refuses to compress over a
// plain cluster, and sometimes damages the image when the old one is compressed.
func (im *testImage) compressedWrite() string {
	cluster := int64(1) << im.bits
	source := im.rng.IntN(patterns)
	for range 20 {
		off := im.rng.Int64N(im.size) &^ (cluster - 1)
		n := min(im.size-off, cluster*(1+im.rng.Int64N(3)))
		if !im.isTouched(off, n) {
			im.touch(off, n)
			return fmt.Sprintf("write -c -s {%d} %d %d", source, off, n)
		}
	}
	off := im.rng.Int64N(im.size) &^ 511
	im.touch(off, min(im.size-off, cluster))
	return fmt.Sprintf("write -s {%d} %d %d", source, off, min(im.size-off, cluster))
}

func (im *testImage) isTouched(off, n int64) bool {
	for c := off >> im.bits; c<<im.bits < off+n; c++ {
		if im.touched[c] {
			return true
		}
	}
	return false
}

func (im *testImage) touch(off, n int64) {
	for c := off >> im.bits; c<<im.bits < off+n; c++ {
		im.touched[c] = true
	}
}

func (im *testImage) make(t *testing.T, sources []string) {
	t.Helper()
	im.path = filepath.Join(t.TempDir(), "image.qcow2")
	opts := fmt.Sprintf("compat=%s,cluster_size=%d,preallocation=%s", []string{2: "0.10", 3: "1.1"}[im.version], 1<<im.bits, im.prealloc)
	if im.zstd {
		opts += ",compression_type=zstd"
	}
	if im.extended {
		opts += ",extended_l2=on"
	}
	tool(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", opts, im.path, strconv.FormatInt(im.size, 10))
	for i, cmds := range im.batches {
		args := []string{"-f", "qcow2"}
		for _, c := range cmds {
			for k, path := range sources {
				c = strings.ReplaceAll(c, fmt.Sprintf("{%d}", k), path)
			}
			args = append(args, "-c", c)
		}
		tool(t, "qemu-io", append(args, im.path)...)
		if i < len(im.batches)-1 {
			tool(t, "qemu-img", "snapshot", "-c", fmt.Sprintf("s%d", i), im.path)
		}
	}
}

// check compares what we read with what qemu-img says.
func (im *testImage) check(t *testing.T) {
	t.Helper()
	raw := im.path + ".raw"
	tool(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", im.path, raw)
	img, err := Open(im.path, Policy{})
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	want, err := os.ReadFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	if img.Format != QCOW2 || img.Size() != int64(len(want)) {
		t.Fatalf("got %s of %d bytes, want qcow2 of %d", img.Format, img.Size(), len(want))
	}
	if got := img.Info(); got.Version != im.version || got.ClusterSize != 1<<im.bits || got.Snapshots != len(im.batches)-1 {
		t.Errorf("info: got %+v, want version %d, clusters of %d, %d snapshots", got, im.version, 1<<im.bits, len(im.batches)-1)
	}
	im.checkReads(t, img, want)
	im.checkExtents(t, img)
	dst := blockdev.NewMem(img.Size())
	if err := Copy(t.Context(), dst, img, CopyOptions{Workers: 3}); err != nil {
		t.Fatalf("copy: %v", err)
	}
	got := make([]byte, dst.Size())
	if _, err := dst.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	diff(t, "copy", got, want, 0)
}

// checkReads reads the disk in pieces of random sizes.
func (im *testImage) checkReads(t *testing.T, img *Image, want []byte) {
	t.Helper()
	for off := 0; off < len(want); {
		n := min(len(want)-off, 1+im.rng.IntN(4<<im.bits))
		got := bytes.Repeat([]byte{0xa5}, n)
		if k, err := img.ReadAt(got, int64(off)); err != nil || k != n {
			t.Fatalf("read of %d bytes at %d: got %d, %v", n, off, k, err)
		}
		diff(t, "read", got, want[off:][:n], off)
		off += n
	}
}

func diff(t *testing.T, what string, got, want []byte, off int) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d is %#02x, want %#02x", what, off+i, got[i], want[i])
		}
	}
}

// checkExtents compares with qemu-img map. A range that QEMU calls data may
// read as zeros all the same: it asks the file below for holes as well.
func (im *testImage) checkExtents(t *testing.T, img *Image) {
	t.Helper()
	var entries []struct {
		Start, Length int64
		Data          bool
	}
	if err := json.Unmarshal(tool(t, "qemu-img", "map", "--output=json", "-f", "qcow2", im.path), &entries); err != nil {
		t.Fatal(err)
	}
	var want []blockdev.Extent
	for _, e := range entries {
		kind := blockdev.Hole
		if e.Data {
			kind = blockdev.Data
		}
		want = joined(want, blockdev.Extent{Off: e.Start, Len: e.Length, Kind: kind})
	}
	var got []blockdev.Extent
	for e, err := range img.Extents(0, img.Size()) {
		if err != nil {
			t.Fatalf("extents: %v", err)
		}
		if e.Kind == blockdev.Zero { // QEMU tells by "present", and by other rules
			e.Kind = blockdev.Hole
		}
		got = joined(got, e)
	}
	if !slices.Equal(got, want) {
		t.Errorf("extents:\n got %v\nwant %v", got, want)
	}
}

func joined(list []blockdev.Extent, e blockdev.Extent) []blockdev.Extent {
	if k := len(list) - 1; k >= 0 && list[k].Kind == e.Kind && list[k].End() == e.Off {
		list[k].Len += e.Len
		return list
	}
	return append(list, e)
}

// tally counts what the images have, so that a change of the generator cannot
// silently leave a feature untested.
type tally struct{ v2, v3, plain, zlib, zstd, extended, snapshot, prealloc, odd, small, large int }

func (c *tally) add(im *testImage) {
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	count(&c.v2, im.version == 2)
	count(&c.v3, im.version == 3)
	count(&c.plain, !im.compressed)
	count(&c.zlib, im.compressed && !im.zstd)
	count(&c.zstd, im.compressed && im.zstd)
	count(&c.extended, im.extended)
	count(&c.snapshot, len(im.batches) > 1)
	count(&c.prealloc, im.prealloc != "off")
	count(&c.odd, im.size%(1<<im.bits) != 0)
	count(&c.small, im.bits == 9)
	count(&c.large, im.bits == 21)
}

func (c *tally) check(t *testing.T) {
	t.Helper()
	t.Logf("made %+v", *c)
	for _, n := range []int{c.v2, c.v3, c.plain, c.zlib, c.zstd, c.extended, c.snapshot, c.prealloc, c.odd, c.small, c.large} {
		if n == 0 {
			t.Errorf("a feature is in no image: %+v", *c)
		}
	}
}

const patterns = 8

// patternFiles are files that qemu-io repeats to fill what it writes: half of
// them random, half compressible, none with a period that divides a cluster.
func patternFiles(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for i := range patterns {
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		b := make([]byte, 100_003+i)
		for k := range b {
			b[k] = byte(rng.Uint32())
			if i%2 == 1 {
				b[k] = byte(k/(50+i)) % 7
			}
		}
		path := filepath.Join(dir, fmt.Sprintf("p%d", i))
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// requireTools skips the test where a tool is missing, or fails it where all
// of them must be there.
func requireTools(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if os.Getenv("E2E_REQUIRE") == "all" {
			t.Fatalf("%s is not installed and E2E_REQUIRE=all", name)
		}
		t.Skipf("%s is not installed", name)
	}
}

func tool(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.Command(name, args...)
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, &out, &problems)
	}
	return out.Bytes()
}

func envInt(t *testing.T, name string, fallback int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return fallback
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
