package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/containerdisk/containerdisk"

// pkg is the part of `go list -json` that is asked about here.
type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string // of the product's files, not of the tests
	Deps       []string // of those, all the way down
}

// name is the package's path within the module.
func (p pkg) name() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

// packages lists the module's packages.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports,Deps", "./...")
	cmd.Dir = root(t)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 5 {
		t.Fatalf("go list found %d packages: %v", len(all), all)
	}
	return all
}

// root is the module's directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// within reports whether path is the package or module parent or below it.
func within(path, parent string) bool {
	return path == parent || strings.HasPrefix(path, parent+"/")
}

func TestRoomsImportDownwards(t *testing.T) {
	for _, p := range packages(t) {
		if p.name() == command {
			for _, imp := range p.Imports {
				if name, ours := strings.CutPrefix(imp, module+"/"); ours && slices.Contains(helpers, name) {
					t.Errorf("%s imports %s, which is for tests", command, name)
				}
			}
			continue
		}
		r, ok := rooms[p.name()]
		if !ok {
			t.Errorf("%s is not in the import table (rooms_test.go, docs/adr/0001)", p.name())
			continue
		}
		for _, imp := range p.Imports {
			if name, ours := strings.CutPrefix(imp, module+"/"); ours && !slices.Contains(r.ours, name) {
				t.Errorf("%s must not import %s", p.name(), name)
			}
		}
	}
}

func TestRoomsAreFreeOf(t *testing.T) {
	for _, p := range packages(t) {
		for _, never := range rooms[p.name()].never {
			where := p.Deps
			banned, direct := strings.CutSuffix(never, "!")
			if direct {
				where = p.Imports
			}
			for _, imp := range where {
				if within(imp, banned) {
					t.Errorf("%s must be free of %s, but has %s", p.name(), banned, imp)
				}
			}
		}
	}
}

func TestThirdPartyHasOneRoom(t *testing.T) {
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			host, _, _ := strings.Cut(imp, "/")
			if !strings.Contains(host, ".") || within(imp, module) || slices.Contains(anyRoom, imp) {
				continue
			}
			if !mayImport(p.name(), imp) {
				t.Errorf("%s imports %s, which has another room or none (rooms_test.go)", p.name(), imp)
			}
		}
	}
}

func mayImport(name, imp string) bool {
	for mod, room := range thirdParty {
		if within(imp, mod) {
			return within(name, room)
		}
	}
	return false
}

// TestTableIsAlive keeps rooms that no longer exist out of the table.
func TestTableIsAlive(t *testing.T) {
	exists := map[string]bool{}
	for _, p := range packages(t) {
		exists[p.name()] = true
	}
	for name, r := range rooms {
		for _, n := range append([]string{name}, r.ours...) {
			if !exists[n] {
				t.Errorf("the table names %s, which does not exist", n)
			}
		}
	}
}
