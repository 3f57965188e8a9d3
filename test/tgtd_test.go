//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// startTgtd serves a raw file with the Linux SCSI target framework, the target
// that ours is compared with.
func startTgtd(t *testing.T, disk string) endpoint {
	t.Helper()
	require(t, "tgtd", "tgtadm")
	e := endpoint{
		address:   freeAddress(t),
		name:      "iqn.2026-01.test:reference",
		initiator: account{"reader", "reader-secret-1"},
		target:    account{"target", "target-secret-1"},
	}
	// tgtd adds a number to this name; a socket's path must be short.
	dir, err := os.MkdirTemp("", "tgtd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	env := append(os.Environ(), "TGT_IPC_SOCKET="+filepath.Join(dir, "sock"))
	cmd := exec.Command("tgtd", "-f", "--iscsi", "portal="+e.address)
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for _, line := range []string{
		"--op new --mode target --tid 1 -T " + e.name,
		"--op new --mode logicalunit --tid 1 --lun 1 --blocksize=512 -b " + disk,
		"--op update --mode logicalunit --tid 1 --lun 1 --params thin_provisioning=1",
		"--op bind --mode target --tid 1 -I ALL",
		fmt.Sprintf("--op new --mode account --user %s --password %s", e.initiator.name, e.initiator.secret),
		"--op bind --mode account --tid 1 --user " + e.initiator.name,
		fmt.Sprintf("--op new --mode account --user %s --password %s", e.target.name, e.target.secret),
		"--op bind --mode account --tid 1 --outgoing --user " + e.target.name,
		"--op bind --mode account --user " + e.initiator.name, // for discovery
		"--op bind --mode account --outgoing --user " + e.target.name,
	} {
		tgtadm(t, env, strings.Fields(line))
	}
	return e
}

// tgtadm repeats a command until tgtd, which may have just been started,
// takes it.
func tgtadm(t *testing.T, env, args []string) {
	t.Helper()
	var out []byte
	var err error
	for range 50 {
		cmd := exec.Command("tgtadm", append([]string{"--lld", "iscsi"}, args...)...)
		cmd.Env = env
		if out, err = cmd.CombinedOutput(); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("tgtadm %q: %v: %s", args, err, out)
}

// freeAddress is an address of the loopback that nobody listens on now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
