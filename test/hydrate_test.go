//go:build e2e

package e2e

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/test/guest"
)

// bigDisk is a virtual disk that nobody would want to wait for, and slowly
// makes sure that a machine boots from it before it is copied.
const (
	bigDisk = "20G"
	slowly  = "6M" // HYDRATE_RATE, for content of some 40 MiB
)

// TestBootWhileHydrating boots a machine that does not write from a disk that
// is being copied. What it reads is right, and the whole disk is what qemu-img
// makes of the image, while the copy is under way and when it has ended.
func TestBootWhileHydrating(t *testing.T) {
	require(t, "qemu-img", "mke2fs", "busybox")
	image := filepath.Join(t.TempDir(), "vm.qcow2")
	given := vmImage(t, image, bigDisk, 32)
	raw := expand(t, image)
	s := serve(t, image, env{"HYDRATE_RATE": slowly})
	m := controllers["virtio-blk"].machine(t, s.endpoint)
	m.Ramdisk = readingRamdisk(t, m.Kernel)
	saw := fields(boot(t, m))
	if saw["given"] != given {
		t.Errorf("the guest saw given %q, want %q", saw["given"], given)
	}
	compare(t, s.url(), raw)
	waitLog(t, s, `"msg":"copied;`)
	compare(t, s.url(), raw)
}

// readingRamdisk reads the file /given of the disk and leaves it as it was.
func readingRamdisk(t *testing.T, k *guest.Kernel) *guest.Tree {
	t.Helper()
	ramdisk, err := guest.NewRamdisk(k, []string{"virtio_pci", "virtio_blk", "crc32c_generic", "ext4"}, `
mount -t ext4 -o ro,noload /dev/vda /mnt
echo "given $(sha256sum </mnt/given | cut -d' ' -f1)"
umount /mnt
`)
	if err != nil {
		t.Fatal(err)
	}
	return ramdisk
}

// TestKillUnderGuest kills the server with -9 while a machine boots from it and
// works on its disk, again and again. The machine notices nothing but that it
// waits, over either wire.
func TestKillUnderGuest(t *testing.T) {
	require(t, "qemu-img", "mke2fs", "debugfs", "e2fsck", "busybox")
	image := filepath.Join(t.TempDir(), "vm.qcow2")
	given := vmImage(t, image, bigDisk, 32)
	for _, wire := range []string{"iscsi", "nbd"} {
		t.Run(wire, func(t *testing.T) {
			c := controllers["virtio-blk"]
			keep := env{"SCRATCH_DIR": t.TempDir(), "ISCSI_LISTEN": freeAddress(t), "HYDRATE_RATE": slowly,
				"ACCESS_MODE": "write-shared", "NBD_SOCKET": filepath.Join(t.TempDir(), "nbd.sock")}
			s := start(t, image, keep)
			s.waitReady(t)
			m := c.machine(t, s.endpoint)
			if wire == "nbd" {
				m.Args = append([]string{
					"-blockdev", "driver=nbd,node-name=disk,reconnect-delay=60,discard=unmap,server.type=unix,server.path=" + keep["NBD_SOCKET"],
				}, c.args...)
			}
			saw, kills := bootUnderKills(t, m, func() {
				s.kill(t)
				s = start(t, image, keep)
				s.waitReady(t)
			})
			t.Cleanup(func() { s.stop(t) })
			t.Logf("killed %d times", kills)
			if kills < 3 {
				t.Errorf("the machine was done after %d kills: nothing was shown", kills)
			}
			if saw["root"] != c.device || saw["given"] != given {
				t.Errorf("the guest saw root %q and given %q, want %q and %q", saw["root"], saw["given"], c.device, given)
			}
			checkFileSystem(t, s.endpoint, "/written", saw["written"])
		})
	}
}

// mostKills is enough of them: a slow machine would otherwise never come to
// its end.
const mostKills = 8

// bootUnderKills runs a machine to its end and calls kill every now and then.
func bootUnderKills(t *testing.T, m guest.Machine, kill func()) (saw map[string]string, kills int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guestLimit)
	defer cancel()
	var r guest.Result
	var err error
	done := make(chan struct{})
	go func() { r, err = m.Run(ctx); close(done) }()
	for {
		select {
		case <-done:
			if err != nil || r.Status != 0 {
				t.Fatalf("the guest ended with %d, %v\n--- its output\n%s--- its console\n%s", r.Status, err, r.Output, r.Console)
			}
			return fields(r.Output), kills
		case <-time.After(400 * time.Millisecond):
			if kills < mostKills {
				kill()
				kills++
			}
		}
	}
}
