package main

import (
	"context"
	"crypto/sha256"
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

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv"
	"github.com/containerdisk/containerdisk/imageconv/qcow2"
	"github.com/containerdisk/containerdisk/internal/status"
)

// standardStream is the name that stands for standard input and output.
const standardStream = "-"

const convertHelp = `Expand the disk image SRC into the raw disk DST, a sparse file, or pack a disk
into a compressed qcow2 image.

  containerdisk convert fedora.qcow2 disk.raw
      Any format that can be read becomes a raw disk.
  containerdisk convert --to qcow2 disk.raw fedora.qcow2
      A disk becomes a compressed image, to be shipped in a container image.
  containerdisk convert --compare fedora.qcow2 disk.raw
      Are the two the same disk? Exit code 0: yes; 1: they differ, and where;
      2: it could not be found out. Nothing is written.
  containerdisk convert --digest fedora.qcow2
      The SHA-256 of all bytes of the disk, as of the raw file. Nothing is
      written. With DST, of what was written there.

SRC and DST:
  - as SRC is standard input; what comes through a pipe is first kept in $TMPDIR,
    and so is what a compressed image (.gz, .xz, .zst, .bz2) unpacks to.
  - as DST is standard output: every byte of a raw disk, in order.
  A block device as DST is overwritten from its beginning, with --force.
  DST appears under its name when it is complete and on stable storage.

Interrupted (Ctrl-C, or killed) a conversion to a raw file leaves .DST.partial:
the same command goes on where it was, as long as SRC is the same file. After an
error, or with --to qcow2, nothing is left.

An image that names other files (a backing file, an external data file) is
refused unless --allow-dir says in which directory they may be.`

func newConvert(std stdio) *cobra.Command {
	c := converter{std: std}
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Expand an image into a raw disk, or pack a disk into an image",
		Long:  convertHelp,
		Args:  usage(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return c.dispatch(ctx, args)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&c.force, "force", "f", false, "replace DST if it exists; write over a block device")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "show no progress")
	f.StringVar(&c.to, "to", "", "format of DST: raw or qcow2 (default raw)")
	f.StringVar(&c.compression, "compression", "", "of qcow2: zstd, zlib or none (default zstd; zlib for readers before QEMU 5.1)")
	f.BoolVar(&c.compare, "compare", false, "compare the disks in SRC and DST, and write nothing")
	f.BoolVar(&c.digest, "digest", false, "print the SHA-256 of the disk")
	c.source.flags(f)
	return cmd
}

// converter is one run of convert.
type converter struct {
	std             stdio
	source          sourceFlags
	force, quiet    bool
	to, compression string
	compare, digest bool

	spooled bool // SRC came through a pipe: it will not be the same again
}

// dispatch does what the flags ask for.
func (c *converter) dispatch(ctx context.Context, args []string) error {
	switch {
	case len(args) == 1 && !c.digest:
		return refusal{errors.New("convert needs SRC and DST; see containerdisk convert --help")}
	case c.compare && (c.digest || c.to != "" || c.compression != ""):
		return refusal{errors.New("--compare writes nothing: it goes with no other of --to, --compression and --digest")}
	case c.compare:
		return c.compareDisks(ctx, args[0], args[1])
	case len(args) == 1:
		im, err := c.open(args[0])
		if err != nil {
			return err
		}
		return c.printDigest(ctx, args[0], im)
	case c.digest && args[1] == standardStream:
		return refusal{errors.New("standard output has the disk, and cannot have its digest too: name a file, or leave DST out")}
	}
	o, err := c.packing(args[1])
	if err != nil {
		return refusal{err}
	}
	if err := c.run(ctx, args[0], args[1], o); err != nil || !c.digest {
		return err
	}
	im, err := imageconv.Open(args[1], imageconv.Policy{Format: c.format()})
	if err != nil {
		return err
	}
	return c.printDigest(ctx, args[1], im)
}

// format is the format of the destination.
func (c *converter) format() imageconv.Format {
	if c.to == "" {
		return imageconv.Raw
	}
	return imageconv.Format(c.to)
}

// packing is how the image is to be written, or nil for a raw disk.
func (c *converter) packing(dst string) (*qcow2.WriteOptions, error) {
	o := new(qcow2.WriteOptions)
	switch c.compression {
	case "", "zstd":
		o.Compression = qcow2.Zstd
	case "zlib":
		o.Compression = qcow2.Zlib
	case "none":
		o.Plain = true
	default:
		return nil, fmt.Errorf("--compression %q: must be zstd, zlib or none", c.compression)
	}
	switch c.to {
	case "", "raw":
		if c.to == "" && filepath.Ext(dst) == ".qcow2" {
			return nil, fmt.Errorf("%s would be a raw disk: say --to qcow2, or --to raw if that is meant", dst)
		}
		if c.compression != "" {
			return nil, errors.New("a raw disk has no compression: --compression goes with --to qcow2")
		}
		return nil, nil //nolint:nilnil // raw
	case "qcow2":
		if dst == standardStream {
			return nil, errors.New("a qcow2 image cannot be written to a pipe: name a file")
		}
		return o, nil
	}
	return nil, fmt.Errorf("--to %q: must be raw or qcow2", c.to)
}

func (c *converter) run(ctx context.Context, src, dst string, o *qcow2.WriteOptions) error {
	device, err := c.checkDestination(dst)
	if err != nil {
		return refusal{err}
	}
	if device && o != nil {
		return refusal{fmt.Errorf("%s is a block device: a qcow2 image is written to a file", dst)}
	}
	im, err := c.open(src)
	if err != nil {
		return err
	}
	defer im.Close()
	update, end := c.progress("converting", src)
	defer end()
	switch {
	case dst == standardStream:
		return stream(ctx, c.std.out, im, update)
	case device:
		return c.toDevice(ctx, dst, im, update)
	case o != nil:
		o.Progress = update
		return c.toImage(ctx, dst, im, *o)
	}
	return c.toFile(ctx, dst, im, update)
}

// progress shows how far the work is, unless that is not wanted.
func (c *converter) progress(what, name string) (update func(done, total int64), end func()) {
	if c.quiet {
		return func(int64, int64) {}, func() {}
	}
	p := newProgress(terminal(c.std.err), slog.New(slog.NewJSONHandler(c.std.err, nil)), what,
		status.New(status.Options{}).Copy(name))
	return p.update, p.end
}

// checkDestination refuses what must not be overwritten. It reports whether dst
// is a block device.
func (c *converter) checkDestination(dst string) (device bool, err error) {
	if dst == standardStream {
		if isTerminal(c.std.out) {
			return false, errors.New("standard output is a terminal: send the disk to a file or a pipe")
		}
		return false, nil
	}
	st, err := os.Lstat(dst)
	if err == nil && st.Mode()&fs.ModeSymlink != 0 {
		// /dev is full of links; elsewhere a file is replaced, not where a link leads.
		if target, err := os.Stat(dst); err == nil && isBlockDevice(target.Mode()) {
			st = target
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case isBlockDevice(st.Mode()) && !c.force:
		return true, fmt.Errorf("%s is a block device: what is on it would be lost; if that is meant, say --force", dst)
	case isBlockDevice(st.Mode()):
		return true, nil
	case !st.Mode().IsRegular():
		return false, fmt.Errorf("%s exists and is not a regular file: name a file that convert can make or replace", dst)
	case !c.force:
		return false, fmt.Errorf("%s exists: choose another name, or replace it with --force", dst)
	}
	return false, nil
}

func isBlockDevice(m fs.FileMode) bool {
	return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0
}

// open opens the image src.
func (c *converter) open(src string) (*imageconv.Image, error) {
	if src != standardStream {
		im, err := imageconv.Open(src, c.source.policy())
		return im, refuse(err)
	}
	f, err := c.standardInput()
	if err != nil {
		return nil, err
	}
	im, err := imageconv.Open(reopen(f), c.source.policy())
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
	c.spooled = true
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
// like a disk, but what it has done is not lost.
func (c *converter) toFile(ctx context.Context, dst string, im *imageconv.Image, update func(done, total int64)) error {
	p, err := imageconv.OpenPartial(dst, im.Size(), im.Identity())
	if err != nil {
		return err
	}
	if p.Start() > 0 && !c.quiet {
		fmt.Fprintf(c.std.err, "going on with %s at %s\n", p.Name(), size(p.Start()))
	}
	err = imageconv.Copy(ctx, p.Device(), im, imageconv.CopyOptions{Progress: update, Start: p.Start(), Mark: p.Mark})
	switch {
	case err == nil:
		return p.Publish(c.force)
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) && !c.spooled:
		return errors.Join(fmt.Errorf("%s: interrupted: the same command goes on where it was; %s has what was done", dst, p.Name()), p.Keep())
	}
	return errors.Join(fmt.Errorf("%s: %w", dst, err), p.Discard())
}

// toImage writes a qcow2 image beside dst and gives it its name when it is
// complete. It is not gone on with.
func (c *converter) toImage(ctx context.Context, dst string, im *imageconv.Image, o qcow2.WriteOptions) error {
	p, err := imageconv.OpenPartial(dst, 0, "")
	if err != nil {
		return err
	}
	if err := p.Pack(ctx, im, o); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", dst, err), p.Discard())
	}
	return p.Publish(c.force)
}

// toDevice writes the disk to a block device, over what is there.
func (c *converter) toDevice(ctx context.Context, dst string, im *imageconv.Image, update func(done, total int64)) error {
	dev, err := blockdev.OpenDevice(dst)
	if err != nil {
		return refusal{err}
	}
	if dev.Size() < im.Size() {
		return errors.Join(refusal{fmt.Errorf("%s has %d bytes, the disk in the image has %d", dst, dev.Size(), im.Size())}, dev.Close())
	}
	err = imageconv.Copy(ctx, dev, im, imageconv.CopyOptions{Progress: update, Dirty: true})
	if err == nil {
		err = dev.Flush()
	}
	if err = errors.Join(err, dev.Close()); err != nil {
		return fmt.Errorf("%s, which now has a part of the disk: %w", dst, err)
	}
	return nil
}

// exitDiffer and exitUnknown are the exit codes of a comparison, as qemu-img
// has them.
const (
	exitDiffer  = 1
	exitUnknown = 2
)

// compareDisks tells whether two images hold the same disk.
func (c *converter) compareDisks(ctx context.Context, src, dst string) error {
	first, err := c.firstDifference(ctx, src, dst)
	switch {
	case err != nil:
		return coded{exitUnknown, err}
	case first == imageconv.Same:
		fmt.Fprintln(c.std.out, "the disks are the same")
		return nil
	}
	fmt.Fprintf(c.std.out, "the disks differ at byte %d\n", first)
	return coded{code: exitDiffer}
}

func (c *converter) firstDifference(ctx context.Context, src, dst string) (int64, error) {
	a, err := c.open(src)
	if err != nil {
		return 0, err
	}
	defer a.Close()
	p := c.source.policy()
	p.Snapshot = ""
	b, err := imageconv.Open(dst, p)
	if err != nil {
		return 0, err
	}
	defer b.Close()
	if a.Size() != b.Size() {
		fmt.Fprintf(c.std.err, "the disks have %d and %d bytes: what only one has must be zeros\n", a.Size(), b.Size())
	}
	update, end := c.progress("comparing", src)
	defer end()
	return imageconv.Compare(ctx, a, b, imageconv.CopyOptions{Progress: update})
}

// printDigest prints the digest of a disk, as sha256sum does that of a file,
// and closes it.
func (c *converter) printDigest(ctx context.Context, name string, im *imageconv.Image) error {
	defer im.Close()
	update, end := c.progress("reading", name)
	sum, err := digest(ctx, im, update)
	end()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	_, err = fmt.Fprintf(c.std.out, "%s  %s\n", sum, name)
	return err
}

// digest is the SHA-256 of all bytes of a disk, those of holes included, in
// hexadecimal.
func digest(ctx context.Context, src blockdev.Source, update func(done, total int64)) (string, error) {
	h := sha256.New()
	if err := stream(ctx, h, src, update); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
