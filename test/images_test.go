//go:build e2e

package e2e

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

const sector = 512

// makeContent writes a raw file of the size whose content tells every mistake:
// runs of odd lengths, of holes, written zeros, numbered sectors, incompressible
// and well compressible data.
func makeContent(t *testing.T, file string, size int64) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{byte(size / sector)})
	r := rand.New(random)
	for at := int64(0); at < size; {
		run := make([]byte, min(1+r.Int64N(400), (size-at+sector-1)/sector)*sector)
		run = run[:min(int64(len(run)), size-at)]
		if fillRun(run, at, r.IntN(5), random) {
			if _, err := f.WriteAt(run, at); err != nil {
				t.Fatal(err)
			}
		}
		at += int64(len(run))
	}
}

// fillRun fills p, which is for offset at, with content of the kind. It gives
// false for a hole.
func fillRun(p []byte, at int64, kind int, random *rand.ChaCha8) bool {
	switch kind {
	case 0:
		return false
	case 1: // zeros that are written
	case 2:
		random.Read(p)
	default: // every eight bytes are their own offset
		for i := 0; i+8 <= len(p); i += 8 {
			binary.BigEndian.PutUint64(p[i:], uint64(at)+uint64(i))
		}
	}
	return true
}

// makeImage makes a qcow2 image with content of the size. The options are
// qemu-img's -o; compressed is for all of its clusters.
func makeImage(t *testing.T, size int64, options string, compressed ...string) string {
	t.Helper()
	require(t, "qemu-img")
	dir := t.TempDir()
	raw, image := filepath.Join(dir, "content"), filepath.Join(dir, "image.qcow2")
	makeContent(t, raw, size)
	args := append([]string{"convert", "-f", "raw", "-O", "qcow2"}, compressed...)
	if options != "" {
		args = append(args, "-o", options)
	}
	command(t, "qemu-img", append(args, raw, image)...)
	if err := os.Remove(raw); err != nil {
		t.Fatal(err)
	}
	return image
}

// createImage makes an empty qcow2 image and lets qemu-io write in it.
func createImage(t *testing.T, size int64, options string, commands ...string) string {
	t.Helper()
	require(t, "qemu-img", "qemu-io")
	image := filepath.Join(t.TempDir(), "image.qcow2")
	args := []string{"create", "-q", "-f", "qcow2"}
	if options != "" {
		args = append(args, "-o", options)
	}
	command(t, "qemu-img", append(args, image, strconv.FormatInt(size, 10))...)
	qemuIO(t, image, "qcow2", commands...)
	return image
}

// qemuIO runs commands on a file or url.
func qemuIO(t *testing.T, url, format string, commands ...string) string {
	t.Helper()
	if len(commands) == 0 {
		return ""
	}
	args := []string{"-f", format, "-d", "unmap"}
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	return command(t, "qemu-io", append(args, url)...)
}

// expand gives the raw file that qemu-img makes of an image.
func expand(t *testing.T, image string) string {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "expected")
	command(t, "qemu-img", "convert", "-O", "raw", image, raw)
	return raw
}

// compare fails the test unless the served disk and the raw file have the same
// size and the same bytes.
func compare(t *testing.T, url, raw string) {
	t.Helper()
	if got, want := virtualSize(t, url), virtualSize(t, raw); got != want {
		t.Errorf("the served disk has %d bytes, want %d", got, want)
	}
	r := attempt(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", url, raw)
	if r.code != 0 {
		t.Errorf("%s and %s differ: %s", url, raw, r.out)
	}
}

func virtualSize(t *testing.T, url string) int64 {
	t.Helper()
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	out := command(t, "qemu-img", "info", "-f", "raw", "--output=json", url)
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return info.Size
}

// quick is for tests to which it is all the same: zlib takes its time to pack.
const quick = "compression_type=zstd"

// TestFormats serves what qemu-img makes of one disk in each format.
func TestFormats(t *testing.T) {
	require(t, "qemu-img")
	dir := t.TempDir()
	content := filepath.Join(dir, "content")
	makeContent(t, content, 8*mib)
	for _, format := range []string{"vmdk", "vdi", "vhdx", "qed"} {
		t.Run(format, func(t *testing.T) {
			image := filepath.Join(dir, "image."+format)
			command(t, "qemu-img", "convert", "-f", "raw", "-O", format, content, image)
			compare(t, serve(t, image, nil).url(), content)
		})
	}
}
