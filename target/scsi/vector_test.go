package scsi

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// A vector file is a sequence of commands to one logical unit. A line is
//
//	# a comment, also behind anything else
//	disk: thin | full | stale | readonly | cdrom | 4k   (first line; 4096 blocks of 512 bytes)
//	lun: 8 bytes of hex                   (for all that follows; default LUN 1)
//	cdb: bytes                            (begins a command)
//	out: bytes                            (its data-out)
//	in: bytes                             (its data-in must be these)
//	expect: good | 05/24/00 | 05/24/00 byte 1 | … byte 1 bit 7 | … list byte 8 | … info 27 |
//	        RESERVATION CONFLICT
//
// and further bytes on lines that begin with white space. Bytes are pairs of
// hex digits, "text", "text"~16 (padded with spaces), xx*1000 (repeated) or @5
// (what block 5 holds on a new disk).
type vector struct {
	line    int
	lun     uint64
	cdb     CDB
	cdbLen  int // of what has been given
	out, in []byte
	hasIn   bool
	expect  string
}

func TestVectors(t *testing.T) {
	files, err := filepath.Glob("testdata/vectors/*.hex")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d vector files, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".hex"), func(t *testing.T) {
			disk, vectors := parseVectors(t, file)
			x := newBench(t, vectorDisk(t, disk))
			for _, v := range vectors {
				v.check(t, do(x.a, v.lun, &v.cdb, v.out))
				x.settle() // what IMMED leaves running
			}
		})
	}
}

func vectorDisk(t testing.TB, name string) func(*testDisk, *LUNOptions) {
	switch name {
	case "thin":
		return nil
	case "full":
		return func(d *testDisk, _ *LUNOptions) {
			d.caps = blockdev.Caps{Granularity: granule, PhysicalBlock: granule}
		}
	case "stale":
		return func(d *testDisk, _ *LUNOptions) { d.caps.DiscardZeroes = false }
	case "readonly":
		return readOnlyDisk
	case "cdrom":
		return func(_ *testDisk, o *LUNOptions) { o.Type = CDROM }
	case "4k":
		return func(_ *testDisk, o *LUNOptions) { o.BlockSize = 4096 }
	}
	t.Fatalf("disk: %q", name)
	return nil
}

func (v vector) check(t *testing.T, r result) {
	t.Helper()
	if got := describe(r, v.expect); got != v.expect {
		t.Errorf("line %d: cdb % x: got %q (sense % x), want %q", v.line, v.cdb[:], got, r.sense, v.expect)
	}
	if v.hasIn && !bytes.Equal(r.in, v.in) {
		t.Errorf("line %d: cdb % x: data-in\n got %d bytes % x\nwant %d bytes % x", v.line, v.cdb[:], len(r.in), r.in, len(v.in), v.in)
	}
}

// describe is the result in the words of an expect line; as many as want has.
func describe(r result, want string) string {
	s := r.String()
	if r.status != CheckCondition {
		return s
	}
	if strings.Contains(want, " byte ") {
		s += describeField(r.sense)
	}
	if strings.Contains(want, " info ") {
		if r.sense[0] == 0xf0 {
			s += fmt.Sprintf(" info %d", binary.BigEndian.Uint32(r.sense[3:]))
		} else if r.sense[0] == 0x72 && r.sense[8] == 0 && r.sense[10] == 0x80 {
			s += fmt.Sprintf(" info %d", binary.BigEndian.Uint64(r.sense[12:]))
		}
	}
	return s
}

// describeField decodes the field pointer of fixed format sense data.
func describeField(sense []byte) (s string) {
	sks := sense[15:18]
	if sks[0]&0x80 == 0 {
		return ""
	}
	if sks[0]&0x40 == 0 {
		s = " list"
	}
	s += fmt.Sprintf(" byte %d", binary.BigEndian.Uint16(sks[1:]))
	if sks[0]&0x08 != 0 {
		s += fmt.Sprintf(" bit %d", sks[0]&7)
	}
	return s
}

func parseVectors(t testing.TB, file string) (disk string, vectors []vector) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	disk, lun, key := "thin", lun1, ""
	for i, line := range strings.Split(string(text), "\n") {
		if at := strings.IndexByte(line, '#'); at >= 0 {
			line = line[:at]
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		value := line
		if line[0] != ' ' && line[0] != '\t' {
			var ok bool
			if key, value, ok = strings.Cut(line, ":"); !ok {
				t.Fatalf("%s:%d: %q", file, i+1, line)
			}
		}
		value = strings.TrimSpace(value)
		switch key {
		case "disk":
			disk = value
			continue
		case "lun":
			lun = binary.BigEndian.Uint64(vectorBytes(t, file, i, value))
			continue
		case "cdb":
			vectors = append(vectors, vector{line: i + 1, lun: lun})
			key = "cdb+"
		}
		v := &vectors[len(vectors)-1]
		switch key {
		case "cdb+":
			v.cdbLen += copy(v.cdb[v.cdbLen:], vectorBytes(t, file, i, value))
		case "out":
			v.out = append(v.out, vectorBytes(t, file, i, value)...)
		case "in":
			v.in, v.hasIn = append(v.in, vectorBytes(t, file, i, value)...), true
		case "expect":
			v.expect = value
		default:
			t.Fatalf("%s:%d: %q", file, i+1, key)
		}
	}
	if len(vectors) == 0 {
		t.Fatalf("%s: no commands", file)
	}
	return disk, vectors
}

func vectorBytes(t testing.TB, file string, i int, s string) (b []byte) {
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		token := s
		if s[0] == '"' {
			end := strings.IndexByte(s[1:], '"') + 2
			if k := strings.IndexByte(s[end:], ' '); k >= 0 {
				end += k
			} else {
				end = len(s)
			}
			token = s[:end]
		} else if k := strings.IndexAny(s, " \t"); k >= 0 {
			token = s[:k]
		}
		s = s[len(token):]
		part, err := vectorToken(token)
		if err != nil {
			t.Fatalf("%s:%d: %q: %v", file, i+1, token, err)
		}
		b = append(b, part...)
	}
	return b
}

func vectorToken(s string) ([]byte, error) {
	switch {
	case s[0] == '@':
		n, err := strconv.Atoi(s[1:])
		return block(n), err
	case s[0] == '"':
		text, rest, _ := strings.Cut(s[1:], `"`)
		if rest == "" {
			return []byte(text), nil
		}
		n, err := strconv.Atoi(strings.TrimPrefix(rest, "~"))
		return []byte(fmt.Sprintf("%-*s", n, text)), err
	}
	digits, times, repeated := strings.Cut(s, "*")
	b, err := hex.DecodeString(digits)
	if err != nil || !repeated {
		return b, err
	}
	n, err := strconv.Atoi(times)
	return bytes.Repeat(b, n), err
}
