//go:build e2e

package e2e

import (
	"sync"
	"testing"
)

// TestMemory serves a large disk under load. What is measured is the most that
// the process ever had, expanding the image included.
func TestMemory(t *testing.T) {
	require(t, "qemu-img", "iscsi-perf")
	const limit = 64 * mib
	image := createImage(t, 20*gib, "compression_type=zstd",
		"write -P 1 0 128M", "write -P 2 5G 64M", "write -P 3 19G 64M")
	packed := image + ".packed"
	command(t, "qemu-img", "convert", "-c", "-O", "qcow2", image, packed)
	s := serve(t, packed, env{"ACCESS_MODE": "write-shared"})
	var load sync.WaitGroup
	for _, args := range [][]string{
		{"iscsi-perf", "-m", "32", "-b", "8", "-r", "-t", "8", s.url()},
		{"iscsi-perf", "-i", "iqn.2026-01.test:second", "-m", "32", "-b", "2048", "-r", "-t", "8", s.url()},
		{"qemu-img", "bench", "-f", "raw", "-t", "none", "-w", "-c", "800", "-s", "1M", "-d", "64", s.url()},
		{"qemu-img", "bench", "-f", "raw", "-t", "none", "-w", "-c", "20000", "-s", "4k", "-d", "64", "-S", "1028k", s.url()},
	} {
		load.Go(func() { command(t, args[0], args[1:]...) })
	}
	load.Wait()
	peak := s.peakMemory(t)
	report("peak memory of the server, 20 GB disk under load: %.1f MiB", float64(peak)/float64(mib))
	if peak >= limit {
		t.Errorf("peak memory %d MiB, limit %d MiB", peak/mib, limit/mib)
	}
}
