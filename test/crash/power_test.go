//go:build e2e

package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestPowerCut takes the file system from under the server as a loss of power
// does: what is not on the medium is gone. Every flushed write must be there,
// and of the rest each sector must be as before or after.
func TestPowerCut(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skipf("needs loop devices: %v", err)
	}
	cuts := number(t, "CRASH_CUTS", 16)
	r := choices(t)
	content, file := image(t, imageSize)
	for i, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			var acked int64
			m := (*machine)(nil)
			for left := cuts/len(setups) + min(1, max(0, cuts%len(setups)-i)); left > 0; left -= lives {
				acked += cut(t, &m, s, r, content, file, min(left, lives))
			}
			m.report(cuts/len(setups), acked)
		})
	}
}

// cut is the story of one disk on a medium that loses power again and again.
func cut(t *testing.T, last **machine, s setup, r *rand.Rand, content []byte, file string, times int) (acked int64) {
	t.Helper()
	d := newMedium(t)
	d.mount()
	m := newMachine(t, d.wrapper(), s.env(t, r, d.dir, file)...)
	d.run("sync", "--file-system", d.dir) // the directories are not the server's
	if *last != nil {
		m.ready = (*last).ready
	}
	*last = m
	o := newOracle(content, whenFlushed)
	for range times {
		m.start()
		m.survey(o)
		l := m.load(o, r, workers)
		time.Sleep(time.Duration(r.Int64N(int64(400 * time.Millisecond))))
		o.lightsOut()
		l.taken.Store(true)
		d.losePower()
		m.kill()
		if err := l.wait(); err != nil {
			t.Fatal(err)
		}
		acked += l.acked.Load()
		d.unmount()
		d.boot()
		d.mount()
		if s.volume {
			d.wholeOrAbsent(len(content))
		}
	}
	m.finish(s, d.dir, o)
	return acked
}

// medium is an ext4 file system that can lose power. What runs on it sees the
// boot id of a machine that was started again each time.
type medium struct {
	t      *testing.T
	file   string
	dir    string
	bootID string // a file
}

func newMedium(t *testing.T) *medium {
	t.Helper()
	tmp := t.TempDir()
	d := &medium{t: t, file: filepath.Join(tmp, "medium"), dir: filepath.Join(tmp, "mnt"), bootID: filepath.Join(tmp, "boot_id")}
	if err := os.Mkdir(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.run("truncate", "-s", "192M", d.file)
	d.run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.file)
	d.boot()
	t.Cleanup(func() {
		// The machine's own clean-up, which is later in the list, has ended
		// the server by now.
		exec.Command("umount", "-l", d.dir).Run()
	})
	return d
}

func (d *medium) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

func (d *medium) mount() { d.t.Helper(); d.run("mount", "-o", "loop", d.file, d.dir) }

// unmount waits for the last user, which has just been killed.
func (d *medium) unmount() { d.t.Helper(); d.run("umount", d.dir) }

// boot gives the machine a new boot id.
func (d *medium) boot() {
	d.t.Helper()
	id := fmt.Sprintf("%08x-0000-4000-8000-%012x\n", rand.Uint32(), rand.Uint64()>>16)
	if err := os.WriteFile(d.bootID, []byte(id), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// wrapper runs the server where the boot id is the medium's.
func (d *medium) wrapper() []string {
	return []string{"unshare", "--mount", "--propagation", "private", "sh", "-c",
		`mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"`, d.bootID}
}

// losePower is EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH, fs/ext4/ext4.h:
// nothing more reaches the medium, not even the journal.
func (d *medium) losePower() {
	d.t.Helper()
	const shutdown, noLogFlush = 0x8004587d, 2
	f, err := os.Open(d.dir)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	how := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), shutdown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		d.t.Fatalf("EXT4_IOC_SHUTDOWN: %v", errno)
	}
}

// wholeOrAbsent checks that a disk.img, if there is one, has its full size: it
// is not there before its content is. The content is the next survey's.
func (d *medium) wholeOrAbsent(size int) {
	d.t.Helper()
	st, err := os.Stat(filepath.Join(d.dir, "volume", "disk.img"))
	if err == nil && st.Size() != int64(size) {
		d.t.Fatalf("disk.img has %d bytes, want %d or no file", st.Size(), size)
	}
}
