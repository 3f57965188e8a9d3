//go:build e2e

package vhdx

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestReplayAsQEMU: QEMU replays a log by writing to the image; what it then
// reads is what we read without writing.
func TestReplayAsQEMU(t *testing.T) {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		if os.Getenv("E2E_REQUIRE") == "all" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	around := func(back int) func() ([]byte, *image) {
		return func() ([]byte, *image) {
			disk, im := small()
			whole := bytes.Clone(im.b[builtBAT:][:logSector])
			im.setBAT(2, 0)
			tail := 1<<20 - back*logSector
			at := im.logged(testGUID, tail, tail, 5, write{builtBAT, bytes.Repeat([]byte{1}, logSector), 0})
			im.logged(testGUID, at, tail, 6, write{builtBAT, whole, 0})
			im.seal(testGUID)
			return disk, im
		}
	}
	for name, make := range map[string]func() ([]byte, *image){"dirty": dirty, "around": around(2), "around in an entry": around(1)} {
		t.Run(name, func(t *testing.T) {
			disk, im := make()
			wantDisk(t, im.b, disk)
			path := filepath.Join(t.TempDir(), "dirty.vhdx")
			if err := os.WriteFile(path, im.b, 0o600); err != nil {
				t.Fatal(err)
			}
			qemu(t, "check", "-q", "-r", "all", "-f", "vhdx", path)
			qemu(t, "convert", "-f", "vhdx", "-O", "raw", path, path+".raw")
			got, err := os.ReadFile(path + ".raw")
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, disk) {
				t.Error("QEMU reads other bytes")
			}
			replayed, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if r := wantDisk(t, replayed, disk); r.Info().Replayed != 0 {
				t.Error("QEMU has left the log")
			}
		})
	}
}

func qemu(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img %v: %v\n%s", args, err, out)
	}
}
