//go:build e2e

package crash

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/test/client"
)

const targetName = "iqn.2026-01.test:crash"

// machine is a disk's server over its many lives.
type machine struct {
	t       *testing.T
	dir     string   // for the sockets and logs; not on the disk that loses power
	wrapper []string // runs the server, and becomes it
	env     []string
	socket  string
	address string

	cmd   *exec.Cmd
	log   bytes.Buffer // of the present life
	ended chan struct{}
	ready []time.Duration // from the start of a life to its first answer
}

func newMachine(t *testing.T, wrapper []string, env ...string) *machine {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	m := &machine{t: t, dir: dir, wrapper: wrapper, socket: filepath.Join(dir, "nbd.sock"), address: l.Addr().String()}
	m.env = append([]string{
		"ACCESS_MODE=write-shared", "NBD_SOCKET=" + m.socket, "ISCSI_LISTEN=" + m.address, "WWN=" + targetName,
		"STATUS_LISTEN=off", "HEALTH_FILE=off", "LOG_FORMAT=json", "GOTRACEBACK=all",
	}, env...)
	t.Cleanup(func() {
		m.kill()
		if t.Failed() {
			t.Logf("--- log of the last life\n%s", &m.log)
		}
	})
	return m
}

// start begins a life and waits for its first answer.
func (m *machine) start() {
	m.t.Helper()
	argv := append(slices.Clone(m.wrapper), program, "serve")
	m.cmd = exec.Command(argv[0], argv[1:]...)
	m.log.Reset()
	m.cmd.Env, m.cmd.Stdout, m.cmd.Stderr = append(os.Environ(), m.env...), &m.log, &m.log
	began := time.Now()
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { cmd.Wait(); close(ended) }(m.cmd, m.ended)
	for {
		c, err := client.DialNBD(m.socket)
		if err == nil {
			err = c.Read(0, make([]byte, 4096))
			c.Close()
			if err == nil {
				m.ready = append(m.ready, time.Since(began))
				return
			}
		}
		select {
		case <-m.ended:
			m.t.Fatalf("the server ended instead of serving")
		case <-time.After(2 * time.Millisecond):
		}
		if time.Since(began) > client.ReplyLimit {
			m.t.Fatalf("no answer in %v: %v", client.ReplyLimit, err)
		}
	}
}

// kill is kill -9.
func (m *machine) kill() {
	if m.cmd == nil {
		return
	}
	m.cmd.Process.Kill()
	<-m.ended
	m.cmd = nil
}

// stop is the operator's end.
func (m *machine) stop() {
	m.t.Helper()
	m.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.ended:
	case <-time.After(client.ReplyLimit):
		m.t.Fatal("SIGTERM: still there")
	}
	if code := m.cmd.ProcessState.ExitCode(); code != 0 {
		m.t.Fatalf("SIGTERM: exit code %d", code)
	}
	m.cmd = nil
}

// connect opens the n-th connection of a load: the wires take turns.
func (m *machine) connect(n int) client.Disk {
	m.t.Helper()
	var c client.Disk
	var err error
	if n%2 == 0 {
		c, err = client.DialNBD(m.socket)
	} else {
		c, err = client.DialISCSI(m.address, targetName)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// load starts workers.
func (m *machine) load(o *oracle, r *rand.Rand, workers int) *load {
	m.t.Helper()
	l := &load{oracle: o}
	for n := range workers {
		l.start(m.connect(n), rand.New(rand.NewPCG(r.Uint64(), r.Uint64())))
	}
	return l
}

// survey reads the whole disk and asks the oracle whether it may be so.
func (m *machine) survey(o *oracle) {
	m.t.Helper()
	c, err := client.DialNBD(m.socket)
	if err != nil {
		m.t.Fatal(err)
	}
	defer c.Close()
	disk := make([]byte, len(o.image))
	for off := 0; off < len(disk); off += 1 << 20 {
		if err := c.Read(int64(off), disk[off:min(off+1<<20, len(disk))]); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := o.survey(disk); err != nil {
		m.t.Fatal(err)
	}
}

// published waits until the volume holds disk.img and nothing else, which is
// when the server has copied everything.
func (m *machine) published(volume string) {
	m.t.Helper()
	var names []string
	for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		if names = list(m.t, volume); slices.Equal(names, []string{"disk.img"}) {
			return
		}
	}
	m.t.Fatalf("the volume holds %q a minute later, want disk.img alone", names)
}

// list names what is in a volume, but for what mkfs made.
func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != "lost+found" {
			names = append(names, e.Name())
		}
	}
	return names
}

// report prints what the lives had in common.
func (m *machine) report(kills int, acked int64) {
	if len(m.ready) == 0 {
		return
	}
	slices.Sort(m.ready)
	m.t.Logf("%d crashes, %d requests acknowledged; first answer after a start: median %v, p99 %v", kills, acked,
		m.ready[len(m.ready)/2].Round(time.Millisecond), m.ready[len(m.ready)*99/100].Round(time.Millisecond))
}

// image makes a disk's content, with data of several kinds and holes, and the
// compressed qcow2 that the server is given.
func image(t *testing.T, size int) (content []byte, file string) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	content = make([]byte, size)
	for off := 0; off < size; off += 96 << 10 { // not a multiple of the cluster
		piece := content[off:min(off+96<<10, size)]
		switch r.IntN(4) {
		case 0: // a hole
		case 1:
			for i := range piece {
				piece[i] = byte(r.Uint32())
			}
		default:
			copy(piece, bytes.Repeat(fmt.Appendf(nil, "image %d ", off), len(piece)/8))
		}
	}
	dir := t.TempDir()
	raw := filepath.Join(dir, "image.raw")
	if err := os.WriteFile(raw, content, 0o644); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "image.qcow2")
	if out, err := exec.Command("qemu-img", "convert", "-c", "-O", "qcow2", raw, file).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img: %v\n%s", err, out)
	}
	return content, file
}
