package guest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func sample() *Tree {
	t := NewTree()
	t.Dir("/")
	t.File("/a/b/c", 0o755, []byte("hello"))
	t.Link("a/l", "b/c")
	t.Dir("z", "a")
	return t
}

func TestTreeNames(t *testing.T) {
	want := []string{"a", "a/b", "a/b/c", "a/l", "z"}
	if got := sample().names(); !slices.Equal(got, want) {
		t.Errorf("names %q, want %q: each directory before its entries", got, want)
	}
}

func TestWriteDir(t *testing.T) {
	dir := t.TempDir()
	if err := sample().WriteDir(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a/l")); err != nil || string(got) != "hello" {
		t.Errorf("through the link: %q, %v; want hello", got, err)
	}
	if st, err := os.Stat(filepath.Join(dir, "a/b/c")); err != nil || st.Mode() != 0o755 {
		t.Errorf("a/b/c is %v, %v; want -rwxr-xr-x", st.Mode(), err)
	}
}

// An entry as the kernel's buffer-format document describes it, field by field.
func TestCPIOEntry(t *testing.T) {
	tree := NewTree()
	tree.File("hi", 0o644, []byte("12345"))
	var b bytes.Buffer
	if err := tree.WriteCPIO(&b); err != nil {
		t.Fatal(err)
	}
	want := "070701" +
		"00000001" + "000081a4" + // ino, mode
		"00000000" + "00000000" + "00000001" + "00000000" + // uid, gid, nlink, mtime
		"00000005" + // size
		"00000000" + "00000000" + "00000000" + "00000000" + // device numbers
		"00000003" + "00000000" + // name with NUL, checksum (unused in this format)
		"hi\x00" + "\x00\x00\x00" + // 113 bytes, padded to 116
		"12345" + "\x00\x00\x00"
	if got := b.String(); len(got) < len(want) || got[:len(want)] != want {
		t.Errorf("entry\n%q, want\n%q", got, want)
	}
	if b.Len()%4 != 0 || !bytes.Contains(b.Bytes(), []byte("TRAILER!!!\x00")) {
		t.Errorf("the archive of %d bytes ends in %q", b.Len(), b.Bytes()[b.Len()-20:])
	}
}

func TestCPIOMode(t *testing.T) {
	for m, want := range map[fs.FileMode]uint32{
		0o644:                  0o100644,
		fs.ModeDir | 0o755:     0o040755,
		fs.ModeSymlink | 0o777: 0o120777,
	} {
		if got := cpioMode(m); got != want {
			t.Errorf("%v: got %o, want %o", m, got, want)
		}
	}
}

func TestSplitStatus(t *testing.T) {
	for in, want := range map[string]string{
		"a\r\nb\r\nguest: exit 3\r\n": `"a\nb\n" 3 <nil>`,
		"guest: exit 0\n":             `"" 0 <nil>`,
		"half way":                    `"half way" 0 the guest went off before its work was done`,
	} {
		out, status, err := splitStatus(in)
		if got := fmt.Sprintf("%q %d %v", out, status, err); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}
