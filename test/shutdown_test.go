//go:build e2e

package e2e

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDrain stops a server with a client attached: the client works on until
// it leaves by itself, and then the server goes.
func TestDrain(t *testing.T) {
	s := serve(t, makeImage(t, 8*mib, quick, "-c"), env{"SHUTDOWN_GRACE": "60s"})
	client := attach(t, s.url())
	client.do(t, "write -P 1 0 64k", "wrote 65536/65536")
	s.signal(t, syscall.SIGTERM)
	waitLog(t, s, stopping)
	client.do(t, "write -P 2 1M 1M", "wrote 1048576/1048576")
	client.do(t, "read -P 1 0 64k", "read 65536/65536")
	client.do(t, "flush", "")
	// One who was never here is told that there is no service, and may retry.
	if r := attempt(t, "iscsi-inq", "-i", "iqn.2026-01.test:stranger", s.url()); r.code == 0 {
		t.Errorf("a new client was let in while draining: %s", r.out)
	}
	if !s.running() {
		t.Fatal("the server left its client")
	}
	client.do(t, "read -P 2 1M 1M", "read 1048576/1048576")
	client.quit(t)
	s.wait(t, stopLimit, 0)
}

// TestGraceEnds stops a server with a client that leaves only when it is asked
// to, in the last quarter of the grace.
func TestGraceEnds(t *testing.T) {
	s := serve(t, makeImage(t, 8*mib, quick, "-c"), env{"SHUTDOWN_GRACE": "2s"})
	client := attach(t, s.url())
	client.do(t, "write -P 1 0 1M", "wrote 1048576/1048576")
	begin := time.Now()
	s.signal(t, syscall.SIGTERM)
	s.wait(t, stopLimit, 0)
	if took := time.Since(begin); took < 1500*time.Millisecond || took > 7*time.Second {
		t.Errorf("the server left after %v, want the 2 s of grace, or a little less", took)
	}
}

// TestFlushAtTheEnd watches what the server asks of the kernel: what a client
// wrote and did not flush is flushed before the server goes, also when the
// client is still there.
func TestFlushAtTheEnd(t *testing.T) {
	require(t, "strace")
	trace := filepath.Join(t.TempDir(), "trace")
	s := startUnder(t, []string{"strace", "-D", "-f", "-y", "-qq", "-o", trace,
		"-e", "trace=pwrite64,pwritev,pwritev2,fdatasync,fsync"},
		createImage(t, 8*mib, ""), env{"SHUTDOWN_GRACE": "1s"})
	s.waitReady(t)
	client := attach(t, s.url())
	client.do(t, "write -P 1 0 1M", "wrote 1048576/1048576")
	s.signal(t, syscall.SIGTERM)
	s.wait(t, stopLimit, 0)
	log, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	writes, flushed := lastWriteFlushed(string(log))
	if writes == 0 || !flushed {
		t.Errorf("%d writes, flushed: %v, in\n%s", writes, flushed, tail(string(log)))
	}
}

var (
	// A call that has ended in the same line, or began in it, on a file.
	tracedWrite = regexp.MustCompile(`pwrite\w*\(\d+<(/[^>]+)>`)
	tracedFlush = regexp.MustCompile(`f(?:data)?sync\(\d+<(/[^>]+)>`)
)

// lastWriteFlushed counts the writes to files and tells whether the file
// written last was flushed after it.
func lastWriteFlushed(trace string) (writes int, flushed bool) {
	var file string
	for line := range strings.Lines(trace) {
		if m := tracedWrite.FindStringSubmatch(line); m != nil {
			writes, file, flushed = writes+1, m[1], false
		}
		if m := tracedFlush.FindStringSubmatch(line); m != nil && m[1] == file {
			flushed = true
		}
	}
	return writes, flushed
}

// TestSecondSignal has no patience.
func TestSecondSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			s := serve(t, makeImage(t, 8*mib, quick, "-c"), env{"SHUTDOWN_GRACE": "10m"})
			client := attach(t, s.url())
			client.do(t, "write -P 1 0 1M", "wrote 1048576/1048576")
			s.signal(t, sig)
			waitLog(t, s, stopping)
			s.signal(t, sig)
			s.wait(t, 5*time.Second, 0)
		})
	}
}

// TestHalfOpenDoesNotHoldUp stops a server that somebody has connected to and
// not said a word.
func TestHalfOpenDoesNotHoldUp(t *testing.T) {
	s := serve(t, createImage(t, mib, ""), nil)
	nc, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	s.signal(t, syscall.SIGTERM)
	s.wait(t, 5*time.Second, 0)
}

// TestStopWhileCopying stops a server that has not copied its image: it does not
// finish that first.
func TestStopWhileCopying(t *testing.T) {
	s := serve(t, makeImage(t, 64*mib, quick, "-c"), env{"HYDRATE_RATE": "1M"})
	s.signal(t, syscall.SIGTERM)
	s.wait(t, 5*time.Second, 0)
	if lines := s.log.grep("copied; the image"); len(lines) > 0 {
		t.Errorf("the signal came too late for this test: %s", lines)
	}
}

// TestNothingIsLeft looks at what remains of a run whose disk was ephemeral.
func TestNothingIsLeft(t *testing.T) {
	scratch, health := t.TempDir(), filepath.Join(t.TempDir(), "healthy")
	s := serve(t, makeImage(t, 8*mib, quick, "-c"), env{"SCRATCH_DIR": scratch, "KEEP_SCRATCH": "false", "HEALTH_FILE": health})
	if _, err := os.Stat(health); err != nil {
		t.Errorf("ready without the health file: %v", err)
	}
	s.stop(t)
	if _, err := os.Stat(health); err == nil {
		t.Errorf("the health file outlives the server")
	}
	noRest(t, scratch)
}

func noRest(t *testing.T, dir string) {
	t.Helper()
	rest, err := os.ReadDir(dir)
	if err != nil || len(rest) > 0 {
		t.Errorf("left in the scratch directory: %v, %v", rest, err)
	}
}

// TestScratchAfterKill goes on with the disk of a run that was killed, however
// short it was to live: an orderly end is another thing.
func TestScratchAfterKill(t *testing.T) {
	scratch, image := t.TempDir(), makeImage(t, 8*mib, quick, "-c")
	more := env{"SCRATCH_DIR": scratch, "KEEP_SCRATCH": "false"}
	first := serve(t, image, more)
	qemuIO(t, first.url(), "raw", "write -P 1 1M 64k")
	first.cmd.Process.Kill()
	<-first.ended
	want := expand(t, image)
	qemuIO(t, want, "raw", "write -P 1 1M 64k")
	second := serve(t, image, more)
	compare(t, second.url(), want)
	second.stop(t)
	noRest(t, scratch)
}

// waitLog waits until the log has the text.
func waitLog(t *testing.T, s *server, text string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if len(s.log.grep(text)) > 0 {
			return
		}
	}
	t.Fatalf("%q does not come up in the log", text)
}
