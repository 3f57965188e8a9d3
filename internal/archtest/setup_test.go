package archtest

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// present are programs that tools/setup.sh need not install: a machine with
// Go, make and apt has them.
var present = []string{"go", "make", "apt-get", "apt-cache", "dpkg-deb", "ldd"}

// TestSetupInstallsWhatTestsNeed looks for the programs that tests ask for by
// require in the table of tools/setup.sh: what is missing there fails only on
// a new machine.
func TestSetupInstallsWhatTestsNeed(t *testing.T) {
	setup := strings.Fields(readFile(t, "tools/setup.sh"))
	asked := 0
	walk(t, func(name string) {
		if filepath.Ext(name) != ".go" {
			return
		}
		for _, call := range regexp.MustCompile(`\brequire(?:Tools)?\(t((?:, "[^"]+")+)\)`).FindAllStringSubmatch(readFile(t, name), -1) {
			for _, program := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(call[1], -1) {
				asked++
				if !slices.Contains(present, program[1]) && !slices.Contains(setup, program[1]) {
					t.Errorf("%s needs %s, which tools/setup.sh does not install", name, program[1])
				}
			}
		}
	})
	if asked == 0 {
		t.Error("no test asks for any program")
	}
}
