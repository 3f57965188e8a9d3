package overlay

import (
	"errors"
	"fmt"

	"github.com/containerdisk/containerdisk/internal/be"
)

// Header names what a map belongs to. A map that is opened again must say the
// same in every field, or else it is another disk's: see Map.Match.
type Header struct {
	Base        string // identity of the image, as the caller tells it: one printable string
	Format      string // of the image as it was found when the map was made; never probed again
	BaseSize    int64  // bytes: of the disk in the image
	Size        int64  // bytes: of the disk; beyond BaseSize are zeros
	ClusterSize int    // bytes, a power of two
}

// The header's page.
const (
	hdMagic       be.U64 = 0
	hdVersion     be.U32 = 8
	hdClusterSize be.U32 = 12
	hdMap                = 16 // 16 bytes: the map's ID
	hdSeq         be.U64 = 32
	hdBaseSize    be.U64 = 40
	hdSize        be.U64 = 48
	hdStrings            = 56 // base, format, epoch: 2 bytes of length, then the text
)

const (
	headerMagic   = 0x4344_636c_7573_7472 // "CDclustr"
	headerVersion = 1
)

// fileHeader is what the header's page holds.
type fileHeader struct {
	Header
	id    mapID
	seq   uint64
	epoch string // in which the states are true; "": in none
}

// encode makes the page in p, or fails when the texts are too long for it.
func (h fileHeader) encode(p []byte) error {
	clear(p)
	hdMagic.Put(p, headerMagic)
	hdVersion.Put(p, headerVersion)
	hdClusterSize.Put(p, uint32(h.ClusterSize))
	copy(p[hdMap:], h.id[:])
	hdSeq.Put(p, h.seq)
	hdBaseSize.Put(p, uint64(h.BaseSize))
	hdSize.Put(p, uint64(h.Size))
	at := hdStrings
	for _, s := range []string{h.Base, h.Format, h.epoch} {
		if len(s) > int(pageCRC)-at-2 {
			return fmt.Errorf("the identity of the base and the names beside it are too long for a cluster map: %d bytes and more, there is room for %d",
				at-hdStrings+2+len(s), int(pageCRC)-hdStrings)
		}
		be.U16(at).Put(p, uint16(len(s)))
		at += 2 + copy(p[at+2:], s)
	}
	seal(p)
	return nil
}

var (
	errNoMap    = errors.New("it does not begin as a cluster map does")
	errChecksum = errors.New("the checksum is wrong")
)

func decodeHeader(p []byte) (h fileHeader, err error) {
	switch {
	case hdMagic.Get(p) != headerMagic:
		return h, errNoMap
	case !sealed(p):
		return h, errChecksum
	case hdVersion.Get(p) != headerVersion:
		return h, &versionError{hdVersion.Get(p)}
	}
	h.ClusterSize = int(hdClusterSize.Get(p))
	h.id = mapID(p[hdMap:hdSeq])
	h.seq = hdSeq.Get(p)
	h.BaseSize = int64(hdBaseSize.Get(p))
	h.Size = int64(hdSize.Get(p))
	at := hdStrings
	for _, s := range []*string{&h.Base, &h.Format, &h.epoch} {
		if at+2 > int(pageCRC) {
			return h, errChecksum
		}
		n := int(be.U16(at).Get(p))
		if at += 2; n > int(pageCRC)-at {
			return h, errChecksum
		}
		*s = string(p[at : at+n])
		at += n
	}
	return h, nil
}

type versionError struct{ got uint32 }

func (e *versionError) Error() string {
	return fmt.Sprintf("the cluster map has version %d and this program knows version %d: use the program that made it", e.got, headerVersion)
}
