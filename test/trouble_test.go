//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestVerify writes random blocks of all sizes, many at a time, and reads them
// back with checksums. fio does it, over qemu's initiator.
func TestVerify(t *testing.T) {
	require(t, "fio", "qemu-storage-daemon")
	s := serve(t, makeImage(t, 64*mib, quick, "-c"), nil)
	socket := bridge(t, s.endpoint)
	for _, args := range [][]string{
		{"--rw=randwrite", "--iodepth=32", "--bssplit=512/20:4k/50:32k/20:512k/10", "--io_size=192m"},
		{"--rw=write", "--iodepth=8", "--bs=1m"},
		{"--rw=randrw", "--iodepth=16", "--bs=4k", "--io_size=64m"},
	} {
		command(t, "fio", append(args, "--name=verify", "--ioengine=nbd", "--uri=nbd+unix:///disk?socket="+socket,
			"--size=64m", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--do_verify=1", "--randrepeat=1", "--output-format=terse")...)
	}
}

// bridge gives the disk to programs that do not speak iSCSI, on a Unix socket.
func bridge(t *testing.T, e endpoint) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "bridge-") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "nbd")
	var log strings.Builder
	cmd := exec.Command("qemu-storage-daemon",
		"--object", "secret,id=secret,data="+e.initiator.secret,
		"--blockdev", fmt.Sprintf("driver=iscsi,node-name=disk,transport=tcp,portal=%s,target=%s,lun=%d,user=%s,password-secret=secret",
			e.address, e.name, lun, e.initiator.name),
		"--nbd-server", "addr.type=unix,addr.path="+socket,
		"--export", "type=nbd,id=export,node-name=disk,writable=on")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	for range 100 {
		if _, err := os.Stat(socket); err == nil {
			return socket
		}
		time.Sleep(50 * time.Millisecond)
	}
	cmd.Process.Kill()
	<-ended
	t.Fatalf("no socket: %s", &log)
	return ""
}

// TestReconnect cuts the connection under a client again and again: it logs in
// anew, in place of its lost session, and nothing is lost.
func TestReconnect(t *testing.T) {
	require(t, "ss")
	s := serve(t, createImage(t, 64*mib, ""), nil)
	client := attach(t, s.url())
	for i := range 5 {
		client.do(t, fmt.Sprintf("write -P %d %dM 1M", i+1, i), "wrote 1048576/1048576")
		cutConnections(t, s)
		client.do(t, fmt.Sprintf("read -P %d %dM 1M", i+1, i), "read 1048576/1048576")
	}
	for i := range 5 {
		client.do(t, fmt.Sprintf("read -P %d %dM 1M", i+1, i), "read 1048576/1048576")
	}
	if n := len(s.log.grep(`"msg":"login"`)); n < 6 {
		t.Errorf("%d logins: the connection was not cut", n)
	}
	client.quit(t)
}

// cutConnections makes the kernel reset every connection to the server, which
// needs root and a kernel that can.
func cutConnections(t *testing.T, s *server) {
	t.Helper()
	r := attempt(t, "ss", "-K", "-H", "-t", "dst", "127.0.0.1", "dport", "=", s.port(t))
	if r.code != 0 || !strings.Contains(r.out, s.address) {
		missing(t, "needs to be able to reset connections (ss -K): %s", r.out)
	}
}

// TestClientDies has the only client of a disk killed: its place is free.
func TestClientDies(t *testing.T) {
	require(t, "iscsi-inq")
	s := serve(t, createImage(t, mib, ""), nil)
	first := attach(t, s.url())
	first.do(t, "write -P 1 0 4k", "wrote 4096/4096")
	first.cmd.Process.Kill()
	var r result
	for range 50 {
		if r = attempt(t, "iscsi-inq", "-i", "iqn.2026-01.test:second", s.url()); r.code == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("the place of a dead client is not free after 5 s: %s", r.out)
}

func TestIPv6(t *testing.T) {
	s := serve(t, makeImage(t, mib, quick), env{"ISCSI_LISTEN": "[::1]:0"})
	client := attach(t, s.url())
	client.do(t, "write -P 1 0 4k", "wrote 4096/4096")
	client.do(t, "read -P 1 0 4k", "read 4096/4096")
	client.quit(t)
	require(t, "iscsi-ls")
	expect(t, command(t, "iscsi-ls", s.portal()), `^Target:\S+ Portal:\[::1\]:\d+,1$`)
}

// TestSecretDir takes the credentials as Kubernetes mounts them.
func TestSecretDir(t *testing.T) {
	require(t, "iscsi-inq")
	dir := t.TempDir()
	for key, value := range map[string]string{
		"node.session.auth.username": reader.name, "node.session.auth.password": reader.secret + "\n",
		"node.session.auth.username_in": prover.name, "node.session.auth.password_in": prover.secret,
	} {
		write(t, filepath.Join(dir, key), []byte(value))
	}
	more := maps.Clone(open)
	more["CHAP_SECRET_DIR"] = dir
	s := serve(t, createImage(t, mib, ""), more)
	checkLogin(t, attempt(t, "iscsi-inq", s.as(reader).url(prover.mutual()...)), "")
	checkLogin(t, attempt(t, "iscsi-inq", s.as(account{reader.name, "reader-secret-2"}).url()), refused)
}
