package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// debianKernel is the package whose dependency is Debian's current kernel for
// virtual machines.
const debianKernel = "linux-image-cloud-amd64"

// Kernel is an extracted Debian kernel package.
type Kernel struct {
	Image   string            // vmlinuz
	modules map[string]string // file of each module that is not built in
	builtin map[string]bool
}

// Fetch gives Debian's current kernel, from dir if it is there already, else
// from Debian's archive by apt-get, which keeps it in dir. Remove the directory
// to have a newer kernel fetched.
func Fetch(ctx context.Context, dir string) (*Kernel, error) {
	if k, err := open(dir); err == nil {
		return k, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(dir, ".fetch-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	name, err := download(ctx, tmp)
	if err != nil {
		return nil, err
	}
	// Another test binary may have been faster: then its directory stays.
	if err := os.Rename(filepath.Join(tmp, "root"), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return open(dir)
}

var dependsLine = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-\S+)$`)

// download leaves the package's files in tmp/root and gives the package's name.
func download(ctx context.Context, tmp string) (string, error) {
	out, err := run(ctx, tmp, "apt-cache", "depends", debianKernel)
	if err != nil {
		return "", err
	}
	m := dependsLine.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("apt knows no dependency of %s: run apt-get update", debianKernel)
	}
	name := string(m[1])
	if _, err := run(ctx, tmp, "apt-get", "download", "-q", name); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left %q", name, debs)
	}
	_, err = run(ctx, tmp, "dpkg-deb", "-x", debs[0], "root")
	return name, err
}

func run(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return out, nil
}

// open finds the newest kernel below dir.
func open(dir string) (*Kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "linux-image-*", "boot", "vmlinuz-*"))
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("no kernel in %s: %w", dir, fs.ErrNotExist)
	}
	k := &Kernel{Image: slices.Max(images), modules: map[string]string{}, builtin: map[string]bool{}}
	return k, k.findModules()
}

func (k *Kernel) findModules() error {
	root := filepath.Dir(filepath.Dir(k.Image))
	// Newer Debian packages have /usr/lib instead of /lib.
	for _, lib := range []string{"lib", "usr/lib"} {
		err := filepath.WalkDir(filepath.Join(root, lib, "modules"), k.addModule)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(k.modules) == 0 {
		return fmt.Errorf("no modules below %s", root)
	}
	return nil
}

func (k *Kernel) addModule(file string, d fs.DirEntry, err error) error {
	switch {
	case err != nil:
		return err
	case d.Name() == "modules.builtin":
		return k.addBuiltin(file)
	case !d.IsDir() && strings.Contains(d.Name(), ".ko"):
		k.modules[moduleName(file)] = file
	}
	return nil
}

func (k *Kernel) addBuiltin(file string) error {
	list, err := os.ReadFile(file)
	for line := range strings.Lines(string(list)) {
		k.builtin[moduleName(line)] = true
	}
	return err
}

// moduleName gives virtio_blk for kernel/drivers/block/virtio-blk.ko.xz: in
// names of modules - and _ are the same.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// module is one that a RAM disk has to load.
type module struct {
	name string
	data []byte
}

// load appends the modules named to list in the order in which they can be
// loaded, each after those it needs and none twice.
func (k *Kernel) load(list []module, names ...string) ([]module, error) {
	for _, name := range names {
		done := slices.ContainsFunc(list, func(m module) bool { return m.name == name })
		if k.builtin[name] || done {
			continue
		}
		file, ok := k.modules[name]
		if !ok {
			return nil, fmt.Errorf("%s has no module %s", k.Image, name)
		}
		data, err := readModule(file)
		if err != nil {
			return nil, err
		}
		needs, err := depends(data)
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", file, err)
		}
		if list, err = k.load(list, needs...); err != nil {
			return nil, err
		}
		list = append(list, module{name, data})
	}
	return list, nil
}

// readModule reads a module; newer Debian packages have them compressed.
func readModule(file string) ([]byte, error) {
	if strings.HasSuffix(file, ".xz") {
		return exec.Command("xz", "-dc", file).Output()
	}
	return os.ReadFile(file)
}

// depends reads the "depends=a,b" that each module carries about itself; the
// package's modules.dep would say the same, but is made at installation.
func depends(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for field := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(field, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}
