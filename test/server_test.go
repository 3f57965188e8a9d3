//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startLimit = 20 * time.Second // until a small image is served
	stopLimit  = time.Minute      // from SIGTERM to the end, no client attached: a slow disk has to be flushed
)

// The credentials of the servers in these tests.
var (
	reader = account{"reader", "reader-secret-1"}
	prover = account{"target", "target-secret-1"} // the target's own, for mutual CHAP
)

// env is a process's environment.
type env map[string]string

func (e env) list() []string {
	var l []string
	for k, v := range e {
		l = append(l, k+"="+v)
	}
	return l
}

// with gives a copy of e with the settings of o; an empty value removes one.
func (e env) with(o env) env {
	c := env{}
	for _, m := range []env{e, o} {
		for k, v := range m {
			if c[k] = v; v == "" {
				delete(c, k)
			}
		}
	}
	return c
}

// chap is a server's environment with CHAP, and the target able to prove
// itself.
func chap() env {
	return env{
		"CHAP_USERNAME": reader.name, "CHAP_PASSWORD": reader.secret,
		"CHAP_MUTUAL_USERNAME": prover.name, "CHAP_MUTUAL_PASSWORD": prover.secret,
	}
}

// server is a running "containerdisk serve".
type server struct {
	endpoint
	status string // http://host:port
	log    *logBook
	cmd    *exec.Cmd
	ended  chan struct{} // closed when the process is gone
	err    error         // of cmd.Wait; valid after ended
}

// serve starts the program on an image with CHAP, waits until it is ready, and
// arranges that it is stopped and judged at the end of the test.
func serve(t *testing.T, image string, more env) *server {
	t.Helper()
	s := start(t, image, more)
	s.waitReady(t)
	t.Cleanup(func() { s.stop(t) })
	return s
}

// start starts the program and does not wait for anything.
func start(t *testing.T, image string, more env) *server {
	t.Helper()
	return startUnder(t, nil, image, more)
}

// startUnder starts the program by another one, which must become it, so that
// signals reach it.
func startUnder(t *testing.T, wrapper []string, image string, more env) *server {
	t.Helper()
	dir := t.TempDir()
	e := chap().with(env{
		"IMAGE_PATH":    image,
		"SCRATCH_DIR":   dir,
		"HEALTH_FILE":   filepath.Join(dir, "healthy"),
		"ISCSI_LISTEN":  "127.0.0.1:0",
		"STATUS_LISTEN": "127.0.0.1:0",
		"LOG_LEVEL":     "debug",
		"GOTRACEBACK":   "all",
	}).with(more)
	argv := append(slices.Clone(wrapper), program, "serve")
	s := &server{cmd: exec.Command(argv[0], argv[1:]...), log: newLogBook(), ended: make(chan struct{})}
	s.initiator = account{e["CHAP_USERNAME"], e["CHAP_PASSWORD"]}
	s.target = account{e["CHAP_MUTUAL_USERNAME"], e["CHAP_MUTUAL_PASSWORD"]}
	s.cmd.Env = e.list()
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		s.kill(t)
		if t.Failed() {
			t.Logf("--- log of the server\n%s", s.log)
		}
	})
	return s
}

// waitReady reads the log until every wire has its address and the disk is
// ready.
func (s *server) waitReady(t *testing.T) {
	t.Helper()
	deadline := time.After(startLimit)
	for {
		line, ok := s.log.next(deadline, s.ended)
		if !ok {
			t.Fatalf("not ready in %v, or ended", startLimit)
		}
		switch {
		case line["msg"] == "listening" && line["wire"] == "iscsi":
			s.address, s.name = text(line["address"]), text(line["target"])
		case line["msg"] == "listening" && line["wire"] == "status":
			s.status = "http://" + text(line["address"])
		case line["msg"] == "ready":
			return
		}
	}
}

func text(v any) string { s, _ := v.(string); return s }

// signal asks the process for something.
func (s *server) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		t.Errorf("%v: %v", sig, err)
	}
}

// stop ends the server as an operator does and judges its life: it must end by
// itself, with exit code 0 and without having panicked.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if !s.running() {
		return
	}
	s.signal(t, syscall.SIGTERM)
	s.wait(t, stopLimit, 0)
}

func (s *server) running() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// wait waits until the server has ended and checks how.
func (s *server) wait(t *testing.T, limit time.Duration, code int) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(limit):
		s.signal(t, syscall.SIGQUIT) // the runtime writes what hangs
		time.Sleep(time.Second)
		t.Fatalf("still running after %v", limit)
	}
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d (%v), want %d", got, s.err, code)
	}
	if m := crash.FindString(s.log.String()); m != "" {
		t.Errorf("the server's log has %q", m)
	}
}

var crash = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*|WARNING: DATA RACE)|http: panic serving.*`)

// kill ends what a failed test has left.
func (s *server) kill(t *testing.T) {
	if s.running() {
		s.cmd.Process.Kill()
		<-s.ended
	}
}

// peakMemory is the most memory that the server has had at a time, in bytes.
func (s *server) peakMemory(t *testing.T) int64 { return s.procStatus(t, "VmHWM") << 10 }

var statusLine = regexp.MustCompile(`(?m)^(\w+):\s+(\d+)`)

func (s *server) procStatus(t *testing.T, name string) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range statusLine.FindAllSubmatch(b, -1) {
		if string(m[1]) == name {
			n, _ := strconv.ParseInt(string(m[2]), 10, 64)
			return n
		}
	}
	t.Fatalf("no %s in\n%s", name, b)
	return 0
}

// openFiles counts the server's file descriptors.
func (s *server) openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// logBook keeps what a process writes and hands out its JSON lines.
type logBook struct {
	mu    sync.Mutex // guards all and part
	all   bytes.Buffer
	part  []byte // of a line that has not ended
	lines chan map[string]any
}

func newLogBook() *logBook { return &logBook{lines: make(chan map[string]any, 1024)} }

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Write(p)
	l.part = append(l.part, p...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		l.part = rest
		l.deliver(line)
	}
}

// deliver drops lines that nobody waits for once the channel is full: only the
// beginning is waited for, the rest is read from the whole.
func (l *logBook) deliver(line []byte) {
	var m map[string]any
	if json.Unmarshal(line, &m) != nil {
		return
	}
	select {
	case l.lines <- m:
	default:
	}
}

// next gives the next line of JSON.
func (l *logBook) next(deadline <-chan time.Time, ended <-chan struct{}) (map[string]any, bool) {
	select {
	case line := <-l.lines:
		return line, true
	case <-ended:
	case <-deadline:
	}
	return nil, false
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// grep gives the log's lines that have the text.
func (l *logBook) grep(text string) []string {
	var found []string
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// stopping is in the log from the first SIGTERM on.
const stopping = `"phase":"draining"`
