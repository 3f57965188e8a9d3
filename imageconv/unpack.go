package imageconv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/packed"
)

// Packed images. A compressed one can only be read from its beginning, so it is
// unpacked once, into a file that has no name and is gone with the image; zeros
// become holes. An image in a tar archive is read where it is. What is inside is
// told by the same table as a bare file, under the same rules, but for this:
// there is one image, it names no other file, and it is packed once: a tar
// archive may be compressed, and nothing else is looked into twice.

const (
	// maxUnpacked is the largest file in bytes that a stream may unpack to.
	maxUnpacked = 1 << 40
	// freeUnpacked is how many bytes any stream may unpack to, and
	// unpackedRatio how many more for each byte of it. They bound the time:
	// zeros take no room, and bzip2 packs them a million to one.
	freeUnpacked  = 32 << 30
	unpackedRatio = 4096
	// freeData and dataRatio are the same for bytes other than zero, and bound
	// the room.
	freeData  = 1 << 30
	dataRatio = 100
	// unpackChunk is how much is unpacked between two looks at the context.
	unpackChunk = 1 << 20
)

// packing is a set of the kinds of packing that an image has come out of.
type packing uint8

const (
	compressed packing = 1 << iota
	archived
)

// openCompressed returns the opener for a compressed image.
func openCompressed(c packed.Compression) func(*Image, blockdev.Source, Policy) error {
	return func(im *Image, f blockdev.Source, p Policy) error {
		if p.inside != 0 {
			return openError(blockdev.KindUnsupported, fmt.Errorf("a %s stream within what was packed already: unpack it first", c))
		}
		file, err := p.unpack(c, f)
		if err != nil {
			return err
		}
		im.files = append(im.files, file)
		return im.openInside(file, p, compressed)
	}
}

// openTar opens the image alone in a tar archive.
func openTar(im *Image, f blockdev.Source, p Policy) error {
	if p.inside&archived != 0 {
		return openError(blockdev.KindUnsupported, errors.New("an archive within an archive: unpack it first"))
	}
	m, err := packed.Find(f, f.Size())
	if err != nil {
		return openError(kindOfStream(err), fmt.Errorf("tar: %w", err))
	}
	return im.openInside(&window{f, m.Off, m.N}, p, archived)
}

// openInside opens what was packed.
func (im *Image) openInside(f blockdev.Source, p Policy, how packing) error {
	outer := im.Format
	p.inside |= how
	p.Format, p.AllowDir = "", ""
	if err := im.open(f, p); err != nil {
		return fmt.Errorf("packed in %s: %w", outer, err)
	}
	im.Format = outer
	im.info.Packed = append([]Format{outer}, im.info.Packed...)
	return nil
}

// unpack returns a file without a name that holds what the stream in f unpacks
// to.
func (p Policy) unpack(c packed.Compression, f blockdev.Source) (*blockdev.File, error) {
	if p.Scratch == "" {
		return nil, openError(blockdev.KindUnsupported, fmt.Errorf("the image is a %s stream, and there is no directory to unpack it into: unpack it first", c))
	}
	dst, err := os.CreateTemp(p.Scratch, ".unpacking-*")
	if err != nil {
		return nil, openError(blockdev.KindOf(err), err)
	}
	err = os.Remove(dst.Name())
	if err == nil {
		u := newUnpacker(dst, f, f.Size())
		u.progress = p.Progress
		err = u.run(p.context(), c)
	}
	if err != nil {
		if blockdev.KindOf(err) == blockdev.KindNoSpace {
			err = fmt.Errorf("%w: unpacking needs more room in %s", err, p.Scratch)
		}
		return nil, errors.Join(openError(kindOfStream(err), fmt.Errorf("%s: %w", c, err)), dst.Close())
	}
	return blockdev.FileOf(dst, blockdev.ReadOnly)
}

func (p Policy) context() context.Context {
	if p.ctx == nil {
		return context.Background()
	}
	return p.ctx
}

// errLimit is wrapped by errors that tell of a limit.
var errLimit = errors.New("the limit is reached")

// kindOfStream is the Kind of an error of unpacking: what the operating system
// says, or else the stream is damaged.
func kindOfStream(err error) blockdev.Kind {
	switch {
	case errors.Is(err, errLimit), errors.Is(err, packed.ErrWindow):
		return blockdev.KindUnsupported
	case blockdev.KindOf(err) != blockdev.KindIO:
		return blockdev.KindOf(err)
	}
	if e := (*blockdev.Error)(nil); errors.As(err, &e) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return blockdev.KindIO
	}
	if e := (*os.PathError)(nil); errors.As(err, &e) {
		return blockdev.KindIO
	}
	return blockdev.KindCorrupt
}

// counter counts what is read through it.
type counter struct {
	r io.Reader
	n int64 // bytes
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// unpacker is one stream on its way to a file.
type unpacker struct {
	dst      *os.File
	in       counter // the stream
	packed   int64   // its length, bytes
	progress func(done, total int64)

	maxSize, maxData int64 // bytes, what size and data may come to
	size             int64 // unpacked so far
	data             int64 // of these, in units that are not zero
}

// newUnpacker returns an unpacker of the stream of n bytes in src.
func newUnpacker(dst *os.File, src io.ReaderAt, n int64) *unpacker {
	return &unpacker{dst: dst, in: counter{r: io.NewSectionReader(src, 0, n)}, packed: n,
		maxSize: min(maxUnpacked, freeUnpacked+unpackedRatio*min(n, maxUnpacked)),
		maxData: freeData + dataRatio*min(n, maxUnpacked)}
}

func (u *unpacker) run(ctx context.Context, c packed.Compression) error {
	z, err := packed.NewReader(c, bufio.NewReaderSize(&u.in, unpackChunk))
	if err != nil {
		return err
	}
	defer z.Close()
	buf := make([]byte, unpackChunk)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := fill(z, buf)
		if err != nil && err != io.EOF { //nolint:errorlint // the end of the stream, and not a stream that is cut, is this very value
			return err
		}
		if err := u.write(buf[:n]); err != nil {
			return err
		}
		if err != nil {
			return u.dst.Truncate(u.size) // zeros at the end are a hole as well
		}
	}
}

// fill is io.ReadFull with r's own error: that has one for the end of a stream
// and for a stream that is cut.
func fill(r io.Reader, p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var k int
		k, err = r.Read(p[n:])
		n += k
	}
	return n, err
}

// write appends b to the file but for the zeros in it.
func (u *unpacker) write(b []byte) error {
	u.size += int64(len(b))
	if u.size > u.maxSize {
		return fmt.Errorf("%w: %d bytes may unpack to %d", errLimit, u.packed, u.maxSize)
	}
	for off := u.size - int64(len(b)); len(b) > 0; {
		n, zero := streak(b, off)
		if !zero {
			u.data += int64(n)
			if u.data > u.maxData {
				return fmt.Errorf("%w: %d bytes may unpack to %d that are not zero", errLimit, u.packed, u.maxData)
			}
			if _, err := u.dst.WriteAt(b[:n], off); err != nil {
				return err
			}
		}
		b, off = b[n:], off+int64(n)
	}
	if u.progress != nil {
		u.progress(u.in.n, u.packed)
	}
	return nil
}
