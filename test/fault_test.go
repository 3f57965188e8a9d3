//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMediumError has the kernel fail what the server asks of the disk's file.
// The client is told of each error, and of none once the fault is gone: the
// server and the session stay.
func TestMediumError(t *testing.T) {
	require(t, "strace")
	s := serve(t, makeImage(t, 8*mib, quick, "-c"), nil)
	client := attach(t, s.url())
	client.do(t, "write -P 1 0 1M", "wrote 1048576/1048576")
	for _, c := range []struct{ calls, command, fails, works string }{
		{"preadv,preadv2,pread64", "read -P 1 0 64k", "read failed: Input/output error", "read 65536/65536"},
		{"pwritev,pwritev2,pwrite64", "write -P 2 2M 64k", "write failed: Input/output error", "wrote 65536/65536"},
		{"fallocate", "write -z 3M 64k", "write failed: Input/output error", "wrote 65536/65536"},
	} {
		heal := injectEIO(t, s, c.calls)
		client.do(t, c.command, c.fails)
		client.do(t, c.command, c.fails)
		heal()
		client.do(t, c.command, c.works)
	}
	client.do(t, "read -P 2 2M 64k", "read 65536/65536")
	client.do(t, "read -P 0 3M 64k", "read 65536/65536")
	_, metrics := s.get(t, "/metrics")
	expect(t, metrics, `^containerdisk_disk_errors_total\{.*\} [1-9]`)
	client.quit(t)
}

// TestFailedSync: a sync that failed has lost data for good. The kernel drops
// what it could not write, and the next sync would succeed all the same. So no
// later flush may make anybody believe otherwise, nor the server's exit code.
func TestFailedSync(t *testing.T) {
	require(t, "strace")
	s := start(t, makeImage(t, 8*mib, quick, "-c"), nil)
	s.waitReady(t)
	client := attach(t, s.url())
	heal := injectEIO(t, s, "fdatasync,fsync,sync_file_range")
	client.do(t, "write -f -P 2 2M 64k", "write failed: Input/output error")
	heal()
	client.do(t, "write -f -P 2 2M 64k", "write failed: Input/output error")
	client.do(t, "read 0 64k", "read 65536/65536")
	client.quit(t)
	s.signal(t, syscall.SIGTERM)
	s.wait(t, stopLimit, 1)
	expect(t, s.log.String(), `^containerdisk: .*flush`)
}

// injectEIO makes system calls of the server on its disk's file fail, until
// the function is called that it returns.
func injectEIO(t *testing.T, s *server, calls string) (heal func()) {
	t.Helper()
	// strace goes by the file's path, which changes when the copy is durable.
	waitLog(t, s, `"msg":"copied;`)
	log := newLogBook()
	cmd := exec.Command("strace", "-f", "-p", fmt.Sprint(s.cmd.Process.Pid), "-P", diskFile(t, s),
		"-e", "trace="+calls, "-e", "inject="+calls+":error=EIO", "-o", os.DevNull)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	heal = func() {
		cmd.Process.Signal(os.Interrupt) // strace lets go of the server
		cmd.Wait()
	}
	t.Cleanup(heal)
	for range 100 {
		if strings.Contains(log.String(), "attached") {
			return heal
		}
		time.Sleep(20 * time.Millisecond)
	}
	missing(t, "needs to be able to trace a process: %s", log.String())
	return heal
}

// diskFile is the file that the server has expanded the image into.
func diskFile(t *testing.T, s *server) string {
	t.Helper()
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, l := range links {
		name, err := os.Readlink(l)
		if st, err2 := os.Stat(l); err == nil && err2 == nil && st.Mode().IsRegular() && st.Size() == 8*mib {
			files = append(files, name)
		}
	}
	if len(files) != 1 {
		t.Fatalf("the disk's file is not one of %q", files)
	}
	return files[0]
}
