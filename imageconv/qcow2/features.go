package qcow2

import (
	"bytes"
	"fmt"
	"math/bits"

	"github.com/containerdisk/containerdisk/internal/be"
)

// "Header", incompatible_features: a reader must know all that are set.
const (
	incompatDirty       = 1 << 0 // refcounts may be stale, which matters to writers
	incompatCorrupt     = 1 << 1
	incompatDataFile    = 1 << 2
	incompatCompression = 1 << 3
	incompatExtendedL2  = 1 << 4

	incompatKnown = 1<<5 - 1

	autoclearBitmaps = 1 << 0
)

// featureSet is one of the three words of feature bits.
type featureSet uint8 // as the feature name table numbers them

const (
	setIncompatible featureSet = 0
	setCompatible   featureSet = 1
	setAutoclear    featureSet = 2
)

func (s featureSet) String() string {
	switch s {
	case setIncompatible:
		return "incompatible"
	case setCompatible:
		return "compatible"
	case setAutoclear:
		return "autoclear"
	}
	return fmt.Sprintf("featureSet(%d)", uint8(s))
}

// feature is one bit of one word.
type feature struct {
	set featureSet
	bit uint8
}

// knownFeatures are the names that the specification gives.
var knownFeatures = [...]struct {
	feature
	name string
}{
	{feature{setIncompatible, 0}, "dirty bit"},
	{feature{setIncompatible, 1}, "corrupt bit"},
	{feature{setIncompatible, 2}, "external data file"},
	{feature{setIncompatible, 3}, "compression type"},
	{feature{setIncompatible, 4}, "extended L2 entries"},
	{feature{setCompatible, 0}, "lazy refcounts"},
	{feature{setAutoclear, 0}, "bitmaps"},
	{feature{setAutoclear, 1}, "raw external data"},
}

// "Header extensions".
const (
	extEnd          = 0x00000000
	extFeatureNames = 0x6803f857
	extEncryption   = 0x0537be77 // "Full disk encryption header pointer"
	extBackFormat   = 0xe2792aca // "Backing file format name string"
	extDataFile     = 0x44415441 // "External data file name string"
	extBitmaps      = 0x23852875 // "Bitmaps extension"

	extType be.U32 = 0
	extLen  be.U32 = 4
	extData        = 8

	// "Feature name table": entries of a type, a bit and a padded name.
	featureEntryLen       = 48
	featureType     be.U8 = 0
	featureBit      be.U8 = 1
	featureName           = 2
)

// extensions are the header extensions that matter to a reader.
type extensions struct {
	encrypted  bool
	names      []byte // the feature name table
	backFormat []byte
	dataFile   []byte
	bitmaps    []byte
}

// parseExtensions reads the header extensions up to the end of b.
func parseExtensions(b rawHeader) (extensions, error) {
	var x extensions
	end := len(b)
	if back := hdrBackingOffset.Get(b); back != 0 && back < uint64(end) {
		end = int(back) // the name stands behind the extensions
	}
	for at := int(b.length()); at+extData <= end; {
		typ, n := extType.Get(b[at:]), extLen.Get(b[at:])
		if typ == extEnd {
			break
		}
		at += extData
		if uint64(n) > uint64(end-at) {
			return x, corrupt("header extension %#08x of %d bytes, %d are left", typ, n, end-at)
		}
		switch typ {
		case extFeatureNames:
			x.names = b[at:][:n]
		case extEncryption:
			x.encrypted = true
		case extBackFormat:
			x.backFormat = b[at:][:n]
		case extDataFile:
			x.dataFile = b[at:][:n]
		case extBitmaps:
			x.bitmaps = b[at:][:n]
		}
		at += int(n+7) &^ 7
	}
	return x, nil
}

// name is what the feature is called, by the specification or by the image.
func (x extensions) name(f feature) string {
	for _, known := range knownFeatures {
		if known.feature == f {
			return known.name
		}
	}
	for t := x.names; len(t) >= featureEntryLen; t = t[featureEntryLen:] {
		if featureSet(featureType.Get(t)) == f.set && featureBit.Get(t) == f.bit {
			name, _, _ := bytes.Cut(t[featureName:featureEntryLen], []byte{0})
			return fmt.Sprintf("%q (%s bit %d)", name, f.set, f.bit)
		}
	}
	return fmt.Sprintf("%s bit %d", f.set, f.bit)
}

// featureNames names all bits that are set.
func featureNames(b rawHeader, x extensions) []string {
	var names []string
	if !b.v3() {
		return names
	}
	for set, word := range []uint64{hdrIncompatible.Get(b), hdrCompatible.Get(b), hdrAutoclear.Get(b)} {
		for ; word != 0; word &= word - 1 {
			names = append(names, x.name(feature{featureSet(set), uint8(bits.TrailingZeros64(word))}))
		}
	}
	return names
}

const flatten = "make a plain image first: qemu-img convert -O qcow2 OLD NEW"

// checkFeatures refuses what the image needs and we do not have.
func checkFeatures(b rawHeader, x extensions) error {
	set := b.incompatible()
	if unknown := set &^ incompatKnown; unknown != 0 {
		return unsupported("the image needs the unknown feature %s: %s",
			x.name(feature{setIncompatible, uint8(bits.TrailingZeros64(unknown))}), flatten)
	}
	switch c := b.compression(); {
	case set&incompatCorrupt != 0:
		return corrupt("the image is marked as corrupt: repair it first (qemu-img check -r all IMAGE)")
	case hdrCryptMethod.Get(b) != 0 || x.encrypted:
		return unsupported("the image is encrypted (%s): decrypt it into a new image with qemu-img convert", cryptName(hdrCryptMethod.Get(b)))
	case c > Zstd:
		return unsupported("compression type %d is not known: %s", uint8(c), flatten)
	case (c == Zlib) != (set&incompatCompression == 0):
		return corrupt("compression %s contradicts the compression type bit", c)
	case set&incompatExtendedL2 != 0 && hdrClusterBits.Get(b) < minExtendedBits:
		return corrupt("extended L2 entries with clusters of %d bytes", 1<<hdrClusterBits.Get(b))
	}
	return nil
}

func cryptName(method uint32) string {
	switch method {
	case 1:
		return "AES"
	case 0, 2: // 0: only the extension says so
		return "LUKS"
	}
	return fmt.Sprintf("method %d", method)
}
