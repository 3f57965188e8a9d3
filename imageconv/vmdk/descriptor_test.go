package vmdk

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// descriptorCase is a descriptor and what must come of it.
type descriptorCase struct {
	name, text string
	reject     string // "": it is read
}

const goodExtent = `RW 8 FLAT "x-flat.vmdk" 0`

// descriptors are those of a disk of one flat extent of 8 sectors, with what is
// to be said in its header, or of its extents.
func descriptors() []descriptorCase {
	flat := func(lines ...string) string { return describe("monolithicFlat", lines...) }
	head := func(lines string) string { return "# Disk DescriptorFile\n" + lines + "\n" + goodExtent + "\n" }
	return []descriptorCase{
		{"plain", flat(goodExtent), ""},
		{"with carriage returns", strings.ReplaceAll(flat(goodExtent), "\n", "\r\n"), ""},
		{"padded", flat(goodExtent) + strings.Repeat("\x00", 100) + "RW 8 FLAT \"/etc/passwd\" 0\n", ""},
		{"no line end", strings.TrimRight(flat("", goodExtent), "\n"), ""},
		{"spaces", flat("encoding = \"UTF-8\"", "  RW  8\tFLAT  \"x-flat.vmdk\"  0 "), ""},
		{"as ESXi", describe("vmfs", "isNativeSnapshot=\"no\"", "changeTrackPath=\"x-ctk.vmdk\"", `RW 8 VMFS "x-flat.vmdk"`), ""},
		{"as QEMU sees it", strings.TrimPrefix(flat(goodExtent), "# Disk DescriptorFile\n"), ""},
		{"a # in a name", flat(`RW 8 FLAT "x-flat.vmdk" 0`, "#RW 8 FLAT \"/etc/passwd\" 0"), ""},

		{"path", flat(`RW 8 FLAT "/etc/passwd" 0`), "no plain name"}, // CVE-2022-47951
		{"path below", flat(`RW 8 FLAT "dir/x-flat.vmdk" 0`), "no plain name"},
		{"path above", flat(`RW 8 FLAT "../x-flat.vmdk" 0`), "no plain name"},
		{"parent directory", flat(`RW 8 FLAT ".." 0`), "no plain name"},
		{"Windows path", flat(`RW 8 FLAT "C:\x-flat.vmdk" 0`), "no plain name"},
		{"no name", flat(`RW 8 FLAT "" 0`), "no plain name"},
		{"long name", flat(`RW 8 FLAT "` + strings.Repeat("x", 256) + `" 0`), "no plain name"},
		{"name not quoted", flat(`RW 8 FLAT x-flat.vmdk 0`), "unknown line"},
		{"name not ended", flat(`RW 8 FLAT "x-flat.vmdk 0`), "unknown line"},
		{"a second extent with a path", flat(goodExtent, `RW 8 FLAT "/etc/passwd" 0`), "no plain name"},
		{"path in a line that QEMU finds", flat(goodExtent, `  RW 8 FLAT "/etc/passwd" 0`), "no plain name"},

		{"read-only extent", flat(`RDONLY 8 FLAT "x-flat.vmdk" 0`), "access"},
		{"extent without access", flat(goodExtent, `NOACCESS 8 FLAT "x-flat.vmdk" 0`), "access"},
		{"zero extent", flat(goodExtent, "RW 8 ZERO"), "unknown line"}, // which QEMU would leave out
		{"raw device", flat(`RW 8 VMFSRAW "x-rdm.vmdk"`), `type "VMFSRAW"`},
		{"raw device map", flat(`RW 8 VMFSRDM "x-rdm.vmdk"`), `type "VMFSRDM"`},
		{"ESX sparse", flat(`RW 8 VMFSSPARSE "x-delta.vmdk"`), `type "VMFSSPARSE"`},
		{"ESXi sparse", flat(`RW 8 SESPARSE "x-sesparse.vmdk"`), `type "SESPARSE"`},
		{"no offset", flat(`RW 8 FLAT "x-flat.vmdk"`), "at sector"},
		{"negative offset", flat(`RW 8 FLAT "x-flat.vmdk" -1`), "at sector"},
		{"offset that overflows", flat(`RW 8 FLAT "x-flat.vmdk" 18014398509481983`), "at sector"},
		{"offset and more", flat(`RW 8 FLAT "x-flat.vmdk" 0 8`), "at sector"},
		{"offset of a sparse extent", describe("twoGbMaxExtentSparse", `RW 8 SPARSE "x-s001.vmdk" 0`), "behind an extent"},
		{"no sectors", flat(`RW 0 FLAT "x-flat.vmdk" 0`), `"0" sectors`},
		{"negative sectors", flat(`RW -8 FLAT "x-flat.vmdk" 0`), `"-8" sectors`},
		{"sectors that overflow", flat(`RW 18014398509481984 FLAT "x-flat.vmdk" 0`), "sectors"},
		{"sum that overflows", flat(`RW 18014398509481983 FLAT "x-flat.vmdk" 0`, `RW 18014398509481983 FLAT "x-flat.vmdk" 0`), "the limit is"},
		{"outside the file", flat(`RW 9 FLAT "x-flat.vmdk" 0`), "not within the file"},
		{"offset outside the file", flat(`RW 1 FLAT "x-flat.vmdk" 8`), "not within the file"},
		{"too many extents", flat(strings.Repeat("RW 1 FLAT \"x-flat.vmdk\" 0\n", maxExtents+1)), "more than 1024 extents"},
		{"no extent", flat(), "no extent"},
		{"extent of another type", flat(`RW 8 VMFS "x-flat.vmdk"`), "must be FLAT"},
		{"missing file", flat(`RW 8 FLAT "y-flat.vmdk" 0`), `the extent "y-flat.vmdk"`},
		{"sparse extent that is none", describe("twoGbMaxExtentSparse", `RW 8 SPARSE "x-flat.vmdk"`), "not a sparse extent"},
		{"monolithic in a second file", describe("monolithicSparse", `RW 8 SPARSE "x-s001.vmdk"`), "in several files"},

		{"parent", head("version=1\nCID=1\nparentCID=12345678\ncreateType=\"monolithicFlat\""), "parentCID 12345678"},
		{"parent's name", flat(`parentFileNameHint="/etc/passwd"`, goodExtent), "differs from another"}, // QEMU opens it whatever parentCID says
		{"unknown type", describe("custom", goodExtent), `type "custom"`},
		{"full device", describe("fullDevice", `RW 8 FLAT "/dev/sda" 0`), `type "fullDevice"`},
		{"unknown setting", flat("volume=\"x\"", goodExtent), `unknown setting "volume"`},
		{"unknown line", flat("hello", goodExtent), "unknown line"},
		{"a type twice", flat("createType=\"vmfs\"", goodExtent), "a second time"},
		{"version 4", head("version=4\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\""), `version "4"`},
		{"no version", head("CID=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\""), "no version"},
		{"no CID", head("version=1\nparentCID=ffffffff\ncreateType=\"monolithicFlat\""), "no CID"},
		{"no parentCID", head("version=1\nCID=1\ncreateType=\"monolithicFlat\""), "no parentCID"},
		{"no type", head("version=1\nCID=1\nparentCID=ffffffff"), "no createType"},
		{"CID that is none", head("version=1\nCID=xyz\nparentCID=ffffffff"), `CID "xyz"`},
		{"parentCID that is none", head("version=1\nCID=1\nparentCID=fffffffff"), "parentCID"},
		{"large", flat(goodExtent) + strings.Repeat("# comment\n", 110_000), "the limit is 1048575"},
	}
}

func TestDescriptors(t *testing.T) {
	for _, x := range descriptors() {
		t.Run(x.name, func(t *testing.T) {
			r, err := openNamed(t, x.text, map[string][]byte{"x-flat.vmdk": pattern(8*sectorSize, sectorSize)})
			switch {
			case x.reject == "" && err != nil:
				t.Fatal(err)
			case x.reject == "":
				imagetest.CheckDisk(t, r, pattern(8*sectorSize, sectorSize), []blockdev.Extent{{Len: 8 * sectorSize}})
			case x.name == "missing file":
				if err == nil || !strings.Contains(err.Error(), x.reject) {
					t.Errorf("got %v", err)
				}
			default:
				imagetest.CheckError(t, err, x.reject)
			}
		})
	}
}

// TestEmbeddedDescriptor: what an image in one file may say. Nothing that it
// names is opened.
func TestEmbeddedDescriptor(t *testing.T) {
	disk := pattern(5*4096, 4096)
	for _, x := range []descriptorCase{
		{"plain", describe("monolithicSparse", `RW 40 SPARSE "x.vmdk"`), ""},
		{"another kind of single file", describe("streamOptimized", `RW 40 SPARSE "x.vmdk"`), ""},
		{"VirtualBox rounds up", describe("monolithicSparse", `RW 33 SPARSE "x.vmdk"`), ""},
		{"a grain less", describe("monolithicSparse", `RW 32 SPARSE "x.vmdk"`), "the header 20480"},
		{"more", describe("monolithicSparse", `RW 41 SPARSE "x.vmdk"`), "the header 20480"},
		{"two extents", describe("monolithicSparse", `RW 20 SPARSE "x.vmdk"`, `RW 20 SPARSE "y.vmdk"`), "2 extents"},
		{"several files", describe("twoGbMaxExtentSparse", `RW 40 SPARSE "x.vmdk"`), "in a single file"},
		{"flat", describe("monolithicFlat", `RW 40 FLAT "/etc/passwd" 0`), "no plain name"},
		{"path", describe("monolithicSparse", `RW 40 SPARSE "/etc/passwd"`), "no plain name"},
		{"parent", strings.Replace(describe("monolithicSparse", `RW 40 SPARSE "x.vmdk"`), "ffffffff", "fffffffe", 1), "parentCID fffffffe"},
	} {
		t.Run(x.name, func(t *testing.T) {
			r, err := openNamed(t, string(build(t, disk, 4096, false, x.text)), nil)
			if x.reject != "" {
				imagetest.CheckError(t, err, x.reject)
			} else if err != nil || r.Size() != int64(len(disk)) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestNotAllowed: where the caller opens nothing, an image in several files is
// refused, with the name.
func TestNotAllowed(t *testing.T) {
	_, err := open([]byte(describe("monolithicFlat", goodExtent)))
	imagetest.CheckError(t, err, `("x-flat.vmdk"), which are not allowed`)
}

func TestHeader(t *testing.T) {
	disk := pattern(16*4096, 4096)
	unclean := build(t, disk, 4096, false, "")
	unclean[hdrUnclean] = 1
	r, err := openNamed(t, describe("twoGbMaxExtentSparse", `RW 128 SPARSE "a"`, `RW 128 SPARSE "b"`),
		map[string][]byte{"a": unclean, "b": build(t, disk, 8192, true, "")})
	if err != nil {
		t.Fatal(err)
	}
	want := Header{CreateType: "twoGbMaxExtentSparse", Version: 3, Size: 32 * 4096, GrainSize: 8192, Compressed: true, Unclean: true, Extents: 2}
	if got := r.Header(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestIsDescriptor(t *testing.T) {
	for text, want := range map[string]bool{
		"# Disk DescriptorFile":           true,
		"version=1\n":                     true,
		"#\n\n \r\nversion=3\r\nanything": true,
		"version=1":                       false,
		"version=0\n":                     false,
		"# a comment\n":                   false,
		"#!/bin/sh\necho\nversion=1\n":    false,
		"":                                false,
		"# " + strings.Repeat("x", 600) + "\nversion=1\n":    false,
		strings.Repeat("# comment\n", 50) + "version=2\n":    true,
		strings.Repeat("# comment\n", 51) + "version=2\n":    false,
		strings.Repeat("\x00", 512):                          false,
		"\xeb\x63\x90version=1\n" + strings.Repeat("x", 500): false,
	} {
		if got := IsDescriptor([]byte(text)); got != want {
			t.Errorf("%.40q: got %v, want %v", text, got, want)
		}
	}
}

// FuzzDescriptor wants of any text an error, or a disk of sound numbers whose
// extents are files by plain names.
func FuzzDescriptor(f *testing.F) {
	for _, x := range descriptors() {
		if len(x.text) < 4096 {
			f.Add([]byte(x.text))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parseDescriptor(text)
		if err != nil {
			imagetest.WantError(t, err)
			if len(err.Error()) > 2000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if len(d.extents) == 0 || len(d.extents) > maxExtents || d.size() <= 0 {
			t.Fatalf("%d extents, %d bytes", len(d.extents), d.size())
		}
		for _, e := range d.extents {
			if e.name != filepath.Base(e.name) || !filepath.IsLocal(e.name) || !strings.Contains(string(text), fmt.Sprintf(`"%s"`, e.name)) {
				t.Errorf("the file %q", e.name)
			}
			if e.sectors <= 0 || e.offset < 0 || e.sectors > maxSectors || e.offset > maxSectors-e.sectors || e.kind != createTypes[d.createType] {
				t.Errorf("the extent %+v", e)
			}
		}
	})
}
