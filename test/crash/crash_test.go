//go:build e2e

package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"
)

const (
	imageSize = 24 << 20
	workers   = 6
	// lives is how many crashes a disk sees before the next begins anew.
	lives = 12
)

// program is the binary under test, an absolute path.
var program string

func TestMain(m *testing.M) {
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	if program = os.Getenv("CONTAINERDISK_BIN"); program != "" {
		os.Exit(m.Run())
	}
	dir, err := os.MkdirTemp("", "containerdisk-crash-")
	if err == nil {
		program = filepath.Join(dir, "containerdisk")
		build := exec.Command("go", "build", "-o", program, "../../cmd/containerdisk")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, "crash:", err)
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

// number reads a count from the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: want a number from 1", name, s)
	}
	return n
}

// choices is the run's source of random numbers, which CRASH_SEED repeats.
func choices(t *testing.T) *rand.Rand {
	t.Helper()
	seed := number(t, "CRASH_SEED", int(time.Now().UnixNano()&0xffffff)+1)
	t.Logf("CRASH_SEED=%d", seed)
	return rand.New(rand.NewPCG(uint64(seed), 0))
}

// setup is one way to keep a disk.
type setup struct {
	name   string
	mode   string // COPY_MODE
	volume bool
	rates  []string // HYDRATE_RATE: slow ones crash on the way, "" at the end
}

var setups = []setup{
	{"clone", "clone", false, []string{"8M", "60M", ""}},
	{"copy-on-write", "copy-on-write", false, []string{""}},
	{"copy-on-read", "copy-on-read", false, []string{""}},
	{"volume", "clone", true, []string{"8M", "60M", ""}},
}

// env is a server's environment for a disk whose state is below dir.
func (s setup) env(t *testing.T, r *rand.Rand, dir, image string) []string {
	t.Helper()
	scratch, volume := filepath.Join(dir, "scratch"), filepath.Join(dir, "volume")
	for _, d := range []string{scratch, volume} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"IMAGE_PATH=" + image, "COPY_MODE=" + s.mode, "SCRATCH_DIR=" + scratch}
	if s.volume {
		env = append(env, "VOLUME_PATH="+volume)
	}
	if rate := s.rates[r.IntN(len(s.rates))]; rate != "" {
		env = append(env, "HYDRATE_RATE="+rate)
	}
	return env
}

// TestKill kills the server with -9 again and again. Every request that was
// acknowledged must have happened for good.
func TestKill(t *testing.T) {
	kills := number(t, "CRASH_KILLS", 48)
	r := choices(t)
	content, file := image(t, imageSize)
	for i, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			var acked int64
			m := (*machine)(nil)
			for left := kills/len(setups) + min(1, max(0, kills%len(setups)-i)); left > 0; left -= lives {
				acked += killed(t, &m, s, r, content, file, min(left, lives))
			}
			m.report(kills/len(setups), acked)
		})
	}
}

// killed is the story of one disk. It returns how many requests were acknowledged.
func killed(t *testing.T, last **machine, s setup, r *rand.Rand, content []byte, file string, times int) (acked int64) {
	t.Helper()
	dir := t.TempDir()
	m := newMachine(t, nil, s.env(t, r, dir, file)...)
	if *last != nil {
		m.ready = (*last).ready
	}
	*last = m
	o := newOracle(content, whenAcknowledged)
	for range times {
		m.start()
		m.survey(o)
		l := m.load(o, r, workers)
		time.Sleep(time.Duration(r.Int64N(int64(250 * time.Millisecond))))
		l.taken.Store(true)
		m.kill()
		if err := l.wait(); err != nil {
			t.Fatal(err)
		}
		acked += l.acked.Load()
	}
	m.finish(s, dir, o)
	return acked
}

// finish starts a disk once more and looks at it; a volume must come to hold
// disk.img alone, and in it the same.
func (m *machine) finish(s setup, dir string, o *oracle) {
	m.t.Helper()
	m.env = slices.DeleteFunc(m.env, func(v string) bool { return len(v) > 13 && v[:13] == "HYDRATE_RATE=" })
	m.start()
	m.survey(o)
	if !s.volume {
		m.stop()
		return
	}
	volume := filepath.Join(dir, "volume")
	m.published(volume)
	m.survey(o)
	m.stop()
	disk, err := os.ReadFile(filepath.Join(volume, "disk.img"))
	if err != nil {
		m.t.Fatal(err)
	}
	if len(disk) != len(o.image) {
		m.t.Fatalf("disk.img has %d bytes, want %d", len(disk), len(o.image))
	}
	if err := o.survey(disk); err != nil {
		m.t.Fatalf("disk.img: %v", err)
	}
	if names := list(m.t, volume); !slices.Equal(names, []string{"disk.img"}) {
		m.t.Fatalf("the volume holds %q, want disk.img alone", names)
	}
}
