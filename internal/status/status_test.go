package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// After an error net/http keeps a connection for half a second, so that the
	// client reads the answer before the reset.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

func TestPhasesGoForward(t *testing.T) {
	tests := []struct {
		name string
		set  []Phase
		want Phase
	}{
		{"new", nil, Starting},
		{"all", []Phase{Populating, Ready, Draining, Stopped}, Stopped},
		{"ready after the signal", []Phase{Populating, Draining, Ready}, Draining},
		{"failed while draining", []Phase{Ready, Draining, Failed}, Failed},
		{"failed after the end", []Phase{Stopped, Failed}, Stopped},
		{"ready after failure", []Phase{Failed, Ready}, Failed},
	}
	for _, tt := range tests {
		s := New(Options{})
		for _, p := range tt.set {
			s.SetPhase(p, p.String())
		}
		got, message := s.Phase()
		if got != tt.want || tt.set != nil && message != tt.want.String() {
			t.Errorf("%s: got %v (%s), want %v", tt.name, got, message, tt.want)
		}
	}
}

func TestFirstFailureStays(t *testing.T) {
	s := New(Options{})
	s.Fail(errors.New("the disk is full"))
	s.Fail(errors.New("the rest of it"))
	if p, message := s.Phase(); p != Failed || message != "the disk is full" {
		t.Errorf("got %v: %s", p, message)
	}
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		s := New(Options{Version: "v1", Revision: "abc", Stats: func() []WireStats {
			return []WireStats{{Wire: "iscsi", Sessions: 1, Logins: 2, LoginFailures: 3, Disks: []DiskStats{{Name: "a", Reads: 4}}}}
		}})
		s.SetDisks([]Disk{{Name: "a", Image: "/disk/a", Format: "qcow2", Size: 100}})
		p := s.Copy("a")
		time.Sleep(time.Minute)
		s.SetPhase(Ready, "one disk")
		time.Sleep(time.Minute)
		s.SetPhase(Ready, "still")
		p.Update(100, 100)

		var got map[string]any
		text, err := json.Marshal(s.Report())
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		for field, want := range map[string]any{
			"phase": "ready", "message": "still", "ready": true, "version": "v1", "revision": "abc",
			"started": begun.Format(time.RFC3339Nano), "since": begun.Add(time.Minute).Format(time.RFC3339Nano),
		} {
			if got[field] != want {
				t.Errorf("%s: got %v, want %v", field, got[field], want)
			}
		}
		for _, part := range []string{
			`"disks":[{"name":"a","image":"/disk/a","format":"qcow2","size":100,"url":""}]`,
			`"copies":[{"disk":"a","done":100,"total":100,"percent":100,"rate":0.8333333333333334,"elapsed":120.000,"left":0.000}]`,
			`"wires":[{"wire":"iscsi","sessions":1,"logins":2,"loginFailures":3,"disks":[{"name":"a","reads":4,"writes":0,`,
		} {
			if !strings.Contains(string(text), part) {
				t.Errorf("got %s\nwant %s in it", text, part)
			}
		}
	})
}

func TestReportOfNothing(t *testing.T) {
	text, err := json.Marshal(New(Options{}).Report())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"disks":[]`, `"copies":[]`, `"wires":[]`, `"phase":"starting"`, `"ready":false`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("got %s, want %s in it", text, part)
		}
	}
}

func TestCopyAgainReplaces(t *testing.T) {
	s := New(Options{})
	s.Copy("a").Update(1, 10)
	s.Copy("b").Update(2, 10)
	s.Copy("a").Update(3, 10)
	r := s.Report()
	if len(r.Copies) != 2 || r.Copies[0].Disk != "b" || r.Copies[1].Done != 3 {
		t.Errorf("got %+v", r.Copies)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestHealthFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "healthy")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := New(Options{HealthFile: path})
	for _, step := range []struct {
		phase Phase
		want  bool
	}{{Starting, false}, {Populating, false}, {Ready, true}, {Ready, true}, {Draining, false}, {Stopped, false}} {
		s.SetPhase(step.phase, "")
		if got := exists(t, path); got != step.want {
			t.Errorf("%v: the file is there: %v, want %v", step.phase, got, step.want)
		}
	}
}

func TestHealthFileGoesOnFailure(t *testing.T) {
	path := filepath.Join(t.TempDir(), "healthy")
	s := New(Options{HealthFile: path})
	s.SetPhase(Ready, "")
	s.Fail(errors.New("x"))
	if exists(t, path) {
		t.Error("the file is still there")
	}
}

func TestHealthFileOfSomebodyElse(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "healthy"), filepath.Join(dir, "victim")
	s := New(Options{HealthFile: path})
	if err := os.WriteFile(victim, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	s.SetPhase(Ready, "")
	s.SetPhase(Draining, "")
	if b, err := os.ReadFile(victim); string(b) != "content" || err != nil {
		t.Errorf("a link was followed: %q, %v", b, err)
	}
	if !exists(t, path) {
		t.Error("somebody else's file is gone")
	}

	s = New(Options{HealthFile: path}) // removes the link as stale
	s.SetPhase(Ready, "")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.SetPhase(Draining, "")
	if !exists(t, path) {
		t.Error("the file that took our file's place is gone")
	}
}

func TestHealthFileThatCannotBe(t *testing.T) {
	var log bytes.Buffer
	level := slog.LevelWarn
	s := New(Options{HealthFile: "/proc/healthy", Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))})
	s.SetPhase(Ready, "")
	s.SetPhase(Draining, "")
	if log.Len() > 0 {
		t.Errorf("a file system without room for it made more than a debug line: %s", &log)
	}
	// A directory in its place is nobody's design.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	New(Options{HealthFile: dir, Log: slog.New(slog.NewTextHandler(&log, nil))}).SetPhase(Ready, "")
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), dir) {
		t.Errorf("got %q, want a warning", log.String())
	}
}

func TestTerminationMessage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "termination-log")
	s := New(Options{TerminationLog: path})
	s.SetPhase(Populating, "fedora")
	if exists(t, path) {
		t.Fatal("a termination message was made where nobody reads one")
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("old", 100)), 0o644); err != nil {
		t.Fatal(err)
	}
	s.SetPhase(Ready, "serving fedora")
	check := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(path); string(got) != want || err != nil {
			t.Errorf("got %.60q of %d bytes, %v, want %.60q of %d", got, len(got), err, want, len(want))
		}
	}
	check("ready: serving fedora")
	s.Fail(errors.New(strings.Repeat("é", 3000)))
	check("failed: " + strings.Repeat("é", 2044)) // 4096 bytes
}

func TestCut(t *testing.T) {
	tests := []struct {
		text string
		n    int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "abc"}, {"aé", 2, "a"}, {"a€", 3, "a"}, {"€", 3, "€"}, {"a\xff", 9, "a\uFFFD"}, {"", 0, ""}}
	for _, tt := range tests {
		if got := cut(tt.text, tt.n); got != tt.want {
			t.Errorf("cut(%q, %d) = %q, want %q", tt.text, tt.n, got, tt.want)
		}
	}
}

func TestUseInParallel(t *testing.T) {
	s := New(Options{HealthFile: filepath.Join(t.TempDir(), "healthy")})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			p := s.Copy(string(rune('a' + i)))
			for n := range int64(100) {
				p.Update(n, 100)
				s.SetPhase(Populating, "x")
				_ = s.Report()
				s.SetDisks([]Disk{{Name: "a"}})
			}
		})
	}
	wg.Wait()
	if n := len(s.Report().Copies); n != 4 {
		t.Errorf("%d copies, want 4", n)
	}
}
