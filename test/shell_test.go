//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// shell is a qemu-io that stays attached to a disk and takes commands.
type shell struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader

	erred bool // a command has failed, as the test wanted; qemu-io's exit code will say so
}

// attach opens the disk in a qemu-io of its own.
func attach(t *testing.T, url string) *shell { t.Helper(); return attachWith(t, url) }

// attachReadOnly opens it without asking to write.
func attachReadOnly(t *testing.T, url string) *shell { t.Helper(); return attachWith(t, url, "-r") }

func attachWith(t *testing.T, url string, options ...string) *shell {
	t.Helper()
	require(t, "qemu-io")
	sh := &shell{cmd: exec.Command("qemu-io", append(options, "-f", "raw", "-d", "unmap", url)...)}
	var err error
	if sh.in, err = sh.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := sh.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	sh.out = bufio.NewReader(out)
	sh.cmd.Stderr = sh.cmd.Stdout
	if err := sh.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sh.cmd.Process.Kill(); sh.cmd.Wait() })
	sh.answer(t)
	return sh
}

// prompt is what qemu-io writes, without a newline, when it wants a command.
const prompt = "qemu-io> "

// do gives the shell a command; the answer must have the text wanted.
func (sh *shell) do(t *testing.T, line, want string) {
	t.Helper()
	fmt.Fprintln(sh.in, line)
	answer := sh.answer(t)
	if !strings.Contains(answer, want) {
		t.Fatalf("qemu-io %q answered\n%s, want %q", line, answer, want)
	}
	sh.erred = sh.erred || strings.Contains(answer, "failed")
}

// answer reads up to the next prompt.
func (sh *shell) answer(t *testing.T) string {
	t.Helper()
	timer := time.AfterFunc(clientLimit, func() { sh.cmd.Process.Kill() })
	defer timer.Stop()
	var got []byte
	for !bytes.HasSuffix(got, []byte(prompt)) {
		c, err := sh.out.ReadByte()
		if err != nil {
			t.Fatalf("qemu-io: %v after\n%s", err, got)
		}
		got = append(got, c)
	}
	return string(got)
}

// quit logs out and waits for the end.
func (sh *shell) quit(t *testing.T) {
	t.Helper()
	fmt.Fprintln(sh.in, "quit")
	if out, err := io.ReadAll(sh.out); err != nil {
		t.Errorf("qemu-io: %v after %s", err, out)
	}
	if err := sh.cmd.Wait(); (err != nil) != sh.erred {
		t.Errorf("qemu-io: %v", err)
	}
}
