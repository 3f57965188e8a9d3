package qcow2

import (
	"bytes"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// open opens a file in memory.
func open(file []byte) (blockdev.Source, error) {
	return Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
}

func TestVectors(t *testing.T) { imagetest.RunVectors(t, open) }
