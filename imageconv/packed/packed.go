// Package packed reads what disk images are packed in: compressed streams, and
// tar archives. It opens nothing and knows no image format.
//
// A stream can only be read from its beginning, in memory that is bounded
// whatever it says; how much comes out of it is for the caller to bound. A tar
// archive holds its members as they are, so that one is found and then read in
// place.
package packed

import (
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// Compression is the format of a compressed stream.
type Compression string

const (
	Gzip  Compression = "gzip"  // RFC 1952
	Bzip2 Compression = "bzip2" // has no specification but its program
	XZ    Compression = "xz"    // The .xz File Format, version 1.1.0
	Zstd  Compression = "zstd"  // RFC 8878
)

// maxWindow is how much of its own output a stream may refer back to, bytes, and
// with that the memory that unpacking takes. `xz -9` needs all of it, `zstd -19`
// an eighth.
const maxWindow = 64 << 20

// ErrWindow tells of a stream that refers further back than we keep.
var ErrWindow = fmt.Errorf("the stream needs more than %d MiB of memory to unpack: compress it again with a smaller window "+
	"(xz -9 at most; zstd without --ultra and --long)", maxWindow>>20)

// NewReader returns what the stream in r unpacks to. Streams may follow each
// other, as the programs that write them allow. Close gives the memory back, and
// does not close r.
func NewReader(c Compression, r io.Reader) (io.ReadCloser, error) {
	switch c {
	case Gzip:
		return gzip.NewReader(r)
	case Bzip2:
		return io.NopCloser(bzip2.NewReader(r)), nil
	case XZ:
		z, err := xz.NewReader(r, maxWindow)
		return io.NopCloser(xzReader{z}), windowError(err)
	case Zstd:
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true), zstd.WithDecoderConcurrency(2))
		if err != nil {
			return nil, err
		}
		return zstdReader{z}, nil
	}
	return nil, fmt.Errorf("unknown compression %q", c)
}

// xzReader calls its errors ours.
type xzReader struct{ r *xz.Reader }

func (x xzReader) Read(p []byte) (int, error) {
	n, err := x.r.Read(p)
	return n, windowError(err)
}

// zstdReader is a decoder as an io.ReadCloser.
type zstdReader struct{ d *zstd.Decoder }

func (z zstdReader) Read(p []byte) (int, error) {
	n, err := z.d.Read(p)
	return n, windowError(err)
}

func (z zstdReader) Close() error {
	z.d.Close()
	return nil
}

// windowError makes the libraries' words for ErrWindow that.
func windowError(err error) error {
	if errors.Is(err, xz.ErrMemlimit) || errors.Is(err, zstd.ErrWindowSizeExceeded) || errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		return ErrWindow
	}
	return err
}
