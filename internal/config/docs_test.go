package config

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sethvargo/go-envconfig"
)

var update = flag.Bool("update", false, "write the tables of docs/CONFIG.md anew")

const (
	page  = "../../docs/CONFIG.md"
	begin = "<!-- tables: go test ./internal/config -run TestDocs -update -->\n"
	end   = "<!-- end of tables -->\n"
)

// TestDocsConfig compares the page's tables with Variables.
func TestDocsConfig(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	if !ok {
		t.Fatalf("%s has no line %q", page, begin)
	}
	tables, after, ok := strings.Cut(rest, end)
	if !ok {
		t.Fatalf("%s has no line %q", page, end)
	}
	want := markdown(Variables())
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if tables != want {
		t.Errorf("the tables of %s are not those of Variables(); run\n\tgo test ./internal/config -run TestDocs -update", page)
	}
}

// markdown is the variables as tables, one for each group.
func markdown(vars []Variable) string {
	var b strings.Builder
	group := ""
	for _, v := range vars {
		if v.Group != group {
			group = v.Group
			fmt.Fprintf(&b, "\n### %s\n\n| variable | default | meaning |\n|---|---|---|\n", group)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Name, defaultCell(v.Default), meaning(v))
	}
	return b.String() + "\n"
}

func defaultCell(s string) string {
	if s == "" || strings.Contains(s, " ") { // words
		return s
	}
	return "`" + s + "`"
}

// quoted is code in a help text, and not an apostrophe.
var quoted = regexp.MustCompile(`'([^'\s]+)'`)

func meaning(v Variable) string {
	text := quoted.ReplaceAllString(v.Help, "`$1`")
	if v.Alias == "" {
		return text
	}
	return strings.TrimSuffix(fmt.Sprintf("`%s`; %s", v.Alias, text), "; ")
}

// TestDocsKeys compares what FromEnv asks for with the list that people see.
func TestDocsKeys(t *testing.T) {
	var asked []string
	_, err := FromEnv(envconfig.LookuperFunc(func(key string) (string, bool) {
		asked = append(asked, key)
		return "", false
	}))
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, v := range Variables() {
		listed = append(listed, v.Name)
	}
	slices.Sort(asked)
	slices.Sort(listed)
	if !slices.Equal(asked, listed) {
		t.Errorf("FromEnv asks for %q, Variables lists %q", asked, listed)
	}
}

func TestDocsVariables(t *testing.T) {
	known := map[string]Variable{}
	for _, v := range Variables() {
		if _, twice := known[v.Name]; twice {
			t.Errorf("%s is listed twice", v.Name)
		}
		known[v.Name] = v
		if !regexp.MustCompile(`^[A-Z][A-Z0-9_]+$`).MatchString(v.Name) {
			t.Errorf("%q is no name for a variable", v.Name)
		}
		if v.Group == "" || v.Help == "" && v.Alias == "" || strings.HasSuffix(v.Help, ".") || strings.Contains(v.Help, "|") {
			t.Errorf("%s: group %q, help %q", v.Name, v.Group, v.Help)
		}
		if secret := strings.Contains(v.Name, "PASSWORD") && !strings.HasSuffix(v.Name, "_FILE"); secret != v.Secret {
			t.Errorf("%s: Secret is %v, want %v", v.Name, v.Secret, secret)
		}
	}
	for _, v := range known {
		if v.Alias != "" && (known[v.Alias].Name == "" || known[v.Alias].Alias != "") {
			t.Errorf("%s is an alias of %q, which is no variable of today", v.Name, v.Alias)
		}
	}
	for _, name := range regexp.MustCompile(`'[A-Z][A-Z0-9_]+'`).FindAllString(markdown(Variables()), -1) {
		if known[strings.Trim(name, "'")].Name == "" {
			t.Errorf("a help text names %s, which is no variable", name)
		}
	}
}

// TestDefaultsAreWhatHolds parses each default as if somebody had set it.
func TestDefaultsAreWhatHolds(t *testing.T) {
	plain, err := FromEnv(envconfig.MapLookuper(nil))
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for _, f := range new(environment).fields() {
		if d := f.tag.Get("default"); d != "" {
			set[f.tag.Get("env")] = d
			if f.tag.Get("otherwise") != "" {
				t.Errorf("%s has a default and words for it", f.tag.Get("env"))
			}
		}
	}
	got, err := FromEnv(envconfig.MapLookuper(set))
	if err != nil {
		t.Fatal(err)
	}
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", plain); g != w {
		t.Errorf("all defaults set: got %s\nwant %s", g, w)
	}
}
