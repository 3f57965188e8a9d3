package vhdx

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/internal/le"
)

// Where build puts things: each has a MiB.
const (
	builtLog      = 1 << 20
	builtMetadata = 2 << 20
	builtBAT      = 3 << 20
	builtBlocks   = 4 << 20

	builtItems = builtMetadata + metadataTableLen
)

var testGUID = guid{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

// numbered returns a disk that no offset error can hide in: every 8 bytes carry
// their own offset.
func numbered(size int) []byte {
	b := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		binary.BigEndian.PutUint64(b[i:], uint64(i)|1<<56)
	}
	return b
}

// image is a VHDX file that is made.
type image struct {
	b      []byte
	sector uint32
	block  uint32
}

// build makes an image of the disk, its blocks in reverse order. A block of
// zeros is not in the file; how the BAT says so changes from one to the next.
func build(disk []byte, block, sector uint32) *image {
	im := &image{b: make([]byte, builtBlocks), block: block, sector: sector}
	copy(im.b, identifier)
	im.metadata(disk)
	blocks := (len(disk) + int(block) - 1) / int(block)
	for i := blocks - 1; i >= 0; i-- {
		data := make([]byte, block)
		copy(data, disk[i*int(block):])
		if len(bytes.Trim(data, "\x00")) == 0 {
			im.setBAT(i, uint64(i%4))
			continue
		}
		im.setBAT(i, uint64(len(im.b))|uint64(stateFullyPresent))
		im.b = append(im.b, data...)
	}
	im.seal(guid{})
	return im
}

func (im *image) metadata(disk []byte) {
	copy(im.b[builtMetadata:], metadataSignature)
	value := builtItems
	known := items()
	for i, v := range [][]byte{
		le32(im.block, 0), le64(uint64(len(disk))), le32(im.sector), le32(4096), testGUID[:],
	} {
		e := im.item(i)
		copy(e, known[i].id[:])
		itemAt.Put(e, uint32(value-builtMetadata))
		itemLen.Put(e, uint32(len(v)))
		itemFlags.Put(e, itemRequired)
		value += copy(im.b[value:], v)
		metadataCount.Put(im.b[builtMetadata:], uint16(i+1))
	}
}

// item is the i-th entry of the metadata table.
func (im *image) item(i int) []byte {
	return im.b[builtMetadata+metadataHeaderLen+i*itemEntryLen:][:itemEntryLen]
}

func (im *image) setBAT(block int, e uint64) {
	chunk := int(chunkSectors * uint64(im.sector) / uint64(im.block))
	le.U64(builtBAT+(block+block/chunk)*batEntryLen).Put(im.b, e)
}

// seal writes headers and region tables.
func (im *image) seal(log guid) {
	for i, at := range []int{header1At, header2At} {
		b := im.b[at:][:headerLen]
		clear(b)
		copy(b, headSignature)
		headSequence.Put(b, uint64(7+i))
		copy(b[headLogGUID:], log[:])
		headVersion.Put(b, headerVersion)
		headLogLen.Put(b, 1<<20)
		headLogAt.Put(b, builtLog)
		sealHeader(b)
	}
	for _, at := range []int{regions1At, regions2At} {
		b := im.b[at:][:regionsLen]
		clear(b)
		copy(b, regionsSignature)
		regionsCount.Put(b, 2)
		putRegion(b, 0, guidBAT, builtBAT, 1<<20)
		putRegion(b, 1, guidMetadata, builtMetadata, 1<<20)
		sealRegions(b)
	}
}

func sealHeader(b []byte)  { headChecksum.Put(b, checksum(b[:headerLen], headChecksum)) }
func sealRegions(b []byte) { regionsChecksum.Put(b, checksum(b[:regionsLen], regionsChecksum)) }

// putRegion writes the i-th entry of the region table b.
func putRegion(b []byte, i int, id guid, at uint64, n uint32) {
	e := b[regionsHeaderLen+i*regionEntryLen:]
	copy(e, id[:])
	regionAt.Put(e, at)
	regionLen.Put(e, n)
	regionFlags.Put(e, regionRequired)
}

// headers changes both headers, regions both region tables.
func (im *image) headers(change func(b []byte)) *image {
	for _, at := range []int{header1At, header2At} {
		change(im.b[at:])
		sealHeader(im.b[at:])
	}
	return im
}

func (im *image) regions(change func(b []byte)) *image {
	for _, at := range []int{regions1At, regions2At} {
		change(im.b[at:])
		sealRegions(im.b[at:])
	}
	return im
}

// write is what a log entry does: data, or n zeros where there is none.
type write struct {
	at   uint64
	data []byte
	n    uint64
}

// logged appends an entry to the log at offset at of the ring, and returns where
// it ends.
func (im *image) logged(id guid, at int, tail int, sequence uint64, writes ...write) int {
	descriptors := make([]byte, (entryHeaderLen+len(writes)*descriptorLen+logSector-1)/logSector*logSector)
	var data []byte
	for i, w := range writes {
		d := descriptors[entryHeaderLen+i*descriptorLen:]
		descAt.Put(d, w.at)
		descSequence.Put(d, sequence)
		if w.data == nil {
			copy(d, zeroDescriptor)
			descZeroLen.Put(d, w.n)
			continue
		}
		copy(d, dataDescriptor)
		copy(d[descLeading:], w.data[:dataLead])
		copy(d[descTrailing:][:dataTrail], w.data[logSector-dataTrail:])
		sector := bytes.Clone(w.data)
		copy(sector, dataSignature)
		dataHigh.Put(sector, uint32(sequence>>32))
		dataLow.Put(sector, uint32(sequence))
		data = append(data, sector...)
	}
	e := append(descriptors, data...)
	copy(e, entrySignature)
	entryLen.Put(e, uint32(len(e)))
	entryTail.Put(e, uint32(tail))
	entrySequence.Put(e, sequence)
	entryDescriptors.Put(e, uint32(len(writes)))
	copy(e[entryGUID:], id[:])
	entryFlushedSize.Put(e, uint64(len(im.b)))
	entryLastSize.Put(e, uint64(len(im.b)))
	entryChecksum.Put(e, checksum(e, entryChecksum))
	for i := range e {
		im.b[builtLog+(at+i)%(1<<20)] = e[i]
	}
	return (at + len(e)) % (1 << 20)
}

func le32(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func le64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// small is a disk of five blocks and a half, two of them empty, and its image.
func small() ([]byte, *image) {
	disk := numbered(5<<20 + 512<<10)
	clear(disk[1<<20 : 2<<20])
	clear(disk[3<<20 : 4<<20])
	return disk, build(disk, 1<<20, 512)
}

func open(file []byte) (*Reader, error) {
	return Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
}

func openSource(file []byte) (blockdev.Source, error) {
	r, err := open(file)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func wantDisk(t *testing.T, file, want []byte) *Reader {
	t.Helper()
	r, err := open(file)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, r.Size())
	if _, err := r.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("wrong bytes")
	}
	return r
}
