//go:build e2e

package e2e

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestConvert makes the raw file that qemu-img makes, sparse, and as a stream.
func TestConvert(t *testing.T) {
	require(t, "qemu-img", "cmp")
	image := makeImage(t, oddSize, "compression_type=zstd", "-c")
	want := expand(t, image)
	out := filepath.Join(t.TempDir(), "out.raw")
	command(t, program, "convert", image, out)
	command(t, "cmp", want, out)
	if got, limit := allocated(t, out), allocated(t, want)+64*kib; got > limit {
		t.Errorf("%d bytes are allocated, qemu-img needs %d", got, limit)
	}
	pipe := exec.CommandContext(t.Context(), "sh", "-c", `"$0" convert "$1" - | cmp - "$2"`, program, image, want)
	if msg, err := pipe.CombinedOutput(); err != nil {
		t.Errorf("to standard output: %v: %s", err, msg)
	}
}

func allocated(t *testing.T, file string) int64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
