package vhdx

import (
	"bytes"
	"io"
	"slices"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/imagetest"
)

// checkSane opens an arbitrary file and wants what must hold for any.
func checkSane(t testing.TB, file []byte) {
	t.Helper()
	wantBounded(t, imagetest.CheckSane(t, openSource, file))
}

func wantBounded(t testing.TB, src blockdev.Source) {
	t.Helper()
	if r, ok := src.(*Reader); ok && r.bat.file.Kept() > tableMemory {
		t.Fatalf("%d bytes of tables are kept", r.bat.file.Kept())
	}
}

// wantRightOrError: what is read of the image is the disk's, or nothing is.
func wantRightOrError(t testing.TB, file, disk []byte) {
	t.Helper()
	r, err := open(file)
	if err != nil {
		imagetest.WantError(t, err)
		return
	}
	p := make([]byte, 512)
	for off := 0; off < len(disk); off += 512 << 10 {
		if _, err := r.ReadAt(p, int64(off)); err == nil && !bytes.Equal(p, disk[off:][:512]) {
			t.Fatalf("wrong data at %d", off)
		}
	}
}

// offsets are those from at on.
func offsets(at, n int) (list []int) {
	for i := range n {
		list = append(list, at+i)
	}
	return list
}

// TestBitFlips flips bits of the metadata. What has a checksum gives right data
// or an error: headers, region tables, and a log. Metadata and BAT have none.
func TestBitFlips(t *testing.T) {
	for name, make := range map[string]func() ([]byte, *image){"closed": small, "dirty": dirty} {
		t.Run(name, func(t *testing.T) {
			disk, im := make()
			var summed []int
			for _, at := range []int{header1At, header2At, regions1At, regions2At} {
				summed = append(summed, offsets(at, 80)...)
			}
			if name == "dirty" {
				for e := 5; e < 11; e++ { // the last two entries: sectors 6 to 11
					summed = append(summed, offsets(builtLog+e*logSector, 64)...)
				}
			}
			imagetest.FlipBits(t, im.b, summed, func(t testing.TB, file []byte) { wantRightOrError(t, file, disk) })
			tables := slices.Concat(offsets(builtMetadata, metadataHeaderLen+5*itemEntryLen), offsets(builtItems, 20), offsets(builtBAT, 40))
			imagetest.FlipBits(t, im.b, tables, checkSane)
		})
	}
}

// TestTruncation cuts images at many lengths: what is still read is right.
func TestTruncation(t *testing.T) {
	for _, make := range []func() ([]byte, *image){small, dirty} {
		disk, im := make()
		for n := len(im.b) - 1; n >= 0; n -= 100_003 {
			wantRightOrError(t, im.b[:n], disk)
			checkSane(t, im.b[:n])
		}
	}
}

// part is a range of a file that the fuzzer may change.
type part struct{ at, n int }

// parts are where the headers, tables and the log are.
func parts() []part {
	return []part{
		{header1At, 80}, {header2At, 80}, {regions1At, 128}, {regions2At, 48},
		{builtMetadata, metadataHeaderLen + 6*itemEntryLen}, {builtItems, 40}, {builtBAT, 64},
		{builtLog, 12 * logSector},
	}
}

// laid is a file with bytes laid over it.
type laid struct {
	base []byte
	over map[part][]byte
}

func (l laid) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(l.base)) {
		return 0, io.EOF
	}
	n := copy(p, l.base[off:])
	for at, b := range l.over {
		from, to := max(int64(at.at), off), min(int64(at.at+len(b)), off+int64(n))
		if from < to {
			copy(p[from-off:to-off], b[from-int64(at.at):])
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// seal makes the checksums right, or the fuzzer would get nowhere.
func (l laid) seal() {
	for _, at := range []int{header1At, header2At} {
		b := make([]byte, headerLen)
		l.ReadAt(b, int64(at))
		headChecksum.Put(l.over[part{at, 80}], checksum(b, headChecksum))
	}
	for _, p := range []part{{regions1At, 128}, {regions2At, 48}} {
		b := make([]byte, regionsLen)
		l.ReadAt(b, int64(p.at))
		regionsChecksum.Put(l.over[p], checksum(b, regionsChecksum))
	}
	log := l.over[part{builtLog, 12 * logSector}]
	for at := 0; at < len(log); at += logSector {
		if e := log[at:]; string(e[:4]) == entrySignature && int(entryLen.Get(e)) >= logSector && int(entryLen.Get(e)) <= len(e) {
			entryChecksum.Put(e, checksum(e[:entryLen.Get(e)], entryChecksum))
		}
	}
}

// FuzzOpenRead holds CheckSane's word against arbitrary tables in a file. The
// input is laid over the parts of a good one.
func FuzzOpenRead(f *testing.F) {
	_, closed := small()
	_, open := dirty()
	bases := [][]byte{closed.b, open.b}
	for _, base := range bases {
		var seed []byte
		for _, p := range parts() {
			seed = append(seed, base[p.at:][:p.n]...)
		}
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, input []byte, seal bool) {
		src := imagetest.CheckSane(t, func(input []byte) (blockdev.Source, error) {
			file := laid{bases[0], make(map[part][]byte)}
			for _, p := range parts() {
				b := make([]byte, p.n)
				input = input[copy(b, input):]
				file.over[p] = b
			}
			if seal {
				file.seal()
			}
			r, err := Open(file, int64(len(file.base)), Options{MaxSize: 1 << 33})
			if err != nil {
				return nil, err
			}
			return r, nil
		}, input)
		wantBounded(t, src)
	})
}
