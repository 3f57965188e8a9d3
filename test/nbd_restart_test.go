//go:build e2e

package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/test/guest"
)

// nbdRestartWork writes files through the kernel's NBD driver, and asks for
// the server's death in the middle, twice. PORT and ASK are set before it.
const nbdRestartWork = `
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
nbdlink 10.0.2.2:$PORT >/tmp/links 2>&2 &
i=0; while [ "$(cat /sys/block/nbd0/size)" = 0 ]; do [ $i -lt 300 ]; usleep 200000; i=$((i+1)); done
mkfs.ext4 -q -F /dev/nbd0 >&2
mount -t ext4 -o errors=remount-ro /dev/nbd0 /mnt
touch /tmp/rounds
(
	i=0
	while [ ! -e /tmp/stop ]; do
		f=$((i % 12))
		head -c $((65536 + i % 7 * 20000)) /dev/urandom >/tmp/data
		cp /tmp/data /mnt/$f
		dd if=/dev/null of=/mnt/$f conv=notrunc,fsync 2>/dev/null
		sha256sum </tmp/data >/tmp/sum.$f
		i=$((i + 1))
		echo $i >/tmp/rounds.new
		mv /tmp/rounds.new /tmp/rounds
	done
) &
load=$!
goes_on() { # at least eight more files
	from=$(cat /tmp/rounds)
	i=0
	while [ $(($(cat /tmp/rounds) - ${from:-0})) -lt 8 ]; do
		[ $i -lt 600 ] || { echo "stuck after $1" >&2; exit 7; }
		usleep 200000
		i=$((i + 1))
	done
	echo "survived-$1 $((i / 5))s"
}
goes_on nothing
for what in one two; do
	echo kill | nc 10.0.2.2 $ASK >&2 # returns when the server is back
	goes_on $what
done
touch /tmp/stop
wait $load
sync
umount /mnt
e2fsck -fn /dev/nbd0 >&2
echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 -o ro /dev/nbd0 /mnt
for f in /tmp/sum.*; do
	[ "$(cat $f)" = "$(sha256sum </mnt/${f#/tmp/sum.})" ] || { echo "file $f differs" >&2; exit 8; }
done
umount /mnt
echo "files $(ls /tmp/sum.* | wc -l)"
echo "links $(grep -c linked /tmp/links)"
dmesg | grep -iE 'I/O error|EXT4-fs error|JBD2.*error' >&2 && exit 9
echo "left yes"
`

// TestNBDKernelRestart: the kernel's driver writes on while the server is
// killed and started again. The file system is clean, and every file has what
// was written.
func TestNBDKernelRestart(t *testing.T) {
	require(t, "busybox", "ldd", "go", "e2fsck")
	link := filepath.Join(t.TempDir(), "nbdlink")
	build := exec.Command("go", "build", "-o", link, "./guest/nbdlink")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(link)
	if err != nil {
		t.Fatal(err)
	}

	image := createImage(t, 96*mib, "")
	address := freeAddress(t)
	keep := env{"ISCSI_LISTEN": "off", "NBD_LISTEN": address, "SCRATCH_DIR": t.TempDir()}
	s := start(t, image, keep)
	s.waitReady(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked sync.WaitGroup
	asked.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.kill(t)
			time.Sleep(time.Second)
			s = start(t, image, keep)
			s.waitReady(t)
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); asked.Wait(); s.stop(t) })

	port := func(a string) string { return endpoint{address: a}.port(t) }
	k := guestKernel(t)
	ramdisk, err := guest.NewRamdisk(k, []string{"virtio_pci", "virtio_net", "nbd", "ext4", "crc32c_generic"},
		"PORT="+port(address)+"\nASK="+port(l.Addr().String())+"\n"+nbdRestartWork)
	if err != nil {
		t.Fatal(err)
	}
	ramdisk.File("bin/nbdlink", 0o755, program)
	for _, name := range []string{"mkfs.ext4", "e2fsck"} {
		if err := ramdisk.Program(name); err != nil {
			missing(t, "needs the program %s: %v", name, err)
		}
	}
	saw := fields(boot(t, guest.Machine{Kernel: k, Ramdisk: ramdisk, Args: []string{
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0",
	}}))
	for _, what := range []string{"nothing", "one", "two"} {
		if saw["survived-"+what] == "" {
			t.Errorf("the guest did not get on after: %s", what)
		}
	}
	if saw["files"] != "12" || saw["links"] != "3" || saw["left"] != "yes" {
		t.Errorf("the guest saw %v", saw)
	}
}
