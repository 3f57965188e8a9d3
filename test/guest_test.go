//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/test/guest"
)

// guestLimit is how long a guest may take: several times what it takes on a
// slow machine.
const guestLimit = 3 * time.Minute

func guestKernel(t *testing.T) *guest.Kernel {
	t.Helper()
	require(t, "qemu-system-x86_64", "apt-get", "apt-cache", "dpkg-deb")
	k, err := guest.Fetch(t.Context(), cacheDir(t))
	if err != nil {
		missing(t, "needs Debian's kernel: %v", err)
	}
	return k
}

func cacheDir(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("E2E_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "containerdisk-test")
}

// boot runs a guest to its end and gives what its work wrote.
func boot(t *testing.T, m guest.Machine) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guestLimit)
	defer cancel()
	r, err := m.Run(ctx)
	if err != nil || r.Status != 0 {
		t.Fatalf("the guest ended with %d, %v\n--- its output\n%s--- its console\n%s", r.Status, err, r.Output, r.Console)
	}
	t.Logf("the guest took %.1f s and wrote:\n%s", r.Took.Seconds(), r.Output)
	return r.Output
}
