//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// maxImageSize is of our base image: the program and nothing else.
const maxImageSize = 20_000_000

// docker runs the client, without BuildKit: the plain builder is everywhere
// and asks no registry for an image that is here.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	t.Logf("$ docker %q", args)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	var stderr strings.Builder // warnings are no part of the answer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, &stderr)
	}
	return strings.TrimSpace(string(out))
}

// baseImage builds the image that everybody's disks are based on, the way a
// user does.
func baseImage(t *testing.T) {
	t.Helper()
	require(t, "docker", "make", "go")
	if err := exec.Command("docker", "info").Run(); err != nil {
		missing(t, "needs a running Docker: %v", err)
	}
	t.Setenv("DOCKER_BUILDKIT", "0")
	before, _ := exec.Command("docker", "image", "inspect", "-f", "{{.Id}}", "containerdisk").Output() // or there is none
	command(t, "make", "-C", "..", "image")
	old := strings.TrimSpace(string(before))
	if now := docker(t, "image", "inspect", "-f", "{{.Id}}", "containerdisk"); old != "" && old != now {
		exec.Command("docker", "image", "rm", old).Run() // has lost its name
	}
}

// inspected is what concerns us of docker inspect.
type inspected struct {
	Size   int64
	Config struct {
		User   string
		Labels map[string]string
	}
	State struct {
		Status   string
		ExitCode int
	}
}

func inspect(t *testing.T, kind, name string) inspected {
	t.Helper()
	var all []inspected
	if err := json.Unmarshal([]byte(docker(t, kind, "inspect", name)), &all); err != nil || len(all) != 1 {
		t.Fatalf("inspect %s: %d, %v", name, len(all), err)
	}
	return all[0]
}

// TestDocker makes a container of a disk as README tells, from the Dockerfile
// of the examples, and reads the disk out of it.
func TestDocker(t *testing.T) {
	require(t, "qemu-img")
	baseImage(t)
	base := inspect(t, "image", "containerdisk")
	if base.Size >= maxImageSize || base.Config.User != "107:107" || base.Config.Labels["org.opencontainers.image.title"] == "" {
		t.Errorf("the base image is %+v", base)
	}
	disk := makeImage(t, oddSize, "compression_type=zstd", "-c")
	c := runContainer(t, buildDisk(t, disk))
	c.waitReady(t)
	compare(t, c.url(), expand(t, disk))
	qemuIO(t, c.url(), "raw", "write -P 9 1M 64k", "read -P 9 1M 64k", "flush")
	checkLogin(t, attempt(t, "iscsi-inq", c.as(account{}).url()), refused)
	docker(t, "exec", c.id, "/containerdisk", "probe")
	docker(t, "stop", "-t", "30", c.id)
	if s := inspect(t, "container", c.id).State; s.ExitCode != 0 {
		t.Errorf("after docker stop: %+v\n%s", s, docker(t, "logs", c.id))
	}
}

// buildDisk builds examples/docker/Dockerfile with the disk as its
// fedora.qcow2, and gives the image's name.
func buildDisk(t *testing.T, disk string) string {
	t.Helper()
	dir := t.TempDir()
	for name, from := range map[string]string{"Dockerfile": "../examples/docker/Dockerfile", "fedora.qcow2": disk} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), data)
	}
	name := fmt.Sprintf("containerdisk-e2e:%d", os.Getpid())
	docker(t, "build", "-q", "-t", name, dir)
	t.Cleanup(func() { exec.Command("docker", "image", "rm", "-f", name).Run() })
	return name
}

type container struct {
	endpoint
	id string
}

// runContainer runs an image with as little as it may have: nothing to write
// to but the scratch volume, no capabilities, not root.
func runContainer(t *testing.T, image string) *container {
	t.Helper()
	volume := docker(t, "volume", "create")
	t.Cleanup(func() { exec.Command("docker", "volume", "rm", "-f", volume).Run() })
	id := docker(t, "run", "-d", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--user", "107:107", "-v", volume+":/scratch",
		"-e", "CHAP_USERNAME="+reader.name, "-e", "CHAP_PASSWORD="+reader.secret,
		"-p", "127.0.0.1::3260", image)
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := exec.Command("docker", "logs", id).CombinedOutput()
			t.Logf("--- log of the container\n%s", logs)
		}
		exec.Command("docker", "rm", "-f", id).Run()
	})
	return &container{
		endpoint{address: docker(t, "port", id, "3260/tcp"), name: "iqn.2017-01.io.kubevirt:wrapper", initiator: reader}, id}
}

// waitReady waits until a login succeeds.
func (c *container) waitReady(t *testing.T) {
	t.Helper()
	require(t, "iscsi-inq")
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if exec.CommandContext(t.Context(), "iscsi-inq", c.url()).Run() == nil {
			return
		}
	}
	t.Fatalf("no login in %v; the container is %+v", startLimit, inspect(t, "container", c.id).State)
}
