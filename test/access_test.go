//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestWriteExclusive is the default: one client at a time.
func TestWriteExclusive(t *testing.T) {
	require(t, "iscsi-inq")
	s := serve(t, createImage(t, mib, ""), nil)
	holder := attach(t, s.url())
	if r := attempt(t, "iscsi-inq", "-i", "iqn.2026-01.test:second", s.url()); r.code != loginFailed {
		t.Errorf("a second client: %d: %s, want %d", r.code, r.out, loginFailed)
	}
	holder.do(t, "write -P 1 0 4k", "wrote 4096/4096")
	holder.quit(t)
	checkLogin(t, attempt(t, "iscsi-inq", "-i", "iqn.2026-01.test:second", s.url()), "")
}

// TestExclusiveOverBothWires: the one client counts on whichever wire it is.
// Who is refused is told so, and the log says who has the disk.
func TestExclusiveOverBothWires(t *testing.T) {
	require(t, "iscsi-inq", "nbdinfo", "qemu-img")
	s := serve(t, createImage(t, mib, ""), bothWires(t, "write-exclusive"))
	second := []string{"-i", "iqn.2026-01.test:second", s.url()}

	holder := attach(t, s.url())
	if r := attempt(t, "iscsi-inq", second...); r.code != loginFailed || !strings.Contains(r.out, "Service unavailable(769)") {
		t.Errorf("a second initiator: %d: %s, want %d, service unavailable", r.code, r.out, loginFailed)
	}
	if r := attempt(t, "qemu-img", "info", s.nbdURL(t)); r.code == 0 || !strings.Contains(r.out, "the disk is in use by iqn.") {
		t.Errorf("an NBD client beside an initiator: %d: %s, want to be told who has the disk", r.code, r.out)
	}
	expectRefusals(t, s, 2, `in use by iqn\.`)
	holder.do(t, "write -P 1 0 4k", "wrote 4096/4096")
	holder.quit(t)

	holder = attach(t, s.nbdURL(t))
	holder.do(t, "read -P 1 0 4k", "read 4096/4096")
	if r := attempt(t, "iscsi-inq", second...); r.code != loginFailed || !strings.Contains(r.out, "Service unavailable(769)") {
		t.Errorf("an initiator beside an NBD client: %d: %s, want %d, service unavailable", r.code, r.out, loginFailed)
	}
	if r := attempt(t, "nbdinfo", s.nbdURL(t)); r.code == 0 {
		t.Errorf("a second NBD client was let in: %s", r.out)
	}
	expectRefusals(t, s, 4, `in use by nbd process \d+ of user \d+`)
	holder.quit(t)
	checkLogin(t, attempt(t, "iscsi-inq", second...), "")
	command(t, "nbdinfo", s.nbdURL(t))
}

// bothWires is the environment of a server of both, under an access mode.
func bothWires(t *testing.T, mode string) env {
	return env{"ACCESS_MODE": mode, "NBD_SOCKET": filepath.Join(t.TempDir(), "s")}
}

// expectRefusals wants so many refusals in the log by now that say who is in
// the way, the last of them matching pattern.
func expectRefusals(t *testing.T, s *server, n int, pattern string) {
	t.Helper()
	lines := s.log.grep("the disk is in use by")
	var refused []string
	for _, l := range lines {
		if strings.Contains(l, `"refused"`) || strings.Contains(l, `"login refused"`) {
			refused = append(refused, l)
		}
	}
	if len(refused) != n || !regexp.MustCompile(pattern).MatchString(refused[len(refused)-1]) {
		t.Errorf("%d refusals in the log, want %d, the last like %q:\n%s", len(refused), n, pattern, strings.Join(refused, "\n"))
	}
}

// TestSharedOverBothWires: each client sees what the others write.
func TestSharedOverBothWires(t *testing.T) {
	s := serve(t, createImage(t, mib, ""), bothWires(t, "write-shared"))
	var clients []*shell
	for _, url := range []string{s.url(), s.nbdURL(t), s.url(), s.nbdURL(t)} {
		clients = append(clients, attach(t, url))
	}
	for i, writer := range clients {
		writer.do(t, fmt.Sprintf("write -P %d 64k 128k", i+1), "wrote 131072/131072")
		for _, reader := range clients {
			reader.do(t, fmt.Sprintf("read -P %d 64k 128k", i+1), "read 131072/131072")
		}
	}
	for _, c := range clients {
		c.quit(t)
	}
}

// TestReadSharedOverBothWires: any number reads, and nobody writes.
func TestReadSharedOverBothWires(t *testing.T) {
	s := serve(t, createImage(t, mib, "", "write -P 5 0 1M"), bothWires(t, "read-shared"))
	for _, url := range []string{s.url(), s.nbdURL(t)} {
		reader := attachReadOnly(t, url)
		reader.do(t, "read -P 5 0 1M", "read 1048576/1048576")
		if r := attempt(t, "qemu-io", "-f", "raw", "-c", "write -P 1 0 4k", url); r.code == 0 {
			t.Errorf("%s: a write was taken: %s", url, r.out)
		}
		reader.do(t, "read -P 5 0 1M", "read 1048576/1048576")
		defer reader.quit(t) // the next comes beside it
	}
}

// TestReadShared lets any number in, and nobody write.
func TestReadShared(t *testing.T) {
	image := makeImage(t, 8*mib, quick, "-c")
	s, raw := serve(t, image, env{"ACCESS_MODE": "read-shared"}), expand(t, image)
	require(t, "iscsi-inq", "qemu-io")
	if r := attempt(t, "qemu-io", "-f", "raw", "-c", "write -P 1 0 4k", s.url()); r.code == 0 {
		t.Errorf("a write was taken: %s", r.out)
	}
	checkLogin(t, attempt(t, "iscsi-inq", "-i", "iqn.2026-01.test:second", s.url()), "")
	qemuRead := command(t, "qemu-io", "-r", "-f", "raw", "-c", "read 0 1M", s.url())
	expect(t, qemuRead, `^read 1048576/1048576`)
	compare(t, s.url(), raw)
}

// TestMultiDisk serves two images as two logical units.
func TestMultiDisk(t *testing.T) {
	dir := t.TempDir()
	for from, to := range map[string]string{
		makeImage(t, 2*mib, quick, "-c"): "a.qcow2",
		rawImage(3 * mib)(t):             "b.img",
	} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, to), data)
	}
	s := serve(t, dir, env{"MULTI_DISK": "true"})
	compare(t, s.url(), expand(t, filepath.Join(dir, "a.qcow2")))
	compare(t, strings.TrimSuffix(s.url(), "1")+"2", expand(t, filepath.Join(dir, "b.img")))
}

// TestDiskSize serves more than the image has: zeros after its end.
func TestDiskSize(t *testing.T) {
	image := makeImage(t, oddSize, quick, "-c")
	s, raw := serve(t, image, env{"DISK_SIZE": "32Mi"}), expand(t, image)
	if err := os.Truncate(raw, 32*mib); err != nil {
		t.Fatal(err)
	}
	compare(t, s.url(), raw)
}

// TestScratchFull lets the guest write more than the scratch volume holds. It
// is told, and goes on once there is room.
func TestScratchFull(t *testing.T) {
	scratch := smallVolume(t, "24m")
	s := serve(t, createImage(t, 64*mib, "", "write -P 1 0 8M"), env{"SCRATCH_DIR": scratch})
	client := attach(t, s.url())
	client.do(t, "write -P 2 8M 8M", "wrote 8388608/8388608")
	client.do(t, "write -P 3 16M 32M", "No space left on device")
	client.do(t, "read -P 1 0 8M", "read 8388608/8388608")
	client.do(t, "read -P 2 8M 8M", "read 8388608/8388608")
	client.do(t, "write -P 4 0 8M", "wrote 8388608/8388608") // these blocks exist
	client.do(t, "discard 8M 56M", "discard 58720256/58720256")
	client.do(t, "write -P 5 40M 4M", "wrote 4194304/4194304")
	client.do(t, "read -P 5 40M 4M", "read 4194304/4194304")
	client.do(t, "read -P 4 0 8M", "read 8388608/8388608")
	client.do(t, "flush", "")
	client.quit(t)
}

// TestScratchTooSmall copies an image into less room than it needs: the disk is
// served all the same, the status says what is the matter, and when there is
// room the copying goes on.
func TestScratchTooSmall(t *testing.T) {
	scratch := smallVolume(t, "12m")
	image := createImage(t, 64*mib, "", "write -P 1 0 16M")
	s := serve(t, image, env{"SCRATCH_DIR": scratch})
	client := attach(t, s.url())
	waitLog(t, s, "no room to copy more")
	waitStatus(t, s, `"state": "no space"`)
	client.do(t, "read -P 1 0 16M", "read 16777216/16777216")
	client.do(t, "write -P 2 0 64k", "wrote 65536/65536") // it is there already
	if err := syscall.Mount("tmpfs", scratch, "tmpfs", syscall.MS_REMOUNT, "size=40m"); err != nil {
		t.Fatal(err)
	}
	waitLog(t, s, "copied; the image is not needed any more")
	client.do(t, "read -P 2 0 64k", "read 65536/65536")
	client.do(t, "read -P 1 64k 16320k", "read 16711680/16711680")
	client.quit(t)
}

// waitStatus waits until the status has the text.
func waitStatus(t *testing.T, s *server, text string) {
	t.Helper()
	body := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, body = s.get(t, "/status"); strings.Contains(body, text) {
			return
		}
	}
	t.Fatalf("the status does not come to %q: %s", text, body)
}

// smallVolume mounts a file system of the size.
func smallVolume(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "needs to be root to mount a small file system")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		missing(t, "needs a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
