package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv"
	"github.com/containerdisk/containerdisk/internal/status"
)

// standardStream is the name that stands for standard input and output.
const standardStream = "-"

func newConvert(std stdio) *cobra.Command {
	c := converter{std: std}
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Expand an image into a raw disk",
		Long: "Expand the disk image SRC into the raw disk DST, a sparse file.\n" +
			"DST appears under its name when it is complete, not before.\n" +
			"- as SRC is standard input; what comes through a pipe is first kept in $TMPDIR, and so is\n" +
			"what a compressed image (.gz, .xz, .zst, .bz2) unpacks to.\n" +
			"- as DST is standard output: every byte of the disk, in order.",
		Args: usage(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.run(cmd.Context(), args[0], args[1])
		},
	}
	cmd.Flags().BoolVarP(&c.force, "force", "f", false, "replace DST if it exists")
	cmd.Flags().BoolVarP(&c.quiet, "quiet", "q", false, "show no progress")
	return cmd
}

// converter is one run of convert.
type converter struct {
	std          stdio
	force, quiet bool
}

func (c *converter) run(ctx context.Context, src, dst string) error {
	if err := c.checkDestination(dst); err != nil {
		return refusal{err}
	}
	im, err := c.open(src)
	if err != nil {
		return err
	}
	defer im.Close()

	update := func(int64, int64) {}
	if !c.quiet {
		p := newProgress(terminal(c.std.err), slog.New(slog.NewJSONHandler(c.std.err, nil)), "converting",
			status.New(status.Options{}).Copy(src))
		defer p.end()
		update = p.update
	}
	if dst == standardStream {
		return stream(ctx, c.std.out, im, update)
	}
	return c.toFile(ctx, dst, im, update)
}

// checkDestination refuses what must not be overwritten.
func (c *converter) checkDestination(dst string) error {
	if dst == standardStream {
		if isTerminal(c.std.out) {
			return errors.New("standard output is a terminal: send the disk to a file or a pipe")
		}
		return nil
	}
	st, err := os.Lstat(dst)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s exists and is not a regular file: name a file that convert can make or replace", dst)
	case !c.force:
		return fmt.Errorf("%s exists: choose another name, or replace it with --force", dst)
	}
	return nil
}

// open opens the image src.
func (c *converter) open(src string) (*imageconv.Image, error) {
	if src != standardStream {
		im, err := imageconv.Open(src, imageconv.Policy{Scratch: os.TempDir()})
		return im, refuse(err)
	}
	f, err := c.standardInput()
	if err != nil {
		return nil, err
	}
	im, err := imageconv.Open(reopen(f), imageconv.Policy{Scratch: os.TempDir()})
	runtime.KeepAlive(f) // its descriptor was needed until here
	return im, refuse(err)
}

// standardInput returns a file that holds what standard input has.
func (c *converter) standardInput() (*os.File, error) {
	if st, err := c.std.in.Stat(); err == nil && st.Mode().IsRegular() {
		return c.std.in, nil
	}
	if isTerminal(c.std.in) {
		return nil, refusal{errors.New("standard input is a terminal: send it an image, as in: containerdisk convert - disk.raw < image.qcow2")}
	}
	return spool(c.std.in)
}

// spool keeps in in a temporary file: an image is read here and there, which a
// pipe cannot do. The file has no name any more, so that nothing is left of it
// however the program ends.
func spool(in io.Reader) (*os.File, error) {
	f, err := os.CreateTemp("", "containerdisk-spool-")
	if err != nil {
		return nil, err
	}
	err = os.Remove(f.Name())
	if err == nil {
		_, err = io.Copy(f, in)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keeping standard input in %s: %w", os.TempDir(), err), f.Close())
	}
	return f, nil
}

// reopen is a path that opens the file of f anew, even if it has no name.
func reopen(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// toFile writes the disk beside dst and gives it its name when it is complete
// and on stable storage: a conversion that was cut leaves nothing that looks
// like a disk.
func (c *converter) toFile(ctx context.Context, dst string, im *imageconv.Image, update func(done, total int64)) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, base := filepath.Split(dst)
	partial := filepath.Join(dir, fmt.Sprintf(".%s.partial-%d", base, os.Getpid()))
	dev, err := blockdev.CreateFile(partial, im.Size())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", dst, err), ignoreMissing(os.Remove(partial)))
		}
	}()
	err = imageconv.Copy(ctx, dev, im, imageconv.CopyOptions{Progress: update})
	if err == nil {
		err = dev.Flush()
	}
	if err = errors.Join(err, dev.Close()); err != nil {
		return err
	}
	return c.publish(partial, dst)
}

// publish gives the complete disk its name.
func (c *converter) publish(partial, dst string) error {
	var flags uint
	if !c.force {
		flags = unix.RENAME_NOREPLACE // somebody else may have made dst meanwhile
	}
	err := unix.Renameat2(unix.AT_FDCWD, partial, unix.AT_FDCWD, dst, flags)
	if errors.Is(err, unix.EINVAL) { // a file system that cannot promise that
		if err = c.checkDestination(dst); err == nil {
			err = os.Rename(partial, dst)
		}
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(dst))
}

// syncDir makes the names in dir survive a loss of power.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
