package vhdx

import (
	"bytes"
	"io"

	"github.com/containerdisk/containerdisk/imageconv/pages"
	"github.com/containerdisk/containerdisk/internal/le"
)

// "Header Section": the first mebibyte of the file.
const (
	identifier = "vhdxfile" // "File Type Identifier"

	header1At     = 64 << 10
	header2At     = 128 << 10
	regions1At    = 192 << 10
	regions2At    = 256 << 10
	sectionLen    = 1 << 20 // everything else begins behind it
	unit          = 1 << 20 // regions and blocks are multiples of it and aligned to it
	headerLen     = 4 << 10
	headerVersion = 1
)

// "Headers".
const (
	headSignature        = "head"
	headChecksum  le.U32 = 4
	headSequence  le.U64 = 8
	headLogGUID          = 48
	headLogVer    le.U16 = 64
	headVersion   le.U16 = 66
	headLogLen    le.U32 = 68
	headLogAt     le.U64 = 72
)

// header is the current one of an image's two headers.
type header struct {
	logGUID guid // all zeros: the log is empty
	log     span
}

// span is a range of the file, bytes.
type span struct{ off, n int64 }

func (s span) end() int64 { return s.off + s.n }

// meets reports whether the two have a byte in common.
func (s span) meets(t span) bool { return s.n > 0 && t.n > 0 && s.off < t.end() && t.off < s.end() }

// readHeader finds the current header: of those that are not damaged the one
// with the higher sequence number. They are written in turns, so that a crash
// spoils one at most.
func readHeader(src io.ReaderAt, fileSize int64) (header, error) {
	if fileSize < sectionLen {
		return header{}, corrupt("a file of %d bytes, the header section alone has %d", fileSize, sectionLen)
	}
	first := make([]byte, len(identifier))
	if err := pages.ReadFull(src, first, 0); err != nil {
		return header{}, err
	}
	if string(first) != identifier {
		return header{}, corrupt("not a VHDX image: it begins with %q", first)
	}
	var current []byte
	for _, at := range []int64{header1At, header2At} {
		b := make([]byte, headerLen)
		if err := pages.ReadFull(src, b, at); err != nil {
			return header{}, err
		}
		if string(b[:len(headSignature)]) != headSignature || checksum(b, headChecksum) != headChecksum.Get(b) {
			continue
		}
		switch {
		case current == nil, headSequence.Get(b) > headSequence.Get(current):
			current = b
		case headSequence.Get(b) == headSequence.Get(current) && !bytes.Equal(b, current):
			return header{}, corrupt("two headers with the sequence number %d and different content", headSequence.Get(b))
		}
	}
	if current == nil {
		return header{}, corrupt("both headers are damaged")
	}
	return checkHeader(current, fileSize)
}

func checkHeader(b []byte, fileSize int64) (header, error) {
	if v := headVersion.Get(b); v != headerVersion {
		return header{}, unsupported("version %d, known is %d", v, headerVersion)
	}
	h := header{logGUID: guid(b[headLogGUID:])}
	at, n := headLogAt.Get(b), uint64(headLogLen.Get(b))
	if h.logGUID == (guid{}) && n == 0 {
		return h, nil
	}
	switch {
	case at%unit != 0 || n%unit != 0 || n == 0:
		return h, corrupt("a log of %d bytes at %#x: must be in whole MiB", n, at)
	case at < sectionLen || at > uint64(fileSize) || n > uint64(fileSize)-at:
		return h, corrupt("the log, %d bytes at %#x, is not within the file's %d bytes behind the header section", n, at, fileSize)
	case h.logGUID != (guid{}) && headLogVer.Get(b) != 0:
		return h, unsupported("log version %d: %s", headLogVer.Get(b), repair)
	}
	h.log = span{int64(at), int64(n)}
	return h, nil
}

// repair is the way out where the log is beyond us.
const repair = "open the image once where it comes from, or repair it (qemu-img check -r all IMAGE)"
