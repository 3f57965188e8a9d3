package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerdisk/containerdisk/test/client"
)

const (
	// quiet is how long latencies are taken where nothing ends by itself.
	quiet = 3 * time.Second
	// fillLimit ends a hydration that does not.
	fillLimit = 10 * time.Minute
	pollEvery = 5 * time.Millisecond
)

// whileItFills prints how long hydration takes and what a guest notices of it.
func whileItFills(binary, image string, rounds int) error {
	data, err := dataExtents(image)
	if err != nil {
		return err
	}
	var converted, alone []time.Duration
	var during, without, plain []time.Duration // latencies
	for range rounds {
		c, err := convert(binary, image)
		if err != nil {
			return fmt.Errorf("convert: %w", err)
		}
		a, _, err := fill(binary, image, nil)
		if err != nil {
			return fmt.Errorf("hydration: %w", err)
		}
		_, f, err := fill(binary, image, data)
		if err != nil {
			return fmt.Errorf("hydration under reads: %w", err)
		}
		w, err := overlaid(binary, image, data)
		if err != nil {
			return fmt.Errorf("copy-on-write: %w", err)
		}
		converted, alone = append(converted, c), append(alone, a)
		during, plain, without = append(during, f.during...), append(plain, f.after...), append(without, w...)
	}
	fmt.Printf("\n%s, medians of %d rounds\n", filepath.Base(image), rounds)
	fmt.Printf("  containerdisk convert      %8.2f s\n", median(converted).Seconds())
	fmt.Printf("  hydration, guest idle      %8.2f s   %.2f of convert\n", median(alone).Seconds(), median(alone).Seconds()/median(converted).Seconds())
	fmt.Printf("  random 4 KiB reads of data, ms            p50      p99\n")
	for _, l := range []struct {
		name string
		of   []time.Duration
	}{{"no hydration (copy-on-write)", without}, {"during hydration", during}, {"hydrated", plain}} {
		fmt.Printf("    %-34s %8.3f %8.3f   (%d reads)\n", l.name, percentile(l.of, 50), percentile(l.of, 99), len(l.of))
	}
	fmt.Printf("  p99 during hydration / without: %.2f\n", percentile(during, 99)/percentile(without, 99))
	return nil
}

// percentile is that of d, in milliseconds.
func percentile(d []time.Duration, p int) float64 {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return millis(d[min(len(d)*p/100, len(d)-1)])
}

// extent is one of `qemu-img map --output=json`.
type extent struct {
	Start, Length int64
	Data          bool
}

// dataExtents are the parts of an image that hold data.
func dataExtents(image string) ([]extent, error) {
	out, err := exec.Command("qemu-img", "map", "--output=json", image).Output()
	if err != nil {
		return nil, fmt.Errorf("qemu-img map: %w", err)
	}
	var all []extent
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(e extent) bool { return !e.Data || e.Length < 4096 })
	if len(all) == 0 {
		return nil, errors.New("the image holds no data")
	}
	return all, nil
}

// convert takes the time of "containerdisk convert".
func convert(binary, image string) (time.Duration, error) {
	dir, err := os.MkdirTemp("", "ready-")
	if err != nil {
		return 0, err
	}
	began := time.Now()
	out, err := exec.Command(binary, "convert", image, filepath.Join(dir, "raw")).CombinedOutput()
	took := time.Since(began)
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return took, errors.Join(err, os.RemoveAll(dir))
}

// latencies are those of random reads while a disk fills, and afterwards.
type latencies struct{ during, after []time.Duration }

// fill serves the image onto an empty volume until that has disk.img, which is
// the end of hydration. With data it reads meanwhile, and a while longer.
func fill(binary, image string, data []extent) (took time.Duration, l latencies, err error) {
	life, disk, err := begin(binary, image, "clone")
	if err != nil {
		return 0, l, err
	}
	defer func() { err = errors.Join(err, disk.Close(), life.end()) }()
	for !full(life.dir) {
		switch {
		case time.Since(life.began) > fillLimit:
			return 0, l, fmt.Errorf("no disk.img in %v", fillLimit)
		case len(data) == 0:
			time.Sleep(pollEvery)
		default:
			if l.during, err = reads(disk, data, l.during, 100); err != nil {
				return 0, l, err
			}
		}
	}
	took = time.Since(life.began)
	for began := time.Now(); len(data) > 0 && time.Since(began) < quiet; {
		if l.after, err = reads(disk, data, l.after, 100); err != nil {
			return 0, l, err
		}
	}
	return took, l, nil
}

// overlaid takes the latencies of reads through the overlay when nothing is
// copied.
func overlaid(binary, image string, data []extent) (l []time.Duration, err error) {
	life, disk, err := begin(binary, image, "copy-on-write")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, disk.Close(), life.end()) }()
	for began := time.Now(); time.Since(began) < quiet; {
		if l, err = reads(disk, data, l, 100); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// begin serves the image over NBD; clone fills a volume.
func begin(binary, image, mode string) (*life, client.Disk, error) {
	s := servers(binary)[0]
	s.start = func(image, dir, address string) *exec.Cmd {
		more := []string{"COPY_MODE=" + mode}
		if volume := filepath.Join(dir, "volume"); mode == "clone" && os.Mkdir(volume, 0o755) == nil {
			more = append(more, "VOLUME_PATH="+volume)
		}
		return ours(binary, image, dir, address, more...)
	}
	l, err := s.run(image)
	if err != nil {
		return nil, nil, err
	}
	d, err := l.connect()
	if err != nil {
		return nil, nil, errors.Join(err, l.end())
	}
	return l, d, nil
}

// full reports whether the volume has been published.
func full(dir string) bool {
	entries, err := os.ReadDir(filepath.Join(dir, "volume"))
	return err == nil && len(entries) == 1 && entries[0].Name() == "disk.img"
}

// reads adds the latencies of n random reads of 4 KiB of data.
func reads(d client.Disk, data []extent, l []time.Duration, n int) ([]time.Duration, error) {
	p := make([]byte, 4096)
	for range n {
		e := data[rand.IntN(len(data))]
		off := e.Start + rand.Int64N(e.Length-4095)&^4095
		began := time.Now()
		if err := d.Read(off, p); err != nil {
			return nil, err
		}
		l = append(l, time.Since(began))
	}
	return l, nil
}
