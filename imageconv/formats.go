package imageconv

import (
	"fmt"
	"iter"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/packed"
	"github.com/containerdisk/containerdisk/imageconv/qcow2"
	"github.com/containerdisk/containerdisk/imageconv/qed"
	"github.com/containerdisk/containerdisk/imageconv/vdi"
)

// Format is a disk image format, by the name that QEMU has for it if it has one.
type Format string

const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
	VDI   Format = "vdi"
	QED   Format = "qed"
	VMDK  Format = "vmdk"
	VHD   Format = "vhd" // QEMU: vpc
	VHDX  Format = "vhdx"
	ISO   Format = "iso" // QEMU: raw

	// What images are packed in.
	Gzip  Format = "gzip"
	Bzip2 Format = "bzip2"
	XZ    Format = "xz"
	Zstd  Format = "zstd"
	Tar   Format = "tar"
)

// row is what there is to know about a format. A format that we do not know at
// all is taken for a raw disk: served as one it would be garbage to the guest,
// which might then write to it. So formats that cannot be read are rows too.
type row struct {
	format Format
	probe  probe
	open   func(im *Image, f blockdev.Source, p Policy) error // nil: cannot be read
	use    use
}

// use is how long the image's file is needed.
type use uint8

const (
	// populate: everything is copied before the file may be let go, and the
	// disk is never served from it alone.
	populate use = iota
	// live: a disk may be served from the file for as long as anybody likes.
	live
	// disc: as live, and it is never written to.
	disc
	// wrapper: as populate; what is inside has a format of its own.
	wrapper
)

// formats is the table of all formats but raw, which shows nothing. It is a
// function because opening a packed image looks into it again.
func formats() []row {
	return []row{
		{QCOW2, anyOf(at(0, "QFI\xfb\x00\x00\x00\x02"), at(0, "QFI\xfb\x00\x00\x00\x03")), openQCOW2, live},
		{"qcow (version 1)", at(0, "QFI\xfb\x00\x00\x00\x01"), nil, populate},
		{QED, at(0, "QED\x00"), openQED, populate},
		{VMDK, isVMDK, openVMDK, populate},
		{VHD, anyOf(at(0, "conectix"), fromEnd(512, "conectix"), fromEnd(511, "conectix")), openVHD, populate}, // 511: as Virtual PC wrote it before 2004
		{VHDX, at(0, "vhdxfile"), openVHDX, populate},
		{ISO, isISO, openRaw, disc},
		{VDI, at(64, "\x7f\x10\xda\xbe"), openVDI, populate},
		{"parallels", anyOf(at(0, "WithoutFreeSpace"), at(0, "WithouFreSpacExt")), nil, populate},
		{"bochs", at(0, "Bochs Virtual HD Image"), nil, populate},
		{"dmg", fromEnd(512, "koly\x00\x00\x00\x04"), nil, populate},
		{"luks", at(0, "LUKS\xba\xbe"), nil, populate},
		{Gzip, at(0, "\x1f\x8b\x08"), openCompressed(packed.Gzip), wrapper},
		{Bzip2, at(0, "BZh"), openCompressed(packed.Bzip2), wrapper},
		{XZ, at(0, "\xfd7zXZ\x00"), openCompressed(packed.XZ), wrapper},
		{Zstd, at(0, "\x28\xb5\x2f\xfd"), openCompressed(packed.Zstd), wrapper},
		{"lz4", at(0, "\x04\x22\x4d\x18"), nil, populate},
		{"zip", at(0, "PK\x03\x04"), nil, populate},
		{"7z", at(0, "7z\xbc\xaf\x27\x1c"), nil, populate},
		{Tar, at(257, "ustar"), openTar, wrapper},
	}
}

// readable yields the formats that Open can read.
func readable() iter.Seq[row] {
	return func(yield func(row) bool) {
		if !yield(row{format: Raw, open: openRaw, use: live}) {
			return
		}
		for _, r := range formats() {
			if r.open != nil && !yield(r) {
				return
			}
		}
	}
}

// Readable reports whether Open can read images of the format.
func (f Format) Readable() bool {
	_, err := f.row()
	return err == nil
}

// Live reports whether a disk may be served from an image of the format for as
// long as anybody likes. Others are only for population: all of the image is
// copied before its file may be let go.
func (f Format) Live() bool {
	r, err := f.row()
	return err == nil && (r.use == live || r.use == disc)
}

// ReadOnly reports whether images of the format are discs, which nobody can
// write to, and not disks.
func (f Format) ReadOnly() bool {
	r, err := f.row()
	return err == nil && r.use == disc
}

func (f Format) row() (row, error) {
	for r := range readable() {
		if r.format == f {
			return r, nil
		}
	}
	return row{}, openError(blockdev.KindUnsupported, fmt.Errorf("unknown image format %q", f))
}

func openRaw(im *Image, f blockdev.Source, _ Policy) error {
	im.Source = f
	return nil
}

func openQCOW2(im *Image, f blockdev.Source, p Policy) error {
	o := qcow2.Options{MaxSize: p.maxSize(), Snapshot: p.Snapshot, Below: p.chain.below()}
	r, err := qcow2.Open(f, f.Size(), im.named(p, o))
	if err != nil {
		return err
	}
	h := r.Header()
	im.Source, im.qcow2 = r, r
	im.info.Version = h.Version
	im.info.ClusterSize = h.ClusterSize()
	im.info.Compression = h.Compression.String()
	im.info.Features = h.Features
	im.info.Snapshots = h.Snapshots
	if h.Backing != nil {
		im.info.BackingFile, im.info.BackingFormat = h.Backing.Name, h.Backing.Format
	}
	if h.DataFile != nil {
		im.info.DataFile = h.DataFile.Name
	}
	return nil
}

func openVDI(im *Image, f blockdev.Source, p Policy) error {
	r, err := vdi.Open(f, f.Size(), vdi.Options{MaxSize: p.maxSize()})
	if err != nil {
		return err
	}
	im.Source = r
	im.info.ClusterSize = r.Header().BlockSize
	im.info.Features = []string{r.Header().Type.String()}
	return nil
}

func openQED(im *Image, f blockdev.Source, p Policy) error {
	r, err := qed.Open(f, f.Size(), qed.Options{MaxSize: p.maxSize()})
	if err != nil {
		return err
	}
	im.Source = r
	im.info.ClusterSize = r.Header().ClusterSize
	if r.Header().NeedCheck {
		im.info.Features = []string{"need check"}
	}
	return nil
}
