package imageconv

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// place is a file of size bytes with s at off.
func place(size, off int, s string) []byte {
	b := make([]byte, size)
	copy(b[off:], s)
	return b
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

const qcow2v3 = "QFI\xfb\x00\x00\x00\x03"

// detected is a file and what Detect makes of it.
type detected struct {
	name string
	file []byte
	want Format // or, where it is "":
	err  string
}

func detections() []detected {
	return []detected{
		{"qcow2 v2", place(1024, 0, "QFI\xfb\x00\x00\x00\x02"), QCOW2, ""},
		{"qcow2 v3", place(1024, 0, qcow2v3), QCOW2, ""},
		{"only the magic", []byte(qcow2v3), QCOW2, ""},
		{"qcow of 2006", place(1024, 0, "QFI\xfb\x00\x00\x00\x01"), "", "qcow (version 1)"},
		{"empty", nil, Raw, ""},
		{"one byte", []byte{0x1f}, Raw, ""},
		{"zeros", make([]byte, 4096), Raw, ""},
		{"boot sector", place(4096, 510, "\x55\xaa"), Raw, ""},
		{"ISO 9660", place(40960, 0x8001, "CD001"), ISO, ""},
		{"ISO 9660, cut", place(0x8001+4, 0x8001, "CD00"), Raw, ""},
		{"ISO 9660, hybrid", join(place(512, 510, "\x55\xaa"), place(512, 0, "EFI PART"), place(40960-1024, 0x8001-1024, "CD001")), ISO, ""},
		{"UDF", join(place(0x8801, 0x8001, "BEA01"), place(40960-0x8801, 0, "NSR03")), ISO, ""},
		{"UDF, none follows", place(40960, 0x8001, "BEA01"), Raw, ""},
		{"ISO 9660 and qcow2", join(place(0x8001, 0, qcow2v3), place(4096, 0, "CD001")), "", "several formats (qcow2, iso)"},
		{"ISO 9660 and vhd", join(place(40960, 0x8001, "CD001"), place(512, 0, "conectix")), "", "several formats (vhd, iso)"},
		{"magic elsewhere", place(4096, 512, qcow2v3), Raw, ""},
		{"qed", place(1024, 0, "QED\x00"), QED, ""},
		{"vmdk sparse", place(1024, 0, "KDMV"), VMDK, ""},
		{"vmdk ESX", place(1024, 0, "COWD"), VMDK, ""},
		{"vmdk descriptor", place(1024, 0, "# Disk DescriptorFile\n"), VMDK, ""},
		{"vmdk descriptor to QEMU", []byte("# anything\n \r\nversion=1\r\nCID=0\n"), VMDK, ""},
		{"text", []byte("# anything\nversion=4\n"), Raw, ""},
		{"vhd dynamic", place(2048, 0, "conectix"), VHD, ""},
		{"vhd fixed", place(1024+512, 1024, "conectix"), VHD, ""},
		{"vhd fixed, odd footer", place(1024+511, 1024, "conectix"), VHD, ""},
		{"vhd, both ends", append(place(1024, 0, "conectix"), place(512, 0, "conectix")...), VHD, ""},
		{"vhdx", place(1024, 0, "vhdxfile"), VHDX, ""},
		{"vdi", place(1024, 64, "\x7f\x10\xda\xbe"), VDI, ""},
		{"luks", place(1024, 0, "LUKS\xba\xbe\x00\x02"), "", "luks"},
		{"gzip", place(100, 0, "\x1f\x8b\x08"), Gzip, ""},
		{"bzip2", place(100, 0, "BZh9"), Bzip2, ""},
		{"xz", place(100, 0, "\xfd7zXZ\x00"), XZ, ""},
		{"zstd", place(100, 0, "\x28\xb5\x2f\xfd"), Zstd, ""},
		{"lz4", place(100, 0, "\x04\x22\x4d\x18"), "", "lz4"},
		{"zip", place(100, 0, "PK\x03\x04"), "", "zip"},
		{"7z", place(100, 0, "7z\xbc\xaf\x27\x1c"), "", "7z"},
		{"tar", place(1024, 257, "ustar\x0000"), Tar, ""},
		{"parallels", place(1024, 0, "WithouFreSpacExt"), "", "parallels"},
		{"bochs", place(1024, 0, "Bochs Virtual HD Image"), "", "bochs"},
		{"dmg", place(1024, 512, "koly\x00\x00\x00\x04"), "", "dmg"},
		{"qcow2 and vhd", append(place(1024, 0, qcow2v3), place(512, 0, "conectix")...), "", "several formats (qcow2, vhd)"},
		{"gzip and tar", append([]byte("\x1f\x8b\x08"), place(1024, 254, "ustar")...), "", "several formats (gzip, tar)"},
	}
}

func TestDetect(t *testing.T) {
	for _, x := range detections() {
		t.Run(x.name, func(t *testing.T) {
			got, err := Detect(bytes.NewReader(x.file), int64(len(x.file)))
			if got != x.want {
				t.Errorf("got %q (%v), want %q", got, err, x.want)
			}
			if x.err == "" && err == nil {
				return
			}
			if e := (*blockdev.Error)(nil); !errors.As(err, &e) || e.Kind != blockdev.KindUnsupported || x.err == "" || !strings.Contains(err.Error(), x.err) {
				t.Errorf("got error %v, want not supported: … %s …", err, x.err)
			}
		})
	}
}

// TestDetectShortFile: a file that is shorter than its size is no raw disk.
func TestDetectShortFile(t *testing.T) {
	if got, err := Detect(bytes.NewReader(make([]byte, 100)), 4096); err == nil {
		t.Errorf("got %q, want an error", got)
	}
}

// TestFormats: each format is one row, and only raw, qcow2 and discs are ever
// served from their file.
func TestFormats(t *testing.T) {
	seen := map[Format]bool{}
	for r := range readable() {
		if seen[r.format] || r.open == nil || !r.format.Readable() {
			t.Errorf("%q stands twice or cannot be opened", r.format)
		}
		if want := r.format == ISO; r.format.ReadOnly() != want {
			t.Errorf("%q: read-only is %v, want %v", r.format, r.format.ReadOnly(), want)
		}
		seen[r.format] = true
		if want := r.format == Raw || r.format == QCOW2 || r.format == ISO; r.format.Live() != want {
			t.Errorf("%q: live is %v, want %v", r.format, r.format.Live(), want)
		}
	}
	for _, r := range formats() {
		if r.open == nil && (seen[r.format] || r.format.Readable() || r.format.Live()) {
			t.Errorf("%q stands twice or is readable", r.format)
		}
	}
	if !seen[Raw] || !seen[QCOW2] || Format("").Readable() {
		t.Error("raw and qcow2 are readable, and nothing without a name is")
	}
}

// FuzzDetect wants an error or one of the formats, by content alone: what shows
// qcow2's signature is never a raw disk.
func FuzzDetect(f *testing.F) {
	for _, x := range detections() {
		f.Add(x.file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := Detect(bytes.NewReader(file), int64(len(file)))
		switch {
		case err != nil && got != "":
			t.Errorf("got %q and error %v", got, err)
		case err == nil && !got.Readable():
			t.Errorf("got %q, which cannot be read", got)
		case got == Raw && bytes.HasPrefix(file, []byte("QFI\xfb\x00\x00\x00\x03")):
			t.Error("a qcow2 image is taken for a raw disk")
		}
	})
}
