//go:build e2e

package e2e

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCopyOffload has qemu copy one disk of a target to another by EXTENDED
// COPY: the data does not come over the wire.
func TestCopyOffload(t *testing.T) {
	require(t, "qemu-img")
	dir := t.TempDir()
	makeContent(t, filepath.Join(dir, "a.img"), 32*mib)
	command(t, "qemu-img", "create", "-q", "-f", "raw", filepath.Join(dir, "b.img"), "32M")
	s := serve(t, dir, env{"MULTI_DISK": "true", "ACCESS_MODE": "write-shared"})
	from, to := s.url(), strings.TrimSuffix(s.url(), "1")+"2"
	command(t, "qemu-img", "convert", "-n", "-C", "-f", "raw", "-O", "raw", from, to)
	compare(t, to, filepath.Join(dir, "a.img"))
	_, metrics := s.get(t, "/metrics")
	expect(t, metrics, `^containerdisk_disk_writes_total\{.*b\.img.*\} 0$`, `^containerdisk_disk_written_bytes_total\{.*b\.img.*\} [1-9]`)
}

// holes is what qemu finds of data, by GET LBA STATUS.
func holes(t *testing.T, url string) string {
	t.Helper()
	out := command(t, "qemu-img", "map", "-f", "raw", url)
	return strings.Join(regexp.MustCompile(`(?m)^0(x\S+)? +0x\S+`).FindAllString(out, -1), "\n")
}

// TestHolesOfReadOnlyDisk: who copies a disk that cannot be written need not
// read its holes.
func TestHolesOfReadOnlyDisk(t *testing.T) {
	require(t, "qemu-img", "qemu-io")
	s := serve(t, createImage(t, 64*mib, "", "write -P 1 8M 4M"), env{"ACCESS_MODE": "read-shared"})
	if got, want := holes(t, s.url()), "0x800000        0x400000"; got != want {
		t.Errorf("data at %q, want %q", got, want)
	}
}
