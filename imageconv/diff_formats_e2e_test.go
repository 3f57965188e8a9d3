//go:build e2e

package imageconv

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// variant is a kind of image that qemu-img can make.
type variant struct {
	format Format
	opts   func(rng *rand.Rand) string
	packed bool  // cannot be written to, only be converted to
	unit   int64 // in which the image takes space, bytes
}

func fixed(opts string) func(*rand.Rand) string { return func(*rand.Rand) string { return opts } }

var variants = []variant{
	{VMDK, fixed("subformat=monolithicSparse"), false, 64 << 10},
	{VMDK, fixed("subformat=monolithicSparse,zeroed_grain=on,compat6=on"), false, 64 << 10},
	{VMDK, fixed("subformat=monolithicSparse,adapter_type=lsilogic,hwversion=10,toolsversion=11"), false, 64 << 10},
	{VMDK, fixed("subformat=monolithicFlat"), false, 4096},
	{VMDK, fixed("subformat=twoGbMaxExtentSparse"), false, 64 << 10},
	{VMDK, fixed("subformat=twoGbMaxExtentSparse,zeroed_grain=on"), false, 64 << 10},
	{VMDK, fixed("subformat=twoGbMaxExtentFlat"), false, 4096},
	{VMDK, fixed("subformat=streamOptimized"), true, 64 << 10},
	{VDI, fixed("static=off"), false, 1 << 20},
	{VDI, fixed("static=on"), false, 1 << 20},
	{QED, func(rng *rand.Rand) string { // QEMU 7.2 cannot open what it makes with tables of one cluster
		return fmt.Sprintf("cluster_size=%d,table_size=%d", 4096<<rng.IntN(9), 2<<rng.IntN(4))
	}, false, 64 << 10},
	{VHD, fixed("subformat=dynamic"), false, 2 << 20},
	{VHD, fixed("subformat=dynamic,force_size=on"), false, 2 << 20},
	{VHD, fixed("subformat=fixed"), false, 4096},
	{VHD, fixed("subformat=fixed,force_size=on"), false, 4096},
	{VHDX, func(rng *rand.Rand) string {
		return fmt.Sprintf("subformat=dynamic,block_size=%dM,log_size=%dM", 1<<rng.IntN(4), 1<<rng.IntN(3))
	}, false, 1 << 20},
	{VHDX, fixed("subformat=dynamic,block_size=1M,block_state_zero=off"), false, 1 << 20},
	{VHDX, fixed("subformat=fixed,block_size=1M"), false, 1 << 20},
}

// qemuName is what QEMU calls the format.
func (f Format) qemuName() string {
	if f == VHD {
		return "vpc"
	}
	return string(f)
}

// TestDifferentialFormats makes images of every kind with qemu-img and qemu-io
// in random ways and wants the readers to find the bytes that qemu-img convert
// finds and the extents that qemu-img map tells. E2E_IMAGES sets how many,
// E2E_SEED from which seed on.
func TestDifferentialFormats(t *testing.T) {
	requireTools(t, "qemu-img", "qemu-io")
	count, first := envInt(t, "E2E_IMAGES", 12*len(variants)), envInt(t, "E2E_SEED", 1)
	sources := patternFiles(t)
	for seed := first; seed < first+count; seed++ {
		v := variants[seed%len(variants)]
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		opts := v.opts(rng)
		t.Run(fmt.Sprintf("seed%d_%s_%s", seed, v.format, strings.NewReplacer(",", "_", "=", "-").Replace(opts)), func(t *testing.T) {
			t.Parallel()
			path := v.make(t, rng, opts, sources)
			compareWithQEMU(t, rng, v.format, path)
		})
	}
}

// make makes an image of up to some 40 units and returns its path.
func (v variant) make(t *testing.T, rng *rand.Rand, opts string, sources []string) string {
	t.Helper()
	size := (1 + rng.Int64N(40*max(v.unit, 64<<10)/512)) * 512
	if rng.IntN(6) == 0 {
		size += 2 << 30 // several extents, several tables
	}
	path := filepath.Join(t.TempDir(), "image."+string(v.format))
	target, format, create := path, v.format.qemuName(), []string{"create", "-q", "-f", v.format.qemuName(), "-o", opts}
	if v.packed {
		target, format, create = path+".in", "raw", []string{"create", "-q", "-f", "raw"}
	}
	tool(t, "qemu-img", append(create, target, strconv.FormatInt(size, 10))...)
	args := []string{"-f", format}
	for range rng.IntN(25) {
		args = append(args, "-c", v.command(rng, size, sources))
	}
	tool(t, "qemu-io", append(args, target)...)
	if v.packed {
		tool(t, "qemu-img", "convert", "-f", "raw", "-O", v.format.qemuName(), "-o", opts, target, path)
	}
	return path
}

// command is one qemu-io command.
func (v variant) command(rng *rand.Rand, size int64, sources []string) string {
	off := rng.Int64N(size/512) * 512
	if rng.IntN(3) == 0 {
		off &^= v.unit - 1
	}
	n := min(size-off, (1+rng.Int64N(3*v.unit/512))*512)
	if rng.IntN(3) == 0 {
		n = min(size-off, v.unit)
	}
	switch rng.IntN(8) {
	case 0, 1, 2, 3:
		return fmt.Sprintf("write -s %s %d %d", sources[rng.IntN(len(sources))], off, n)
	case 4:
		return fmt.Sprintf("write -P %d %d %d", rng.IntN(256), off, n)
	case 5:
		return fmt.Sprintf("write -z %d %d", off, n)
	case 6:
		return fmt.Sprintf("write -z -u %d %d", off, n)
	}
	return fmt.Sprintf("discard %d %d", off, n)
}

// compareWithQEMU compares what we read with what qemu-img says.
func compareWithQEMU(t *testing.T, rng *rand.Rand, format Format, path string) {
	t.Helper()
	raw := path + ".raw"
	tool(t, "qemu-img", "convert", "-f", format.qemuName(), "-O", "raw", path, raw)
	img := openImage(t, path, Policy{})
	want := openImage(t, raw, Policy{Format: Raw})
	if img.Format != format || img.Size() != want.Size() {
		t.Fatalf("got %s of %d bytes, want %s of %d", img.Format, img.Size(), format, want.Size())
	}
	if img.Format.Live() {
		t.Errorf("%s may be served from its file", img.Format)
	}
	wantSame(t, rng, img, want)
	wantSame(t, rng, want, img) // where qemu-img has data and we have none
	if format != VHDX {         // QEMU calls all of it data
		wantMap(t, img, format, path)
	}
}

// wantSame compares the bytes of a and b where a has data, in pieces of random
// sizes, and a little beyond.
func wantSame(t *testing.T, rng *rand.Rand, a, b blockdev.Source) {
	t.Helper()
	for e, err := range a.Extents(0, a.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		from, to := e.Off, e.End()
		if e.Kind.ReadsZero() {
			to = min(to, from+8192)
		}
		for from < to {
			n := min(to-from, 1+rng.Int64N(300<<10))
			p, q := make([]byte, n), make([]byte, n)
			if _, err := a.ReadAt(p, from); err != nil {
				t.Fatal(err)
			}
			if _, err := b.ReadAt(q, from); err != nil {
				t.Fatal(err)
			}
			diff(t, "read", p, q, int(from))
			from += n
		}
	}
}

// wantMap compares with qemu-img map what is data and what is none.
func wantMap(t *testing.T, img *Image, format Format, path string) {
	t.Helper()
	var entries []struct {
		Start, Length int64
		Data, Zero    bool // both: a hole in the file of an image that has a place for everything
	}
	if err := json.Unmarshal(tool(t, "qemu-img", "map", "--output=json", "-f", format.qemuName(), path), &entries); err != nil {
		t.Fatal(err)
	}
	var want, got []blockdev.Extent
	for _, e := range entries {
		kind := blockdev.Hole
		if e.Data && !e.Zero {
			kind = blockdev.Data
		}
		want = joined(want, blockdev.Extent{Off: e.Start, Len: e.Length, Kind: kind})
	}
	for e, err := range img.Extents(0, img.Size()) {
		if err != nil {
			t.Fatalf("extents: %v", err)
		}
		if e.Kind == blockdev.Zero {
			e.Kind = blockdev.Hole
		}
		got = joined(got, e)
	}
	if !slices.Equal(got, want) {
		t.Errorf("extents:\n got %v\nwant %v", got, want)
	}
}

// TestNothingOpenedE2E: an image that names a file of the host, as a parent, an
// extent or a backing file, is refused by us whatever QEMU does with it.
func TestNothingOpenedE2E(t *testing.T) {
	requireTools(t, "qemu-img")
	dir := t.TempDir()
	base := filepath.Join(dir, "base")
	tool(t, "qemu-img", "create", "-q", "-f", "vmdk", base+".vmdk", "1M")
	tool(t, "qemu-img", "create", "-q", "-f", "vmdk", "-b", base+".vmdk", "-F", "vmdk", filepath.Join(dir, "child.vmdk"))
	tool(t, "qemu-img", "create", "-q", "-f", "qed", "-b", base+".vmdk", "-F", "vmdk", filepath.Join(dir, "child.qed"))
	for name, want := range map[string]string{"child.vmdk": "differs from another", "child.qed": "backing file (\"" + base + ".vmdk\")"} {
		im, err := Open(filepath.Join(dir, name), Policy{})
		if err == nil {
			im.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", name, err, want)
		}
	}
	if err := os.Remove(base + ".vmdk"); err != nil {
		t.Fatal(err)
	}
}
