//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPack writes images that qemu-img must find sound and the same, and that
// are hardly larger than its own.
func TestPack(t *testing.T) {
	require(t, "qemu-img")
	disk := filepath.Join(t.TempDir(), "disk.raw")
	makeContent(t, disk, 40*mib+3*sector)
	for _, how := range []string{"zstd", "zlib", "none"} {
		t.Run(how, func(t *testing.T) {
			ours := filepath.Join(t.TempDir(), "ours.qcow2")
			command(t, program, "convert", "--to", "qcow2", "--compression", how, disk, ours)
			command(t, "qemu-img", "check", "-f", "qcow2", ours)
			command(t, "qemu-img", "compare", "-f", "qcow2", "-F", "raw", ours, disk)
			args := []string{"convert", "-f", "raw", "-O", "qcow2", disk, ours + ".qemu"}
			if how != "none" {
				args = append([]string{"convert", "-c", "-o", "compression_type=" + how}, args[1:]...)
			}
			command(t, "qemu-img", args...)
			got, want := allocated(t, ours), allocated(t, ours+".qemu")
			t.Logf("%s: %d bytes, qemu-img's has %d", how, got, want)
			if got > want+want/8+256*kib {
				t.Errorf("%d bytes, qemu-img's has %d", got, want)
			}
			command(t, program, "convert", "--compare", ours, ours+".qemu")
		})
	}
}

// TestSnapshotsByName reads what qemu-img snapshot has kept.
func TestSnapshotsByName(t *testing.T) {
	require(t, "qemu-img", "qemu-io", "cmp")
	image := snapshots(t)
	for _, which := range []string{"one", "two", "1", "2"} {
		dir := t.TempDir()
		want, got := filepath.Join(dir, "want"), filepath.Join(dir, "got")
		command(t, "qemu-img", "convert", "-l", which, "-f", "qcow2", "-O", "raw", image, want)
		command(t, program, "convert", "--snapshot", which, image, got)
		command(t, "cmp", want, got)
	}
	if out := command(t, program, "inspect", "--check", image); !strings.Contains(out, `"one"`) || !strings.Contains(out, "sound") {
		t.Errorf("inspect: %s", out)
	}
}

// TestChains flattens backing chains and images with a data file as qemu-img
// does.
func TestChains(t *testing.T) {
	require(t, "qemu-img", "qemu-io", "cmp")
	for name, make := range map[string]func(t *testing.T, dir string){
		"three formats": func(t *testing.T, dir string) {
			command(t, "qemu-img", "create", "-q", "-f", "raw", dir+"/base", "5M")
			qemuIO(t, dir+"/base", "raw", "write -P 1 0 3M")
			command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", dir+"/mid", "9M")
			qemuIO(t, dir+"/mid", "qcow2", "write -P 2 1M 100k", "write -z 2M 64k", "write -P 3 6M 1M")
			command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "extended_l2=on", "-b", "mid", "-F", "qcow2", dir+"/top", "7M")
			qemuIO(t, dir+"/top", "qcow2", "write -P 4 1030k 10k", "write -z 6500k 4k", "discard 0 64k", "write -P 5 4M 2k")
		},
		"compressed over a longer base": func(t *testing.T, dir string) {
			command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", dir+"/base", "20M")
			qemuIO(t, dir+"/base", "qcow2", "write -P 1 0 20M")
			command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", dir+"/base", "-F", "qcow2", dir+"/top", "8M")
			qemuIO(t, dir+"/top", "qcow2", "write -c -P 2 1M 64k", "write -z -u 3M 1M")
		},
		"data file": func(t *testing.T, dir string) {
			command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file="+dir+"/data.raw", dir+"/top", "8M")
			qemuIO(t, dir+"/top", "qcow2", "write -P 1 0 1M", "write -z 2M 64k", "write -P 2 5M 100k", "discard 100k 64k")
		},
		"raw data file": func(t *testing.T, dir string) {
			command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file="+dir+"/data.raw,data_file_raw=on", dir+"/top", "8M")
			qemuIO(t, dir+"/top", "qcow2", "write -P 1 0 1M", "write -z 2M 64k", "write -P 2 5M 100k")
		},
		"subclusters in a data file over a base": func(t *testing.T, dir string) {
			command(t, "qemu-img", "create", "-q", "-f", "raw", dir+"/base", "8M")
			qemuIO(t, dir+"/base", "raw", "write -P 1 0 8M")
			command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "data_file="+dir+"/data.raw,extended_l2=on", "-b", "base", "-F", "raw", dir+"/top")
			qemuIO(t, dir+"/top", "qcow2", "write -P 2 0 2k", "write -z 8k 4k", "write -P 3 1M 100k")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			make(t, dir)
			want, got, packed := dir+"/want.raw", dir+"/got.raw", dir+"/packed.img"
			command(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", dir+"/top", want)
			command(t, program, "convert", "--allow-dir", dir, dir+"/top", got)
			command(t, "cmp", want, got)
			command(t, program, "convert", "--to", "qcow2", "--allow-dir", dir, dir+"/top", packed)
			command(t, "qemu-img", "compare", "-f", "qcow2", "-F", "raw", packed, want)
			command(t, program, "inspect", "--check", "--allow-dir", dir, dir+"/top")
			if msg, err := exec.Command(program, "convert", dir+"/top", dir+"/no.raw").CombinedOutput(); err == nil {
				t.Errorf("converted without leave: %s", msg)
			}
		})
	}
}

// TestResume kills a conversion that is under way; the same command completes
// it without doing all of it again.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	src, dst := dir+"/src.raw", dir+"/dst.raw"
	makeContent(t, src, 1*gib)
	for kills := 0; ; kills++ {
		run := exec.Command(program, "convert", "--quiet=false", src, dst)
		var text bytes.Buffer
		run.Stderr = &text
		if err := run.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- run.Wait() }()
		var err error
		ended := false
		for !ended && kills < 3 {
			select {
			case err = <-done:
				ended = true
			case <-time.After(20 * time.Millisecond):
				if b, readErr := os.ReadFile(dir + "/.dst.raw.partial.journal"); readErr == nil && !bytes.HasSuffix(b, []byte(fmt.Sprintf("%020d\n", 0))) {
					time.Sleep(100 * time.Millisecond)
					_ = run.Process.Signal([]os.Signal{syscall.SIGKILL, syscall.SIGINT, syscall.SIGTERM}[kills])
					err, ended = <-done, true
				}
			}
		}
		if !ended {
			err = <-done
		}
		if kills > 0 && !strings.Contains(text.String(), "going on with "+dir+"/.dst.raw.partial at ") && err == nil {
			t.Errorf("after %d kills: %q", kills, &text)
		}
		if err == nil {
			if kills == 0 {
				t.Skip("too fast to be killed")
			}
			break
		}
		if _, statErr := os.Stat(dst); statErr == nil {
			t.Fatal("there is a half disk")
		}
	}
	command(t, "cmp", src, dst)
	if left, err := filepath.Glob(dir + "/.*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestConvertToDevice writes over a loop device that had other content.
func TestConvertToDevice(t *testing.T) {
	require(t, "losetup", "qemu-img", "cmp")
	requireRoot(t)
	image := makeImage(t, oddSize, "compression_type=zstd", "-c")
	file := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(file, bytes.Repeat([]byte{0xff}, int(10*mib)), 0o600); err != nil {
		t.Fatal(err)
	}
	device := strings.TrimSpace(command(t, "losetup", "--find", "--show", file))
	defer command(t, "losetup", "--detach", device)
	if msg, err := exec.Command(program, "convert", image, device).CombinedOutput(); err == nil || !strings.Contains(string(msg), "--force") {
		t.Fatalf("without --force: %s", msg)
	}
	command(t, program, "convert", "--force", image, device)
	command(t, "cmp", "-n", fmt.Sprint(oddSize), expand(t, image), device)
	rest, err := os.ReadFile(device)
	if err != nil || len(rest) != int(10*mib) || !bytes.Equal(rest[oddSize:], bytes.Repeat([]byte{0xff}, int(10*mib-oddSize))) {
		t.Errorf("what is behind the disk was changed (%v)", err)
	}
	big := createImage(t, 11*mib, "")
	if msg, err := exec.Command(program, "convert", "--force", big, device).CombinedOutput(); err == nil || !strings.Contains(string(msg), "10485760 bytes") {
		t.Errorf("a disk larger than the device: %s", msg)
	}
}

// TestShare: on a file system that can share space nothing is copied.
func TestShare(t *testing.T) {
	require(t, "losetup", "qemu-img", "cmp", "mkfs.xfs", "filefrag")
	requireRoot(t)
	dir := t.TempDir()
	fs, mnt := dir+"/fs", dir+"/mnt"
	command(t, "truncate", "-s", "400M", fs)
	command(t, "mkfs.xfs", "-q", "-m", "reflink=1", fs)
	command(t, "mkdir", mnt)
	command(t, "mount", "-o", "loop", fs, mnt)
	defer command(t, "umount", mnt)
	makeContent(t, mnt+"/src.raw", 60*mib)
	command(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", mnt+"/src.raw", mnt+"/plain.qcow2")
	for _, src := range []string{"src.raw", "plain.qcow2"} {
		before := free(t, mnt)
		command(t, program, "convert", mnt+"/"+src, mnt+"/dst.raw")
		if used := before - free(t, mnt); used > 4*mib {
			t.Errorf("%s: %d bytes were used", src, used)
		}
		if out := command(t, "filefrag", "-v", mnt+"/dst.raw"); !strings.Contains(out, "shared") {
			t.Errorf("%s: nothing is shared:\n%s", src, out)
		}
		command(t, "cmp", mnt+"/src.raw", mnt+"/dst.raw")
		command(t, "rm", mnt+"/dst.raw")
	}
}

// requireRoot skips the test without the right to mount.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "needs to be root for loop devices")
	}
}

// free is how much room a file system has, bytes.
func free(t *testing.T, dir string) int64 {
	t.Helper()
	command(t, "sync", "-f", dir)
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bfree) * st.Bsize
}
