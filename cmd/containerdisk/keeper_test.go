package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/status"
	"github.com/containerdisk/containerdisk/overlay"
)

// keep is a keeper with a scratch directory and the sample image.
func keep(t *testing.T, change func(*config.Config)) *keeper {
	t.Helper()
	dir := t.TempDir()
	image := filepath.Join(dir, "disk.qcow2")
	if err := os.WriteFile(image, sampleQCOW2(), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := config.Config{
		ImagePath: image, ScratchDir: t.TempDir(), KeepScratch: true, WWN: "iqn.2017-01.io.kubevirt:wrapper", LUN: 1,
		CopyMode: config.CopyClone, AccessMode: config.WriteExclusive, Populated: config.PopulatedAuto,
	}
	change(&cfg)
	return newKeeper(cfg, slog.New(slog.DiscardHandler))
}

// opened is the one disk that k finds, open.
func opened(t *testing.T, k *keeper) *disk {
	t.Helper()
	disks, err := k.find(t.Context())
	if err == nil {
		err = k.open(disks[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	return disks[0]
}

// TestKept: wherever a disk is kept, what was written and what initiators asked
// to be remembered is there the next time, and it says it is the same one.
func TestKept(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *config.Config){
		"scratch":       func(*testing.T, *config.Config) {},
		"copy-on-write": func(_ *testing.T, c *config.Config) { c.CopyMode = config.CopyWrite },
		"volume":        func(t *testing.T, c *config.Config) { c.VolumePath = t.TempDir() },
		"full volume": func(t *testing.T, c *config.Config) {
			c.VolumePath = t.TempDir()
			if err := os.WriteFile(filepath.Join(c.VolumePath, "disk.img"), sampleDisk(), 0o644); err != nil {
				t.Fatal(err)
			}
		},
		"none": func(t *testing.T, c *config.Config) {
			c.CopyMode, c.ImagePath = config.CopyNone, filepath.Join(t.TempDir(), "disk.raw")
			if err := os.WriteFile(c.ImagePath, sampleDisk(), 0o644); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := keep(t, func(c *config.Config) { change(t, c) })
			d := opened(t, k)
			want := sampleDisk()
			check := func() {
				t.Helper()
				got := make([]byte, len(want))
				if _, err := d.dev.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("the disk is another one: %v", err)
				}
			}
			check()
			who := d.identity("target")
			copy(want[1000:], "written")
			if _, err := d.dev.WriteAt([]byte("written"), 1000); err != nil {
				t.Fatal(err)
			}
			if d.memory == nil {
				t.Log("no extended attributes here")
			} else if err := d.memory.Save([]byte("a reservation")); err != nil {
				t.Fatal(err)
			}
			if err := d.close(); err != nil {
				t.Fatal(err)
			}
			d = opened(t, k)
			defer d.close()
			check()
			if d.memory != nil {
				if b, err := d.memory.Load(); err != nil || string(b) != "a reservation" {
					t.Errorf("remembered: %q, %v", b, err)
				}
			}
			if d.identity("target") != who {
				t.Error("it says that it is another one")
			}
			if d.overlay == nil || k.cfg.CopyMode != config.CopyClone {
				return
			}
			if err := d.overlay.Hydrate(context.Background()); err != nil {
				t.Fatal(err)
			}
			check()
			if d.memory != nil {
				if b, err := d.memory.Load(); err != nil || string(b) != "a reservation" {
					t.Errorf("remembered when all is copied: %q, %v", b, err)
				}
			}
		})
	}
}

// TestHydrateStops: a server that ends, for whatever reason, does not finish the
// copying first.
func TestHydrateStops(t *testing.T) {
	k := keep(t, func(c *config.Config) { c.HydrateRate = 1 })
	d := opened(t, k)
	defer d.close()
	s := &server{cfg: k.cfg, log: k.log, std: stdio{os.Stdin, os.Stdout, os.Stderr}, status: status.New(status.Options{}), disks: []*disk{d}}
	stop := s.hydrate(context.Background())
	ended := make(chan struct{})
	go func() { stop(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it copies on")
	}
	if st := d.overlay.Progress().State; st == overlay.Complete {
		t.Error("there was nothing to stop")
	}
}

// TestStateName: which disks are the same one.
func TestStateName(t *testing.T) {
	k := keep(t, func(*config.Config) {})
	base := k.stateName(&disk{lun: 1, path: "/a"}, "")
	tmp := *k
	tmp.cfg.ScratchDir = "/var/tmp"
	other := *k
	other.cfg.WWN += "2"
	for name, test := range map[string]struct {
		got  string
		same bool
	}{
		"another image, which must be noticed": {k.stateName(&disk{lun: 1, path: "/b"}, ""), true},
		"another number":                       {k.stateName(&disk{lun: 2, path: "/a"}, ""), false},
		"another target":                       {other.stateName(&disk{lun: 1, path: "/a"}, ""), false},
		"a device":                             {k.stateName(&disk{lun: 1, path: "/a"}, "/dev/x"), false},
		"in a directory of everybody's":        {tmp.stateName(&disk{lun: 1, path: "/a"}, ""), false},
	} {
		if (test.got == base) != test.same {
			t.Errorf("%s: %s, and %s", name, test.got, base)
		}
	}
	if tmp.stateName(&disk{lun: 1, path: "/a"}, "") == tmp.stateName(&disk{lun: 1, path: "/b"}, "") {
		t.Error("two images in a directory of everybody's are one disk")
	}
}

// TestOrigin: a copy with its time is the same image, and any change is another.
func TestOrigin(t *testing.T) {
	dir := t.TempDir()
	when := time.Date(2024, 2, 1, 10, 0, 0, 5, time.UTC)
	content := bytes.Repeat([]byte{1}, 5<<20)
	origin := func(name string, content []byte, when time.Time) string {
		t.Helper()
		d := &disk{name: "disk", path: filepath.Join(dir, name), format: "raw"}
		if err := os.WriteFile(d.path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(d.path, when, when); err != nil {
			t.Fatal(err)
		}
		o, err := d.origin()
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	was := origin("a", content, when)
	if is := origin("b", content, when); is != was {
		t.Errorf("a copy: %s, was %s", is, was)
	}
	if is := origin("b", content, when.Add(1)); is == was {
		t.Error("another time is the same image")
	}
	if is := origin("b", content[:len(content)-512], when); is == was {
		t.Error("another size is the same image")
	}
	for _, off := range []int{0, len(content) - 1, originSample - 1} {
		content[off] ^= 1
		if is := origin("b", content, when); is == was {
			t.Errorf("another byte at %d is the same image", off)
		}
		content[off] ^= 1
	}
	small := content[:100<<10]
	was = origin("a", small, when)
	for off := range small[:3] {
		at := off * 50_000
		small[at] ^= 1
		if is := origin("b", small, when); is == was {
			t.Errorf("another byte at %d of a small one is the same image", at)
		}
		small[at] ^= 1
	}
}
