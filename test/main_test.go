//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// program is the binary under test, an absolute path.
var program string

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (int, error) {
	// Debian keeps mke2fs and others where a user's PATH does not lead.
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	if program = os.Getenv("CONTAINERDISK_BIN"); program != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "containerdisk-e2e-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "containerdisk")
	if err := build(program); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// build makes the binary as it is shipped: static.
func build(file string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-o", file, "../cmd/containerdisk")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", cmd, err)
	}
	return nil
}

// require skips the test when a program is missing, or fails it where
// everything has to be there.
func require(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing(t, "needs the program %s: %v", p, err)
		}
	}
}

func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("E2E_REQUIRE") == "all" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// clientLimit is how long any client of these tests may take. A client that
// waits for an answer that never comes fails its test by this.
const clientLimit = 90 * time.Second

// result is what a client that has ended left behind.
type result struct {
	out  string // standard output and error
	code int
}

// attempt runs a client to its end, whatever that is.
func attempt(t *testing.T, name string, args ...string) result {
	t.Helper()
	t.Logf("$ %s %q", name, args)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%s did not end in %v; it wrote:\n%s", name, clientLimit, out)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", name, err)
	}
	if exit != nil {
		return result{string(out), exit.ExitCode()}
	}
	return result{string(out), 0}
}

// command runs a client that must succeed, and gives its output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	r := attempt(t, name, args...)
	if r.code != 0 {
		t.Fatalf("%s ended with %d:\n%s", name, r.code, r.out)
	}
	return r.out
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
