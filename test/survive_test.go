//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/test/guest"
)

// surviveWork writes files all the time, through the kernel's initiator, while
// bad things happen: it resets the unit itself, and asks the test for the rest.
// After each it waits until the writing goes on. NAME, PORT and ASK are set
// before it.
const surviveWork = `
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
mkdir -p /etc/iscsi /run/lock/iscsi
echo InitiatorName=iqn.1993-08.org.debian:01:guest >/etc/iscsi/initiatorname.iscsi
iscsid -f >&2 &
while ! iscsiadm -m session -P 0 2>&1 | grep -q 'No active sessions'; do sleep 0.2; done
iscsiadm -m node -o new -T $NAME -p 10.0.2.2:$PORT >&2
iscsiadm -m node -T $NAME --login >&2
i=0; while [ ! -b /dev/sda ]; do [ $i -lt 100 ]; usleep 100000; i=$((i+1)); done
mkfs.ext4 -q -F /dev/sda >&2
mount -t ext4 -o errors=remount-ro /dev/sda /mnt
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
sg_reset -d /dev/sda >&2
goes_on reset
for what in cut silence kill; do
	echo $what | nc 10.0.2.2 $ASK >&2 # returns when it is done
	goes_on $what
done
touch /tmp/stop
wait $load
sync
umount /mnt
e2fsck -fn /dev/sda >&2
echo clean
echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 -o ro /dev/sda /mnt
for f in /tmp/sum.*; do
	[ "$(cat $f)" = "$(sha256sum </mnt/${f#/tmp/sum.})" ] || { echo "file $f differs" >&2; exit 8; }
done
echo "files $(ls /tmp/sum.* | wc -l)"
echo "rounds $(cat /tmp/rounds)"
umount /mnt
echo "resets $(dmesg | grep -ciE 'detected conn error|lun reset|device reset')"
dmesg | grep -iE 'I/O error|Buffer I/O|EXT4-fs error|JBD2.*error' >&2 && exit 9
iscsiadm -m node -T $NAME --logout >&2
echo left
`

// surviveConf makes open-iscsi notice soon that nobody answers.
const surviveConf = `
node.conn[0].timeo.noop_out_interval = 2
node.conn[0].timeo.noop_out_timeout = 2
node.session.err_timeo.lu_reset_timeout = 15
`

// helper does what the guest asks for.
type helper struct {
	net    *network
	server *server
	revive func() *server
}

// serve answers the guest, one request a connection, until the listener is
// closed.
func (h *helper) serve(t *testing.T, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			t.Errorf("the guest asks for %q: %v", line, err)
		}
		h.do(t, strings.TrimSpace(line))
		c.Close()
	}
}

func (h *helper) do(t *testing.T, what string) {
	t.Logf("the guest asks for: %s", what)
	switch what {
	case "cut":
		h.net.cut()
	case "silence": // until the initiator gives up and tries again, and then a while
		before := h.net.connections()
		h.net.hush()
		for i := 0; h.net.connections() == before && i < 300; i++ {
			time.Sleep(100 * time.Millisecond)
		}
		if h.net.connections() == before {
			t.Error("the initiator does not come back after a silence of 30 s")
		}
		time.Sleep(2 * time.Second)
		h.net.speak()
	case "kill":
		h.server.kill(t)
		time.Sleep(time.Second)
		h.server = h.revive()
	default:
		t.Errorf("the guest asks for %q", what)
	}
}

// TestGuestSurvives: under load, the kernel's initiator lives through a LUN
// reset, a cut connection, a network that says nothing to either end, and the
// death of the server, which comes back on what it had on the disk. The file system is clean in the end, and
// every file has what was written.
func TestGuestSurvives(t *testing.T) {
	require(t, "iscsid", "busybox", "ldd", "sg_reset", "e2fsck", "qemu-img")
	image := makeImage(t, 96*mib, quick, "-c")
	settings := env{"SCRATCH_DIR": t.TempDir()}
	s := serve(t, image, settings)
	settings["ISCSI_LISTEN"] = s.address
	h := &helper{net: connectTo(t, s.address), server: s, revive: func() *server { return serve(t, image, settings) }}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked sync.WaitGroup
	asked.Go(func() { h.serve(t, l) })
	t.Cleanup(func() { l.Close(); asked.Wait() })

	k := guestKernel(t)
	modules := []string{"virtio_pci", "virtio_net", "iscsi_tcp", "sd_mod", "ext4", "crc32c_generic"}
	through := s.endpoint
	through.address = h.net.address
	ask := endpoint{address: l.Addr().String()}
	ramdisk, err := guest.NewRamdisk(k, modules, fmt.Sprintf("NAME=%s\nPORT=%s\nASK=%s\n", s.name, through.port(t), ask.port(t))+surviveWork)
	if err != nil {
		t.Fatal(err)
	}
	ramdisk.File("etc/passwd", 0o644, []byte("root:x:0:0::/:/bin/sh\n"))
	ramdisk.File("etc/iscsi/iscsid.conf", 0o600, append(iscsidConf(s.endpoint), surviveConf...))
	for _, program := range []string{"iscsid", "iscsiadm", "mkfs.ext4", "e2fsck", "sg_reset"} {
		if err := ramdisk.Program(program); err != nil {
			missing(t, "needs the program %s: %v", program, err)
		}
	}
	saw := fields(boot(t, guest.Machine{Kernel: k, Ramdisk: ramdisk, Args: []string{
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0",
	}}))
	for _, what := range []string{"nothing", "reset", "cut", "silence", "kill"} {
		if saw["survived-"+what] == "" {
			t.Errorf("the guest did not survive: %s", what)
		}
	}
	_, clean := saw["clean"]
	if _, left := saw["left"]; !clean || !left || saw["files"] != "12" {
		t.Errorf("the guest saw %v", saw)
	}
	raw := filepath.Join(t.TempDir(), "raw")
	command(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", s.url(), raw)
	command(t, "e2fsck", "-fn", raw)
}
