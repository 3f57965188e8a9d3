package qcow2

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

func check(t testing.TB, file []byte) Health {
	t.Helper()
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	h, err := r.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestCheckWritten: what we write is sound, and all of it is used.
func TestCheckWritten(t *testing.T) {
	for name, o := range writeOptions() {
		for _, bits := range []int{9, 12, 16, 21} {
			o.ClusterBits = bits
			h := check(t, written(t, blockdev.MemOf(mixed(1<<20+512, uint64(bits))), o))
			if h.Corruptions != 0 || h.Leaks != 0 || h.Used != h.Clusters || h.Data == 0 || o.Plain == (h.Compressed > 0) {
				t.Errorf("%s, %d: %+v", name, bits, h)
			}
		}
	}
}

// TestCheckOfQEMU: an image that qemu-img made, with a snapshot that shares
// tables and clusters with the active disk.
func TestCheckOfQEMU(t *testing.T) {
	file, err := os.ReadFile("../testdata/small.qcow2")
	if err != nil {
		t.Fatal(err)
	}
	if h := check(t, file); h.Corruptions != 0 || h.Leaks != 0 || h.Used != h.Clusters || h.Compressed == 0 {
		t.Errorf("got %+v", h)
	}
}

// TestCheckFinds damages a sound image in one place each.
func TestCheckFinds(t *testing.T) {
	const bits = 12
	put := binary.BigEndian.PutUint64
	get := binary.BigEndian.Uint64
	type image struct {
		b                    []byte
		l1, l2, table, block int // where they are
	}
	for _, x := range []struct {
		name               string
		damage             func(f *image)
		corruptions, leaks bool
		want               string
	}{
		{"nothing", func(*image) {}, false, false, ""},
		{"a refcount too high", func(f *image) { f.b[f.block+2*5+1] = 2 }, false, true, "has refcount 2 and is used 1 times: lost space"},
		{"a refcount too low", func(f *image) { f.b[f.block+2*5+1] = 0 }, true, false, "has refcount 0 and is used 1 times"},
		{"an entry lost", func(f *image) { put(f.b[f.l2:], 0) }, false, true, "lost space"},
		{"two entries with one cluster", func(f *image) { put(f.b[f.l2+8:], get(f.b[f.l2:])) }, true, true, "is used 2 times"},
		{"data in the header", func(f *image) { put(f.b[f.l2:], 1<<62) }, true, true, "the cluster at 0x0 has a table and is used for something else"},
		{"data in the L1 table", func(f *image) { put(f.b[f.l2:], uint64(f.l1)|entryCopied) }, true, true, "has a table and is used for something else"},
		{"data in an L2 table", func(f *image) { put(f.b[f.l2:], uint64(f.l2)|entryCopied) }, true, true, "has a table and is used for something else"},
		{"an L2 table that is the L1 table", func(f *image) { put(f.b[f.l1:], uint64(f.l1)|entryCopied) }, true, true, "has a table and is used for something else"},
		{"copied flag missing", func(f *image) { put(f.b[f.l2:], get(f.b[f.l2:])&^entryCopied) }, true, false, "the copied flag is false"},
		{"copied flag of the L2 table missing", func(f *image) { put(f.b[f.l1:], get(f.b[f.l1:])&^entryCopied) }, true, false, "the L1 table, entry 0: the copied flag is false"},
		{"reserved bits in L1", func(f *image) { f.b[f.l1+7] |= 1 }, true, true, "the L1 table, entry 0: reserved bits 0x1"},
		{"reserved bits in L2", func(f *image) { f.b[f.l2+7] |= 2 }, true, true, "reserved bits 0x2"},
		{"L2 table not aligned", func(f *image) { f.b[f.l1+6] |= 2 }, true, true, "is not aligned to a cluster"},
		{"cluster not aligned", func(f *image) { f.b[f.l2+6] |= 2 }, true, true, "is not aligned"},
		{"L2 table outside", func(f *image) { put(f.b[f.l1:], 1<<40|entryCopied) }, true, true, "is not within the file"},
		{"cluster outside", func(f *image) { put(f.b[f.l2:], 1<<40|entryCopied) }, true, true, "is not within the file"},
		{"no refcount table", func(f *image) { hdrRefcountSize.Put(f.b, 0) }, true, false, "there is no refcount table"},
		{"refcount table outside", func(f *image) { hdrRefcountOffset.Put(f.b, 1<<40) }, true, false, "the refcount table, 4096 bytes at 0x10000000000, is not within the file"},
		{"refcount block not aligned", func(f *image) { f.b[f.table+6] |= 2 }, true, false, "the block at"},
		{"refcount block reserved", func(f *image) { f.b[f.table+7] |= 1 }, true, false, "reserved bits"},
		{"refcount block outside", func(f *image) { put(f.b[f.table:], 1<<40) }, true, false, "refcount block 0, 4096 bytes at 0x10000000000, is not within the file"},
		{"refcount blocks without end", func(f *image) {
			for at := f.table; at < f.table+1<<bits; at += 8 {
				put(f.b[at:], uint64(f.block))
			}
		}, true, true, "the tables are larger than the file"},
	} {
		t.Run(x.name, func(t *testing.T) {
			f := &image{b: written(t, blockdev.MemOf(mixed(40<<bits, 5)), WriteOptions{Plain: true, ClusterBits: bits})}
			f.l1 = int(hdrL1Offset.Get(f.b))
			f.l2 = int(l1Entry(get(f.b[f.l1:])).offset())
			f.table = int(hdrRefcountOffset.Get(f.b))
			f.block = int(get(f.b[f.table:]))
			for get(f.b[f.l2:]) == 0 || get(f.b[f.l2+8:]) == 0 { // where two clusters have data
				f.l2 += 8
			}
			x.damage(f)
			h := check(t, f.b)
			if x.corruptions != (h.Corruptions > 0) || x.leaks != (h.Leaks > 0) || x.corruptions == h.Sound() {
				t.Errorf("%d corruptions, %d leaks", h.Corruptions, h.Leaks)
			}
			if all := strings.Join(h.Findings, "\n"); !strings.Contains(all, x.want) {
				t.Errorf("want a finding with %q, got\n%.1000s", x.want, all)
			}
		})
	}
}

// TestCheckHostile: no image makes a check go on without end, or panic.
func TestCheckHostile(t *testing.T) {
	sane := func(t testing.TB, file []byte) {
		r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 32 << 20})
		if err != nil {
			return
		}
		h, err := r.Check(t.Context())
		if err != nil {
			imagetest.WantError(t, err)
		}
		if len(h.Findings) > maxFindings || h.Used > h.Clusters {
			t.Fatalf("got %d findings, %d of %d clusters used", len(h.Findings), h.Used, h.Clusters)
		}
	}
	imagetest.BitFlips(t, sane)
	t.Run("too large", func(t *testing.T) {
		file := append(build(t, make([]byte, 512), 9, Zlib), make([]byte, maxHeader)...)
		r, err := Open(bytes.NewReader(file), 1<<50, Options{MaxSize: 1 << 40})
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Check(t.Context())
		imagetest.CheckError(t, err, "use qemu-img check")
	})
	t.Run("snapshots that share their L1 table", func(t *testing.T) {
		disk := numbered(20<<12, 1<<12)
		names := make([]string, 9)
		disks := make([][]byte, 9)
		for i := range disks {
			disks[i] = disk
		}
		file, table := withSnapshots(t, 12, names, disks...)
		for i, at := 0, table; i < 8; i++ {
			snapL1Offset.Put(file[at:], 0)
			snapL1Size.Put(file[at:], uint32(len(file)/8))
			at += snapHeaderLen + 24
		}
		h := check(t, file)
		if all := strings.Join(h.Findings, "\n"); h.Sound() || !strings.Contains(all, "the tables are larger than the file") {
			t.Errorf("got\n%.1000s", all)
		}
	})
}

func TestCheckCancelled(t *testing.T) {
	file := written(t, blockdev.MemOf(mixed(1<<20, 1)), WriteOptions{})
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Check(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
