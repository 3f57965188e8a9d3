//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/test/guest"
)

// kernelWork is what the guest does with the disk through the kernel's own
// initiator. NAME, PORT and
// SECRET are set before it.
const kernelWork = `
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
mkdir -p /etc/iscsi /run/lock/iscsi
echo InitiatorName=iqn.1993-08.org.debian:01:guest >/etc/iscsi/initiatorname.iscsi
iscsid -f >&2 &
while ! iscsiadm -m session -P 0 2>&1 | grep -q 'No active sessions'; do sleep 0.2; done
echo "found $(iscsiadm -m discovery -t sendtargets -p 10.0.2.2:$PORT)"
# The target tells the address that it was reached by, on its side of qemu's
# network; here it has another one.
rm -rf /etc/iscsi/nodes /etc/iscsi/send_targets
iscsiadm -m node -o new -T $NAME -p 10.0.2.2:$PORT >&2
iscsiadm -m node -T $NAME -o update -n node.session.auth.password -v wrong-secret-1
iscsiadm -m node -T $NAME --login >&2 && exit 8
echo "refused $?"
iscsiadm -m node -T $NAME -o update -n node.session.auth.password -v $SECRET
dmesg -c >/dev/null
iscsiadm -m node -T $NAME --login >&2
# Each hash, and each digest, once; the last stays.
for hash in SHA3-256 SHA256 SHA1 MD5; do
	iscsiadm -m node -T $NAME --logout >&2
	iscsiadm -m node -T $NAME -o update -n node.session.auth.chap_algs -v $hash
	[ $hash = MD5 ] || iscsiadm -m node -T $NAME -o update -n node.conn[0].iscsi.DataDigest -v CRC32C
	iscsiadm -m node -T $NAME --login >&2
	echo "hash-$hash $(iscsiadm -m session | grep -c $NAME)"
done
echo "sessions $(iscsiadm -m session | grep -c $NAME)"
echo "digests $(cat /sys/class/iscsi_connection/*/header_digest /sys/class/iscsi_connection/*/data_digest | xargs)"
i=0; while [ ! -b /dev/sda ]; do [ $i -lt 100 ]; usleep 100000; i=$((i+1)); done
cd /sys/block/sda
echo "size $(cat size)"
echo "vendor $(cat device/vendor device/model | xargs)"
echo "cache $(cat queue/write_cache)"
echo "fua $(cat queue/fua)"
echo "discard $(cat queue/discard_max_bytes)"
cd /

# The image came with content: the kernel has to see the same bytes as we do.
echo "image $(head -c 1048576 /dev/sda | sha256sum | cut -d' ' -f1)"

mkfs.ext4 -q -F /dev/sda >&2
mount -t ext4 /dev/sda /mnt
dd if=/dev/urandom of=/mnt/data bs=64k count=128 conv=fsync 2>&1 | tail -n 1 >&2
mkdir /mnt/tree
i=0; while [ $i -lt 50 ]; do echo "file $i" >/mnt/tree/$i; i=$((i+1)); done
sync
echo "data $(sha256sum </mnt/data | cut -d' ' -f1)"
dd if=/dev/zero of=/mnt/gone bs=64k count=64 conv=fsync 2>/dev/null
rm /mnt/gone
fstrim -v /mnt >&2
echo trimmed
umount /mnt

e2fsck -fn /dev/sda >&2
echo clean
echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 -o ro /dev/sda /mnt
echo "again $(sha256sum </mnt/data | cut -d' ' -f1)"
umount /mnt
dmesg | grep -iE 'I/O error|Sense Key|detected conn error|timed out' >&2 && exit 9
iscsiadm -m node -T $NAME --logout >&2
[ ! -e /dev/sda ]
echo "left $(iscsiadm -m session 2>&1)"
`

// iscsidConf makes open-iscsi authenticate both ways, in discovery too.
func iscsidConf(e endpoint) []byte {
	var b bytes.Buffer
	for _, session := range []string{"node.session", "discovery.sendtargets"} {
		fmt.Fprintf(&b, "%s.auth.authmethod = CHAP\n", session)
		fmt.Fprintf(&b, "%s.auth.username = %s\n", session, e.initiator.name)
		fmt.Fprintf(&b, "%s.auth.password = %s\n", session, e.initiator.secret)
		fmt.Fprintf(&b, "%s.auth.username_in = %s\n", session, e.target.name)
		fmt.Fprintf(&b, "%s.auth.password_in = %s\n", session, e.target.secret)
	}
	fmt.Fprint(&b, "node.conn[0].iscsi.HeaderDigest = CRC32C,None\n")
	return b.Bytes()
}

// kernelInitiator logs the guest's kernel in to the target with mutual CHAP,
// lets it work on the disk and gives what it saw.
func kernelInitiator(t *testing.T, e endpoint) map[string]string {
	t.Helper()
	require(t, "iscsid", "busybox", "ldd")
	k := guestKernel(t)
	modules := []string{"virtio_pci", "virtio_net", "iscsi_tcp", "sd_mod", "ext4", "crc32c_generic"}
	ramdisk, err := guest.NewRamdisk(k, modules, "NAME="+e.name+"\nPORT="+e.port(t)+"\nSECRET="+e.initiator.secret+kernelWork)
	if err != nil {
		t.Fatal(err)
	}
	ramdisk.File("etc/passwd", 0o644, []byte("root:x:0:0::/:/bin/sh\n"))
	ramdisk.File("etc/iscsi/iscsid.conf", 0o600, iscsidConf(e))
	for _, program := range []string{"iscsid", "iscsiadm", "mkfs.ext4", "e2fsck"} {
		if err := ramdisk.Program(program); err != nil {
			missing(t, "needs the program %s: %v", program, err)
		}
	}
	return fields(boot(t, guest.Machine{Kernel: k, Ramdisk: ramdisk, Args: []string{
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0",
	}}))
}

// fields reads lines of "name value".
func fields(out string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		m[name] = value
	}
	return m
}

// TestKernelInitiator is the main thing: the initiator that most machines have
// makes a file system on the disk, and it is sound.
func TestKernelInitiator(t *testing.T) {
	image := makeImage(t, 64*mib, quick, "-c")
	content := expand(t, image)
	s := serve(t, image, nil)
	saw := kernelInitiator(t, s.endpoint)
	first, err := os.ReadFile(content)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"found":   s.address + ",1 " + s.name,
		"refused": "24", // ISCSI_ERR_LOGIN_AUTH_FAILED
		"digests": "1 1",

		"hash-SHA3-256": "1", "hash-SHA256": "1", "hash-SHA1": "1", "hash-MD5": "1",

		"size":  fmt.Sprint(64 * mib / sector),
		"cache": "write back",
		"fua":   "1",
		"image": digest(first[:mib]),
		"again": saw["data"],
		"left":  "iscsiadm: No active sessions.",
	} {
		if saw[name] != want {
			t.Errorf("the guest saw %s %q, want %q", name, saw[name], want)
		}
	}
	if saw["discard"] == "0" || saw["discard"] == "" {
		t.Errorf("the guest cannot discard: %q", saw["discard"])
	}
	checkFileSystem(t, s.endpoint, "/data", saw["data"])
}
