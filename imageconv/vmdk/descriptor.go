package vmdk

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// "The Descriptor File". It is text that names files, and programs differ in
// what they make of it: QEMU looks for words anywhere, opens a parent that is
// only hinted at and leaves out lines that it does not know. So every line must
// be known here, and say what all programs take it for.

// createTypes are the kinds of disks that can be read, each with the one type
// of extent that it has.
var createTypes = map[string]string{
	"monolithicSparse":     extentSparse,
	"streamOptimized":      extentSparse,
	"twoGbMaxExtentSparse": extentSparse,
	"monolithicFlat":       extentFlat,
	"twoGbMaxExtentFlat":   extentFlat,
	"vmfs":                 extentVMFS,
}

const (
	extentSparse = "SPARSE"
	extentFlat   = "FLAT"
	extentVMFS   = "VMFS" // flat, and from the beginning of its file

	accessRW = "RW"
	noParent = 0xffffffff // parentCID

	maxExtents    = 1024 // a disk of 2 TiB, the format's largest, in files of 2 GiB
	maxName       = 255  // of a file, bytes
	maxSectors    = (1<<63 - 1) / sectorSize
	maxVersionKey = 3
)

// descriptor is what a descriptor says of the disk.
type descriptor struct {
	createType string
	extents    []extent
}

// extent is a line of the descriptor: a part of the disk and its file.
type extent struct {
	sectors int64
	kind    string // extentSparse, extentFlat, extentVMFS
	name    string // of the file: a plain name, without a directory
	offset  int64  // flat: in the file, sectors
}

// magicLine begins every descriptor that VMware wrote.
const magicLine = "# Disk DescriptorFile"

// IsDescriptor reports whether a file that begins with head is a descriptor, to
// us, to VMware or to QEMU: which takes every text for one whose first line,
// apart from comments and blank ones, is the version.
func IsDescriptor(head []byte) bool {
	if bytes.HasPrefix(head, []byte(magicLine)) {
		return true
	}
	const probed = 512 // bytes, by QEMU
	for line := range bytes.Lines(head[:min(len(head), probed)]) {
		text := string(bytes.Trim(line, " \r\n"))
		switch {
		case text == "" || text[0] == '#':
		case !bytes.HasSuffix(line, []byte("\n")):
			return false
		default:
			return text == "version=1" || text == "version=2" || text == "version=3"
		}
	}
	return false
}

// descriptorParser takes the lines of a descriptor one by one.
type descriptorParser struct {
	descriptor
	seen []string // keys of the header
}

// parseDescriptor reads a descriptor, which ends at its first NUL byte.
func parseDescriptor(text []byte) (descriptor, error) {
	text, _, _ = bytes.Cut(text, []byte{0})
	var p descriptorParser
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if err := p.line(strings.Trim(line, " \t\r\n")); err != nil {
			return descriptor{}, fmt.Errorf("line %d of the descriptor: %w", number, err)
		}
	}
	for _, key := range []string{"version", "CID", "parentCID", "createType"} {
		if !slices.Contains(p.seen, key) {
			return descriptor{}, corrupt("the descriptor has no %s", key)
		}
	}
	if len(p.extents) == 0 {
		return descriptor{}, corrupt("the descriptor has no extent")
	}
	for _, e := range p.extents {
		if want := createTypes[p.createType]; e.kind != want {
			return descriptor{}, corrupt("an extent of type %s in a disk of type %s, must be %s", e.kind, p.createType, want)
		}
	}
	return p.descriptor, nil
}

func (p *descriptorParser) line(line string) error {
	key, value, assignment := strings.Cut(line, "=")
	key, value = strings.TrimRight(key, " \t"), strings.TrimLeft(value, " \t")
	switch {
	case line == "", line[0] == '#':
		return nil
	case assignment && strings.HasPrefix(key, "ddb."):
		return nil // "The Disk Database": geometry, adapter, versions of tools
	case assignment && !strings.ContainsAny(key, " \t\""):
		return p.header(key, value)
	}
	return p.extent(line)
}

// header takes a line of the descriptor's header.
func (p *descriptorParser) header(key, value string) error {
	if slices.Contains(p.seen, key) {
		return corrupt("%q a second time", key)
	}
	p.seen = append(p.seen, key)
	switch key {
	case "version":
		if v, err := strconv.ParseUint(value, 10, 32); err != nil || v == 0 || v > maxVersionKey {
			return unsupported("version %.20q, known are 1 to %d", value, maxVersionKey)
		}
	case "CID":
		if _, err := strconv.ParseUint(value, 16, 32); err != nil {
			return corrupt("CID %.20q", value)
		}
	case "parentCID":
		parent, err := strconv.ParseUint(value, 16, 32)
		switch {
		case err != nil:
			return corrupt("parentCID %.20q", value)
		case parent != noParent:
			return unsupported("the image only holds what differs from another (parentCID %08x): %s", parent, flatten)
		}
	case "parentFileNameHint":
		return unsupported("the image only holds what differs from another (%.200s): %s", value, flatten)
	case "createType":
		p.createType = strings.Trim(value, `"`)
		if createTypes[p.createType] == "" {
			return unsupported("a disk of type %.40q: %s", p.createType, flatten)
		}
	case "encoding", "isNativeSnapshot", "changeTrackPath": // names files and changes that matter to backup programs
	default:
		return unsupported("the unknown setting %.40q", key)
	}
	return nil
}

const flatten = "make a plain image first: qemu-img convert -O qcow2 OLD NEW"

// extent takes a line that tells of an extent:
//
//	RW 4192256 SPARSE "disk-s001.vmdk"
//	RW 4192256 FLAT "disk-f001.vmdk" 0
func (p *descriptorParser) extent(line string) error {
	before, rest, _ := strings.Cut(line, `"`)
	name, after, quoted := strings.Cut(rest, `"`)
	fields := strings.Fields(before)
	if !quoted || len(fields) != 3 {
		return unsupported("the unknown line %.100q", line)
	}
	access, kind := fields[0], fields[2]
	sectors, err := strconv.ParseInt(fields[1], 10, 64)
	e := extent{sectors: sectors, kind: kind, name: name}
	switch {
	case access != accessRW:
		return unsupported("access %.20q to an extent, known is %s", access, accessRW)
	case err != nil || sectors <= 0 || sectors > maxSectors:
		return corrupt("an extent of %.20q sectors", fields[1])
	case kind != extentSparse && kind != extentFlat && kind != extentVMFS:
		return unsupported("an extent of type %.20q: %s", kind, flatten)
	case !plainName(name):
		return unsupported("an extent in %.200q, which is no plain name of a file beside the image", name)
	case len(p.extents) == maxExtents:
		return unsupported("more than %d extents", maxExtents)
	}
	after = strings.TrimSpace(after)
	if kind == extentFlat {
		e.offset, err = strconv.ParseInt(after, 10, 64)
		if err != nil || e.offset < 0 || e.offset > maxSectors-sectors {
			return corrupt("an extent at sector %.20q of its file", after)
		}
	} else if after != "" {
		return corrupt("%.40q behind an extent of type %s", after, kind)
	}
	p.extents = append(p.extents, e)
	return nil
}

// plainName reports whether name is that of a file and says no directory.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= maxName && !strings.ContainsAny(name, "/\\\x00\n\r")
}
