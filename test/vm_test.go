//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerdisk/containerdisk/test/guest"
)

// vmInit is the first process of the machine that boots from the disk.
const vmInit = `#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
` + guest.Work + `mount -o remount,ro /
poweroff -f
`

// vmWork writes to the root file system and tells on the serial console what
// it found there and what it left there.
const vmWork = `
mount -o remount,rw /
echo "root $(sed -n 's/^\(\S*\) \/ .*/\1/p' /proc/mounts)"
echo "given $(sha256sum </given | cut -d' ' -f1)"
dd if=/dev/urandom of=/written bs=64k count=128 2>/dev/null
sync
echo 3 >/proc/sys/vm/drop_caches
echo "written $(sha256sum </written | cut -d' ' -f1)"
mkdir /many
i=0; while [ $i -lt 200 ]; do echo "number $i" >/many/$i; i=$((i+1)); done
mv /old /new
sync
dmesg | grep -iE 'I/O error|EXT4-fs error|remount-ro' >&2 && exit 9
exit 0
`

// vmImage makes a compressed qcow2 with the root file system of a small
// machine, on a disk of the size that mke2fs is told. It gives the checksum of
// the file /given in it, which has that many MiB.
func vmImage(t *testing.T, file, size string, mibs int) string {
	t.Helper()
	given := make([]byte, mibs<<20)
	rand.NewChaCha8([32]byte{1}).Read(given)
	root := guest.NewTree()
	root.Dir("proc", "sys", "dev", "tmp", "lost+found")
	root.File("sbin/init", 0o755, []byte(vmInit))
	root.File("work", 0o755, []byte(vmWork))
	root.File("given", 0o644, given)
	root.File("old", 0o644, []byte("moved by the guest\n"))
	if err := root.Program("busybox"); err != nil {
		t.Fatal(err)
	}
	applets := command(t, "busybox", "--list")
	for _, name := range strings.Fields(applets) {
		if name != "busybox" {
			root.Link("bin/"+name, "busybox")
		}
	}
	dir, raw := t.TempDir(), file+".raw"
	if err := root.WriteDir(dir); err != nil {
		t.Fatal(err)
	}
	command(t, "mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0", "-d", dir, raw, size)
	command(t, "qemu-img", "convert", "-c", "-O", "qcow2", raw, file)
	if err := os.Remove(raw); err != nil {
		t.Fatal(err)
	}
	return digest(given)
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// controller is how a guest sees a disk.
type controller struct {
	device, module string
	args           []string
}

var controllers = map[string]controller{
	"virtio-blk": {"/dev/vda", "virtio_blk", []string{"-device", "virtio-blk-pci,drive=disk"}},
	"virtio-scsi": {"/dev/sda", "virtio_scsi", []string{
		"-device", "virtio-scsi-pci", "-device", "scsi-hd,drive=disk"}},
	// The guest's own SCSI commands reach the target.
	"scsi-generic": {"/dev/sda", "virtio_scsi", []string{
		"-device", "virtio-scsi-pci", "-device", "scsi-generic,drive=disk"}},
}

// machine is one that boots from the endpoint's disk.
func (c controller) machine(t *testing.T, e endpoint) guest.Machine {
	t.Helper()
	k := guestKernel(t)
	ramdisk, err := guest.NewBootRamdisk(k, []string{"virtio_pci", "sd_mod", "crc32c_generic", c.module}, c.device)
	if err != nil {
		t.Fatal(err)
	}
	drive := "if=none,id=disk,format=raw,discard=unmap,file=" + e.url()
	return guest.Machine{Kernel: k, Ramdisk: ramdisk, Args: append([]string{"-drive", drive}, c.args...)}
}

// checkFileSystem reads the disk back, checks the ext4 file system on it and
// that a file has the checksum that a guest gave for it. The raw file stays
// until the end of the test.
func checkFileSystem(t *testing.T, e endpoint, name, sum string) (raw string) {
	t.Helper()
	require(t, "qemu-img", "e2fsck", "debugfs")
	dir := t.TempDir()
	raw, file := filepath.Join(dir, "raw"), filepath.Join(dir, "file")
	command(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", e.url(), raw)
	command(t, "e2fsck", "-fn", raw)
	command(t, "debugfs", "-R", "dump "+name+" "+file, raw)
	data, err := os.ReadFile(file)
	if got := digest(data); err != nil || got != sum {
		t.Errorf("%s has %s, %v; the guest had written %q", name, got, err, sum)
	}
	return raw
}

// TestBoot boots a machine from the disk, checks what it saw there, and what
// it wrote in the disk's later content.
func TestBoot(t *testing.T) {
	require(t, "qemu-img", "mke2fs", "debugfs", "e2fsck", "busybox")
	for name, c := range controllers {
		t.Run(name, func(t *testing.T) {
			image := filepath.Join(t.TempDir(), "vm.qcow2")
			given := vmImage(t, image, "48M", 6)
			s := serve(t, image, nil)
			saw := fields(boot(t, c.machine(t, s.endpoint)))
			if saw["root"] != c.device || saw["given"] != given {
				t.Errorf("the guest saw root %q and given %q, want %q and %q", saw["root"], saw["given"], c.device, given)
			}
			raw := checkFileSystem(t, s.endpoint, "/written", saw["written"])
			for name, want := range map[string]string{"/many/199": "number 199\n", "/new": "moved by the guest\n"} {
				if got := command(t, "debugfs", "-R", "cat "+name, raw); !strings.Contains(got, want) {
					t.Errorf("%s has %q, want %q", name, got, want)
				}
			}
		})
	}
}

// TestStopUnderGuest stops the server while a machine boots from it, as when a
// pod is deleted: the machine works on to its end, and then the server goes.
func TestStopUnderGuest(t *testing.T) {
	require(t, "qemu-img", "mke2fs", "busybox")
	image := filepath.Join(t.TempDir(), "vm.qcow2")
	given := vmImage(t, image, "48M", 6)
	s := serve(t, image, env{"SHUTDOWN_GRACE": guestLimit.String()})
	m := controllers["virtio-blk"].machine(t, s.endpoint)
	var stopped sync.WaitGroup
	stopped.Go(func() {
		waitLog(t, s, `"msg":"login"`)
		s.signal(t, syscall.SIGTERM)
	})
	saw := fields(boot(t, m))
	stopped.Wait()
	if saw["given"] != given || saw["written"] == "" {
		t.Errorf("the guest saw given %q and wrote %q, want %q and something", saw["given"], saw["written"], given)
	}
	s.wait(t, stopLimit, 0)
}
