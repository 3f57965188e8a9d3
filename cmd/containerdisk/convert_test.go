package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/imageconv"
)

// TestInterrupted: an interrupted conversion leaves what it has done, says so,
// and the next one goes on; from a pipe, which will not come again, and to an
// image nothing is left.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	want := bytes.Repeat([]byte("disk"), 8<<20)
	if err := os.WriteFile(src, want, 0o600); err != nil {
		t.Fatal(err)
	}
	im, err := imageconv.Open(src, imageconv.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	messages, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer messages.Close()
	c := &converter{std: stdio{err: messages}}

	cut := func(convert func(ctx context.Context, update func(done, total int64)) error) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return convert(ctx, func(done, total int64) {
			if done > total/2 {
				cancel()
			}
		})
	}
	err = cut(func(ctx context.Context, update func(done, total int64)) error { return c.toFile(ctx, dst, im, update) })
	if err == nil || !strings.Contains(err.Error(), "the same command goes on where it was") {
		t.Fatalf("got %v", err)
	}
	partial := filepath.Join(dir, ".dst.partial")
	if _, err := os.Stat(partial); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dst); err == nil {
		t.Error("there is a half disk")
	}
	if err := c.toFile(t.Context(), dst, im, func(int64, int64) {}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dst); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the disk differs (%v)", err)
	}
	text, err := os.ReadFile(messages.Name())
	if err != nil || !strings.HasPrefix(string(text), "going on with "+partial+" at ") {
		t.Errorf("messages %q, %v", text, err)
	}

	c.spooled = true
	other := filepath.Join(dir, "other")
	for name, convert := range map[string]func(ctx context.Context, update func(done, total int64)) error{
		"from a pipe": func(ctx context.Context, update func(done, total int64)) error {
			return c.toFile(ctx, other, im, update)
		},
		"to an image": func(ctx context.Context, update func(done, total int64)) error {
			o, err := (&converter{to: "qcow2"}).packing(other)
			if err != nil {
				return err
			}
			o.Progress = update
			return c.toImage(ctx, other, im, *o)
		},
	} {
		if err := cut(convert); err == nil || strings.Contains(err.Error(), "goes on") {
			t.Errorf("%s: got %v", name, err)
		}
		if left, err := filepath.Glob(dir + "/.*other*"); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v (%v)", name, left, err)
		}
	}
}
