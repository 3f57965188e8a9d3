package volume

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	thisBoot  = "00000000-1111-2222-3333-444444444444"
	otherBoot = "99999999-1111-2222-3333-444444444444"
	stateName = "containerdisk-lun1"
)

func self() Owner { return Self(thisBoot) }

func openState(t *testing.T, parent string) *State {
	t.Helper()
	s, err := OpenState(parent, stateName, self())
	if err != nil {
		t.Fatalf("OpenState: %v", err)
	}
	return s
}

// put makes a file of the state with a content.
func put(t *testing.T, s *State, name, content string) {
	t.Helper()
	f, err := s.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
}

// made is a state that has begun, with a store.
func made(t *testing.T, parent string) *State {
	t.Helper()
	s := openState(t, parent)
	if !s.Fresh() {
		t.Fatalf("%s is not fresh", s.Dir())
	}
	put(t, s, StoreName, "store")
	if err := s.Begin(); err != nil {
		t.Fatalf("Begin: %v", err)
	}
	return s
}

func closed(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	n := []string{}
	for _, e := range entries {
		n = append(n, e.Name())
	}
	return n
}

func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Errorf("in %s: %q, want %q", dir, got, want)
	}
}

func TestStateLife(t *testing.T) {
	parent := t.TempDir()
	s := made(t, parent)
	wantNames(t, parent, ".containerdisk-lun1.new")
	closed(t, s)

	s = openState(t, parent) // after the death of the process
	if s.Fresh() {
		t.Error("a state that had begun was made anew")
	}
	if err := s.Anchor(); err != nil {
		t.Errorf("Anchor: %v", err)
	}
	wantNames(t, parent, stateName)
	if got := s.Path(StoreName); got != filepath.Join(parent, stateName, StoreName) {
		t.Errorf("the store is at %s after Anchor", got)
	}
	closed(t, s)

	s = openState(t, parent)
	if s.Fresh() {
		t.Error("an anchored state was made anew")
	}
	if err := s.Anchor(); err != nil {
		t.Errorf("Anchor of what an earlier process anchored: %v", err)
	}
	if err := s.Remove(); err != nil {
		t.Errorf("Remove: %v", err)
	}
	wantNames(t, parent)
}

// What was never anchored is worth nothing after a loss of power; what was
// anchored is.
func TestStateOfAnotherBoot(t *testing.T) {
	for name, anchored := range map[string]bool{"young": false, "anchored": true} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			s := made(t, parent)
			if anchored {
				if err := s.Anchor(); err != nil {
					t.Fatal(err)
				}
			}
			closed(t, s)
			s, err := OpenState(parent, stateName, Self(otherBoot))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if s.Fresh() == anchored {
				t.Errorf("fresh: %v", s.Fresh())
			}
			if n := len(names(t, parent)); n != 1 {
				t.Errorf("left: %q", names(t, parent))
			}
		})
	}
}

// A young state whose record did not reach the disk is from before a loss of power.
func TestYoungStateWithoutRecord(t *testing.T) {
	parent := t.TempDir()
	s := made(t, parent)
	path := s.Path(lockName)
	closed(t, s)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	s = openState(t, parent)
	defer s.Close()
	if !s.Fresh() {
		t.Error("believed")
	}
}

func TestStateNotBegunIsRemoved(t *testing.T) {
	parent := t.TempDir()
	s := openState(t, parent)
	put(t, s, StoreName, "half")
	closed(t, s)
	wantNames(t, parent)
}

func TestStateHasOneOwner(t *testing.T) {
	parent := t.TempDir()
	s := made(t, parent)
	defer s.Close()
	for _, step := range []func() error{func() error { return nil }, s.Anchor} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		for _, who := range []Owner{self(), Self(otherBoot)} {
			_, err := OpenState(parent, stateName, who)
			var used *InUseError
			if !errors.As(err, &used) {
				t.Fatalf("a second owner got %v", err)
			}
			if !strings.Contains(used.Owner, self().Host) || !strings.Contains(used.Owner, "process ") {
				t.Errorf("the owner is not named: %v", err)
			}
		}
	}
	if has, err := s.Has(StoreName); err != nil || !has {
		t.Errorf("the store after others tried: %v, %v", has, err)
	}
}

// Two processes that make the state at the same time: one of them gets it.
func TestStateRace(t *testing.T) {
	for name, anchor := range map[string]bool{"young": false, "anchored": true} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			first, second := openState(t, parent), openState(t, parent)
			defer first.Close()
			if err := first.Begin(); err != nil {
				t.Fatal(err)
			}
			if anchor {
				if err := first.Anchor(); err != nil {
					t.Fatal(err)
				}
			}
			var used *InUseError
			if err := second.Begin(); !errors.As(err, &used) {
				t.Errorf("the second began as well: %v", err)
			}
			closed(t, second)
			if n := names(t, parent); len(n) != 1 {
				t.Errorf("left: %q", n)
			}
		})
	}
}

// What somebody else put where a state belongs is not touched.
func TestStateSparesTheForeign(t *testing.T) {
	for name, make := range map[string]func(path, elsewhere string) error{
		"a file":                   func(path, _ string) error { return os.WriteFile(path, []byte("x"), 0o644) },
		"a directory without lock": func(path, _ string) error { return os.Mkdir(path, 0o755) },
		"a link":                   func(path, elsewhere string) error { return os.Symlink(elsewhere, path) },
		"a linked lock": func(path, elsewhere string) error {
			return errors.Join(os.Mkdir(path, 0o755), os.Symlink(filepath.Join(elsewhere, "target"), filepath.Join(path, lockName)))
		},
	} {
		for _, base := range []string{stateName, young(stateName)} {
			t.Run(name+" "+base, func(t *testing.T) {
				parent, elsewhere := t.TempDir(), t.TempDir()
				if err := os.WriteFile(filepath.Join(elsewhere, "target"), []byte("precious"), 0o644); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(elsewhere, lockName), []byte("precious"), 0o644); err != nil {
					t.Fatal(err)
				}
				path := filepath.Join(parent, base)
				if err := make(path, elsewhere); err != nil {
					t.Fatal(err)
				}
				s, err := OpenState(parent, stateName, self())
				if err == nil {
					closed(t, s)
					t.Fatal("opened")
				}
				if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove it") {
					t.Errorf("the error does not tell the way out: %v", err)
				}
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("it is gone: %v", err)
				}
				for _, f := range []string{"target", lockName} {
					if b, err := os.ReadFile(filepath.Join(elsewhere, f)); err != nil || string(b) != "precious" {
						t.Errorf("%s elsewhere: %q, %v", f, b, err)
					}
				}
			})
		}
	}
}

func TestSweep(t *testing.T) {
	parent := t.TempDir()
	mk := func(name string, old bool, files ...string) {
		t.Helper()
		path := filepath.Join(parent, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(path, f), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if old {
			past := time.Now().Add(-2 * makingLimit)
			if err := os.Chtimes(path, past, past); err != nil {
				t.Fatal(err)
			}
		}
	}
	mk(".containerdisk-lun7.making-1", false, lockName, StoreName)
	mk(".containerdisk-lun7.making-2", true)
	mk(".containerdisk-lun7.making-3", false)            // its maker may be about to lock it
	mk(".containerdisk-lun7.making-4", true, "anything") // not ours, if it has no lock
	mk(".containerdisk-lun7.gone-5", false, StoreName)
	mk(".containerdisk-lun8.new", false, lockName, StoreName) // a record that says nothing
	mk("containerdisk-lun9", false, lockName, StoreName)
	mk("containerdisk-photos", false)
	mk(".containerdisks", false)
	left, err := Leftovers(parent, thisBoot)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 1 || left[0].Path != filepath.Join(parent, "containerdisk-lun9") {
		t.Errorf("kept and not used: %v", left)
	}
	wantNames(t, parent, ".containerdisk-lun7.making-3", ".containerdisk-lun7.making-4", ".containerdisks",
		"containerdisk-lun9", "containerdisk-photos")
}

// In a directory of everybody's, what another user made is not believed.
func TestStateOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a file of another user's")
	}
	for name, test := range map[string]struct {
		mode    os.FileMode // of the parent
		refused bool
	}{"everybody's": {0o777 | os.ModeSticky, true}, "ours": {0o755, false}} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			if err := os.Chmod(parent, test.mode); err != nil {
				t.Fatal(err)
			}
			s := made(t, parent)
			if st, err := os.Stat(s.Dir()); err != nil || st.Mode().Perm()&0o070 != 0 == test.refused {
				t.Errorf("mode %v, %v", st.Mode(), err)
			}
			if err := os.Chown(s.Dir(), 12345, 12345); err != nil {
				t.Fatal(err)
			}
			closed(t, s)
			s, err := OpenState(parent, stateName, self())
			if err == nil {
				closed(t, s)
			}
			if (err != nil) != test.refused {
				t.Errorf("OpenState: %v", err)
			}
		})
	}
}

func TestStateNeedsADirectory(t *testing.T) {
	_, err := OpenState(filepath.Join(t.TempDir(), "none"), stateName, self())
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenState in a directory that does not exist: %v", err)
	}
}

func TestStateMemory(t *testing.T) {
	parent := t.TempDir()
	s := made(t, parent)
	m := s.Memory()
	if b, err := m.Load(); err != nil || b != nil {
		t.Errorf("Load before Save: %q, %v", b, err)
	}
	for _, want := range []string{"a registration", "another"} {
		if err := m.Save([]byte(want)); err != nil {
			t.Fatal(err)
		}
		if b, err := m.Load(); err != nil || string(b) != want {
			t.Errorf("Load: %q, %v, want %q", b, err, want)
		}
	}
	wantNames(t, parent, stateName) // or it would be gone after a loss of power
	wantNames(t, s.Dir(), StoreName, lockName, memoryName)
	closed(t, s)
	s, err := OpenState(parent, stateName, Self(otherBoot))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if b, err := s.Memory().Load(); err != nil || string(b) != "another" {
		t.Errorf("Load after a restart: %q, %v", b, err)
	}
}

const killVariable = "VOLUME_TEST_KILL"

// killed runs this test in a process of its own, which kill -9 ends at a step.
// In that process it returns the directory to work in.
func killed(t *testing.T, step string) (dir string, child bool) {
	t.Helper()
	if s, dir, ok := strings.Cut(os.Getenv(killVariable), "="); ok {
		if s != step {
			t.Skip("another step's process")
		}
		return dir, true
	}
	dir = t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
	cmd.Env = append(os.Environ(), killVariable+"="+step+"="+dir)
	if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.Exited() {
		t.Fatalf("the process ended by itself: %v\n%s", err, out)
	}
	return dir, false
}

func die(t *testing.T) {
	t.Helper()
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	select {}
}

// A process that is killed leaves what the next one needs, and nothing else.
func TestStateKilled(t *testing.T) {
	for _, test := range []struct {
		step   string
		resume bool
	}{{"making", false}, {"begun", true}, {"anchored", true}} {
		t.Run(test.step, func(t *testing.T) {
			parent, child := killed(t, test.step)
			if child {
				s := openState(t, parent)
				put(t, s, StoreName, "store")
				if test.step != "making" {
					if err := s.Begin(); err != nil {
						t.Fatal(err)
					}
				}
				if test.step == "anchored" {
					if err := s.Anchor(); err != nil {
						t.Fatal(err)
					}
				}
				die(t)
			}
			s := openState(t, parent)
			defer s.Close()
			if s.Fresh() == test.resume {
				t.Errorf("fresh: %v", s.Fresh())
			}
			if n := names(t, parent); len(n) != 1 {
				t.Errorf("left: %q", n)
			}
		})
	}
}
