package imageconv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containerdisk/containerdisk/blockdev"
)

// Format is a disk image format that Open can read.
type Format string

const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// signature is how one format shows itself.
type signature struct {
	name  string
	magic string
	at    int64 // where the magic stands; negative: counted from the end of the file
}

// signatures lists every format that we can tell from a raw disk, one row for
// each place where it shows. Formats that Open cannot read stand here as well:
// served as a raw disk, such a file would be garbage to the guest, which might
// then write to it.
var signatures = [...]signature{
	{string(QCOW2), "QFI\xfb\x00\x00\x00\x02", 0},
	{string(QCOW2), "QFI\xfb\x00\x00\x00\x03", 0},
	{"qcow (version 1)", "QFI\xfb\x00\x00\x00\x01", 0},
	{"qed", "QED\x00", 0},
	{"vmdk", "KDMV", 0},
	{"vmdk", "COWD", 0},
	{"vmdk", "# Disk DescriptorFile", 0},
	{"vhd", "conectix", 0},
	{"vhd", "conectix", -512},
	{"vhd", "conectix", -511}, // as Virtual PC wrote it before 2004
	{"vhdx", "vhdxfile", 0},
	{"vdi", "\x7f\x10\xda\xbe", 64},
	{"parallels", "WithoutFreeSpace", 0},
	{"parallels", "WithouFreSpacExt", 0},
	{"bochs", "Bochs Virtual HD Image", 0},
	{"dmg", "koly\x00\x00\x00\x04", -512},
	{"luks", "LUKS\xba\xbe", 0},
	{"gzip", "\x1f\x8b\x08", 0},
	{"bzip2", "BZh", 0},
	{"xz", "\xfd7zXZ\x00", 0},
	{"zstd", "\x28\xb5\x2f\xfd", 0},
	{"lz4", "\x04\x22\x4d\x18", 0},
	{"zip", "PK\x03\x04", 0},
	{"7z", "7z\xbc\xaf\x27\x1c", 0},
	{"tar", "ustar", 257},
}

// footerSize is how far before the end of a file a signature may begin.
const footerSize = 512

// Detect tells from its content which format the image of size bytes in r has.
// What shows no signature is a raw disk. A format that Open cannot read is an
// error that names it, and so is a file that has the signatures of two formats:
// it would be another disk to another program.
//
// Ask only while nobody but the image's maker has written to the file. A guest
// can write any signature into its disk, so that a disk that was served
// writable has the format that was recorded, whatever it shows now.
func Detect(r io.ReaderAt, size int64) (Format, error) {
	var names []string
	for _, s := range signatures {
		found, err := s.matches(r, size)
		if err != nil {
			return "", openError(blockdev.KindOf(err), err)
		}
		if found && !slices.Contains(names, s.name) {
			names = append(names, s.name)
		}
	}
	switch {
	case len(names) == 0:
		return Raw, nil
	case len(names) > 1:
		return "", openError(blockdev.KindUnsupported, fmt.Errorf(
			"the file has the signatures of several formats (%s): make a clean image of the right one", strings.Join(names, ", ")))
	case names[0] != string(QCOW2):
		return "", openError(blockdev.KindUnsupported, fmt.Errorf(
			"the format %s cannot be read: unpack or convert the image to qcow2 or raw first", names[0]))
	}
	return QCOW2, nil
}

func (s signature) matches(r io.ReaderAt, size int64) (bool, error) {
	at := s.at
	if at < 0 {
		at += size
	}
	var buf [footerSize]byte
	b := buf[:len(s.magic)]
	if at < 0 || at+int64(len(b)) > size {
		return false, nil
	}
	if n, err := r.ReadAt(b, at); n < len(b) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the file is shorter than its size
		}
		return false, err
	}
	return bytes.Equal(b, []byte(s.magic)), nil
}

func openError(kind blockdev.Kind, err error) error {
	return &blockdev.Error{Op: "open", Kind: kind, Err: err}
}
