package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	sector = 512 // bytes; the disk is a whole number of them

	// maxSize is the largest disk in bytes: 64 TiB, the limit of images too.
	maxSize = 64 << 40
)

// units are those of Kubernetes' quantities, the longer names first.
var units = [...]struct {
	name  string
	bytes int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12},
}

// parseSize reads the size of a disk in bytes.
func parseSize(s string) (int64, error) {
	n, err := parseBytes(s)
	switch {
	case err != nil:
		return 0, err
	case n == 0:
		return 0, errors.New("a disk cannot have no size; unset it for the image's")
	case n > maxSize:
		return 0, errors.New("the largest disk is 64Ti")
	case n%sector != 0:
		return 0, fmt.Errorf("not a multiple of %d bytes; the next is %d", sector, (n/sector+1)*sector)
	}
	return n, nil
}

// parseRate reads a number of bytes a second.
func parseRate(s string) (int64, error) {
	n, err := parseBytes(s)
	if err == nil && n == 0 {
		err = errors.New("at no rate nothing would ever be copied; unset it for no limit, or set COPY_MODE=copy-on-write")
	}
	return n, err
}

// parseBytes reads a number of bytes; of one that is out of all reason it
// returns math.MaxInt64.
func parseBytes(s string) (int64, error) {
	digits, unit := s, int64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(s, u.name); ok {
			digits, unit = n, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, errors.New("want a number of bytes, or one with k, M, G, T, Ki, Mi, Gi or Ti, as in 20Gi")
	}
	if int64(n) > math.MaxInt64/unit {
		return math.MaxInt64, nil
	}
	return int64(n) * unit, nil
}
