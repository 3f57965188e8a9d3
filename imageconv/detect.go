package imageconv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerdisk/containerdisk/blockdev"
)

const (
	// headSize is how much of the beginning of a file a probe may look at,
	// bytes: up to the first volume descriptors of an ISO 9660 file system.
	headSize = 40 << 10
	// tailSize is how much of the end.
	tailSize = 1 << 10
)

// ends is what a probe may look at: the first and the last bytes of a file. They
// overlap where the file is small.
type ends struct {
	size int64
	head []byte
	tail []byte
}

// probe tells whether a file shows the signs of a format. It is a promise only
// that Open of that format will be asked.
type probe func(e *ends) bool

// at is the probe for a magic so many bytes from the beginning.
func at(off int, magic string) probe {
	return func(e *ends) bool {
		return len(e.head) >= off && bytes.HasPrefix(e.head[off:], []byte(magic))
	}
}

// fromEnd is the probe for a magic that begins so many bytes before the end.
func fromEnd(off int, magic string) probe {
	return func(e *ends) bool {
		return len(e.tail) >= off && bytes.HasPrefix(e.tail[len(e.tail)-off:], []byte(magic))
	}
}

func anyOf(list ...probe) probe {
	return func(e *ends) bool {
		for _, p := range list {
			if p(e) {
				return true
			}
		}
		return false
	}
}

// Detect tells from its content which format the image of size bytes in r has.
// What shows no signature is a raw disk, with or without a partition table. A
// format that Open cannot read is an error that names it, and so is a file that
// has the signatures of two formats: it would be another disk to another
// program.
//
// Ask only while nobody but the image's maker has written to the file. A guest
// can write any signature into its disk, so that a disk that was served
// writable has the format that was recorded, whatever it shows now.
func Detect(r io.ReaderAt, size int64) (Format, error) {
	e, err := readEnds(r, size)
	if err != nil {
		return "", openError(blockdev.KindOf(err), err)
	}
	var found []row
	var names []string
	for _, row := range formats() {
		if row.probe(e) {
			found = append(found, row)
			names = append(names, string(row.format))
		}
	}
	switch {
	case len(found) == 0:
		return Raw, nil
	case len(found) > 1:
		return "", openError(blockdev.KindUnsupported, fmt.Errorf(
			"the file has the signatures of several formats (%s): make a clean image of the right one", strings.Join(names, ", ")))
	case found[0].open == nil:
		return "", openError(blockdev.KindUnsupported, fmt.Errorf(
			"the format %s cannot be read: unpack or convert the image to qcow2 or raw first", names[0]))
	}
	return found[0].format, nil
}

func readEnds(r io.ReaderAt, size int64) (*ends, error) {
	e := &ends{size: size, head: make([]byte, min(size, headSize)), tail: make([]byte, min(size, tailSize))}
	if err := readFull(r, e.head, 0); err != nil {
		return nil, err
	}
	return e, readFull(r, e.tail, size-int64(len(e.tail)))
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	switch {
	case n == len(p):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF // the file is shorter than its size
	}
	return err
}

func openError(kind blockdev.Kind, err error) error {
	return &blockdev.Error{Op: "open", Kind: kind, Err: err}
}
