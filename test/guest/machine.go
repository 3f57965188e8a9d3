package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// statusPrefix begins the last line of a guest's output.
const statusPrefix = "guest: exit "

// prologue is the first process of a RAM disk: it mounts what the kernel
// offers and loads the modules. %s is what follows.
const prologue = `#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in $(cat /modules); do insmod /lib/modules/$m.ko || echo "insmod $m: $?"; done
%s
`

// Work runs /work, a shell script, as a guest's only task: its standard output
// on the second serial port, then its exit status, then the power goes off.
// It is what a RAM disk does, and what a root file system's init may do.
const Work = `stty raw </dev/ttyS1
sh -eu /work >/dev/ttyS1 2>/dev/ttyS0 </dev/null
echo "` + statusPrefix + `$?" >/dev/ttyS1
sync
`

const powerOff = "\npoweroff -f\n"

// NewRamdisk makes a RAM disk with busybox and the modules named, which runs
// the shell script work.
func NewRamdisk(k *Kernel, modules []string, work string) (*Tree, error) {
	t, err := newRamdisk(k, modules, Work+powerOff)
	if err == nil {
		t.File("work", 0o755, []byte(work))
	}
	return t, err
}

// NewBootRamdisk makes a RAM disk that mounts the ext4 file system of the
// device and makes its /sbin/init the first process: the usual way of a
// distribution's own RAM disk.
func NewBootRamdisk(k *Kernel, modules []string, device string) (*Tree, error) {
	t, err := newRamdisk(k, append(modules, "ext4"), `
i=0; while [ ! -b `+device+` ] && [ $i -lt 100 ]; do usleep 100000; i=$((i+1)); done
mount -t ext4 -o ro `+device+` /newroot
mount --move /dev /newroot/dev
exec switch_root -c /dev/ttyS0 /newroot /sbin/init
`)
	if err == nil {
		t.Dir("newroot")
	}
	return t, err
}

func newRamdisk(k *Kernel, modules []string, rest string) (*Tree, error) {
	t := NewTree()
	t.Dir("proc", "sys", "dev", "tmp", "run", "mnt")
	t.File("init", 0o755, fmt.Appendf(nil, prologue, rest))
	list, err := k.load(nil, modules...)
	if err != nil {
		return nil, err
	}
	var names bytes.Buffer
	for _, m := range list {
		t.File("lib/modules/"+m.name+".ko", 0o644, m.data)
		fmt.Fprintln(&names, m.name)
	}
	t.File("modules", 0o644, names.Bytes())
	return t, t.Program("busybox")
}

// Machine is a guest that is not running yet.
type Machine struct {
	Kernel  *Kernel
	Ramdisk *Tree
	Args    []string // further arguments of qemu: disks, network
}

// Result is what a guest left behind.
type Result struct {
	Output  string // of the work, without its status line
	Status  int    // exit status of the work
	Console string // the kernel's messages and the work's standard error
	Took    time.Duration
}

// Run boots the machine and waits until it is off. An error means that there
// is no Status; the Result then still tells how far the guest came.
func (m *Machine) Run(ctx context.Context) (Result, error) {
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	ramdisk, console := filepath.Join(dir, "ramdisk"), filepath.Join(dir, "console")
	if err := m.writeRamdisk(ramdisk); err != nil {
		return Result{}, err
	}
	start := time.Now()
	out, stderr, err := m.qemu(ctx, ramdisk, console)
	r := Result{Output: out, Took: time.Since(start)}
	log, readErr := os.ReadFile(console)
	r.Console = string(log) + stderr
	if err = errors.Join(err, context.Cause(ctx), readErr); err != nil {
		return r, err
	}
	r.Output, r.Status, err = splitStatus(out)
	return r, err
}

func (m *Machine) writeRamdisk(name string) error {
	var b bytes.Buffer
	if err := m.Ramdisk.WriteCPIO(&b); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o600)
}

// qemu runs until the guest is off or the context ends.
func (m *Machine) qemu(ctx context.Context, ramdisk, console string) (out, stderr string, err error) {
	args := []string{
		"-accel", "tcg", "-cpu", "max", "-m", "384", "-no-reboot",
		"-nodefaults", "-display", "none",
		"-serial", "file:" + console, "-serial", "stdio",
		"-kernel", m.Kernel.Image, "-initrd", ramdisk,
		"-append", "console=ttyS0 panic=-1 loglevel=5",
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(args, m.Args...)...)
	var o, e strings.Builder
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// splitStatus takes the status line off the end of a guest's output.
func splitStatus(out string) (string, int, error) {
	out = strings.ReplaceAll(out, "\r", "")
	rest, line, ok := cutLast(out, statusPrefix)
	if !ok {
		return out, 0, errors.New("the guest went off before its work was done")
	}
	status, err := strconv.Atoi(strings.TrimSpace(line))
	return rest, status, err
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
