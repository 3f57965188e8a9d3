//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const refuseLimit = 10 * time.Second

// TestRefused starts the server on what it cannot serve: it must end at once
// with exit code 2 and one message that names what is wrong.
func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		image func(*testing.T, string) string // makes something in the directory, gives IMAGE_PATH
		more  env
		want  []string // all in the message
	}{
		"no such path":      {image: within("nothing-here"), want: []string{"nothing-here"}},
		"empty directory":   {image: within(""), want: []string{"IMAGE_PATH", "no image", "empty"}},
		"several images":    {image: severalImages, want: []string{"a.qcow2", "b.img", "MULTI_DISK"}},
		"dangling link":     {image: danglingLink, want: []string{"disk.img"}},
		"escaping link":     {image: escapingLink, want: []string{"disk.img"}},
		"directory inside":  {image: directoryInside, want: []string{"sub"}},
		"empty file":        {image: fileOf(nil), want: []string{"disk.img"}},
		"backing file":      {image: withBacking, want: []string{"disk.img", "backing file"}},
		"external data":     {image: qcow2Of("data_file=ext.raw"), want: []string{"disk.img", "data file"}},
		"AES encryption":    {image: encrypted("aes"), want: []string{"disk.img", "encrypt"}},
		"LUKS in qcow2":     {image: encrypted("luks"), want: []string{"disk.img", "encrypt"}},
		"LUKS":              {image: luks, want: []string{"disk.img", "luks"}},
		"unknown feature":   {image: patched(79, 0x80), want: []string{"disk.img", "feature"}},
		"corrupt bit":       {image: patched(79, 0x02), want: []string{"disk.img", "corrupt"}},
		"header cut":        {image: cut(40), want: []string{"disk.img"}},
		"L1 table cut":      {image: cut(100 << 10), want: []string{"disk.img"}},
		"parallels":         {image: otherFormat("parallels"), want: []string{"disk.img", "parallels"}},
		"gzip":              {image: fileOf([]byte("\x1f\x8b\x08\x00" + strings.Repeat("\x00", 8192))), want: []string{"disk.img", "gz"}},
		"no scratch":        {image: good, more: env{"SCRATCH_DIR": "/nonexistent/scratch"}, want: []string{"SCRATCH_DIR", "/nonexistent/scratch"}},
		"scratch is a file": {image: good, more: env{"SCRATCH_DIR": "/etc/passwd"}, want: []string{"SCRATCH_DIR"}},
		"smaller disk":      {image: good, more: env{"DISK_SIZE": "4096"}, want: []string{"DISK_SIZE"}},
		"open to the world": {image: good, more: env{"ISCSI_LISTEN": "0.0.0.0:0",
			"CHAP_USERNAME": "", "CHAP_PASSWORD": "", "CHAP_MUTUAL_USERNAME": "", "CHAP_MUTUAL_PASSWORD": ""},
			want: []string{"ISCSI_LISTEN", "CHAP_USERNAME", "INSECURE_NO_AUTH"}},
		"half a pair":   {image: good, more: env{"CHAP_PASSWORD": ""}, want: []string{"CHAP_PASSWORD"}},
		"short secret":  {image: good, more: env{"CHAP_PASSWORD": "short"}, want: []string{"CHAP_PASSWORD", "12"}},
		"equal secrets": {image: good, more: env{"CHAP_MUTUAL_PASSWORD": reader.secret}, want: []string{"CHAP_MUTUAL_PASSWORD"}},
		"no volume":     {image: good, more: env{"VOLUME_PATH": "/nonexistent/volume"}, want: []string{"VOLUME_PATH", "/nonexistent/volume", "mount"}},
		"everything at once": {image: within("nothing-here"),
			more: env{"SHUTDOWN_GRACE": "soon", "WWN": "disk", "CHAP_PASSWORD": "", "ACCESS_MODE": "any"},
			want: []string{"SHUTDOWN_GRACE", "WWN", "CHAP_PASSWORD", "ACCESS_MODE"}},
	} {
		t.Run(name, func(t *testing.T) {
			image := c.image(t, t.TempDir())
			s := start(t, image, c.more)
			s.wait(t, refuseLimit, 2)
			checkRefusal(t, s, c.want)
		})
	}
}

func checkRefusal(t *testing.T, s *server, want []string) {
	t.Helper()
	log := s.log.String()
	for _, w := range append(want, "containerdisk: ") {
		if !strings.Contains(strings.ToLower(log), strings.ToLower(w)) {
			t.Errorf("the message lacks %q:\n%s", w, log)
		}
	}
	for _, secret := range []string{reader.secret, prover.secret} {
		if strings.Contains(log, secret) {
			t.Errorf("a secret is in the message:\n%s", log)
		}
	}
	if n := strings.Count(log, "containerdisk: "); n != 1 {
		t.Errorf("%d messages, want one for the whole of it:\n%s", n, log)
	}
	t.Logf("refused with:\n%s", log)
}

type imageMaker = func(*testing.T, string) string

func within(name string) imageMaker {
	return func(t *testing.T, dir string) string { return filepath.Join(dir, name) }
}

func fileOf(content []byte) imageMaker {
	return func(t *testing.T, dir string) string {
		write(t, filepath.Join(dir, "disk.img"), content)
		return dir
	}
}

// qcow2Of makes DIR/disk.img with qemu-img; the format is told by content.
func qcow2Of(options string) imageMaker {
	return func(t *testing.T, dir string) string {
		require(t, "qemu-img")
		file := filepath.Join(dir, "disk.img")
		args := []string{"create", "-q", "-f", "qcow2"}
		if options != "" {
			args = append(args, "-o", strings.ReplaceAll(options, "=ext", "="+dir+"/../ext"))
		}
		command(t, "qemu-img", append(args, file, "64M")...)
		return dir
	}
}

func good(t *testing.T, dir string) string { return qcow2Of("")(t, dir) }

func severalImages(t *testing.T, dir string) string {
	require(t, "qemu-img")
	command(t, "qemu-img", "create", "-q", "-f", "qcow2", filepath.Join(dir, "a.qcow2"), "64M")
	command(t, "qemu-img", "create", "-q", "-f", "raw", filepath.Join(dir, "b.img"), "64M")
	return dir
}

func link(t *testing.T, target, file string) {
	t.Helper()
	if err := os.Symlink(target, file); err != nil {
		t.Fatal(err)
	}
}

func danglingLink(t *testing.T, dir string) string {
	link(t, "not-there", filepath.Join(dir, "disk.img"))
	return dir
}

func escapingLink(t *testing.T, dir string) string {
	inside := filepath.Join(dir, "inside")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "outside.img"), make([]byte, 4096))
	link(t, "../outside.img", filepath.Join(inside, "disk.img"))
	return inside
}

func directoryInside(t *testing.T, dir string) string {
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func withBacking(t *testing.T, dir string) string {
	require(t, "qemu-img")
	base := filepath.Join(t.TempDir(), "base.img")
	command(t, "qemu-img", "create", "-q", "-f", "raw", base, "64M")
	command(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, filepath.Join(dir, "disk.img"))
	return dir
}

func encrypted(format string) imageMaker {
	return func(t *testing.T, dir string) string {
		require(t, "qemu-img")
		options := "encrypt.format=" + format + ",encrypt.key-secret=key"
		if format == "luks" {
			options += ",encrypt.iter-time=10" // ms; hashing a password takes seconds by default
		}
		createEncrypted(t, "qcow2", options, dir)
		return dir
	}
}

func luks(t *testing.T, dir string) string {
	require(t, "qemu-img")
	createEncrypted(t, "luks", "key-secret=key,iter-time=10", dir)
	return dir
}

// createEncrypted makes an image with qemu-img, which now and then finds its
// own clock too coarse to measure how fast it hashes, and gives up.
func createEncrypted(t *testing.T, format, options, dir string) {
	t.Helper()
	var r result
	for range 20 {
		r = attempt(t, "qemu-img", "create", "-q", "--object", "secret,id=key,data=abcdefgh", "-f", format,
			"-o", options, filepath.Join(dir, "disk.img"), "64M")
		if r.code == 0 {
			return
		}
		if !strings.Contains(r.out, "accurate CPU usage") {
			break
		}
	}
	t.Fatalf("qemu-img ended with %d:\n%s", r.code, r.out)
}

func otherFormat(format string) imageMaker {
	return func(t *testing.T, dir string) string {
		require(t, "qemu-img")
		command(t, "qemu-img", "create", "-q", "-f", format, filepath.Join(dir, "disk.img"), "64M")
		return dir
	}
}

// patched sets bits in a byte of a good qcow2's header; 72 to 79 are the
// incompatible features, big-endian.
func patched(offset int, bits byte) imageMaker {
	return func(t *testing.T, dir string) string {
		good(t, dir)
		file := filepath.Join(dir, "disk.img")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		data[offset] |= bits
		write(t, file, data)
		return dir
	}
}

func cut(size int64) imageMaker {
	return func(t *testing.T, dir string) string {
		good(t, dir)
		if err := os.Truncate(filepath.Join(dir, "disk.img"), size); err != nil {
			t.Fatal(err)
		}
		return dir
	}
}
