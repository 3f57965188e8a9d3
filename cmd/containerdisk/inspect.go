package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv"
)

func newInspect(std stdio) *cobra.Command {
	var asJSON, asMap bool
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Tell what an image file holds",
		Args:  usage(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			im, err := imageconv.Open(args[0], imageconv.Policy{Scratch: os.TempDir()})
			if err != nil {
				return refusal{err}
			}
			defer im.Close()
			w := bufio.NewWriter(std.out)
			switch {
			case asMap && asJSON:
				err = writeMapJSON(w, im)
			case asMap:
				err = writeMap(w, im)
			default:
				err = inspect(w, args[0], im, asJSON)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "JSON, for programs")
	cmd.Flags().BoolVar(&asMap, "map", false, "list what the disk holds: data, zeros and holes")
	return cmd
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

func inspect(w io.Writer, name string, im *imageconv.Image, asJSON bool) error {
	used, err := spaceOf(im)
	if err != nil {
		return err
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			imageconv.Info
			Used usedSpace `json:"used"`
		}{im.Info(), used})
	}
	return writeInfo(w, name, im.Info(), used)
}

func writeInfo(w io.Writer, name string, info imageconv.Info, used usedSpace) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	format := string(info.Format)
	if info.Version > 0 {
		format += fmt.Sprintf(", version %d", info.Version)
	}
	fmt.Fprintf(t, "image\t%s\n", name)
	for _, p := range info.Packed {
		format += ", packed in " + string(p)
	}
	fmt.Fprintf(t, "format\t%s\n", format)
	fmt.Fprintf(t, "virtual size\t%s (%d bytes)\n", size(info.VirtualSize), info.VirtualSize)
	fmt.Fprintf(t, "file size\t%s\n", size(info.FileSize))
	if info.ClusterSize > 0 {
		fmt.Fprintf(t, "cluster size\t%s\n", size(info.ClusterSize))
	}
	if info.Compression != "" {
		fmt.Fprintf(t, "compression\t%s\n", info.Compression)
	}
	if len(info.Features) > 0 {
		fmt.Fprintf(t, "features\t%s\n", strings.Join(info.Features, ", "))
	}
	if info.Snapshots > 0 {
		fmt.Fprintf(t, "snapshots\t%d (the active disk is read)\n", info.Snapshots)
	}
	fmt.Fprintf(t, "data\t%s (%d %%)\n", size(used.Data), percent(used.Data, info.VirtualSize))
	fmt.Fprintf(t, "zeros\t%s, holes %s\n", size(used.Zero), size(used.Hole))
	return t.Flush()
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
