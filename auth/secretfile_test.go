package auth

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadSecretFile(t *testing.T) {
	long := strings.Repeat("x", MaxSecret)
	tests := []struct{ content, want, problem string }{
		{"plain secret", "plain secret", ""},
		{"with newline\n", "with newline", ""},
		{"from Windows\r\n", "from Windows", ""},
		{"two newlines\n\n", "two newlines\n", ""},
		{" spaces stay ", " spaces stay ", ""},
		{"ends in CR\r", "ends in CR\r", ""},
		{"\x00\xff binary", "\x00\xff binary", ""},
		{long + "\r\n", long, ""},
		{long + "y", "", "more than 255 bytes"},
		{long + "\r\n\n", "", "more than 255 bytes"},
		{strings.Repeat("x", 1<<20), "", "more than 255 bytes"},
		{"", "", "is empty"},
		{"\n", "", "is empty"},
	}
	for _, tt := range tests {
		path := write(t, t.TempDir(), "secret", tt.content)
		got, err := ReadSecretFile(path)
		if tt.problem == "" {
			if err != nil || string(got.Bytes()) != tt.want {
				t.Errorf("%.20q: got %.20q, %v, want %.20q", tt.content, got.Bytes(), err, tt.want)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.problem) || !strings.Contains(err.Error(), path) || got.Len() != 0 {
			t.Errorf("%.20q: got %v, want %q with the path", tt.content, err, tt.problem)
		}
	}
}

func TestReadSecretFileErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadSecretFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %v", err)
	}
	if _, err := ReadSecretFile(dir); err == nil {
		t.Error("a directory was read as a secret")
	}
	if name, err := ReadNameFile(write(t, dir, "name", "alice\n")); name != "alice" || err != nil {
		t.Errorf("name: %q, %v", name, err)
	}
}

func TestReadSecretDir(t *testing.T) {
	dir := t.TempDir()
	// A mounted Secret shows its keys as links into a directory that is
	// replaced as a whole.
	data := filepath.Join(dir, "..data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"node.session.auth.username":           "alice",
		"node.session.auth.password":           "alice's secret\n",
		"node.session.auth.username_in":        "server",
		"node.session.auth.password_in":        "the server's secret",
		"discovery.sendtargets.auth.username":  "somebody else",
		"discovery.sendtargets.auth.password":  "something else",
		"node.session.auth.username_in.backup": "no",
	} {
		write(t, data, key, value)
		if err := os.Symlink(filepath.Join("..data", key), filepath.Join(dir, key)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := ReadSecretDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if c.Initiator.Name != "alice" || !c.Initiator.Secret.Equal(alice.Secret) ||
		c.Target.Name != "server" || !c.Target.Secret.Equal(server.Secret) {
		t.Errorf("got %v", c)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestReadSecretDirOneWay(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "node.session.auth.username", "alice")
	write(t, dir, "node.session.auth.password", "alice's secret")
	c, err := ReadSecretDir(dir)
	if err != nil || !c.Enabled() || !c.Target.IsZero() {
		t.Errorf("got %v, %v", c, err)
	}
}

func TestReadSecretDirErrors(t *testing.T) {
	empty := t.TempDir()
	write(t, empty, "username", "alice")
	if _, err := ReadSecretDir(empty); err == nil || !strings.Contains(err.Error(), "node.session.auth.password") {
		t.Errorf("without keys: got %v, want the keys named", err)
	}
	if _, err := ReadSecretDir(filepath.Join(empty, "none")); err == nil {
		t.Error("a missing directory was read")
	}
	bad := t.TempDir()
	write(t, bad, "node.session.auth.username", "")
	write(t, bad, "node.session.auth.password", strings.Repeat("x", 300))
	_, err := ReadSecretDir(bad)
	if err == nil || !strings.Contains(err.Error(), "auth.username is empty") || !strings.Contains(err.Error(), "more than 255") {
		t.Errorf("two bad keys: got %v, want both named", err)
	}
}
