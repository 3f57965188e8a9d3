package qcow2

import (
	"bytes"
	"errors"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/zstd"
)

// deflateWindow is how far back a match may reach in a zlib cluster, bytes:
// QEMU decompresses with a window of 12 bits.
const deflateWindow = 1 << 12

// packer compresses clusters, for one goroutine.
type packer struct {
	zstd  *zstd.Encoder // or
	flate *flate.Writer
	out   bytes.Buffer // of flate
}

func newPacker(c Compression) (*packer, error) {
	p := new(packer)
	var err error
	if c == Zstd {
		p.zstd, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
		return p, err
	}
	p.flate, err = flate.NewWriterWindow(&p.out, deflateWindow)
	return p, err
}

// pack appends the compressed cluster to out.
func (p *packer) pack(out, cluster []byte) ([]byte, error) {
	if p.zstd != nil {
		return p.zstd.EncodeAll(cluster, out), nil
	}
	p.out.Reset()
	p.flate.Reset(&p.out)
	_, err := p.flate.Write(cluster)
	if err = errors.Join(err, p.flate.Close()); err != nil {
		return out, err
	}
	return append(out, p.out.Bytes()...), nil
}

var zeroPage [4096]byte

// isZero reports whether all of b is zero.
func isZero(b []byte) bool {
	for ; len(b) > len(zeroPage); b = b[len(zeroPage):] {
		if !bytes.Equal(b[:len(zeroPage)], zeroPage[:]) {
			return false
		}
	}
	return bytes.Equal(b, zeroPage[:len(b)])
}
