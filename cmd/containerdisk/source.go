package main

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/containerdisk/containerdisk/imageconv"
)

// sourceFlags say what may be opened of an image, and which of its disks.
type sourceFlags struct{ snapshot, allowDir string }

func (s *sourceFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&s.snapshot, "snapshot", "", "read this internal snapshot, by its ID or name, and not the active disk")
	f.StringVar(&s.allowDir, "allow-dir", "", "directory in which the files may be opened that the image names")
}

func (s *sourceFlags) policy() imageconv.Policy {
	return imageconv.Policy{Snapshot: s.snapshot, AllowDir: s.allowDir, Scratch: os.TempDir()}
}
