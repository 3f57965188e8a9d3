package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerdisk/containerdisk/test/client"
)

const (
	oursNBD   = "NBD"
	oursISCSI = "iSCSI"
	qemuNBD   = "qemu-nbd"
	convTgtd  = "convert+tgtd"

	targetName = "iqn.2026-01.test:ready"
	// startLimit ends a measurement that leads nowhere. To convert takes long.
	startLimit = 5 * time.Minute
)

// server is a way to serve an image. start runs it with an empty directory for
// what it needs; dial connects to it.
type server struct {
	name  string
	start func(image, dir, address string) *exec.Cmd
	dial  func(dir, address string) (client.Disk, error)
}

// servers are those that the table compares.
func servers(binary string) []server {
	socket := func(dir, _ string) (client.Disk, error) { return opened(client.DialNBD(filepath.Join(dir, "s"))) }
	iscsi := func(_, address string) (client.Disk, error) { return opened(client.DialISCSI(address, targetName)) }
	serve := func(image, dir, address string) *exec.Cmd { return ours(binary, image, dir, address) }
	return []server{
		{oursNBD, serve, socket},
		{oursISCSI, serve, iscsi},
		{qemuNBD, func(image, dir, _ string) *exec.Cmd {
			return exec.Command("qemu-nbd", "-t", "-s", "-f", "qcow2", "-k", filepath.Join(dir, "s"), image)
		}, socket},
		{convTgtd, func(image, dir, address string) *exec.Cmd {
			cmd := exec.Command("bash", "-c", convertAndServe, image, dir, address, targetName)
			cmd.Env = append(os.Environ(), "TGT_IPC_SOCKET="+filepath.Join(dir, "tgt"))
			return cmd
		}, iscsi},
	}
}

// opened makes a nil interface of a connection that failed.
func opened[D client.Disk](d D, err error) (client.Disk, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// ours is the program, over both wires, with more settings.
func ours(binary, image, dir, address string, more ...string) *exec.Cmd {
	cmd := exec.Command(binary, "serve", image)
	cmd.Env = append(os.Environ(), "SCRATCH_DIR="+dir, "NBD_SOCKET="+filepath.Join(dir, "s"), "ISCSI_LISTEN="+address,
		"WWN="+targetName, "ACCESS_MODE=write-shared", "STATUS_LISTEN=off", "HEALTH_FILE=off", "LOG_FORMAT=json")
	cmd.Env = append(cmd.Env, more...)
	return cmd
}

// convertAndServe is the way of 2017: $0 image, $1 directory, $2 address, $3 name.
const convertAndServe = `
qemu-img convert -f qcow2 -O raw "$0" "$1/raw" || exit
tgtd -f --iscsi portal="$2" &
trap 'kill -9 $!' EXIT
a="tgtadm --lld iscsi"
until $a --op new --mode target --tid 1 -T "$3" 2>/dev/null; do sleep 0.005; done
$a --op new --mode logicalunit --tid 1 --lun 1 -b "$1/raw" && $a --op bind --mode target --tid 1 -I ALL
wait
`

// life is a server that runs.
type life struct {
	server
	cmd     *exec.Cmd
	dir     string
	address string
	log     bytes.Buffer
	began   time.Time
	ended   chan struct{}
}

// run starts a server in a process group of its own.
func (s server) run(image string) (*life, error) {
	dir, err := os.MkdirTemp("", "ready-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	l.Close()
	r := &life{server: s, dir: dir, address: l.Addr().String(), ended: make(chan struct{})}
	r.cmd = s.start(image, dir, r.address)
	r.cmd.Stdout, r.cmd.Stderr = &r.log, &r.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.began = time.Now()
	if err := r.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() { r.cmd.Wait(); close(r.ended) }()
	return r, nil
}

// end takes the server and what it made away.
func (l *life) end() error {
	syscall.Kill(-l.cmd.Process.Pid, syscall.SIGKILL)
	<-l.ended
	return os.RemoveAll(l.dir)
}

// connect waits until the server answers a read of its first 4 KiB.
func (l *life) connect() (client.Disk, error) {
	for {
		d, err := l.dial(l.dir, l.address)
		if err == nil {
			if err = d.Read(0, make([]byte, 4096)); err == nil {
				return d, nil
			}
			d.Close()
		}
		select {
		case <-l.ended:
			return nil, fmt.Errorf("ended: %s", &l.log)
		case <-time.After(200 * time.Microsecond):
		}
		if time.Since(l.began) > startLimit {
			return nil, fmt.Errorf("no answer in %v: %w", startLimit, err)
		}
	}
}

// firstRead is how long a server takes from exec to the first answer.
func (s server) firstRead(image string) (time.Duration, error) {
	l, err := s.run(image)
	if err != nil {
		return 0, err
	}
	d, err := l.connect()
	took := time.Since(l.began)
	if err == nil {
		err = d.Close()
	}
	return took, errors.Join(err, l.end())
}
