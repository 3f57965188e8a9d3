package discovery

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/imageconv"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/internal/config"
)

const (
	qcow2 = "QFI\xfb\x00\x00\x00\x03 and more that is not read here"
	raw   = "any content"
	luks  = "LUKS\xba\xbe and more"
)

// tree is a directory to search: names ending in / are directories, values
// beginning with -> are links, others a file's content.
type tree map[string]string

func (files tree) make(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	check(t, os.Mkdir(dir, 0o755))
	for name, content := range files {
		path := filepath.Join(dir, name)
		check(t, os.MkdirAll(filepath.Dir(path), 0o755))
		target, isLink := strings.CutPrefix(content, "->")
		switch {
		case isLink:
			check(t, os.Symlink(target, path))
		case strings.HasSuffix(name, "/"):
			check(t, os.MkdirAll(path, 0o755))
		default:
			check(t, os.WriteFile(path, []byte(content), 0o644))
		}
	}
	return dir
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFind(t *testing.T) {
	tests := []struct {
		name  string
		files tree
		at    string // below the directory
		o     Options
		want  string // the disks' names, paths in the directory, formats and sizes
	}{
		{"one qcow2", tree{"fedora.qcow2": qcow2}, "", Options{}, "fedora.qcow2 fedora.qcow2 qcow2 39"},
		{"content, not name", tree{"disk.img": qcow2}, "", Options{}, "disk.img disk.img qcow2 39"},
		{"raw by content", tree{"disk.qcow2": raw}, "", Options{}, "disk.qcow2 disk.qcow2 raw 11"},
		{"the file itself", tree{"a": qcow2, "b": raw}, "b", Options{}, "b b raw 11"},
		{"a hidden file itself", tree{".b": raw}, ".b", Options{}, ".b .b raw 11"},
		{"hidden and lost+found", tree{"a": qcow2, ".DS_Store": "x", ".git/": "", "lost+found/": "", ".vm": luks, ".l": "->/none"},
			"", Options{}, "a a qcow2 39"},
		{"link inside", tree{"a": "->.images/b", ".images/b": qcow2}, "", Options{}, "a .images/b qcow2 39"},
		{"as a Secret is mounted", tree{"a": "->..data/a", "..data": "->..2024", "..2024/a": raw}, "", Options{}, "a ..2024/a raw 11"},
		{"link to an image that is found", tree{"latest": "->fedora", "fedora": qcow2, "a": "->latest"}, "", Options{}, "fedora fedora qcow2 39"},
		{"link given", tree{"latest": "->fedora", "fedora": qcow2}, "latest", Options{}, "latest fedora qcow2 39"},
		{"directory by a link", tree{"d/a": qcow2, "l": "->d"}, "l", Options{}, "a l/a qcow2 39"},
		{"several", tree{"b": raw, "a10": qcow2, "a2": raw, "C": raw}, "", Options{Several: true},
			"C C raw 11, a10 a10 qcow2 39, a2 a2 raw 11, b b raw 11"},
		{"one of several", tree{"a": qcow2}, "", Options{Several: true}, "a a qcow2 39"},
	}
	for _, tt := range tests {
		dir := tt.files.make(t)
		disks, err := Find(filepath.Join(dir, tt.at), tt.o)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		var got []string
		for _, d := range disks {
			rel, err := filepath.Rel(dir, d.Path)
			check(t, err)
			got = append(got, fmt.Sprint(d.Name, " ", rel, " ", d.Format, " ", d.Size))
		}
		if g := strings.Join(got, ", "); g != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, g, tt.want)
		}
	}
}

func TestFindRelativePath(t *testing.T) {
	t.Chdir(tree{"a": qcow2}.make(t))
	for _, path := range []string{".", "a", "./a", "../disk"} {
		disks, err := Find(path, Options{})
		if err != nil || len(disks) != 1 || disks[0].Name != "a" || !filepath.IsAbs(disks[0].Path) {
			t.Errorf("%q: got %v, %v", path, disks, err)
		}
	}
}

func TestFindRefuses(t *testing.T) {
	many := tree{}
	for i := range 40 {
		many[fmt.Sprintf("disk%02d", i)] = raw
	}
	tests := []struct {
		name  string
		files tree
		at    string
		o     Options
		want  []string
		not   string // what must not be in it
	}{
		{"nothing", nil, "", Options{}, []string{": no image:\n", "the directory is empty", "ADD fedora.qcow2 /disk/", "IMAGE_PATH"}, ""},
		{"nothing for several", nil, "", Options{Several: true}, []string{": no image:\n"}, ""},
		{"only hidden", tree{".a": qcow2, "lost+found/": ""}, "", Options{},
			[]string{"no image", "\t.a          not looked at", "\tlost+found  not looked at", "ADD fedora.qcow2 /disk/"}, ""},
		{"no such path", nil, "none/none", Options{}, []string{"none/none: no image: no such file or directory", "ADD fedora.qcow2 /disk/"}, ""},
		{"no such file", tree{"a": qcow2}, "b", Options{}, []string{"/b: no image: no such file"}, ""},
		{"a file as a directory", tree{"a": qcow2}, "a/b", Options{}, []string{"a/b: no image: not a directory"}, ""},
		{"several", tree{"b.img": raw, "a.qcow2": qcow2}, "", Options{},
			[]string{": 2 images, and one was expected:\n\ta.qcow2  qcow2, 39 bytes\n\tb.img    raw, 11 bytes\n", "disk/a.qcow2 for that one", "MULTI_DISK=true"}, ""},
		{"several with a link", tree{"a": qcow2, "b": raw, "c": "->.d", ".d": raw}, "", Options{},
			[]string{": 3 images", "c   raw, 11 bytes, a link to .d"}, ""},
		{"very many", many, "", Options{}, []string{": 40 images", "disk31", "\tand 8 more\n"}, "disk32"},

		{"a directory", tree{"a": qcow2, "b/": ""}, "", Options{}, []string{"not everything here is an image", "a  qcow2, 39 bytes", "b  a directory", "IMAGE_PATH"}, ""},
		{"a directory among several", tree{"a": qcow2, "b/": ""}, "", Options{Several: true}, []string{"b  a directory"}, ""},
		{"dangling link", tree{"a": qcow2, "b": "->none"}, "", Options{}, []string{"b  a link to none, where nothing is"}, ""},
		{"dangling link given", tree{"b": "->none"}, "b", Options{}, []string{"/b: a link to none, where nothing is"}, ""},
		{"link out", tree{"b": "->../secret"}, "", Options{}, []string{"b  a link to ../secret, which leaves the directory"}, ""},
		{"link out given", tree{"b": "->../secret"}, "b", Options{}, []string{"/b: a link to ../secret, which leaves the directory; name that file itself"}, ""},
		{"link out by a link", tree{"b": "->c", ".x/": "", "c": "->.x/../../secret"}, "", Options{}, []string{"b   a link to c, which cannot be followed", "c   a link to .x/../../secret, which leaves"}, ""},
		{"absolute link", tree{"b": "->/etc/passwd"}, "", Options{}, []string{"b  a link to /etc/passwd, which leaves the directory"}, ""},
		{"link of a directory out", tree{"d/x": "", "l": "->/etc"}, "l", Options{}, []string{"a link to /etc, which leaves the directory"}, ""},
		{"circle", tree{"a": "->b", "b": "->a"}, "", Options{}, []string{"a  a link to b, which cannot be followed"}, ""},
		{"empty file", tree{"a": ""}, "", Options{}, []string{"a  an empty file"}, ""},
		{"empty file given", tree{"a": ""}, "a", Options{}, []string{"/a: an empty file"}, ""},
		{"format that is known but not read", tree{"a": luks, "b": qcow2}, "", Options{}, []string{"a  ", "luks", "b  qcow2"}, ""},
		{"format given", tree{"a": luks}, "a", Options{}, []string{"/a: ", "luks"}, ""},
		{"names that spoil", tree{"a\nb": raw, "c\x1b[2J": raw}, "", Options{}, []string{`"a\nb"`, `"c\x1b[2J"`}, "\x1b"},
	}
	for _, tt := range tests {
		dir := tt.files.make(t)
		check(t, os.WriteFile(filepath.Join(dir, "../secret"), []byte("a secret"), 0o644))
		disks, err := Find(filepath.Join(dir, tt.at), tt.o)
		if err == nil || len(disks) != 0 {
			t.Errorf("%s: got %v, %v, want an error", tt.name, disks, err)
			continue
		}
		for _, w := range tt.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: got %v\nwant %q in it", tt.name, err, w)
			}
		}
		if tt.not != "" && strings.Contains(err.Error(), tt.not) {
			t.Errorf("%s: got %v\nwant no %q in it", tt.name, err, tt.not)
		}
	}
}

// TestFindDoesNotWait: opening a pipe would wait for somebody to write to it.
func TestFindDoesNotWait(t *testing.T) {
	dir := tree{"a": qcow2}.make(t)
	check(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	t.Chdir(dir) // a socket's path has few bytes
	l, err := net.Listen("unix", "socket")
	check(t, err)
	defer l.Close()
	_, err = Find(dir, Options{})
	for _, want := range []string{"pipe    a named pipe", "socket  a socket"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
	if _, err := Find("/dev/null", Options{}); err == nil || !strings.Contains(err.Error(), "/dev/null: a character device") {
		t.Errorf("/dev/null: got %v", err)
	}
}

func TestUnreadable(t *testing.T) {
	err := &os.PathError{Op: "openat", Path: "a", Err: unix.EACCES}
	want := fmt.Sprintf("not readable for user %d, its mode is -rw-------; in a Dockerfile: ADD --chmod=0444", os.Getuid())
	if got := unreadable(err, 0o600); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	err.Err = unix.EIO
	if got := unreadable(err, 0o600); got != "input/output error" {
		t.Errorf("got %q", got)
	}
}

func TestTooManyNames(t *testing.T) {
	dir := tree{}.make(t)
	for i := range maxEntries + 1 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		check(t, err)
		check(t, f.Close())
	}
	if _, err := Find(dir, Options{Several: true}); err == nil || !strings.Contains(err.Error(), "more than 1024 files") {
		t.Errorf("got %v", err)
	}
	check(t, os.Remove(filepath.Join(dir, "0")))
	if _, err := Find(dir, Options{Several: true}); err == nil || !strings.Contains(err.Error(), "\t1     an empty file") {
		t.Errorf("with a name less: got %v", err)
	}
}

func TestModes(t *testing.T) {
	tests := []struct {
		mode os.FileMode
		want string
	}{
		{0o644, ""},
		{os.ModeDevice | 0o660, ""},
		{os.ModeDevice | os.ModeCharDevice, "a character device"},
		{os.ModeDir, "a directory"},
		{os.ModeNamedPipe, "a named pipe"},
		{os.ModeSocket, "a socket"},
		{os.ModeIrregular, "neither a file nor a block device"},
	}
	for _, tt := range tests {
		if got := notAFile(tt.mode); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.mode, got, tt.want)
		}
	}
}

func TestSizeText(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1.0 KiB", 1536: "1.5 KiB", 20 << 30: "20.0 GiB", 64 << 40: "64.0 TiB", 1<<63 - 1: "8.0 EiB",
	} {
		if got := sizeText(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

// TestSettings: the names in our messages are those that can be set.
func TestSettings(t *testing.T) {
	for _, name := range []string{settingPath, settingSeveral} {
		if !slices.ContainsFunc(config.Variables(), func(v config.Variable) bool { return v.Name == name }) {
			t.Errorf("there is no variable %s", name)
		}
	}
}

// A disk that a guest has written to is what it is known to be.
func TestFindRaw(t *testing.T) {
	dir := t.TempDir()
	for name, magic := range map[string]string{"a.img": "QFI\xfb\x00\x00\x00\x03", "b.img": "LUKS\xba\xbe", "c.img": "anything"} {
		if err := os.WriteFile(filepath.Join(dir, name), append([]byte(magic), make([]byte, 4096)...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	disks, err := Find(dir, Options{Several: true, Raw: true})
	if err != nil || len(disks) != 3 {
		t.Fatalf("got %v, %v", disks, err)
	}
	for _, d := range disks {
		if d.Format != imageconv.Raw {
			t.Errorf("%s: %s", d.Name, d.Format)
		}
	}
	d, err := Find(filepath.Join(dir, "b.img"), Options{Raw: true})
	if err != nil || d[0].Format != imageconv.Raw {
		t.Errorf("the file alone: %v, %v", d, err)
	}
}
