// Package imagetest is what every format package is tested with: annotated
// images with what must come of them, and what must hold for any file whatever
// is in it.
package imagetest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Vector is an annotated image in testdata/vectors. Its lines are
//
//	# a comment
//	expect: ok | reject: TEXT (by Open) | damaged: TEXT (by a read)
//	disk: LEN*HH ...     what the disk holds: LEN bytes HH each
//	map: KIND LEN, ...   its extents
//	include: FILE        another vector, with its disk and map
//	file: LEN            the file's length; otherwise it ends with its last byte
//	@OFFSET              where the next bytes go
//	HH...                bytes, that are metadata; "#" begins a comment
//	text: "STRING"       the same, as a quoted Go string
//	fill: OFFSET LEN*HH  bytes, that are data
type Vector struct {
	Name    string
	Expect  string // "ok", "reject", "damaged"
	Message string
	Disk    []byte
	Extents []blockdev.Extent
	File    []byte
	Meta    []int // offsets of the bytes of metadata

	at  int
	len int // of the file, or -1
}

// Open opens the image in file as the format under test does.
type Open func(file []byte) (blockdev.Source, error)

// LoadVectors reads testdata/vectors/*.hex of the package under test.
func LoadVectors(t testing.TB) []*Vector {
	t.Helper()
	paths, err := filepath.Glob("testdata/vectors/*.hex")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors found (%v)", err)
	}
	var all []*Vector
	for _, path := range paths {
		v := &Vector{Name: strings.TrimSuffix(filepath.Base(path), ".hex"), len: -1}
		if err := v.load(path); err != nil {
			t.Fatal(err)
		}
		v.finish()
		all = append(all, v)
	}
	return all
}

func (v *Vector) load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for i, line := range strings.Split(string(text), "\n") {
		if !strings.HasPrefix(line, "text: ") { // which may hold a "#"
			line, _, _ = strings.Cut(line, "#")
		}
		if err := v.line(filepath.Dir(path), strings.TrimSpace(line)); err != nil {
			return fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
	}
	return nil
}

func (v *Vector) line(dir, line string) (err error) {
	key, arg, _ := strings.Cut(line, ": ")
	switch {
	case line == "":
	case key == "expect":
		if v.Expect == "" { // that of the including file comes first
			v.Expect, v.Message, _ = strings.Cut(arg, ": ")
		}
	case key == "disk":
		v.Disk, err = parseRuns(arg)
	case key == "map":
		v.Extents, err = parseExtents(arg)
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
	case key == "text":
		var s string
		s, err = strconv.Unquote(arg)
		v.putMeta([]byte(s))
	case line[0] == '@':
		v.at, err = parseInt(strings.TrimSpace(line[1:]))
	default:
		var b []byte
		b, err = hex.DecodeString(strings.ReplaceAll(line, " ", ""))
		v.putMeta(b)
	}
	return err
}

func (v *Vector) putMeta(b []byte) {
	for i := range b {
		v.Meta = append(v.Meta, v.at+i)
	}
	v.put(b)
}

func (v *Vector) put(b []byte) {
	if n := v.at + len(b) - len(v.File); n > 0 {
		v.File = append(v.File, make([]byte, n)...)
	}
	v.at += copy(v.File[v.at:], b)
}

func (v *Vector) finish() {
	if v.len > len(v.File) {
		v.at = v.len
		v.put(nil)
	}
	if v.len >= 0 {
		v.File = v.File[:v.len]
		v.Meta = slices.DeleteFunc(v.Meta, func(at int) bool { return at >= v.len })
	}
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

// RunVectors wants of every vector what it expects.
func RunVectors(t *testing.T, open Open) {
	for _, v := range LoadVectors(t) {
		t.Run(v.Name, func(t *testing.T) { v.run(t, open) })
	}
}

func (v *Vector) run(t *testing.T, open Open) {
	src, err := open(v.File)
	switch v.Expect {
	case "ok":
		if err != nil {
			t.Fatal(err)
		}
		CheckDisk(t, src, v.Disk, v.Extents)
	case "reject":
		CheckError(t, err, v.Message)
	case "damaged":
		if err != nil {
			t.Fatal(err)
		}
		_, err = src.ReadAt(make([]byte, src.Size()), 0)
		CheckError(t, err, v.Message)
		if kind := blockdev.KindOf(err); kind != blockdev.KindCorrupt {
			t.Errorf("got %v, want a corrupt image", kind)
		}
	default:
		t.Fatalf("expect: %q", v.Expect)
	}
}

// CheckError wants a refusal of the image that says want.
func CheckError(t *testing.T, err error, want string) {
	t.Helper()
	var e *blockdev.Error
	if err == nil || !errors.As(err, &e) || want == "" || !strings.Contains(err.Error(), want) {
		t.Fatalf("got error %v, want a blockdev.Error that contains %q", err, want)
	}
	if e.Kind != blockdev.KindCorrupt && e.Kind != blockdev.KindUnsupported {
		t.Errorf("got %v, want corrupt or not supported", e.Kind)
	}
}

// CheckDisk reads the disk at once and in small pieces, and maps it.
func CheckDisk(t *testing.T, src blockdev.Source, want []byte, extents []blockdev.Extent) {
	t.Helper()
	if src.Size() != int64(len(want)) {
		t.Fatalf("got a disk of %d bytes, want %d", src.Size(), len(want))
	}
	for _, step := range []int{len(want), 512, 100, 7} {
		for off := 0; off < len(want); off += step {
			got := bytes.Repeat([]byte{0xa5}, min(step, len(want)-off))
			if n, err := src.ReadAt(got, int64(off)); err != nil || n != len(got) {
				t.Fatalf("read of %d bytes at %d: got %d, %v", len(got), off, n, err)
			}
			for i, b := range got {
				if b != want[off+i] {
					t.Fatalf("read of %d bytes at %d: byte %d is %#02x, want %#02x", len(got), off, off+i, b, want[off+i])
				}
			}
		}
	}
	var got []blockdev.Extent
	for e, err := range src.Extents(0, src.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e)
	}
	if fmt.Sprint(got) != fmt.Sprint(extents) {
		t.Errorf("extents: got %v, want %v", got, extents)
	}
}
