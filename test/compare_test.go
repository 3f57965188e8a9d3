//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30

	oddSize = 9*mib + 7*sector // fills no cluster size evenly
)

// TestImages compares what is served with what qemu-img makes of the image.
func TestImages(t *testing.T) {
	for name, image := range map[string]func(*testing.T) string{
		"plain":    func(t *testing.T) string { return makeImage(t, oddSize, "") },
		"zlib":     func(t *testing.T) string { return makeImage(t, oddSize, "compression_type=zlib", "-c") },
		"zstd":     func(t *testing.T) string { return makeImage(t, oddSize, "compression_type=zstd", "-c") },
		"v2":       func(t *testing.T) string { return makeImage(t, oddSize, "compat=0.10") },
		"v2 zlib":  func(t *testing.T) string { return makeImage(t, oddSize, "compat=0.10", "-c") },
		"512":      func(t *testing.T) string { return makeImage(t, oddSize, "cluster_size=512") },
		"512 zlib": func(t *testing.T) string { return makeImage(t, oddSize, "cluster_size=512", "-c") },
		"4k zstd": func(t *testing.T) string {
			return makeImage(t, oddSize, "cluster_size=4k,compression_type=zstd", "-c")
		},
		"2M":      func(t *testing.T) string { return makeImage(t, oddSize, "cluster_size=2M") },
		"2M zlib": func(t *testing.T) string { return makeImage(t, oddSize, "cluster_size=2M", "-c") },
		"2M zstd": func(t *testing.T) string {
			return makeImage(t, oddSize, "cluster_size=2M,compression_type=zstd", "-c")
		},
		"extended L2":           func(t *testing.T) string { return makeImage(t, oddSize, "extended_l2=on") },
		"extended L2 zlib":      func(t *testing.T) string { return makeImage(t, oddSize, "extended_l2=on", "-c") },
		"extended L2 16k":       subclusters,
		"one-bit refcounts":     func(t *testing.T) string { return makeImage(t, oddSize, "refcount_bits=1") },
		"64-bit refcounts":      func(t *testing.T) string { return makeImage(t, oddSize, "refcount_bits=64") },
		"preallocated metadata": func(t *testing.T) string { return makeImage(t, oddSize, "preallocation=metadata") },
		"lazy refcounts":        func(t *testing.T) string { return makeImage(t, oddSize, "lazy_refcounts=on") },
		"one sector":            func(t *testing.T) string { return makeImage(t, sector, "") },
		"sparse":                sparse,
		"zero clusters":         zeroClusters,
		"rewritten":             rewritten,
		"snapshots":             snapshots,
		"empty":                 func(t *testing.T) string { return createImage(t, 64*mib, "") },
		"raw":                   rawImage(oddSize),
		"raw, uneven":           rawImage(oddSize + 100),
	} {
		t.Run(name, func(t *testing.T) {
			image := image(t)
			compare(t, serve(t, image, nil).url(), expand(t, image))
		})
	}
}

// subclusters has allocated, zero and absent subclusters next to each other.
func subclusters(t *testing.T) string {
	return createImage(t, oddSize, "extended_l2=on,cluster_size=16k",
		"write -P 1 0 512", "write -P 2 2k 1k", "write -P 3 20k 5k", "write -z 4k 4k",
		"write -z 64k 512", "write -P 4 1M 16k", "write -z 1030k 2k", "discard 1036k 1k",
		"write -P 5 9M 3584")
}

func sparse(t *testing.T) string {
	return createImage(t, 30*gib, "",
		"write -P 1 0 64k", "write -P 2 10G 4k", "write -P 3 17179869184 1M", "write -P 4 32212250112 512")
}

func zeroClusters(t *testing.T) string {
	return createImage(t, oddSize, "",
		"write -P 1 0 9M", "write -z 64k 128k", "write -z -u 1M 1M", "discard 3M 1M", "write -P 2 3100k 4k")
}

// rewritten has compressed clusters, and plain ones that took their place.
func rewritten(t *testing.T) string {
	image := makeImage(t, oddSize, "compression_type=zstd", "-c")
	qemuIO(t, image, "qcow2", "write -P 7 100k 300k", "discard 1M 64k", "write -c -P 8 1M 64k", "write -P 9 2M 512", "write -z 4M 1M")
	return image
}

// snapshots has older states of its own content, which do not concern us.
func snapshots(t *testing.T) string {
	image := makeImage(t, oddSize, "")
	for _, name := range []string{"one", "two"} {
		command(t, "qemu-img", "snapshot", "-c", name, image)
		qemuIO(t, image, "qcow2", "write -P 7 "+map[string]string{"one": "1M", "two": "3M"}[name]+" 1M")
	}
	return image
}

func rawImage(size int64) func(*testing.T) string {
	return func(t *testing.T) string {
		file := filepath.Join(t.TempDir(), "disk.img")
		makeContent(t, file, size)
		return file
	}
}

// TestPatterns writes to a served disk and to a file, in all the ways that
// qemu-io has, and compares the two.
func TestPatterns(t *testing.T) {
	image := makeImage(t, oddSize, "compression_type=zstd", "-c")
	s, mirror := serve(t, image, nil), expand(t, image)
	for _, line := range []string{
		"write -P 0xa1 0 512", "write -P 0xa2 1k 3k", "write -P 0xa3 65535 2", "write -P 0xa4 1M 3M",
		"write -f -P 0xa5 5M 4k", "writev -P 0xa6 6M 512 1024 4096", "write -P 0xa7 9440256 512",
		"write -z 7M 64k", "write -z -u 7340032 1M", "write -z -f 2M 4k", "write -z 1000k 512", "discard 3M 1M", "discard 100k 512",
		"write -P 0xa8 3500k 100k", "flush",
		"aio_write -P 0xb0 8M 64k", "aio_write -P 0xb1 8257536 64k", "aio_write -z 8126464 64k", "aio_flush",
		"read -P 0xa4 1M 1000k", "read -P 0 7M 64k", "read -P 0xb0 8M 64k",
	} {
		for _, disk := range []string{s.url(), mirror} {
			qemuIO(t, disk, "raw", line)
		}
	}
	compare(t, s.url(), mirror)
}

// TestHeaderDigest has qemu check every header. Its options are spelled out
// because it crashes over a url with options.
func TestHeaderDigest(t *testing.T) {
	image := makeImage(t, oddSize, quick, "-c")
	s := serve(t, image, open)
	disk := "driver=raw,file.driver=iscsi,file.transport=tcp,file.header-digest=crc32c" +
		",file.portal=" + s.address + ",file.target=" + s.name + fmt.Sprintf(",file.lun=%d", lun)
	command(t, "qemu-img", "compare", "--image-opts", disk, "driver=raw,file.driver=file,file.filename="+expand(t, image))
	command(t, "qemu-io", "--image-opts", disk, "-c", "write -P 1 1M 1M", "-c", "read -P 1 1M 1M")
}

// TestWholeDisk copies a file system's worth of data onto the disk and back.
func TestWholeDisk(t *testing.T) {
	const size = 96 * mib
	image := createImage(t, size, "")
	s := serve(t, image, nil)
	content := filepath.Join(t.TempDir(), "content")
	makeContent(t, content, size)
	command(t, "qemu-img", "convert", "-n", "-W", "-m", "16", "-f", "raw", "-O", "raw", content, s.url())
	compare(t, s.url(), content)
}
