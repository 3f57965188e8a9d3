package overlay_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
	"github.com/containerdisk/containerdisk/imageconv"
	"github.com/containerdisk/containerdisk/overlay"
)

// TestConformanceOverQCOW2 holds the overlay over a real image to the contract,
// as it is and when it has been copied.
func TestConformanceOverQCOW2(t *testing.T) {
	const path = "../imageconv/testdata/small.qcow2"
	open := func(t *testing.T) *imageconv.Image {
		im, err := imageconv.Open(path, imageconv.Policy{})
		if err != nil {
			t.Fatal(err)
		}
		return im
	}
	im := open(t)
	content := make([]byte, im.Size())
	if _, err := im.ReadAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if err := im.Close(); err != nil {
		t.Fatal(err)
	}
	if len(bytes.Trim(content, "\x00")) == 0 {
		t.Fatalf("%s holds nothing", path)
	}
	for _, hydrate := range []bool{false, true} {
		t.Run(fmt.Sprintf("hydrated %v", hydrate), func(t *testing.T) {
			blockdevtest.Run(t, content, func(t *testing.T) blockdev.Device {
				im, dir := open(t), t.TempDir()
				h := overlay.Header{Base: path, Format: string(im.Format), BaseSize: im.Size(), Size: im.Size(), ClusterSize: overlay.ClusterSize(im.Size())}
				m, err := overlay.CreateMap(filepath.Join(dir, "map"), h, "epoch")
				if err != nil {
					t.Fatal(err)
				}
				store, err := blockdev.CreateFile(filepath.Join(dir, "store"), h.Size)
				if err != nil {
					t.Fatal(err)
				}
				d, err := overlay.Open(im, store, m, overlay.Options{Mode: overlay.Clone})
				if err != nil {
					t.Fatal(err)
				}
				if hydrate {
					if err := d.Hydrate(context.Background()); err != nil {
						t.Fatal(err)
					}
				}
				return d
			})
		})
	}
}
