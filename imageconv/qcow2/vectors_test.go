package qcow2

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// vector is an annotated image in testdata/vectors. Its lines are
//
//	# a comment
//	expect: ok | reject: TEXT (by Open) | damaged: TEXT (by a read)
//	disk: LEN*HH ...     what the disk holds: LEN bytes HH each
//	map: KIND LEN, ...   its extents
//	include: FILE        another vector, with its disk and map
//	file: LEN            the file's length; otherwise it ends with its last byte
//	@OFFSET              where the next bytes go
//	HH...                bytes, that are metadata; "#" begins a comment
//	fill: OFFSET LEN*HH  bytes, that are data
type vector struct {
	name    string
	expect  string // "ok", "reject", "damaged"
	message string
	disk    []byte
	extents []blockdev.Extent
	file    []byte
	meta    []int // offsets of the bytes of metadata

	at  int
	len int // of the file, or -1
}

func loadVectors(t testing.TB) []*vector {
	t.Helper()
	paths, err := filepath.Glob("testdata/vectors/*.hex")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors found (%v)", err)
	}
	var all []*vector
	for _, path := range paths {
		v := &vector{name: strings.TrimSuffix(filepath.Base(path), ".hex"), len: -1}
		if err := v.load(path); err != nil {
			t.Fatal(err)
		}
		v.finish()
		all = append(all, v)
	}
	return all
}

func (v *vector) load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		if err := v.line(filepath.Dir(path), strings.TrimSpace(line)); err != nil {
			return fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
	}
	return nil
}

func (v *vector) line(dir, line string) (err error) {
	key, arg, _ := strings.Cut(line, ": ")
	switch {
	case line == "":
	case key == "expect":
		if v.expect == "" { // that of the including file comes first
			v.expect, v.message, _ = strings.Cut(arg, ": ")
		}
	case key == "disk":
		v.disk, err = parseRuns(arg)
	case key == "map":
		v.extents, err = parseExtents(arg)
	case key == "include":
		err = v.load(filepath.Join(dir, arg))
	case key == "file":
		v.len, err = parseInt(arg)
	case key == "fill":
		at, runs, _ := strings.Cut(arg, " ")
		if v.at, err = parseInt(at); err == nil {
			var b []byte
			b, err = parseRuns(runs)
			v.put(b)
		}
	case line[0] == '@':
		v.at, err = parseInt(strings.TrimSpace(line[1:]))
	default:
		var b []byte
		b, err = hex.DecodeString(strings.ReplaceAll(line, " ", ""))
		for i := range b {
			v.meta = append(v.meta, v.at+i)
		}
		v.put(b)
	}
	return err
}

func (v *vector) put(b []byte) {
	if n := v.at + len(b) - len(v.file); n > 0 {
		v.file = append(v.file, make([]byte, n)...)
	}
	v.at += copy(v.file[v.at:], b)
}

func (v *vector) finish() {
	if v.len > len(v.file) {
		v.at = v.len
		v.put(nil)
	}
	if v.len >= 0 {
		v.file = v.file[:v.len]
	}
}

func (v *vector) open() (*Reader, error) {
	return Open(bytes.NewReader(v.file), int64(len(v.file)), Options{MaxSize: 1 << 40})
}

func parseInt(s string) (int, error) {
	n, err := strconv.ParseInt(s, 0, 32)
	return int(n), err
}

func parseRuns(s string) ([]byte, error) {
	var b []byte
	for _, f := range strings.Fields(s) {
		count, value, _ := strings.Cut(f, "*")
		n, err := parseInt(count)
		if err != nil {
			return nil, err
		}
		c, err := hex.DecodeString(value)
		if err != nil || len(c) != 1 {
			return nil, fmt.Errorf("not a byte: %q", f)
		}
		b = append(b, bytes.Repeat(c, n)...)
	}
	return b, nil
}

func parseExtents(s string) ([]blockdev.Extent, error) {
	kinds := map[string]blockdev.ExtentKind{"data": blockdev.Data, "zero": blockdev.Zero, "hole": blockdev.Hole}
	var list []blockdev.Extent
	off := int64(0)
	for f := range strings.SplitSeq(s, ", ") {
		word, count, _ := strings.Cut(f, " ")
		kind, ok := kinds[word]
		n, err := parseInt(count)
		if !ok || err != nil {
			return nil, fmt.Errorf("not an extent: %q", f)
		}
		list = append(list, blockdev.Extent{Off: off, Len: int64(n), Kind: kind})
		off += int64(n)
	}
	return list, nil
}

func TestVectors(t *testing.T) {
	for _, v := range loadVectors(t) {
		t.Run(v.name, func(t *testing.T) {
			r, err := v.open()
			switch v.expect {
			case "ok":
				if err != nil {
					t.Fatal(err)
				}
				checkDisk(t, r, v.disk, v.extents)
			case "reject":
				checkError(t, err, v.message)
			case "damaged":
				if err != nil {
					t.Fatal(err)
				}
				_, err = r.ReadAt(make([]byte, r.Size()), 0)
				checkError(t, err, v.message)
				if kind := blockdev.KindOf(err); kind != blockdev.KindCorrupt {
					t.Errorf("got %v, want a corrupt image", kind)
				}
			default:
				t.Fatalf("expect: %q", v.expect)
			}
		})
	}
}

func checkError(t *testing.T, err error, want string) {
	t.Helper()
	var e *blockdev.Error
	if err == nil || !errors.As(err, &e) || want == "" || !strings.Contains(err.Error(), want) {
		t.Fatalf("got error %v, want a blockdev.Error that contains %q", err, want)
	}
	if e.Kind != blockdev.KindCorrupt && e.Kind != blockdev.KindUnsupported {
		t.Errorf("got %v, want corrupt or not supported", e.Kind)
	}
}

// checkDisk reads the disk at once and in small pieces, and maps it.
func checkDisk(t *testing.T, r *Reader, want []byte, extents []blockdev.Extent) {
	t.Helper()
	if r.Size() != int64(len(want)) {
		t.Fatalf("got a disk of %d bytes, want %d", r.Size(), len(want))
	}
	for _, step := range []int{len(want), 512, 100, 7} {
		for off := 0; off < len(want); off += step {
			got := bytes.Repeat([]byte{0xa5}, min(step, len(want)-off))
			if n, err := r.ReadAt(got, int64(off)); err != nil || n != len(got) {
				t.Fatalf("read of %d bytes at %d: got %d, %v", len(got), off, n, err)
			}
			if !bytes.Equal(got, want[off:][:len(got)]) {
				t.Fatalf("read of %d bytes at %d: got % x, want % x", len(got), off, got, want[off:][:len(got)])
			}
		}
	}
	var got []blockdev.Extent
	for e, err := range r.Extents(0, r.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if fmt.Sprint(got) != fmt.Sprint(extents) {
		t.Errorf("extents: got %v, want %v", got, extents)
	}
}
