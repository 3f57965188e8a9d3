//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/test/guest"
)

// nbdOnly is a server without iSCSI, on a Unix socket.
func nbdOnly(t *testing.T, more env) env {
	t.Helper()
	return env{"ISCSI_LISTEN": "off", "NBD_SOCKET": filepath.Join(t.TempDir(), "nbd.sock")}.with(more)
}

// nbdURLs are where the server says that its disks are, in the order of doors
// and disks.
func (s *server) nbdURLs(t *testing.T) []string {
	t.Helper()
	var urls []string
	for _, line := range s.log.grep(`"wire":"nbd"`) {
		var m struct{ Msg, URL string }
		if err := json.Unmarshal([]byte(line), &m); err == nil && m.Msg == "listening" {
			urls = append(urls, m.URL)
		}
	}
	if len(urls) == 0 {
		t.Fatal("the server does not tell where NBD is")
	}
	return urls
}

func (s *server) nbdURL(t *testing.T) string { t.Helper(); return s.nbdURLs(t)[0] }

// TestNBD compares what is served with what qemu-img makes of the image, over
// each transport, and writes in all the ways that qemu-io has.
func TestNBD(t *testing.T) {
	image := makeImage(t, oddSize, "compression_type=zstd", "-c")
	for name, more := range map[string]env{
		"unix": nbdOnly(t, nil),
		"tcp":  {"ISCSI_LISTEN": "off", "NBD_LISTEN": "127.0.0.1:0"},
	} {
		t.Run(name, func(t *testing.T) {
			s, mirror := serve(t, image, more), expand(t, image)
			url := s.nbdURL(t)
			compare(t, url, mirror)
			for _, line := range []string{
				"write -P 0xa1 0 512", "write -P 0xa2 1k 3k", "write -P 0xa3 65535 2", "write -P 0xa4 1M 3M",
				"write -f -P 0xa5 5M 4k", "writev -P 0xa6 6M 512 1024 4096", "write -P 0xa7 9440256 512",
				"write -z 7M 64k", "write -z -u 7340032 1M", "write -z -f 2M 4k", "write -z 1000k 512", "discard 3M 1M", "flush",
				"aio_write -P 0xb0 8M 64k", "aio_write -P 0xb1 8257536 64k", "aio_write -z 8126464 64k", "aio_flush",
				"read -P 0xa4 1M 1000k", "read -P 0 7M 64k", "read -P 0xb0 8M 64k",
			} {
				for _, disk := range []string{url, mirror} {
					qemuIO(t, disk, "raw", line)
				}
			}
			compare(t, url, mirror)
			content := filepath.Join(t.TempDir(), "content")
			makeContent(t, content, oddSize)
			command(t, "qemu-img", "convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw", content, url)
			compare(t, url, content)
		})
	}
}

// TestNBDInfo reads what libnbd's and nbd's own clients say of an export.
func TestNBDInfo(t *testing.T) {
	require(t, "nbdinfo", "nbd-client")
	image := createImage(t, 8*mib, "", "write -P 1 1M 1M", "write -z 3M 64k")
	s := serve(t, image, nbdOnly(t, nil))
	url := s.nbdURL(t)
	var info struct {
		Protocol   string
		Structured bool
		Exports    []map[string]any
	}
	if err := json.Unmarshal([]byte(command(t, "nbdinfo", "--json", url)), &info); err != nil {
		t.Fatal(err)
	}
	if info.Protocol != "newstyle-fixed" || !info.Structured || len(info.Exports) != 1 {
		t.Fatalf("%+v", info)
	}
	for k, want := range map[string]any{
		"export-size": 8. * 1024 * 1024, "is_read_only": false, "can_cache": true, "can_df": true, "can_fast_zero": true,
		"can_flush": true, "can_fua": true, "can_multi_conn": true, "can_trim": true, "can_zero": true,
		"block_size_minimum": 1., "block_size_preferred": 4096., "block_size_maximum": 33554432.,
	} {
		if got := info.Exports[0][k]; got != want {
			t.Errorf("%s: %v, want %v", k, got, want)
		}
	}
	for _, what := range []string{"connect", "cache", "df", "fast-zero", "flush", "fua", "multi-conn", "read", "trim", "write", "zero", "structured-reply"} {
		command(t, "nbdinfo", "--can", what, url)
	}
	if r := attempt(t, "nbdinfo", "--is", "read-only", url); r.code != 2 {
		t.Errorf("--is read-only: %d %s, want 2", r.code, r.out)
	}
	got := strings.Join(strings.Fields(command(t, "nbdinfo", "--map", url)), " ")
	if want := "0 1048576 3 hole,zero 1048576 1048576 0 data 2097152 6291456 3 hole,zero"; got != want {
		t.Errorf("--map: %s, want %s", got, want)
	}
	if got := fmt.Sprint(info.Exports[0]["contexts"]); got != "[base:allocation containerdisk:hydration]" {
		t.Errorf("contexts %s", got)
	}
	if got := command(t, "nbdinfo", "--list", url); !strings.Contains(got, `export="image.qcow2"`) {
		t.Errorf("--list: %s", got)
	}
	tcp := serve(t, image, env{"ISCSI_LISTEN": "off", "NBD_LISTEN": "127.0.0.1:0"}).nbdURL(t)
	port := strings.Trim(tcp[strings.LastIndex(tcp, ":")+1:], "/")
	if got := command(t, "nbd-client", "-l", "127.0.0.1", port); !strings.Contains(got, "image.qcow2") {
		t.Errorf("nbd-client -l: %s", got)
	}
}

// TestNBDHydration watches a disk fill up: what the image has is remote until
// it is written or copied; where it has nothing there is nothing to fetch.
func TestNBDHydration(t *testing.T) {
	require(t, "nbdinfo")
	image := createImage(t, 8*mib, "", "write -P 1 1M 2M")
	hydration := func(s *server) string {
		out := command(t, "nbdinfo", "--map=containerdisk:hydration", s.nbdURL(t))
		return strings.Join(strings.Fields(out), " ")
	}
	s := serve(t, image, nbdOnly(t, env{"COPY_MODE": "copy-on-write"}))
	if got, want := hydration(s), "0 1048576 0 1048576 2097152 1 3145728 5242880 0"; got != want {
		t.Errorf("before: %s, want %s", got, want)
	}
	qemuIO(t, s.nbdURL(t), "raw", "write -P 2 2M 1M")
	if got, want := hydration(s), "0 1048576 0 1048576 1048576 1 2097152 6291456 0"; got != want {
		t.Errorf("after a write: %s, want %s", got, want)
	}
	s = serve(t, image, nbdOnly(t, nil))
	for end := time.Now().Add(startLimit); ; time.Sleep(100 * time.Millisecond) {
		if got, want := hydration(s), "0 8388608 0"; got == want {
			break
		} else if time.Now().After(end) {
			t.Fatalf("a clone stays at %s", got)
		}
	}
}

// TestNBDCopy copies with several connections, both ways.
func TestNBDCopy(t *testing.T) {
	require(t, "nbdcopy", "cmp")
	const size = 96 * mib
	s := serve(t, createImage(t, size, ""), nbdOnly(t, nil))
	dir := t.TempDir()
	content, back := filepath.Join(dir, "content"), filepath.Join(dir, "back")
	makeContent(t, content, size)
	command(t, "nbdcopy", "--connections=4", "--flush", content, s.nbdURL(t))
	command(t, "nbdcopy", "--connections=4", s.nbdURL(t), back)
	command(t, "cmp", content, back)
	compare(t, s.nbdURL(t), content)
}

// nbdshScript does every command with every flag, and what is not allowed with
// libnbd's own checks off.
const nbdshScript = `
import errno
def fails(want, f, *a, **k):
    try:
        f(*a, **k)
    except nbd.Error as e:
        assert e.errnum == want, (e, want)
    else:
        raise Exception("no error: %r %r %r" % (f, a, k))
h.add_meta_context("base:allocation"); h.add_meta_context("containerdisk:hydration")
h.connect_uri(URI)
size = h.get_size()
assert h.get_structured_replies_negotiated() and h.can_meta_context("base:allocation")
assert not h.get_tls_negotiated() and h.get_protocol() == "newstyle-fixed"
h.pwrite(b"a" * 1000, 500)
h.pwrite(b"b" * 1000, 1500, nbd.CMD_FLAG_FUA)
assert h.pread(2000, 500) == b"a" * 1000 + b"b" * 1000
for flags in (0, nbd.CMD_FLAG_DF):
    chunks = []
    h.pread_structured(2097152, 500, lambda buf, off, status, err: chunks.append((off, len(buf), status)), flags)
    assert sum(c[1] for c in chunks) == 2097152 and (not flags or len(chunks) == 1), chunks
h.flush(); h.cache(65536, 0)
h.trim(65536, 0); h.trim(4096, 65536, nbd.CMD_FLAG_FUA)
assert h.pread(65536, 0) == bytes(65536)
h.pwrite(b"c" * 65536, 0)
h.zero(4096, 0); h.zero(4096, 4096, nbd.CMD_FLAG_NO_HOLE); h.zero(4096, 8192, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_FUA)
assert h.pread(65536, 0) == bytes(12288) + b"c" * (65536 - 12288)
seen = []
h.block_status(size, 0, lambda name, off, e, err: seen.append((name, list(e))))
assert sorted(s[0] for s in seen) == ["base:allocation", "containerdisk:hydration"], seen
assert all(sum(s[1][::2]) == size for s in seen), seen
seen = []
h.block_status(size, 0, lambda name, off, e, err: seen.append(list(e)), nbd.CMD_FLAG_REQ_ONE)
assert [len(s) for s in seen] == [2, 2], seen
h.set_strict_mode(0)
fails(errno.EINVAL, h.pread, 33554433, 0)
fails(errno.EINVAL, h.pwrite, bytes(33554433), 0)
assert len(h.pread(33554432, 0)) == 33554432
h.pwrite(b"d" * 33554432, 4096); assert h.pread(33554432, 4096) == b"d" * 33554432
for flag in (nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_DF, nbd.CMD_FLAG_REQ_ONE, nbd.CMD_FLAG_FAST_ZERO):
    fails(errno.EINVAL, h.pwrite, b"x", 0, flag)
    fails(errno.EINVAL, h.trim, 4096, 0, flag)
    fails(errno.EINVAL, h.flush, flag)
    fails(errno.EINVAL, h.cache, 4096, 0, flag)
h.flush(nbd.CMD_FLAG_FUA); h.cache(4096, 0, nbd.CMD_FLAG_FUA); h.pread(512, 0, nbd.CMD_FLAG_FUA)
fails(errno.EINVAL, h.pread, 1, size)
fails(errno.EINVAL, h.pread, 512, 0, 1 << 12)
fails(errno.ENOSPC, h.pwrite, b"x", size)
fails(errno.EINVAL, h.trim, 1, size)
fails(errno.ENOSPC, h.zero, 1, size)
fails(errno.EINVAL, h.cache, 1, size)
fails(errno.ENOTSUP, h.zero, 1, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
for n in (1048576, 1048576 + 14, 2097152 + 28):
    assert len(h.pread(n, 0)) == n
cookies = [h.aio_pread(nbd.Buffer(65536), i * 65536) for i in range(64)]
while cookies:
    h.poll(-1)
    cookies = [c for c in cookies if not h.aio_command_completed(c)]
h.shutdown()

# The same without structured replies, and the handshake option by option.
h = nbd.NBD()
h.set_request_structured_replies(False)
h.connect_uri(URI)
assert not h.get_structured_replies_negotiated() and not h.can_df() and not h.can_meta_context("base:allocation")
h.pwrite(b"e" * 70000, 12345); assert h.pread(70000, 12345) == b"e" * 70000
h.set_strict_mode(0)
fails(errno.EINVAL, h.pread, 1, size)
assert h.pread(1, 12345) == b"e"
h.shutdown()
h = nbd.NBD()
h.set_opt_mode(True)
h.connect_uri(URI)
names = []
assert h.opt_list(lambda name, text: names.append(name)) == 1 and len(names) == 1, names
found = []
h.opt_list_meta_context(lambda name: found.append(name))
assert found == ["base:allocation", "containerdisk:hydration"], found
h.set_export_name("no such"); fails(errno.ENOENT, h.opt_info)
h.set_export_name(names[0]); h.opt_info(); assert h.get_size() == size
h.opt_go(); assert h.pread(1, 12345) == b"e"
h.shutdown()
h = nbd.NBD()
h.set_opt_mode(True); h.connect_uri(URI); h.opt_abort()
print("all done")
`

func TestNBDShell(t *testing.T) {
	require(t, "nbdsh")
	s := serve(t, createImage(t, 80*mib, ""), nbdOnly(t, nil))
	script := fmt.Sprintf("URI = %q\n", s.nbdURL(t)) + nbdshScript
	// The module is for Debian's own Python, which need not come first.
	if out := command(t, "env", "PATH=/usr/bin:/bin", "nbdsh", "-c", script); !strings.Contains(out, "all done") {
		t.Errorf("nbdsh: %s", out)
	}
}

// TestNBDFio writes at random, deep, and verifies.
func TestNBDFio(t *testing.T) {
	require(t, "fio")
	s := serve(t, createImage(t, 64*mib, ""), nbdOnly(t, nil))
	for _, bs := range []string{"4k", "512-256k", "1m"} {
		size := "--bs=" + bs
		if strings.Contains(bs, "-") {
			size = "--bsrange=" + bs
		}
		command(t, "fio", "--name=verify", "--ioengine=nbd", "--uri="+s.nbdURL(t), "--rw=randwrite", size, "--iodepth=32",
			"--size=64m", "--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0", "--fsync=64", "--bs_unaligned")
	}
}

// TestNBDDisks: each disk by its name, the first by none.
func TestNBDDisks(t *testing.T) {
	require(t, "nbdinfo")
	dir := t.TempDir()
	for i, name := range []string{"a.img", "b.img", "c d.img"} {
		makeContent(t, filepath.Join(dir, name), int64(i+1)*mib)
	}
	s := serve(t, dir, nbdOnly(t, env{"MULTI_DISK": "true"}))
	urls := s.nbdURLs(t)
	if len(urls) != 3 {
		t.Fatalf("urls %q", urls)
	}
	for i, name := range []string{"a.img", "b.img", "c d.img"} {
		compare(t, urls[i], filepath.Join(dir, name))
	}
	first := strings.Replace(urls[0], "a.img", "", 1)
	compare(t, first, filepath.Join(dir, "a.img"))
	if r := attempt(t, "nbdinfo", "--size", strings.Replace(urls[0], "a.img", "d.img", 1)); r.code == 0 {
		t.Errorf("an unknown export has size %s", r.out)
	}
	out := command(t, "nbdinfo", "--list", first)
	for _, name := range []string{"a.img", "b.img", "c d.img"} {
		if !strings.Contains(out, `export="`+name+`"`) {
			t.Errorf("--list has no %s: %s", name, out)
		}
	}
}

// TestNBDExclusive: the access mode counts clients of both wires, and all
// connections of a process as one.
func TestNBDExclusive(t *testing.T) {
	require(t, "nbdinfo", "nbdcopy")
	image := makeImage(t, oddSize, "")
	s := serve(t, image, env{"NBD_SOCKET": filepath.Join(t.TempDir(), "s")})
	refused := func(holder string) {
		t.Helper()
		r := attempt(t, "nbdinfo", "--size", s.nbdURL(t))
		if r.code == 0 || len(s.log.grep(holder)) == 0 {
			t.Errorf("beside %s: %d %s", holder, r.code, r.out)
		}
	}
	iscsi := attach(t, s.url())
	refused("the disk is in use by iqn")
	iscsi.quit(t)
	nbd := attach(t, s.nbdURL(t))
	refused("the disk is in use by nbd process")
	if r := attempt(t, "qemu-img", "info", "-f", "raw", s.url()); r.code == 0 {
		t.Errorf("iSCSI got in beside NBD: %s", r.out)
	}
	nbd.do(t, "write -P 7 0 4k", "wrote 4096")
	nbd.quit(t)
	command(t, "nbdcopy", "--connections=4", s.nbdURL(t), "null:")
	qemuIO(t, s.url(), "raw", "read -P 7 0 4k") // the other wire sees it
}

func TestNBDReadShared(t *testing.T) {
	require(t, "nbdinfo")
	image := makeImage(t, oddSize, "")
	s := serve(t, image, nbdOnly(t, env{"ACCESS_MODE": "read-shared"}))
	command(t, "nbdinfo", "--is", "read-only", s.nbdURL(t))
	compare(t, s.nbdURL(t), expand(t, image))
}

// TestNBDActivation starts the server as nbdinfo and nbdcopy do by themselves.
func TestNBDActivation(t *testing.T) {
	require(t, "nbdinfo", "nbdcopy")
	image := makeImage(t, oddSize, "")
	run := func(tool ...string) []string {
		dir := t.TempDir()
		return append(tool, "--", "[", "env", "IMAGE_PATH="+image, "SCRATCH_DIR="+dir, "ISCSI_LISTEN=off",
			"STATUS_LISTEN=off", "HEALTH_FILE=off", program, "serve", "]")
	}
	r := run("nbdinfo", "--size")
	if out := command(t, r[0], r[1:]...); !strings.Contains(out, fmt.Sprint(oddSize)) {
		t.Errorf("nbdinfo: %s", out)
	}
	back := filepath.Join(t.TempDir(), "back")
	r = append(run("nbdcopy"), back)
	command(t, r[0], r[1:]...)
	command(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", back, expand(t, image))
}

// TestNBDSocketFile: a stale socket makes room, a live one does not, and none
// is left behind.
func TestNBDSocketFile(t *testing.T) {
	require(t, "nbdinfo")
	image := makeImage(t, mib, "")
	e := nbdOnly(t, nil)
	s := serve(t, image, e)
	info, err := os.Stat(e["NBD_SOCKET"])
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v; want 0660", info.Mode(), err)
	}
	second := start(t, image, e)
	second.wait(t, stopLimit, 2)
	if len(second.log.grep("NBD_SOCKET")) == 0 {
		t.Errorf("the second server does not say why: %s", second.log)
	}
	s.kill(t)
	s = serve(t, image, e)
	command(t, "nbdinfo", "--size", s.nbdURL(t))
	s.stop(t)
	if _, err := os.Lstat(e["NBD_SOCKET"]); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// nbdKernelWork is what a guest does with the disk through the kernel's own
// driver. PORT is set before it.
const nbdKernelWork = `
ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
nbd-client -C 2 10.0.2.2 $PORT /dev/nbd0 >&2
cd /sys/block/nbd0
echo "size $(cat size)"
echo "cache $(cat queue/write_cache)"
echo "fua $(cat queue/fua)"
echo "discard $(cat queue/discard_max_bytes)"
cd /
echo "image $(head -c 1048576 /dev/nbd0 | sha256sum | cut -d' ' -f1)"
mkfs.ext4 -q -F /dev/nbd0 >&2
mount -t ext4 /dev/nbd0 /mnt
dd if=/dev/urandom of=/mnt/data bs=64k count=128 conv=fsync 2>&1 | tail -n 1 >&2
sync
echo "data $(sha256sum </mnt/data | cut -d' ' -f1)"
dd if=/dev/zero of=/mnt/gone bs=64k count=64 conv=fsync 2>/dev/null
rm /mnt/gone
fstrim -v /mnt >&2
umount /mnt
e2fsck -fn /dev/nbd0 >&2
echo 3 >/proc/sys/vm/drop_caches
mount -t ext4 -o ro /dev/nbd0 /mnt
echo "again $(sha256sum </mnt/data | cut -d' ' -f1)"
umount /mnt
dmesg | grep -iE 'I/O error|timed out|nbd.*error' >&2 && exit 9
nbd-client -d /dev/nbd0 >&2
echo "left yes"
`

// TestNBDKernel has the Linux kernel's driver work on the disk, over two
// connections.
func TestNBDKernel(t *testing.T) {
	require(t, "nbd-client", "busybox", "ldd")
	k := guestKernel(t)
	image := makeImage(t, 64*mib, "", "-c")
	s := serve(t, image, env{"ISCSI_LISTEN": "off", "NBD_LISTEN": "127.0.0.1:0"})
	url := s.nbdURL(t)
	port := strings.Trim(url[strings.LastIndex(url, ":")+1:], "/")
	raw, err := os.ReadFile(expand(t, image))
	if err != nil {
		t.Fatal(err)
	}
	modules := []string{"virtio_pci", "virtio_net", "nbd", "ext4", "crc32c_generic"}
	ramdisk, err := guest.NewRamdisk(k, modules, "PORT="+port+nbdKernelWork)
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"nbd-client", "mkfs.ext4", "e2fsck"} {
		if err := ramdisk.Program(program); err != nil {
			missing(t, "needs the program %s: %v", program, err)
		}
	}
	got := fields(boot(t, guest.Machine{Kernel: k, Ramdisk: ramdisk, Args: []string{
		"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0",
	}}))
	for key, want := range map[string]string{
		"size": fmt.Sprint(64 * mib / sector), "cache": "write back", "fua": "1", "image": digest(raw[:mib]), "left": "yes",
	} {
		if got[key] != want {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
	if got["discard"] == "0" || got["discard"] == "" || got["data"] == "" || got["data"] != got["again"] {
		t.Errorf("the guest saw %v", got)
	}
	if n := len(s.log.grep(`"msg":"connected"`)); n < 2 {
		t.Errorf("%d connections, want the two of -C 2", n)
	}
	file := filepath.Join(t.TempDir(), "disk")
	command(t, "qemu-img", "convert", "-f", "raw", "-O", "raw", url, file)
	command(t, "e2fsck", "-fn", file)
}

// TestNBDShutdown: a client that is attached can write until it leaves.
func TestNBDShutdown(t *testing.T) {
	s := serve(t, makeImage(t, mib, ""), nbdOnly(t, nil))
	sh := attach(t, s.nbdURL(t))
	s.signal(t, os.Interrupt)
	for len(s.log.grep(`"phase":"draining"`)) == 0 && s.running() {
		sh.do(t, "read 0 512", "read 512")
	}
	sh.do(t, "write -P 3 0 64k", "wrote 65536")
	sh.do(t, "flush", "")
	if r := attempt(t, "nbdinfo", "--size", s.nbdURL(t)); r.code == 0 {
		t.Error("a stranger got in during the shutdown")
	}
	sh.quit(t)
	s.wait(t, stopLimit, 0)
	if !slices.ContainsFunc(s.log.grep("stopped"), func(l string) bool { return strings.Contains(l, `"phase"`) }) {
		t.Error("the log has no stop")
	}
}
