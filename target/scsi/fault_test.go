package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Every kind of error of the disk, in every operation, ends as the sense data
// that is documented for it.
func TestEveryKind(t *testing.T) {
	kinds := []struct {
		kind        blockdev.Kind
		read, write string
	}{
		{blockdev.KindIO, "03/11/00", "03/0c/00"},
		{blockdev.KindNoSpace, "07/27/07", "07/27/07"},
		{blockdev.KindOutOfRange, "05/21/00", "05/21/00"},
		{blockdev.KindReadOnly, "07/27/00", "07/27/00"},
		{blockdev.KindUnsupported, "05/24/00", "05/24/00"},
		{blockdev.KindCorrupt, "03/11/00", "03/11/00"},
		{blockdev.KindClosed, "04/3e/01", "04/3e/01"},
	}
	commands := []struct {
		op  string
		cdb *CDB
		out []byte
	}{
		{"read", sparse(0x28, 0, 8), nil},
		{"read", sparse(0x2f, 0, 8), nil},
		{"read", sparse(0x2f, 2, 8), block(0)},
		{"read", sparse(0x2f, 6, 8), block(0)},
		{"read", sparse(0x2e, 0, 8), block(0)},
		{"read", sparse(0x8b, 0, 13), block(0)},
		{"read", sparse(0x89, 0, 13), make([]byte, 1024)},
		{"map", cdb(0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20), nil},
		{"write", sparse(0x2a, 0, 8), block(1)},
		{"write", sparse(0x2e, 0, 8), block(1)},
		{"write", sparse(0x8b, 0, 13), block(1)},
		{"write", sparse(0x89, 0, 13), append(block(0), block(1)...)},
		{"write", sparse(0x41, 0, 8), block(1)},
		{"zero", sparse(0x93, 1, 13), nil},
		{"discard", sparse(0x42, 0, 8), nil},
		{"flush", cdb(0x35), nil},
		{"flush", sparse(0x2a, 8, 8), block(1)},
		{"flush", cdb(0x1b), nil},
	}
	for _, k := range kinds {
		for _, c := range commands {
			t.Run(fmt.Sprintf("%s of %s by %02x", k.kind, c.op, c.cdb[0]), func(t *testing.T) {
				x := newBench(t, nil)
				out := c.out
				if c.op == "discard" {
					c.cdb[7], c.cdb[8], out = 0, 24, []byte{0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}
				}
				x.disk.fail[c.op] = fmt.Errorf("layer above: %w", &blockdev.Error{Op: c.op, Kind: k.kind})
				want := k.write
				if c.op == "read" || c.op == "map" {
					want = k.read
				}
				x.want(t, want, c.cdb, out)
				if s := x.lun.Stats(); s.Errors != 1 {
					t.Errorf("errors: got %d, want 1", s.Errors)
				}
				delete(x.disk.fail, c.op)
				x.want(t, "good", tur, nil) // the unit carries on
			})
		}
	}
}

// The INFORMATION field has the first block of the piece that failed, or the
// one within it that the disk names.
func TestInformationOfMediumErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want uint32
	}{
		{"plain", errors.New("somebody's error"), 0x20},
		{"names a block", &blockdev.Error{Op: "read", Off: 0x21*512 + 7, Len: 1, Kind: blockdev.KindIO}, 0x21},
		{"names another place", &blockdev.Error{Op: "read", Off: 1 << 40, Len: 1, Kind: blockdev.KindIO}, 0x20},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, nil)
			x.disk.fail["read"] = c.err
			task := &Task{}
			r := run(task, x.a, lun1, cdb(0x28, 0, 0, 0, 0, 0x20, 0, 0, 4), nil, 2048)
			if r.String() != "03/11/00" || r.sense[0] != 0xf0 || binary.BigEndian.Uint32(r.sense[3:]) != c.want {
				t.Errorf("got %v, sense % x, want 03/11/00 with %#x", r, r.sense, c.want)
			}
		})
	}
}

// An INFORMATION of more than 32 bits needs the descriptor format.
func TestInformationBeyond32Bits(t *testing.T) {
	f := fault{key: keyMediumError, code: codeReadError, info: 1 << 32, hasInfo: true}
	if b := f.appendTo(nil, fixedFormat); b[0] != 0x70 {
		t.Errorf("fixed: % x: VALID is set", b)
	}
	b := f.appendTo(nil, descriptorFormat)
	if b[10] != 0x80 || binary.BigEndian.Uint64(b[12:]) != 1<<32 {
		t.Errorf("descriptor: % x", b)
	}
	f.field = field{set: true, byte: 8}
	copied := fault{key: keyCopyAborted, hasSegment: true, end: copyTarget}
	for _, f := range []fault{f, copied} {
		if n := len(f.appendTo(nil, descriptorFormat)); n > maxSense || f.end != 0 && n != maxSense {
			t.Errorf("longest sense data: %d bytes, want %d", n, maxSense)
		}
	}
}

// A write that fails in the middle keeps what came before; the rest of its data
// is not taken.
func TestFailureInTheMiddle(t *testing.T) {
	x := newBench(t, nil)
	task := &Task{}
	task.Begin(x.a, lun1, cdb(0x2a, 0, 0, 0, 0, 0, 0, 0, 2))
	data := append(block(8), block(9)...)
	if err := task.TryWrite(data[:512], 0); err != nil {
		t.Fatal(err)
	}
	x.disk.fail["write"] = &blockdev.Error{Op: "write", Kind: blockdev.KindNoSpace}
	if err := task.TryWrite(data[512:], 512); err != ErrFailed {
		t.Fatalf("got %v, want %v", err, ErrFailed)
	}
	delete(x.disk.fail, "write")
	if err := task.Write(data[512:], 512); err != ErrFailed {
		t.Errorf("after a failure: got %v, want %v", err, ErrFailed)
	}
	task.Finish()
	if r := (result{status: task.Status(), sense: task.Sense()}); r.String() != "07/27/07" {
		t.Errorf("got %v, want 07/27/07", r)
	}
	if s := x.lun.Stats(); s.Writes != 0 || s.WriteBytes != 512 || s.Errors != 1 {
		t.Errorf("stats: %+v", s)
	}
}

// A transport that asks for what is not there, or leaves a piece out, does not
// get to a good status.
func TestMistakesOfTheTransport(t *testing.T) {
	p := make([]byte, 512)
	for _, c := range []struct {
		name string
		cdb  *CDB
		move func(*Task) error
	}{
		{"read beyond", read0, func(t *Task) error { return t.Read(p, 1) }},
		{"read before", read0, func(t *Task) error { return t.Read(p, -512) }},
		{"read far beyond", read0, func(t *Task) error { return t.Read(p, 1<<63-1) }},
		{"read of a write", write0, func(t *Task) error { return t.Read(p, 0) }},
		{"write beyond", write0, func(t *Task) error { return t.Write(make([]byte, 513), 0) }},
		{"write of a read", read0, func(t *Task) error { return t.Write(p, 0) }},
		{"a piece left out", write0, func(t *Task) error { return t.Write(p[:256], 256) }},
		{"a piece again", write0, func(t *Task) error { return errors.Join(t.Write(p[:256], 0), t.Write(p[:256], 0)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, nil)
			task := begin(t, x.a, c.cdb)
			if err := c.move(task); !errors.Is(err, ErrFailed) {
				t.Errorf("got %v, want %v", err, ErrFailed)
			}
			task.Finish()
			if r := (result{status: task.Status(), sense: task.Sense()}); r.String() != "04/44/00" {
				t.Errorf("got %v, want 04/44/00", r)
			}
		})
	}
}

// A task does not hold on to the buffer of a long parameter list.
func TestLongListsAreNotKept(t *testing.T) {
	x := newBench(t, nil)
	task := &Task{}
	run(task, x.a, lun1, cdb(0x55, 0x10, 0, 0, 0, 0, 0, 0xff, 0xff), make([]byte, 0xffff), 8192)
	if cap(task.data) < 0xffff {
		t.Fatalf("the list was not collected: %d bytes", cap(task.data))
	}
	task.Begin(x.a, lun1, read0)
	if cap(task.data) > maxKept {
		t.Errorf("%d bytes kept, limit %d", cap(task.data), maxKept)
	}
}
