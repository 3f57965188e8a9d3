package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocsRoad checks that each Go name on the road of one READ in
// docs/ARCHITECTURE.md exists: package.Name, package.Type.Method, or
// package.name of a variable.
func TestDocsRoad(t *testing.T) {
	doc := readFile(t, "docs/ARCHITECTURE.md")
	_, road, ok := strings.Cut(doc, "## The road of one READ")
	if !ok {
		t.Fatal("docs/ARCHITECTURE.md has no road of one READ")
	}
	_, road, _ = strings.Cut(road, "```")
	road, _, _ = strings.Cut(road, "```")

	names := regexp.MustCompile(`\b[a-z0-9]+(\.[A-Za-z0-9]+){1,2}\b`).FindAllString(road, -1)
	const few = 10 // the road is longer than that
	if len(names) < few {
		t.Fatalf("found only the names %q on the road", names)
	}
	declared := declarations(t)
	for _, name := range names {
		if !declared[name] {
			t.Errorf("the road names %s, which does not exist", name)
		}
	}
}

// declarations is the set of the product's names: "scsi.LUN",
// "scsi.Task.Begin", for command main of cmd/containerdisk "main.run".
func declarations(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, p := range packages(t) {
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				for _, n := range declared(d) {
					names[f.Name.Name+"."+n] = true
				}
			}
		}
	}
	return names
}

// declared lists the names that d declares at package level.
func declared(d ast.Decl) []string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			return []string{d.Name.Name}
		}
		return []string{receiver(d.Recv.List[0].Type) + "." + d.Name.Name}
	case *ast.GenDecl:
		var names []string
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
				if i, ok := s.Type.(*ast.InterfaceType); ok {
					for _, m := range i.Methods.List {
						for _, n := range m.Names {
							names = append(names, s.Name.Name+"."+n.Name)
						}
					}
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
		return names
	}
	return nil
}

// receiver is the name of a method's type, without star and type parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

var (
	link = regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	path = regexp.MustCompile("`((?:cmd|blockdev|imageconv|auth|target|internal|examples|test|docs|tools)/[A-Za-z0-9_./-]+)`")
)

// TestDocsPaths checks that links within the repository and paths in
// backquotes lead somewhere.
func TestDocsPaths(t *testing.T) {
	checked := 0
	for _, doc := range markdown(t) {
		text := readFile(t, doc)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			checked++
			mustExist(t, doc, filepath.Join(filepath.Dir(doc), m[1]))
		}
		for _, m := range path.FindAllStringSubmatch(text, -1) {
			checked++
			mustExist(t, doc, m[1])
		}
	}
	if checked == 0 {
		t.Error("no link and no path was found in any document")
	}
}

// TestDocsMakeTargets checks that `make x` in a document is a target.
func TestDocsMakeTargets(t *testing.T) {
	makefile := readFile(t, "Makefile")
	checked := 0
	for _, doc := range markdown(t) {
		for _, m := range regexp.MustCompile("(?m)(?:`|^\\s*\\$? ?)make ([a-z][a-z0-9-]*)").FindAllStringSubmatch(readFile(t, doc), -1) {
			checked++
			if !regexp.MustCompile(`(?m)^` + m[1] + `:`).MatchString(makefile) {
				t.Errorf("%s: make has no target %s", doc, m[1])
			}
		}
	}
	if checked == 0 {
		t.Error("no document names a make target")
	}
}

// TestDocsTests checks that the tests which docs/SPECS.md points to exist.
func TestDocsTests(t *testing.T) {
	known := map[string]bool{}
	walk(t, func(name string) {
		if strings.HasSuffix(name, "_test.go") {
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(readFile(t, name), -1) {
				known[m[1]] = true
			}
		}
	})
	named := regexp.MustCompile("`(Test[A-Z]\\w*)`").FindAllStringSubmatch(readFile(t, "docs/SPECS.md"), -1)
	if len(named) == 0 {
		t.Error("docs/SPECS.md names no test")
	}
	for _, m := range named {
		if !known[m[1]] {
			t.Errorf("docs/SPECS.md names %s, which is no test", m[1])
		}
	}
}

// TestDocsVariables checks that each name of
// a document in capitals with an underscore is one that the product or its
// tests know: it must stand in some Go file or script.
func TestDocsVariables(t *testing.T) {
	known := readFile(t, "Makefile")
	walk(t, func(name string) {
		switch filepath.Ext(name) {
		case ".go", ".sh":
			known += readFile(t, name)
		}
	})
	for _, doc := range markdown(t) {
		if strings.HasPrefix(doc, "docs/adr/") || doc == "docs/SPECS.md" {
			continue // these name constants of specifications
		}
		for _, m := range regexp.MustCompile("`(?:-e )?([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)\\b").FindAllStringSubmatch(readFile(t, doc), -1) {
			if !strings.Contains(known, m[1]) {
				t.Errorf("%s names %s, which nothing reads", doc, m[1])
			}
		}
	}
}

// markdown lists the documents, relative to the root.
func markdown(t *testing.T) []string {
	t.Helper()
	var docs []string
	walk(t, func(name string) {
		if filepath.Ext(name) == ".md" {
			docs = append(docs, name)
		}
	})
	if len(docs) == 0 {
		t.Fatal("no documents found")
	}
	return docs
}

// walk calls do with each file of the tree, relative to the root.
func walk(t *testing.T, do func(name string)) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(root(t)), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (name == ".git" || name == "bin" || name == "build") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			do(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mustExist(t *testing.T, doc, name string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root(t), name)); err != nil {
		t.Errorf("%s: %v", doc, err)
	}
}
