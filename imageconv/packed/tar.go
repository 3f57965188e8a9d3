package packed

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// maxMembers is how many members an archive may have. An OVA has a handful.
const maxMembers = 1000

// maxListed is how many names an error lists.
const maxListed = 10

// Member is a file in an archive that is stored in one piece.
type Member struct {
	Name   string
	Off, N int64 // in the archive, bytes
}

// Find returns the one file in the tar archive of size bytes in r that can be an
// image. What describes the others in an OVA (DSP0243, "OVA file") is left out:
// the descriptor, the manifest and the certificate. That there are several, or
// none, is an error that lists them.
func Find(r io.ReaderAt, size int64) (Member, error) {
	files, err := list(r, size)
	if err != nil {
		return Member{}, err
	}
	switch len(files) {
	case 0:
		return Member{}, errors.New("the archive has no file that could be an image")
	case 1:
		return files[0], nil
	}
	var names []string
	for _, f := range files[:min(len(files), maxListed)] {
		names = append(names, fmt.Sprintf("%.100q", f.Name))
	}
	if len(files) > maxListed {
		names = append(names, fmt.Sprintf("%d more", len(files)-maxListed))
	}
	return Member{}, fmt.Errorf("the archive has %d files that could be the image (%s): unpack the one that is meant",
		len(files), strings.Join(names, ", "))
}

// list are the regular files in the archive, but for those that describe others.
func list(r io.ReaderAt, size int64) ([]Member, error) {
	in := io.NewSectionReader(r, 0, size)
	archive := tar.NewReader(in)
	var files []Member
	for count := 0; ; count++ {
		h, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return files, nil
		case err != nil:
			return nil, err
		case count == maxMembers:
			return nil, fmt.Errorf("an archive of more than %d members", maxMembers)
		case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeGNUSparse || describes(h.Name):
			continue
		case isSparse(h):
			return nil, fmt.Errorf("%.100q is stored as a sparse file, in pieces: unpack the archive first, or make it without --sparse", h.Name)
		}
		off, err := in.Seek(0, io.SeekCurrent) // the archive's reader reads no further than it must
		if err != nil {
			return nil, err
		}
		if h.Size > size-off {
			return nil, fmt.Errorf("%.100q, %d bytes at %d, is not within the archive's %d", h.Name, h.Size, off, size)
		}
		files = append(files, Member{Name: h.Name, Off: off, N: h.Size})
	}
}

// describes reports whether a file of that name tells about the image.
func describes(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".ovf", ".mf", ".cert":
		return true
	}
	return false
}

// isSparse reports whether a member is not stored byte for byte.
func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}
