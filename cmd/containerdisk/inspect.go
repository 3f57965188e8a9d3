package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv"
	"github.com/containerdisk/containerdisk/imageconv/qcow2"
)

const inspectHelp = `Tell what an image file holds: its format, sizes, features, snapshots, and how
much of the disk is data. Nothing is opened but the file itself, and with
--allow-dir what it names in that directory.

  containerdisk inspect fedora.qcow2
  containerdisk inspect --map fedora.qcow2        where the data is
  containerdisk inspect --check fedora.qcow2      is the image sound?
  containerdisk inspect --json --digest disk.raw  for programs; SHA-256 of the disk

--check counts, in a qcow2 image, who uses each part of the file, and sets that
beside the refcounts, for the snapshots too; it reads no data. In other formats
it reads every table and all data once.

Exit codes:
  0  told; with --check: nothing is wrong
  1  something went wrong on the way
  2  the image was refused: not readable, damaged at its head, or not allowed
  3  --check: some space in the file is lost, and nothing else is wrong
  4  --check: the image is damaged`

// The exit codes of a check.
const (
	exitLeaks   = 3
	exitDamaged = 4
)

func newInspect(std stdio) *cobra.Command {
	n := inspector{std: std}
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Tell what an image file holds, and whether it is sound",
		Long:  inspectHelp,
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return n.run(ctx, args[0])
		},
	}
	f := cmd.Flags()
	f.BoolVar(&n.asJSON, "json", false, "JSON, for programs")
	f.BoolVar(&n.asMap, "map", false, "list what the disk holds: data, zeros and holes")
	f.BoolVar(&n.check, "check", false, "look for what is wrong with the image")
	f.BoolVar(&n.digest, "digest", false, "the SHA-256 of all bytes of the disk")
	n.source.flags(f)
	return cmd
}

// inspector is one run of inspect.
type inspector struct {
	std    stdio
	source sourceFlags

	asJSON, asMap, check, digest bool
}

func (n *inspector) run(ctx context.Context, name string) error {
	if n.asMap && (n.check || n.digest) {
		return refusal{errors.New("--map goes with neither --check nor --digest")}
	}
	im, err := imageconv.Open(name, n.source.policy())
	if err != nil {
		return refusal{err}
	}
	defer im.Close()
	w := bufio.NewWriter(n.std.out)
	switch {
	case n.asMap && n.asJSON:
		err = writeMapJSON(w, im)
	case n.asMap:
		err = writeMap(w, im)
	default:
		err = n.inspect(ctx, w, name, im)
	}
	if flushErr := w.Flush(); err == nil {
		err = flushErr
	}
	if err != nil && err.Error() != "" {
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}

// report is all that inspect tells.
type report struct {
	imageconv.Info
	Used          usedSpace     `json:"used"`
	SnapshotTable []snapshot    `json:"snapshotTable,omitempty"`
	SHA256        string        `json:"sha256,omitempty"` // of the disk
	Health        *qcow2.Health `json:"health,omitempty"`
}

// snapshot is an internal snapshot.
type snapshot struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Time      time.Time `json:"time"`
	Size      int64     `json:"virtualSize"` // bytes, of the disk
	StateSize int64     `json:"stateSize"`   // bytes, of the machine's state
}

// inspect tells about an image. What is wrong with it is the error, after all
// else was told.
func (n *inspector) inspect(ctx context.Context, w io.Writer, name string, im *imageconv.Image) error {
	r := report{Info: im.Info()}
	var err error
	if n.check { // first: of a damaged image not all can be told
		var h qcow2.Health
		if h, err = im.Check(ctx, func(int64, int64) {}); err != nil {
			return err
		}
		r.Health = &h
	}
	if n.digest {
		if r.SHA256, err = digest(ctx, im, func(int64, int64) {}); err != nil {
			return err
		}
	}
	for s, snapErr := range im.Snapshots() {
		if snapErr != nil {
			err = snapErr
			break
		}
		r.SnapshotTable = append(r.SnapshotTable, snapshot{s.ID, s.Name, s.Time, s.Size, s.StateSize})
	}
	if err == nil {
		r.Used, err = spaceOf(im)
	}
	if writeErr := r.write(w, name, n.asJSON); writeErr != nil {
		return writeErr
	}
	switch {
	case r.Health != nil && !r.Health.Sound():
		return coded{exitDamaged, nil}
	case err == nil && r.Health != nil && r.Health.Leaks > 0:
		return coded{exitLeaks, nil}
	}
	return err
}

func (r *report) write(w io.Writer, name string, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return writeReport(w, name, r)
}

// usedSpace is how many bytes of a disk are of each kind.
type usedSpace struct {
	Data int64 `json:"data"`
	Zero int64 `json:"zero"`
	Hole int64 `json:"hole"`
}

func spaceOf(src blockdev.Source) (usedSpace, error) {
	var s usedSpace
	for e, err := range src.Extents(0, src.Size()) {
		if err != nil {
			return s, err
		}
		switch e.Kind {
		case blockdev.Data:
			s.Data += e.Len
		case blockdev.Zero:
			s.Zero += e.Len
		case blockdev.Hole:
			s.Hole += e.Len
		}
	}
	return s, nil
}

func writeReport(w io.Writer, name string, r *report) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	info := r.Info
	line := func(key, format string, a ...any) { fmt.Fprintf(t, "%s\t%s\n", key, fmt.Sprintf(format, a...)) }
	format := string(info.Format)
	if info.Version > 0 {
		format += fmt.Sprintf(", version %d", info.Version)
	}
	line("image", "%s", name)
	for _, p := range info.Packed {
		format += ", packed in " + string(p)
	}
	line("format", "%s", format)
	line("virtual size", "%s (%d bytes)", size(info.VirtualSize), info.VirtualSize)
	line("file size", "%s, of which %s on the disk", size(info.FileSize), size(info.DiskUsage))
	if info.ClusterSize > 0 {
		line("cluster size", "%s", size(info.ClusterSize))
	}
	if info.Compression != "" {
		line("compression", "%s", info.Compression)
	}
	if len(info.Features) > 0 {
		line("features", "%s", strings.Join(info.Features, ", "))
	}
	if info.BackingFile != "" {
		line("backing file", "%.200q, %s", info.BackingFile, info.BackingFormat)
	}
	if info.DataFile != "" {
		line("data file", "%.200q", info.DataFile)
	}
	line("data", "%s (%d %%)", size(r.Used.Data), percent(r.Used.Data, info.VirtualSize))
	line("zeros", "%s, holes %s", size(r.Used.Zero), size(r.Used.Hole))
	if r.SHA256 != "" {
		line("sha256", "%s", r.SHA256)
	}
	for i, s := range r.SnapshotTable {
		key := "snapshots"
		if i > 0 {
			key = ""
		}
		line(key, "%.100q, %s, %s (ID %.100q)", s.Name, s.Time.Format(time.DateTime), size(s.Size), s.ID)
	}
	if r.Health != nil {
		writeHealth(line, *r.Health)
	}
	return t.Flush()
}

func writeHealth(line func(key, format string, a ...any), h qcow2.Health) {
	switch {
	case !h.Sound():
		line("health", "damaged: %d findings, and %d lost clusters", h.Corruptions, h.Leaks)
	case h.Leaks > 0:
		line("health", "sound, but %d clusters of the file are lost", h.Leaks)
	default:
		line("health", "sound")
	}
	for _, f := range h.Findings {
		line("", "%s", f)
	}
	if more := h.Corruptions + h.Leaks - int64(len(h.Findings)); more > 0 {
		line("", "and %d more", more)
	}
}

// percent is how many hundredths of total part is. No disk is so large that
// this overflows: sizes are below 2^56.
func percent(part, total int64) int64 {
	if total == 0 {
		return 0
	}
	return part * 100 / total
}

// The map is written as it is read: an image can have very many extents.

func writeMap(w io.Writer, src blockdev.Source) error {
	fmt.Fprintf(w, "%16s  %16s  %s\n", "start", "length", "holds")
	for e, err := range src.Extents(0, src.Size()) {
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%16d  %16d  %s\n", e.Off, e.Len, e.Kind); err != nil {
			return err
		}
	}
	return nil
}

func writeMapJSON(w io.Writer, src blockdev.Source) error {
	sep := "["
	for e, err := range src.Extents(0, src.Size()) {
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "%s{\"start\":%d,\"length\":%d,\"kind\":%q}", sep, e.Off, e.Len, e.Kind); err != nil {
			return err
		}
		sep = ",\n "
	}
	_, err := fmt.Fprintln(w, "]")
	return err
}
