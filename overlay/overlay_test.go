package overlay

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

const testCluster = 4 << 10

// content is data, zeros and an end within a cluster.
func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		if i/testCluster%5 < 3 {
			b[i] = byte(i/512)*7 ^ byte(i) | 1
		}
	}
	return b
}

func header(base, size int64) Header {
	return Header{Base: "sha256:0123", Format: "raw", BaseSize: base, Size: size, ClusterSize: testCluster}
}

// newFile makes a sparse file of size bytes.
func newFile(t testing.TB, name string, size int64) *blockdev.File {
	t.Helper()
	f, err := blockdev.CreateFile(name, size)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// tempDir is a directory in memory, if there is one: the tests are not about
// the medium, and a sync on it takes long.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "overlay")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newDisk makes a disk of files over src, with more space behind it.
func newDisk(t testing.TB, src blockdev.Source, more int64, o Options) *Disk {
	t.Helper()
	dir := tempDir(t)
	h := header(src.Size(), src.Size()+more)
	m, err := CreateMap(filepath.Join(dir, "map"), h, "epoch")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(src, newFile(t, filepath.Join(dir, "store"), h.Size), m, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	const more = 10_000
	c := content(300_032)
	for _, mode := range []Mode{CopyOnWrite, CopyOnRead, Clone} {
		t.Run(fmt.Sprintf("mode %d", mode), func(t *testing.T) {
			blockdevtest.Run(t, append(bytes.Clone(c), make([]byte, more)...), func(t *testing.T) blockdev.Device {
				return newDisk(t, blockdev.MemOf(bytes.Clone(c)), more, Options{Mode: mode})
			})
		})
	}
	t.Run("hydrated", func(t *testing.T) {
		blockdevtest.Run(t, append(bytes.Clone(c), make([]byte, more)...), func(t *testing.T) blockdev.Device {
			d := newDisk(t, blockdev.MemOf(bytes.Clone(c)), more, Options{Mode: Clone})
			if err := d.Hydrate(context.Background()); err != nil {
				t.Fatal(err)
			}
			if got := d.Progress(); got.State != Complete || got.Done != got.Total {
				t.Errorf("progress: %+v", got)
			}
			return d
		})
	})
}
