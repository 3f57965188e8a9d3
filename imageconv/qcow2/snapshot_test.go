package qcow2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// withSnapshots makes an image of which disks[0] is the active disk and the
// others are snapshots: number i has the ID "i" and the name names[i]. It
// returns where the snapshot table is.
func withSnapshots(t testing.TB, bits int, names []string, disks ...[]byte) (file []byte, table int) {
	t.Helper()
	cluster := 1 << bits
	align := func(b []byte) []byte { return append(b, make([]byte, -len(b)&(cluster-1))...) }
	var entries []byte
	for i, disk := range disks {
		f := build(t, disk, bits, Zlib)
		if i == 0 {
			file = align(f)
			continue
		}
		l1, n := len(file)+cluster, int(hdrL1Size.Get(f))
		moveTables(f, cluster, len(file))
		file = align(append(file, f...))
		e := make([]byte, snapHeaderLen)
		snapL1Offset.Put(e, uint64(l1))
		snapL1Size.Put(e, uint32(n))
		snapIDLen.Put(e, 1)
		snapNameLen.Put(e, uint16(len(names[i])))
		snapSeconds.Put(e, uint32(1e9+i))
		snapExtraLen.Put(e, extraDiskSizeLen)
		e = binary.BigEndian.AppendUint64(e, uint64(1000*i))
		e = binary.BigEndian.AppendUint64(e, uint64(len(disk)))
		e = fmt.Appendf(e, "%d%s", i, names[i])
		entries = append(entries, e...)
		entries = append(entries, make([]byte, -len(entries)&7)...)
	}
	table = len(file)
	hdrSnapshots.Put(file, uint32(len(disks)-1))
	hdrSnapshotOffset.Put(file, uint64(table))
	return append(file, bytes.TrimRight(entries, "\x00")...), table // as QEMU writes it
}

// moveTables changes the tables of an image from build as if all of it stood
// at base.
func moveTables(f []byte, cluster, base int) {
	add := func(b []byte) { binary.BigEndian.PutUint64(b, binary.BigEndian.Uint64(b)+uint64(base)) }
	for i := range int(hdrL1Size.Get(f)) {
		e := f[cluster+i*8:]
		l2 := int(l1Entry(binary.BigEndian.Uint64(e)).offset())
		for at := l2; at < l2+cluster; at += 8 {
			if binary.BigEndian.Uint64(f[at:]) != 0 {
				add(f[at:])
			}
		}
		add(e)
	}
}

func TestSnapshots(t *testing.T) {
	const bits = 12
	disks := [][]byte{numbered(20<<bits, 1<<bits), numbered(700<<bits, 2<<bits), bytes.Repeat([]byte("old "), 5<<bits/4)}
	names := []string{"", "2", "before the update"} // "2" is also an ID
	file, _ := withSnapshots(t, bits, names, disks...)
	open := func(t *testing.T, which string) *Reader {
		t.Helper()
		r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40, Snapshot: which})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for which, want := range map[string][]byte{"": disks[0], "1": disks[1], "2": disks[2], "before the update": disks[2]} {
		t.Run(which, func(t *testing.T) {
			blockdevtest.RunSource(t, want, func(t *testing.T) blockdev.Source { return open(t, which) })
		})
	}
	var got []string
	for s, err := range open(t, "").Snapshots() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %q %d %d %s", s.ID, s.Name, s.Size, s.StateSize, s.Time.Format(time.DateTime)))
	}
	want := `[1 "2" 2867200 1000 2001-09-09 01:46:41 2 "before the update" 20480 2000 2001-09-09 01:46:42]`
	if end := len(bytes.TrimRight(file, "\x00")); end%8 == 0 {
		t.Error("the last entry needs no padding, which is to be missing")
	}
	if fmt.Sprint(got) != want {
		t.Errorf("snapshots:\n got %v\nwant %v", got, want)
	}
	if _, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 30 << bits, Snapshot: "1"}); blockdev.KindOf(err) != blockdev.KindUnsupported {
		t.Errorf("a snapshot above the limit: got %v", err)
	}
	_, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40, Snapshot: "after"})
	imagetest.CheckError(t, err, `no snapshot has the ID or name "after"`)
}

// TestSnapshotWithoutExtra: what version 2 wrote has no disk size, which is then
// the image's, and no wide state size.
func TestSnapshotWithoutExtra(t *testing.T) {
	const bits = 12
	disk := numbered(5<<bits, 1<<bits)
	file, table := withSnapshots(t, bits, []string{"", "s"}, disk, disk)
	snapExtraLen.Put(file[table:], 0)
	snapStateSize.Put(file[table:], 77)
	copy(file[table+snapHeaderLen:], "1s")
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40, Snapshot: "s"})
	if err != nil {
		t.Fatal(err)
	}
	for s, err := range r.Snapshots() {
		if err != nil || s.Size != int64(len(disk)) || s.StateSize != 77 {
			t.Errorf("got %+v, %v", s, err)
		}
	}
}

// TestSnapshotsHostile changes one field of the table each; the active disk
// stays readable where only the table is wrong.
func TestSnapshotsHostile(t *testing.T) {
	const bits = 12
	disk := numbered(20<<bits, 1<<bits)
	for _, x := range []struct {
		name   string
		change func(file []byte, table int) []byte
		active bool // the active disk can be read
		want   string
	}{
		{"table not aligned", func(f []byte, at int) []byte { hdrSnapshotOffset.Put(f, uint64(at+8)); return f }, false, "not aligned"},
		{"table nowhere", func(f []byte, at int) []byte { hdrSnapshotOffset.Put(f, 0); return f }, false, "not aligned"},
		{"table behind the file", func(f []byte, at int) []byte { hdrSnapshotOffset.Put(f, 1<<40); return f }, false, "not within the file"},
		{"table at the end of numbers", func(f []byte, at int) []byte { hdrSnapshotOffset.Put(f, 1<<64-1<<bits); return f }, false, "not within the file"},
		{"more snapshots than entries", func(f []byte, at int) []byte { hdrSnapshots.Put(f, 65536); return f }, true, "the table does not end"},
		{"extra data above the limit", func(f []byte, at int) []byte { snapExtraLen.Put(f[at:], 1025); return f }, true, "1025 bytes of extra data"},
		{"extra data without end", func(f []byte, at int) []byte { snapExtraLen.Put(f[at:], 1<<32-1); return f }, true, "4294967295 bytes of extra data"},
		{"ID without end", func(f []byte, at int) []byte { snapIDLen.Put(f[at:], 65535); return f }, true, "the table does not end"},
		{"name without end", func(f []byte, at int) []byte { snapNameLen.Put(f[at:], 65535); return f }, true, "the table does not end"},
		{"cut header", func(f []byte, at int) []byte { return f[:at+30] }, true, "the table does not end"},
		{"L1 not aligned", func(f []byte, at int) []byte { snapL1Offset.Put(f[at:], 0x1001); return f }, true, "not aligned"},
		{"L1 outside", func(f []byte, at int) []byte { snapL1Offset.Put(f[at:], 1<<40); return f }, true, "not within the file"},
		{"L1 at the end of numbers", func(f []byte, at int) []byte { snapL1Offset.Put(f[at:], 1<<64-1<<bits); return f }, true, "not within the file"},
		{"L1 above the limit", func(f []byte, at int) []byte { snapL1Size.Put(f[at:], maxL1Bytes/8+1); return f }, true, "the limit is 4194304"},
		{"L1 too small", func(f []byte, at int) []byte { snapL1Size.Put(f[at:], 0); return f }, true, "which needs 1"},
		{"disk of 2^63", func(f []byte, at int) []byte {
			extraDiskSize.Put(f[at+snapHeaderLen:], 1<<63)
			return f
		}, true, "a disk of 9223372036854775808 bytes"},
		{"state of 2^63", func(f []byte, at int) []byte {
			extraStateSize.Put(f[at+snapHeaderLen:], 1<<63)
			return f
		}, true, "a state of 9223372036854775808"},
		{"disk larger than its table", func(f []byte, at int) []byte {
			extraDiskSize.Put(f[at+snapHeaderLen:], 1<<40)
			return f
		}, true, "which needs"},
	} {
		t.Run(x.name, func(t *testing.T) {
			file, table := withSnapshots(t, bits, []string{"", "s"}, disk, disk)
			file = x.change(file, table)
			_, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
			if x.active != (err == nil) {
				t.Errorf("the active disk: %v", err)
			}
			// A name that is last: every entry is read.
			_, err = Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40, Snapshot: "none such"})
			imagetest.CheckError(t, err, x.want)
		})
	}
}

// TestSnapshotTableBound: entries of the largest size do not make a table of
// more than the limit, and with it not more memory.
func TestSnapshotTableBound(t *testing.T) {
	const bits = 12
	entry := make([]byte, snapHeaderLen+65535+1)
	snapNameLen.Put(entry, 65535)
	snapL1Offset.Put(entry, 1<<bits)
	snapL1Size.Put(entry, 1)
	file := build(t, numbered(1<<bits, 1<<bits), bits, Zlib)
	file = append(file, make([]byte, -len(file)&(1<<bits-1))...)
	hdrSnapshots.Put(file, 300)
	hdrSnapshotOffset.Put(file, uint64(len(file)))
	file = append(file, bytes.Repeat(entry, 300)...)
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for s, err := range r.Snapshots() {
		if err != nil {
			imagetest.CheckError(t, err, "the table does not end within 16777216 bytes")
			continue
		}
		seen += len(s.Name)
	}
	if seen == 0 || seen > maxSnapshotTable {
		t.Errorf("names of %d bytes", seen)
	}
}
