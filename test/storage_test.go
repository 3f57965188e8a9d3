//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Disks that are kept: in a scratch directory, on a volume, on a device.

// guestWrites are what a guest does to a disk of at least 32 MiB while its image
// is copied: within clusters, across them, whole ones, zeros and discards.
var guestWrites = []string{
	"write -P 0xa1 512 512", "write -P 0xa2 1M 3M", "write -P 0xa3 65535 2", "write -f -P 0xa4 5M 4k",
	"write -z 7M 100k", "write -z -u 9M 1M", "discard 12M 2M", "write -P 0xa5 20M 70k", "write -P 0xa6 30M 64k", "flush",
}

// leisurely leaves time to do something while an image is copied.
var leisurely = env{"HYDRATE_RATE": "4M"}

// killNow ends the server as a crash does.
func (s *server) killNow(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.ended
}

// TestKilledWhileCopying kills the server again and again while it copies: every
// write is there, the disk is the same one, and the copying goes on.
func TestKilledWhileCopying(t *testing.T) {
	require(t, "iscsi-inq")
	scratch := t.TempDir()
	image := makeImage(t, 48*mib, quick, "-c")
	want := expand(t, image)
	more := env{"SCRATCH_DIR": scratch}
	serial := func(s *server) string { return command(t, "iscsi-inq", "-e", "1", "-c", "0x83", s.url()) }

	s := serve(t, image, more.with(leisurely))
	was := serial(s)
	for i, w := range guestWrites {
		qemuIO(t, s.url(), "raw", w)
		qemuIO(t, want, "raw", w)
		if i%3 == 0 {
			s.killNow(t)
			s = serve(t, image, more.with(leisurely))
			if lines := s.log.grep("going on with the disk"); len(lines) != 1 {
				t.Fatalf("it does not go on: %s", lines)
			}
		}
	}
	compare(t, s.url(), want)
	if is := serial(s); is != was {
		t.Errorf("another disk after a restart:\n%s, was\n%s", is, was)
	}
	s.killNow(t)
	s = serve(t, image, more) // at full speed now
	waitLog(t, s, "copied; the image is not needed any more")
	compare(t, s.url(), want)
	s.stop(t)

	s = serve(t, image, more) // an orderly end keeps it as well
	compare(t, s.url(), want)
}

// TestAnotherImage puts another image where the first one was.
func TestAnotherImage(t *testing.T) {
	scratch := t.TempDir()
	image := makeImage(t, 8*mib, quick, "-c")
	s := serve(t, image, env{"SCRATCH_DIR": scratch})
	qemuIO(t, s.url(), "raw", "write -P 1 0 64k")
	s.stop(t)
	before := tree(t, scratch)
	other := createImage(t, 8*mib, "", "write -P 2 0 1M")
	r := start(t, other, env{"SCRATCH_DIR": scratch})
	r.wait(t, refuseLimit, 2)
	checkRefusal(t, r, []string{"belongs to another disk", "base image", scratch, "remove"})
	if after := tree(t, scratch); after != before {
		t.Errorf("the state has changed:\n%s, was\n%s", after, before)
	}
}

// tree lists what is in a directory, with the sums of the files but for those
// that say who was there last.
func tree(t *testing.T, dir string) string {
	t.Helper()
	return command(t, "sh", "-c", `cd "$0" && find . -type f ! -name lock -exec sha256sum {} +`, dir)
}

// volumeOnly fails the test unless the volume holds the disk and nothing else.
func volumeOnly(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if !slices.Equal(slices.DeleteFunc(names, func(n string) bool { return n == "lost+found" }), []string{"disk.img"}) {
		t.Errorf("in the volume: %q, want disk.img alone", names)
	}
}

// TestVolume fills a volume while a guest writes, through deaths of the server,
// and serves it without the image then.
func TestVolume(t *testing.T) {
	dir := t.TempDir()
	image := makeImage(t, 48*mib, quick, "-c")
	want := expand(t, image)
	more := env{"VOLUME_PATH": dir}
	disk := filepath.Join(dir, "disk.img")

	s := serve(t, image, more.with(leisurely).with(env{"NBD_SOCKET": filepath.Join(t.TempDir(), "s")}))
	qemuIO(t, s.nbdURL(t), "raw", guestWrites...)
	qemuIO(t, want, "raw", guestWrites...)
	if _, err := os.Stat(disk); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("disk.img is there before it is complete: %v", err)
	}
	second := start(t, image, more)
	second.wait(t, refuseLimit, 2)
	checkRefusal(t, second, []string{"VOLUME_PATH", "in use by process " + strconv.Itoa(s.cmd.Process.Pid)})
	s.killNow(t)

	s = serve(t, image, more)
	waitLog(t, s, "copied; the image is not needed any more")
	volumeOnly(t, dir)
	compare(t, s.url(), want)
	qemuIO(t, s.url(), "raw", "write -P 0xb0 40M 1M") // on the disk itself now
	qemuIO(t, want, "raw", "write -P 0xb0 40M 1M")
	s.killNow(t)
	compare(t, disk, want)

	s = serve(t, filepath.Join(t.TempDir(), "no-image"), more.with(env{"DISK_SIZE": "64Mi"}))
	if err := os.Truncate(want, 64*mib); err != nil {
		t.Fatal(err)
	}
	compare(t, s.url(), want)
	s.stop(t)
	volumeOnly(t, dir)
	compare(t, disk, want)
}

// TestVolumeTooSmall is refused before anything is written; one with just the
// room is filled.
func TestVolumeTooSmall(t *testing.T) {
	small := smallVolume(t, "60m")
	image := createImage(t, 64*mib, "", "write -P 1 0 1M")
	s := start(t, image, env{"VOLUME_PATH": small})
	s.wait(t, refuseLimit, 2)
	checkRefusal(t, s, []string{"VOLUME_PATH", small, "67108864 bytes", "larger volume"})
	noRest(t, small)
}

// TestVolumeFull takes the room away while a volume is filled: nothing that was
// acknowledged is lost, and with room it ends as it should.
func TestVolumeFull(t *testing.T) {
	dir := smallVolume(t, "72m")
	image := makeImage(t, 48*mib, quick, "-c")
	want := expand(t, image)
	s := serve(t, image, env{"VOLUME_PATH": dir, "HYDRATE_RATE": "8M"})
	hog := filepath.Join(dir, ".nfs-hog") // a name that the volume does not mind
	command(t, "fallocate", "-l", "60M", hog)
	waitStatus(t, s, `"state": "no space"`)
	qemuIO(t, s.url(), "raw", "write -P 9 0 64k", "flush")
	qemuIO(t, want, "raw", "write -P 9 0 64k")
	compare(t, s.url(), want)
	s.killNow(t)
	s = serve(t, image, env{"VOLUME_PATH": dir}) // full as it is
	compare(t, s.url(), want)
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	waitLog(t, s, "copied; the image is not needed any more")
	compare(t, s.url(), want)
	volumeOnly(t, dir)
}

// runPopulate runs the job to its end, or kills it after a while.
func runPopulate(t *testing.T, image, volume string, more env, limit time.Duration) (out string, code int) {
	t.Helper()
	cmd := exec.Command(program, "populate")
	cmd.Env = env{"IMAGE_PATH": image, "VOLUME_PATH": volume}.with(more).list()
	log := newLogBook()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if limit > 0 {
		defer time.AfterFunc(limit, func() { cmd.Process.Kill() }).Stop()
	}
	err := cmd.Wait()
	if e := (*exec.ExitError)(nil); err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	return log.String(), cmd.ProcessState.ExitCode()
}

// TestPopulate kills the job until it has come to its end.
func TestPopulate(t *testing.T) {
	dir := t.TempDir()
	image := makeImage(t, 48*mib, quick, "-c")
	for range 3 {
		if _, code := runPopulate(t, image, dir, env{"HYDRATE_RATE": "16M"}, 700*time.Millisecond); code == 0 {
			t.Fatal("it ended before it was killed")
		}
		if _, err := os.Stat(filepath.Join(dir, "disk.img")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("half a disk.img: %v", err)
		}
	}
	out, code := runPopulate(t, image, dir, nil, 0)
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, out)
	}
	if !strings.Contains(out, "going on with the disk") {
		t.Errorf("it began anew:\n%s", out)
	}
	volumeOnly(t, dir)
	compare(t, filepath.Join(dir, "disk.img"), expand(t, image))
	if out, code = runPopulate(t, "/nonexistent", dir, nil, 0); code != 0 || !strings.Contains(out, "populated already") {
		t.Errorf("again: exit code %d:\n%s", code, out)
	}
}

// TestPopulateFull does not wait for room: a job that fails is noticed.
func TestPopulateFull(t *testing.T) {
	dir := smallVolume(t, "72m")
	image := makeImage(t, 48*mib, quick, "-c")
	if _, code := runPopulate(t, image, dir, env{"HYDRATE_RATE": "4M"}, 500*time.Millisecond); code == 0 {
		t.Fatal("it ended before it was killed")
	}
	hog := filepath.Join(dir, ".nfs-hog")
	command(t, "fallocate", "-l", "60M", hog)
	if out, code := runPopulate(t, image, dir, nil, 0); code != 1 || !strings.Contains(out, "no room to go on") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	if out, code := runPopulate(t, image, dir, nil, 0); code != 0 {
		t.Errorf("with room: exit code %d:\n%s", code, out)
	}
	compare(t, filepath.Join(dir, "disk.img"), expand(t, image))
}

// TestPopulateStopped is told to stop, as a pod is: it fails, and goes on later.
func TestPopulateStopped(t *testing.T) {
	dir := t.TempDir()
	image := makeImage(t, 48*mib, quick, "-c")
	cmd := exec.Command(program, "populate")
	cmd.Env = env{"IMAGE_PATH": image, "VOLUME_PATH": dir, "HYDRATE_RATE": "4M"}.list()
	log := newLogBook()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(log.String(), "run it again to go on") {
		t.Errorf("exit code %d:\n%s", code, log)
	}
	if out, code := runPopulate(t, image, dir, nil, 0); code != 0 || !strings.Contains(out, "going on with the disk") {
		t.Errorf("later: exit code %d:\n%s", code, out)
	}
}

// loopDevice is a block device of the size; content fills it from a file.
func loopDevice(t *testing.T, size int64) string {
	t.Helper()
	require(t, "losetup")
	file := filepath.Join(t.TempDir(), "device")
	write(t, file, nil)
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	r := attempt(t, "losetup", "--show", "-f", file)
	if r.code != 0 {
		missing(t, "needs a loop device: %s", r.out)
	}
	device := strings.TrimSpace(r.out)
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("losetup -d: %v: %s", err, out)
		}
	})
	return device
}

// TestBlockVolume fills a device while a guest writes, through a death of the
// server, and serves it then. What nobody knows is not overwritten.
func TestBlockVolume(t *testing.T) {
	device, scratch := loopDevice(t, 64*mib), t.TempDir()
	image := makeImage(t, 48*mib, quick, "-c")
	want := expand(t, image)
	if err := os.Truncate(want, 64*mib); err != nil { // the disk is as large as the device
		t.Fatal(err)
	}
	more := env{"VOLUME_PATH": device, "SCRATCH_DIR": scratch}
	// What a device that was told to discard reads as is its own affair.
	writes := slices.DeleteFunc(slices.Clone(guestWrites), func(w string) bool { return strings.HasPrefix(w, "discard") })
	s := serve(t, image, more.with(leisurely))
	qemuIO(t, s.url(), "raw", writes...)
	qemuIO(t, want, "raw", writes...)
	second := start(t, image, more)
	second.wait(t, refuseLimit, 2)
	checkRefusal(t, second, []string{"VOLUME_PATH", "in use by process " + strconv.Itoa(s.cmd.Process.Pid)})
	third := start(t, image, more.with(env{"SCRATCH_DIR": t.TempDir(), "POPULATED": "false"}))
	third.wait(t, refuseLimit, 2)
	checkRefusal(t, third, []string{"VOLUME_PATH", device, "in use"})
	s.killNow(t)
	s = serve(t, image, more)
	waitLog(t, s, "copied; the image is not needed any more")
	compare(t, s.url(), want)
	s.killNow(t)

	s = serve(t, "/nonexistent", more)
	compare(t, s.url(), want)
	qemuIO(t, s.url(), "raw", "write -P 0xb0 60M 1M")
	qemuIO(t, want, "raw", "write -P 0xb0 60M 1M")
	s.stop(t)

	lost := more.with(env{"SCRATCH_DIR": t.TempDir()})
	r := start(t, image, lost)
	r.wait(t, refuseLimit, 2)
	checkRefusal(t, r, []string{device, "not blank", "POPULATED=true", "POPULATED=false"})
	compare(t, device, want)
	s = serve(t, "/nonexistent", lost.with(env{"POPULATED": "true"}))
	compare(t, s.url(), want)
	s.stop(t)
	s = serve(t, "/nonexistent", lost) // it is known now
	compare(t, s.url(), want)
	s.stop(t)

	// Overwritten, if that is meant: zeros and holes of the image as well.
	s = serve(t, image, more.with(env{"SCRATCH_DIR": t.TempDir(), "POPULATED": "false"}))
	again := expand(t, image)
	if err := os.Truncate(again, 64*mib); err != nil {
		t.Fatal(err)
	}
	compare(t, s.url(), again)
	waitLog(t, s, "copied; the image is not needed any more")
	s.stop(t)
	compare(t, device, again)

	s = serve(t, device, env{"COPY_MODE": "none"}) // the image is the device
	compare(t, s.url(), again)
}

// TestCopyNone writes to the image itself.
func TestCopyNone(t *testing.T) {
	image := filepath.Join(t.TempDir(), "disk.raw")
	makeContent(t, image, 40*mib)
	want := expand(t, image)
	s := serve(t, image, env{"COPY_MODE": "none"})
	qemuIO(t, s.url(), "raw", guestWrites...)
	qemuIO(t, want, "raw", guestWrites...)
	s.killNow(t)
	compare(t, image, want)
	s = serve(t, image, env{"COPY_MODE": "none"})
	compare(t, s.url(), want)
}

// TestCopyOnWriteTakesLittle: a large disk that is barely written takes little,
// read or not; copy-on-read takes what was read.
func TestCopyOnWriteTakesLittle(t *testing.T) {
	image := createImage(t, 100*gib, "", "write -P 1 0 64M", "write -P 2 50G 64M", "write -P 3 99G 64M")
	for mode, most := range map[string]int64{"copy-on-write": 10 * mib, "copy-on-read": 80 * mib} {
		t.Run(mode, func(t *testing.T) {
			scratch := t.TempDir()
			s := serve(t, image, env{"SCRATCH_DIR": scratch, "COPY_MODE": mode})
			qemuIO(t, s.url(), "raw", "write -P 9 1G 4M", "write -P 9 70G 512", "read -P 2 50G 64M", "read -P 0 10G 64M")
			s.stop(t)
			took := diskUsage(t, scratch)
			t.Logf("%s: %.1f MiB for a disk of 100 GiB", mode, float64(took)/float64(mib))
			if took > most || mode == "copy-on-read" && took < 64*mib {
				t.Errorf("%d MiB in the scratch directory", took/mib)
			}
		})
	}
}

// diskUsage is the space that a directory takes, in bytes.
func diskUsage(t *testing.T, dir string) int64 {
	t.Helper()
	fields := strings.Fields(command(t, "du", "-s", "-B1", dir))
	n, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(fmt.Errorf("du: %w", err))
	}
	return n
}
