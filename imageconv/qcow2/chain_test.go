package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// addExtension adds a header extension to an image from build.
func addExtension(f []byte, typ uint32, data string) {
	at := int(hdrLength.Get(f))
	for extType.Get(f[at:]) != extEnd {
		at += extData + int(extLen.Get(f[at:])+7)&^7
	}
	extType.Put(f[at:], typ)
	extLen.Put(f[at:], uint32(len(data)))
	copy(f[at+extData:], data)
}

// withBacking makes an image with a backing file of which every second cluster
// of the disk is absent, every tenth is zero, and the rest is as in disk.
func withBacking(t testing.TB, disk []byte, bits int, name, format string) []byte {
	t.Helper()
	f := build(t, disk, bits, Zlib)
	if format != "" {
		addExtension(f, extBackFormat, format)
	}
	const at = 400
	copy(f[at:], name)
	hdrBackingOffset.Put(f, at)
	hdrBackingSize.Put(f, uint32(len(name)))
	for i := 0; i<<bits < len(disk); i++ {
		e := f[2<<bits+i*8:]
		switch {
		case i%10 == 5:
			binary.BigEndian.PutUint64(e, entryZero)
		case i%2 == 0:
			binary.BigEndian.PutUint64(e, 0)
		}
	}
	return f
}

// chained is what the image of withBacking holds.
func chained(disk, backing []byte, bits int) []byte {
	want := bytes.Clone(disk)
	for i := 0; i<<bits < len(disk); i++ {
		p := want[i<<bits : min((i+1)<<bits, len(disk))]
		if i%10 == 5 || i%2 == 0 {
			clear(p)
		}
		if i%10 != 5 && i%2 == 0 && i<<bits < len(backing) {
			copy(p, backing[i<<bits:])
		}
	}
	return want
}

func TestBacking(t *testing.T) {
	const bits = 12
	disk := numbered(60<<bits+512, 1<<bits)
	for _, size := range []int{0, 1 << bits, 31<<bits + 512, len(disk), len(disk) + 5<<bits} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			backing := bytes.Repeat([]byte("backing "), size/8)
			if size > 8<<bits {
				clear(backing[4<<bits : 8<<bits])
			}
			file := withBacking(t, disk, bits, "base.img", "raw")
			blockdevtest.RunSource(t, chained(disk, backing, bits), func(t *testing.T) blockdev.Source {
				r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40, Backing: func(ref Reference) (blockdev.Source, error) {
					if want := (Reference{"base.img", "raw"}); ref != want {
						t.Errorf("got %+v, want %+v", ref, want)
					}
					return blockdev.MemOf(backing), nil
				}})
				if err != nil {
					t.Fatal(err)
				}
				return r
			})
		})
	}
}

// TestBackingRefused: without leave nothing is opened, and what cannot be
// opened is told with its name.
func TestBackingRefused(t *testing.T) {
	const bits = 12
	disk := numbered(3<<bits, 1<<bits)
	file := withBacking(t, disk, bits, "json:{\"driver\":\"nbd\"}", "")
	never := func(Reference) (blockdev.Source, error) {
		t.Error("a file was opened")
		return nil, errFlaky
	}
	_, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40, DataFile: never})
	imagetest.CheckError(t, err, `the image has a backing file ("json:{\"driver\":\"nbd\"}")`)
	_, err = Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40, Backing: func(ref Reference) (blockdev.Source, error) {
		if ref.Format != "" {
			t.Errorf("format %q", ref.Format)
		}
		return nil, errFlaky
	}})
	if !errors.Is(err, errFlaky) {
		t.Errorf("got %v, want %v", err, errFlaky)
	}
	// An image that is not in order is not worth opening another file for.
	hdrCryptMethod.Put(file, 2)
	_, err = Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40, Backing: never, DataFile: never})
	imagetest.CheckError(t, err, "encrypted (LUKS)")
}

// TestBackingFails: the error of the backing file comes through.
func TestBackingFails(t *testing.T) {
	const bits = 12
	disk := numbered(3<<bits, 1<<bits)
	file := withBacking(t, disk, bits, "b", "raw")
	back := blockdevtest.Fail(blockdev.NewMem(3<<bits), 1, blockdev.KindIO)
	r, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40,
		Backing: func(Reference) (blockdev.Source, error) { return back, nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadAt(make([]byte, 3<<bits), 0); !errors.Is(err, blockdevtest.ErrInjected) {
		t.Errorf("got %v, want %v", err, blockdevtest.ErrInjected)
	}
}

// withDataFile makes an image whose clusters are in an external data file:
// every third is absent, and the first is at offset 0.
func withDataFile(t testing.TB, size, bits int) []byte {
	t.Helper()
	f := build(t, make([]byte, size), bits, Zlib)
	f = f[:3<<bits] // header, L1 table, L2 table
	hdrIncompatible.Put(f, incompatDataFile)
	addExtension(f, extDataFile, "disk.data")
	for i := 0; i<<bits < size; i++ {
		e := uint64(i<<bits) | entryCopied
		if i%3 == 2 {
			e = 0
		}
		binary.BigEndian.PutUint64(f[2<<bits+i*8:], e)
	}
	return f
}

func TestDataFile(t *testing.T) {
	const bits = 12
	data := numbered(20<<bits, 1<<bits)
	file := withDataFile(t, len(data), bits)
	want := bytes.Clone(data)
	for i := 2; i < 20; i += 3 {
		clear(want[i<<bits : (i+1)<<bits])
	}
	options := Options{MaxSize: 1 << 40, DataFile: func(ref Reference) (blockdev.Source, error) {
		if ref.Name != "disk.data" {
			t.Errorf("got %+v", ref)
		}
		return blockdev.MemOf(data), nil
	}}
	open := func() (*Reader, error) { return Open(bytes.NewReader(file), int64(len(file)), options) }
	blockdevtest.RunSource(t, want, func(t *testing.T) blockdev.Source {
		r, err := open()
		if err != nil {
			t.Fatal(err)
		}
		return r
	})

	_, err := Open(bytes.NewReader(file), int64(len(file)), Options{MaxSize: 1 << 40})
	imagetest.CheckError(t, err, `the data is in an external data file ("disk.data")`)

	read := func() error {
		r, err := open()
		if err == nil {
			_, err = r.ReadAt(make([]byte, r.Size()), 0)
		}
		return err
	}
	entry := file[2<<bits+3*8:]
	binary.BigEndian.PutUint64(entry, 4<<bits|entryCopied)
	imagetest.CheckError(t, read(), "not where the disk has them")
	binary.BigEndian.PutUint64(entry, 3<<bits|entryCompressed)
	imagetest.CheckError(t, read(), "a compressed cluster where the data is in an external data file")
	binary.BigEndian.PutUint64(entry, 0)
	data = data[:10<<bits]
	imagetest.CheckError(t, read(), "not within the file's 40960 bytes")

	options.Snapshot = "1"
	_, err = open()
	imagetest.CheckError(t, err, "a snapshot of an image whose data is in an external data file")
	extLen.Put(file[112:], 0)
	clear(file[112+extData:][:len("disk.data")])
	options.Snapshot = ""
	_, err = open()
	imagetest.CheckError(t, err, "an external data file whose name has 0 bytes")
}
