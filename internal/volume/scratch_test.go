package volume

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func open(t *testing.T, parent string) *Scratch {
	t.Helper()
	s, stale, err := OpenScratch(parent)
	if err != nil || stale != nil {
		t.Fatalf("OpenScratch: %v, stale: %v", err, stale)
	}
	return s
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var n []string
	for _, e := range entries {
		n = append(n, e.Name())
	}
	return n
}

func TestScratchLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	s := open(t, parent)
	d, err := s.Create("fedora", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if d.Size() != 1<<30 {
		t.Errorf("size %d, want 1 GiB", d.Size())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if left := names(t, parent); left != nil {
		t.Errorf("left behind: %q", left)
	}
}

// A second run must not touch the directory of a living one.
func TestScratchSparesTheLiving(t *testing.T) {
	parent := t.TempDir()
	first := open(t, parent)
	defer first.Close()
	second := open(t, parent)
	defer second.Close()
	if _, err := os.Stat(first.Dir()); err != nil {
		t.Errorf("the first run's directory: %v", err)
	}
	if first.Dir() == second.Dir() {
		t.Errorf("both runs have %s", first.Dir())
	}
}

const holdVariable = "VOLUME_TEST_HOLD"

// TestHold is a run that dies without a word when TestScratchRemovesTheDead
// starts it.
func TestHold(t *testing.T) {
	parent := os.Getenv(holdVariable)
	if parent == "" {
		return // only the other process has work to do here
	}
	s := open(t, parent)
	d, err := s.Create("disk", 4096)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Fatal(p.Kill())
}

func TestScratchRemovesTheDead(t *testing.T) {
	parent := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestHold$")
	cmd.Env = append(os.Environ(), holdVariable+"="+parent)
	if err := cmd.Run(); err == nil || cmd.ProcessState.Exited() {
		t.Fatalf("the other run ended by itself: %v", err)
	}
	dead := names(t, parent)
	if len(dead) != 1 {
		t.Fatalf("the dead run left %q, want one directory", dead)
	}
	s := open(t, parent)
	defer s.Close()
	if _, err := os.Stat(filepath.Join(parent, dead[0])); !os.IsNotExist(err) {
		t.Errorf("the dead run's directory is still there: %v", err)
	}
}

// What only looks like a run's directory belongs to somebody else.
func TestScratchSparesTheForeign(t *testing.T) {
	parent := t.TempDir()
	elsewhere := t.TempDir()
	for _, dir := range []string{"containerdisk-photos", "backup"} {
		if err := os.Mkdir(filepath.Join(parent, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(elsewhere, lockName), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(parent, "containerdisk-link")); err != nil {
		t.Fatal(err)
	}
	trap := filepath.Join(parent, "containerdisk-trap")
	if err := os.Mkdir(trap, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(elsewhere, lockName), filepath.Join(trap, lockName)); err != nil {
		t.Fatal(err)
	}
	open(t, parent).Close()
	if got := names(t, parent); len(got) != 4 {
		t.Errorf("left: %q, want all four foreign entries", got)
	}
	if got := names(t, elsewhere); len(got) != 1 {
		t.Errorf("behind the link: %q", got)
	}
}

func TestScratchNeedsADirectory(t *testing.T) {
	if _, _, err := OpenScratch(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("OpenScratch of a directory that does not exist: no error")
	}
}
