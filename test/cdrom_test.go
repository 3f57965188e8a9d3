//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerdisk/containerdisk/test/guest"
)

// discWork is what the guest does with the disc. NAME, PORT and SECRET are set
// before it.
const discWork = `
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
mkdir -p /etc/iscsi /run/lock/iscsi
echo InitiatorName=iqn.1993-08.org.debian:01:guest >/etc/iscsi/initiatorname.iscsi
iscsid -f >&2 &
while ! iscsiadm -m session -P 0 2>&1 | grep -q 'No active sessions'; do sleep 0.2; done
iscsiadm -m node -o new -T $NAME -p 10.0.2.2:$PORT >&2
iscsiadm -m node -T $NAME -o update -n node.session.auth.password -v $SECRET
iscsiadm -m node -T $NAME --login >&2
i=0; while [ ! -b /dev/sr0 ]; do [ $i -lt 100 ]; usleep 100000; i=$((i+1)); done
echo "type $(cat /sys/block/sr0/device/type)"
echo "removable $(cat /sys/block/sr0/removable)"
echo "size $(cat /sys/block/sr0/size)"
echo "block $(cat /sys/block/sr0/queue/logical_block_size)"
grep -E '^(drive speed|Can (read DVD|lock tray|close tray|open tray|write CD-R|change speed)|drive # of slots)' /proc/sys/dev/cdrom/info | sed 's/:[[:space:]]*/ /; s/ \([a-zA-Z]\)/-\1/g; s/^/info-/'
echo "whole $(sha256sum </dev/sr0 | cut -d' ' -f1)"
mount -t iso9660 -o ro /dev/sr0 /mnt
echo "file $(sha256sum </mnt/hello.txt | cut -d' ' -f1)"
umount /mnt
dmesg | grep -iE 'I/O error|Sense Key|detected conn error|timed out' >&2 && exit 9
dd if=/dev/zero of=/dev/sr0 bs=2048 count=1 2>/dev/null && echo "written yes"
iscsiadm -m node -T $NAME --logout >&2
`

// iso9660 is a disc with one file, HELLO.TXT: ECMA-119, level 1.
func iso9660(content []byte) []byte {
	const block, root, data = 2048, 20, 21
	blocks := data + (len(content)+block-1)/block
	both32 := func(b []byte, v int) {
		binary.LittleEndian.PutUint32(b, uint32(v))
		binary.BigEndian.PutUint32(b[4:], uint32(v))
	}
	both16 := func(b []byte, v int) {
		binary.LittleEndian.PutUint16(b, uint16(v))
		binary.BigEndian.PutUint16(b[2:], uint16(v))
	}
	record := func(name string, at, size int, flags byte) []byte {
		r := make([]byte, (33+len(name)+1)&^1)
		r[0], r[25], r[32] = byte(len(r)), flags, byte(len(name))
		both32(r[2:], at)
		both32(r[10:], size)
		copy(r[18:], []byte{124, 1, 1, 0, 0, 0, 0}) // 2024
		both16(r[28:], 1)
		copy(r[33:], name)
		return r
	}
	disc := make([]byte, blocks*block)
	pvd := disc[16*block:]
	copy(pvd, "\x01CD001\x01")
	copy(pvd[8:72], bytes.Repeat([]byte{' '}, 64))
	copy(pvd[40:], "CONTAINERDISK")
	both32(pvd[80:], blocks)
	both16(pvd[120:], 1)
	both16(pvd[124:], 1)
	both16(pvd[128:], block)
	both32(pvd[132:], 10)
	binary.LittleEndian.PutUint32(pvd[140:], 18)
	binary.BigEndian.PutUint32(pvd[148:], 19)
	copy(pvd[156:], record("\x00", root, block, 2))
	copy(pvd[190:881], bytes.Repeat([]byte{' '}, 691))
	pvd[881] = 1
	copy(disc[17*block:], "\xffCD001\x01")
	copy(disc[18*block:], []byte{1, 0, root, 0, 0, 0, 1, 0}) // path tables: the root, its own parent
	copy(disc[19*block:], []byte{1, 0, 0, 0, 0, root, 0, 1})
	dir := bytes.Join([][]byte{record("\x00", root, block, 2), record("\x01", root, block, 2),
		record("HELLO.TXT;1", data, len(content), 0)}, nil)
	copy(disc[root*block:], dir)
	copy(disc[data*block:], content)
	return disc
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// TestKernelDisc: Linux finds a CD/DVD drive, mounts the disc in it, and cannot
// write to it.
func TestKernelDisc(t *testing.T) {
	require(t, "iscsid", "busybox", "ldd")
	content := bytes.Repeat([]byte("a disc over the network\n"), 100_000)
	disc := iso9660(content)
	path := filepath.Join(t.TempDir(), "disc.iso")
	if err := os.WriteFile(path, disc, 0o644); err != nil {
		t.Fatal(err)
	}
	s := serve(t, path, env{"DEVICE_TYPE": "cdrom"})
	k := guestKernel(t)
	ramdisk, err := guest.NewRamdisk(k, []string{"virtio_pci", "virtio_net", "iscsi_tcp", "sr_mod", "isofs", "crc32c_generic"},
		"NAME="+s.name+"\nPORT="+s.port(t)+"\nSECRET="+s.initiator.secret+discWork)
	if err != nil {
		t.Fatal(err)
	}
	ramdisk.File("etc/passwd", 0o644, []byte("root:x:0:0::/:/bin/sh\n"))
	ramdisk.File("etc/iscsi/iscsid.conf", 0o600, iscsidConf(s.endpoint))
	for _, program := range []string{"iscsid", "iscsiadm"} {
		if err := ramdisk.Program(program); err != nil {
			missing(t, "needs the program %s: %v", program, err)
		}
	}
	saw := fields(boot(t, guest.Machine{Kernel: k, Ramdisk: ramdisk, Args: []string{
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0",
	}}))
	for name, want := range map[string]string{
		"type":      "5",
		"removable": "1",
		"size":      fmt.Sprint(len(disc) / sector),
		"block":     "2048",
		"whole":     sum(disc),
		"file":      sum(content),

		"info-Can-read-DVD": "1", "info-Can-open-tray": "1", "info-Can-lock-tray": "1", "info-Can-write-CD-R": "0",

		"written": "",
	} {
		if saw[name] != want {
			t.Errorf("%s: the guest saw %q, want %q", name, saw[name], want)
		}
	}
}
