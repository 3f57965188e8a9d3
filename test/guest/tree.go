package guest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
)

// Tree is a file system in the making: directories, regular files and links,
// all owned by root. It is written out as a RAM disk (WriteCPIO) or as a
// directory that mke2fs -d takes (WriteDir).
type Tree struct {
	nodes map[string]node // by clean path without a leading slash
}

type node struct {
	mode fs.FileMode // type and permissions
	data []byte      // a link's target, or a file's content
}

func NewTree() *Tree { return &Tree{nodes: map[string]node{}} }

// Dir adds directories, and those above them.
func (t *Tree) Dir(names ...string) {
	for _, name := range names {
		for name = clean(name); name != "."; name = path.Dir(name) {
			if _, ok := t.nodes[name]; !ok {
				t.nodes[name] = node{mode: fs.ModeDir | 0o755}
			}
		}
	}
}

// File adds a regular file, and the directories above it.
func (t *Tree) File(name string, perm fs.FileMode, data []byte) {
	t.Dir(path.Dir(clean(name)))
	t.nodes[clean(name)] = node{mode: perm.Perm(), data: data}
}

func (t *Tree) Link(name, target string) {
	t.Dir(path.Dir(clean(name)))
	t.nodes[clean(name)] = node{mode: fs.ModeSymlink | 0o777, data: []byte(target)}
}

// Program adds an executable of this machine, found in PATH, at /bin in the
// tree, together with the libraries that it loads.
func (t *Tree) Program(name string) error {
	file, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if err := t.copyIn(path.Join("bin", name), file); err != nil {
		return err
	}
	libs, err := libraries(file)
	if err != nil {
		return err
	}
	for _, lib := range libs {
		if err := t.copyIn(lib, lib); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) copyIn(name, file string) error {
	data, err := os.ReadFile(file)
	if err == nil {
		t.File(name, 0o755, data)
	}
	return err
}

// A line of ldd: "libc.so.6 => /lib/…/libc.so.6 (0x…)" or, for the dynamic
// linker, "/lib64/ld-linux-x86-64.so.2 (0x…)".
var lddLine = regexp.MustCompile(`(?m)(/\S+) \(0x[0-9a-f]+\)$`)

func libraries(file string) ([]string, error) {
	out, err := exec.Command("ldd", file).CombinedOutput()
	if err != nil {
		if bytes.Contains(out, []byte("not a dynamic executable")) {
			return nil, nil
		}
		return nil, fmt.Errorf("ldd %s: %w: %s", file, err, out)
	}
	var libs []string
	for _, m := range lddLine.FindAllSubmatch(out, -1) {
		libs = append(libs, string(m[1]))
	}
	return libs, nil
}

// WriteDir makes the tree's files below dir, which exists.
func (t *Tree) WriteDir(dir string) error {
	for _, name := range t.names() {
		if err := t.nodes[name].create(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func (n node) create(name string) error {
	switch n.mode.Type() {
	case fs.ModeDir:
		return os.Mkdir(name, n.mode.Perm())
	case fs.ModeSymlink:
		return os.Symlink(string(n.data), name)
	}
	return os.WriteFile(name, n.data, n.mode.Perm())
}

// names lists the tree with every directory before what is in it.
func (t *Tree) names() []string {
	names := make([]string, 0, len(t.nodes))
	for name := range t.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// clean gives "a/b" for any spelling of /a/b, and "." for the root.
func clean(name string) string { return path.Clean("." + path.Clean("/"+name)) }
