// Command ready measures how long it takes until a disk can be read, and what
// a guest notices while it fills up. tools/bench-ready.sh runs it.
//
//	ready [-rounds N] BINARY IMAGE.qcow2...
//
// For each image it starts each server in turn and takes the time from exec to
// the first 4 KiB that a client has read: ours over NBD and iSCSI, qemu-nbd on
// the qcow2 with a snapshot, and the image converted by qemu-img and served by
// tgtd. The image's pages are in the page cache. For the last image it then
// takes the time of hydration beside that of "containerdisk convert", and the
// latency of random reads of 4 KiB during hydration and without.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

func main() {
	rounds := flag.Int("rounds", 5, "how often each server is started")
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: ready [-rounds N] BINARY IMAGE.qcow2...")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Args()[1:], *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "ready:", err)
		os.Exit(1)
	}
}

func run(binary string, images []string, rounds int) error {
	for _, image := range images {
		if err := warm(image); err != nil {
			return err
		}
	}
	if err := firstReads(binary, images, rounds); err != nil {
		return err
	}
	return whileItFills(binary, images[len(images)-1], rounds)
}

// warm brings a file into the page cache.
func warm(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	p := make([]byte, 1<<20)
	for {
		if n, _ := f.Read(p); n == 0 {
			return nil
		}
	}
}

// firstReads prints the table of readiness.
func firstReads(binary string, images []string, rounds int) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprint(w, "exec to first 4 KiB, ms\t")
	for _, s := range servers(binary) {
		fmt.Fprintf(w, "%s\t", s.name)
	}
	fmt.Fprintln(w, "ours (NBD) / qemu-nbd\t")
	for _, image := range images {
		took := map[string][]time.Duration{}
		for range rounds {
			for _, s := range servers(binary) {
				d, err := s.firstRead(image)
				if err != nil {
					return fmt.Errorf("%s on %s: %w", s.name, image, err)
				}
				took[s.name] = append(took[s.name], d)
			}
		}
		fmt.Fprintf(w, "%s\t", filepath.Base(image))
		for _, s := range servers(binary) {
			fmt.Fprintf(w, "%.1f\t", millis(median(took[s.name])))
		}
		fmt.Fprintf(w, "%.2f\t\n", millis(median(took[oursNBD]))/millis(median(took[qemuNBD])))
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
