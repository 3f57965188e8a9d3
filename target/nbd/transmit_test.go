package nbd

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// modes are the two forms of replies.
var modes = map[string][]option{
	"simple":     nil,
	"structured": {optStructuredReply, optSetMetaContext},
}

func eachMode(t *testing.T, f func(t *testing.T, how []option)) {
	for name, how := range modes {
		t.Run(name, func(t *testing.T) { f(t, how) })
	}
}

// capable is a device that can do what caps says.
type capable struct {
	blockdev.Device
	caps blockdev.Caps
}

func (d capable) Caps() blockdev.Caps { return d.caps }

var allCaps = blockdev.Caps{Discard: true, DiscardZeroes: true, FastZero: true, Granularity: 4096, PhysicalBlock: 4096}

// TestGate has a row for everything that a request can be refused for.
func TestGate(t *testing.T) {
	const all = ^commandFlags(0) &^ flagFUA
	type row struct {
		name  string
		cmd   command
		flags commandFlags
		off   uint64
		n     uint32
		want  errno
	}
	rows := []row{
		{"read", cmdRead, 0, 0, 512, eOK},
		{"read of the last byte", cmdRead, 0, testSize - 1, 1, eOK},
		{"read with FUA", cmdRead, flagFUA, 1, 1, eOK},
		{"read of nothing", cmdRead, 0, 0, 0, eOK},
		{"read of nothing at the end", cmdRead, 0, testSize, 0, eOK},
		{"read past the end", cmdRead, 0, testSize - 1, 2, eInval},
		{"read behind the end", cmdRead, 0, testSize + 1, 0, eInval},
		{"read at 2^63", cmdRead, 0, 1 << 63, 1, eInval},
		{"read that overflows", cmdRead, 0, math.MaxUint64, 2, eInval},
		{"read that overflows an int64", cmdRead, 0, math.MaxInt64, 2, eInval},
		{"read of the maximum", cmdRead, 0, 0, maxPayload, eOK},
		{"read of more", cmdRead, 0, 0, maxPayload + 1, eInval},
		{"read of 4 GiB", cmdRead, 0, 0, math.MaxUint32, eInval},
		{"read with NO_HOLE", cmdRead, flagNoHole, 0, 1, eInval},
		{"read with every flag", cmdRead, all, 0, 1, eInval},
		{"write of nothing", cmdWrite, 0, 0, 0, eOK},
		{"flush", cmdFlush, 0, 0, 0, eOK},
		{"flush with FUA", cmdFlush, flagFUA, 0, 0, eOK},
		{"flush of a range", cmdFlush, 0, 0, 1, eInval},
		{"flush at an offset", cmdFlush, 0, 1, 0, eInval},
		{"flush with DF", cmdFlush, flagDF, 0, 0, eInval},
		{"trim", cmdTrim, 0, 4096, 4096, eOK},
		{"trim with FUA", cmdTrim, flagFUA, 4096, 4096, eOK},
		{"trim of all", cmdTrim, 0, 0, testSize, eOK},
		{"trim past the end", cmdTrim, 0, testSize - 1, 2, eInval},
		{"trim with NO_HOLE", cmdTrim, flagNoHole, 0, 1, eInval},
		{"cache", cmdCache, 0, 0, testSize, eOK},
		{"cache past the end", cmdCache, 0, 1, testSize, eInval},
		{"cache with DF", cmdCache, flagDF, 0, 1, eInval},
		{"zeroes", cmdWriteZeroes, 0, 10, 100, eOK},
		{"zeroes over all", cmdWriteZeroes, flagFUA, 0, testSize, eOK},
		{"zeroes, provisioned", cmdWriteZeroes, flagNoHole, 10, 100, eOK},
		{"zeroes, fast", cmdWriteZeroes, flagFastZero, 10, 100, eOK},
		{"zeroes, fast and provisioned", cmdWriteZeroes, flagFastZero | flagNoHole, 10, 100, eNotSup},
		{"zeroes past the end", cmdWriteZeroes, 0, testSize - 1, 2, eNoSpc},
		{"zeroes with DF", cmdWriteZeroes, flagDF, 0, 1, eInval},
		{"resize", 8, 0, 0, 4096, eInval},
		{"unknown command", 9, 0, 0, 0, eInval},
		{"last command", math.MaxUint16, 0, 0, 0, eInval},
	}
	eachMode(t, func(t *testing.T, how []option) {
		s := serve(t, Options{}, capable{mem(), allCaps})
		c := s.attach(t, how...)
		for _, r := range rows {
			if a := c.do(r.cmd, r.flags, r.off, r.n); a.errno != r.want {
				t.Errorf("%s: %v (%s), want %v", r.name, a.errno, a.text, r.want)
			} else if c.structured && a.errno != 0 && r.cmd == cmdRead && a.text == "" {
				t.Errorf("%s: no words with the error", r.name)
			}
		}
		df, status, none := eInval, eInval, eInval
		if c.structured {
			df, status = eOK, eOK
		}
		for _, r := range []row{
			{"DF", cmdRead, flagDF, 0, 4096, df},
			{"block status", cmdBlockStatus, 0, 0, 4096, status},
			{"block status of one", cmdBlockStatus, flagReqOne, 0, 4096, status},
			{"block status of nothing", cmdBlockStatus, 0, 0, 0, none},
			{"block status past the end", cmdBlockStatus, 0, 1, testSize, eInval},
			{"block status over 2^64", cmdBlockStatus, 0, math.MaxUint64 - 1, math.MaxUint32, eInval},
			{"block status with PAYLOAD_LEN", cmdBlockStatus, 1 << 5, 0, 4096, eInval},
		} {
			if a := c.do(r.cmd, r.flags, r.off, r.n); a.errno != r.want {
				t.Errorf("%s: %v, want %v", r.name, a.errno, r.want)
			}
		}
		c.disconnect()
	})
}

// TestWriteRefusals: a payload that is not wanted is read all the same.
func TestWriteRefusals(t *testing.T) {
	eachMode(t, func(t *testing.T, how []option) {
		s := serve(t, Options{}, mem())
		c := s.attach(t, how...)
		for name, r := range map[string]struct {
			flags commandFlags
			off   uint64
			n     uint32
			want  errno
		}{
			"past the end": {0, testSize - 10, 11, eNoSpc},
			"far behind":   {0, 1 << 63, 1 << 20, eNoSpc},
			"flag":         {flagReqOne, 0, 4096, eInval},
			"too long":     {0, 0, maxPayload + 1, eInval},
		} {
			payload := bytes.Repeat([]byte{0xee}, int(r.n))
			if a := c.do(cmdWrite, r.flags, r.off, r.n, payload...); a.errno != r.want {
				t.Errorf("%s: %v, want %v", name, a.errno, r.want)
			}
		}
		c.mustRead(0, testContent()[:8192])
		c.mustRead(testSize-512, testContent()[testSize-512:])
	})
}

func TestReadOnly(t *testing.T) {
	for name, e := range map[string]*Export{
		"device": NewExport("x", capable{mem(), blockdev.Caps{ReadOnly: true, Discard: true}}, ExportOptions{}),
		"export": NewExport("x", capable{mem(), allCaps}, ExportOptions{Access: blockdev.ReadOnly}),
	} {
		t.Run(name, func(t *testing.T) {
			c := serveExports(t, Options{Exports: []*Export{e}}, TLSOff).attach(t)
			if want := flagHasFlags | flagReadOnly | flagSendFlush | flagSendFUA | flagCanMultiConn | flagSendCache; c.flags != want {
				t.Errorf("flags %#x, want %#x", c.flags, want)
			}
			for _, cmd := range []command{cmdTrim, cmdWriteZeroes} {
				if a := c.do(cmd, 0, 0, 4096); a.errno != ePerm {
					t.Errorf("command %d: %v, want EPERM", cmd, a.errno)
				}
			}
			if a := c.do(cmdWrite, 0, 0, 5, 1, 2, 3, 4, 5); a.errno != ePerm {
				t.Errorf("write: %v, want EPERM", a.errno)
			}
			c.mustRead(0, testContent()[:512])
			if a := c.do(cmdFlush, 0, 0, 0); a.errno != 0 {
				t.Errorf("flush: %v", a.errno)
			}
		})
	}
}

// TestCapabilities: what the device cannot, the export does not offer.
func TestCapabilities(t *testing.T) {
	c := serve(t, Options{}, capable{mem(), blockdev.Caps{Granularity: 1, PhysicalBlock: 512}}).attach(t)
	if c.flags&flagSendTrim != 0 {
		t.Errorf("flags %#x offer TRIM", c.flags)
	}
	if a := c.do(cmdTrim, 0, 0, 4096); a.errno != eInval {
		t.Errorf("trim: %v, want EINVAL", a.errno)
	}
	if a := c.do(cmdWriteZeroes, flagFastZero, 0, 4096); a.errno != eNotSup {
		t.Errorf("fast zero: %v, want ENOTSUP", a.errno)
	}
	if a := c.do(cmdWriteZeroes, 0, 0, 4096); a.errno != 0 {
		t.Errorf("zero: %v", a.errno)
	}
	c.mustRead(0, make([]byte, 4096))
}

func TestTransmissionFlags(t *testing.T) {
	s := serve(t, Options{}, capable{mem(), allCaps})
	const base = flagHasFlags | flagSendFlush | flagSendFUA | flagSendTrim | flagSendWriteZeroes | flagCanMultiConn | flagSendCache | flagSendFastZero
	if c := s.attach(t); c.flags != base || c.size != testSize {
		t.Errorf("flags %#x, size %d; want %#x, %d", c.flags, c.size, base, testSize)
	}
	if c := s.attach(t, optStructuredReply); c.flags != base|flagSendDF {
		t.Errorf("with structured replies flags %#x, want %#x", c.flags, base|flagSendDF)
	}
}

// sizes are lengths and places that touch every way that data takes.
var sizes = []struct{ off, n int }{
	{0, 1}, {1, 511}, {0, 4096}, {4095, 2}, {777, 16<<10 + 1}, {0, 256 << 10}, {1, 256 << 10}, {4096, 256<<10 + 1},
	{5, 1 << 20}, {100, 1<<20 + 1}, {zeroFrom - 100000, 300000}, {zeroFrom, 1 << 20}, {zeroFrom + 1, 600000}, {3, maxPayload}, {testSize - maxPayload - 9, maxPayload},
}

// sizesFor leaves the longest to the disk that lets wait now and then: it takes
// all ways.
func sizesFor(every int) []struct{ off, n int } {
	if every == 3 {
		return sizes
	}
	return sizes[:len(sizes)-2]
}

// TestReads and TestWrites use a disk that answers at once and one that lets
// wait, in turn and always.
func TestReads(t *testing.T) {
	eachMode(t, func(t *testing.T, how []option) {
		for _, every := range []int{0, 1, 3} {
			s := serve(t, Options{}, &waiting{Device: mem(), every: every})
			c := s.attach(t, how...)
			for _, z := range sizesFor(every) {
				c.mustRead(uint64(z.off), testContent()[z.off:][:z.n])
				if !c.structured {
					continue
				}
				a := c.do(cmdRead, flagDF, uint64(z.off), uint32(z.n))
				if a.errno != 0 || a.chunks != 1 || !bytes.Equal(a.data, testContent()[z.off:][:z.n]) {
					t.Errorf("DF [%d, +%d): %v in %d chunks", z.off, z.n, a.errno, a.chunks)
				}
			}
			if c.structured {
				if a := c.do(cmdRead, 0, zeroFrom, 1<<20); a.holes != a.chunks {
					t.Errorf("zeros came in %d chunks, %d of them holes", a.chunks, a.holes)
				}
			}
		}
	})
}

func TestWrites(t *testing.T) {
	eachMode(t, func(t *testing.T, how []option) {
		for _, every := range []int{0, 1, 3} {
			dev := &waiting{Device: mem(), every: every}
			want := bytes.Clone(testContent())
			c := serve(t, Options{}, dev).attach(t, how...)
			for i, z := range sizesFor(every) {
				p := want[z.off:][:z.n]
				copy(p, testContent()[len(want)-z.n-i:]) // other numbers
				flags := commandFlags(0)
				if i%2 == 1 {
					flags = flagFUA
				}
				before := dev.flushes.Load()
				if a := c.do(cmdWrite, flags, uint64(z.off), uint32(z.n), p...); a.errno != 0 {
					t.Fatalf("write [%d, +%d): %v", z.off, z.n, a.errno)
				}
				if got := dev.flushes.Load() - before; got != int32(flags) {
					t.Errorf("write with flags %#x: %d flushes", flags, got)
				}
			}
			got := make([]byte, testSize)
			if _, err := dev.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("every %d: the disk differs (%v)", every, err)
			}
		}
	})
}

// TestPipelined sends many overlapping kinds of requests before it reads any
// reply.
func TestPipelined(t *testing.T) {
	eachMode(t, func(t *testing.T, how []option) {
		for _, every := range []int{0, 1, 2, 7} {
			s := serve(t, Options{}, capable{&waiting{Device: mem(), every: every}, allCaps})
			c := s.attach(t, how...)
			reqs := map[uint64]pending{}
			want := bytes.Clone(testContent())
			var batch []byte
			add := func(cmd command, off uint64, n uint32, payload ...byte) {
				cookie := uint64(len(reqs)) + 1
				reqs[cookie] = pending{cmd, off, n}
				batch = append(batch, requestBytes(cmd, 0, cookie, off, n, payload...)...)
			}
			for i := range 300 {
				at := uint64(i) * 20000
				switch i % 5 {
				case 0, 1:
					add(cmdRead, at, 20000)
				case 2:
					p := bytes.Repeat([]byte{byte(i)}, 20000)
					copy(want[at:], p)
					add(cmdWrite, at, 20000, p...)
				case 3:
					add(cmdWriteZeroes, at, 20000)
					clear(want[at:][:20000])
				case 4:
					add(cmdFlush, 0, 0)
				}
			}
			sent := make(chan struct{})
			go func() { defer close(sent); c.nc.Write(batch) }()
			for len(reqs) > 0 {
				cookie, a := c.answer(reqs)
				p := reqs[cookie]
				delete(reqs, cookie)
				if a.errno != 0 {
					t.Fatalf("command %d: %v", p.cmd, a.errno)
				}
				if p.cmd == cmdRead && !bytes.Equal(a.data, testContent()[p.off:][:p.n]) {
					t.Fatalf("read at %d differs", p.off)
				}
			}
			<-sent
			c.mustRead(0, want[:6<<20])
		}
	})
}

// TestBlockStatus maps a sparse file.
func TestBlockStatus(t *testing.T) {
	file := filepath.Join(t.TempDir(), "disk")
	dev, err := blockdev.CreateFile(file, 5<<30)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for _, off := range []int64{0, 1 << 20, 1<<20 + 8192, 4 << 30} {
		if _, err := dev.WriteAt(bytes.Repeat([]byte{1}, 4096), off); err != nil {
			t.Fatal(err)
		}
	}
	c := serve(t, Options{}, dev).attach(t, optStructuredReply, optSetMetaContext)
	const hole = stateHole | stateZero
	for _, tt := range []struct {
		off   uint64
		n     uint32
		flags commandFlags
		want  []uint32
	}{
		{0, 2 << 20, 0, []uint32{4096, 0, 1<<20 - 4096, hole, 4096, 0, 4096, hole, 4096, 0, 1<<20 - 12288, hole}},
		{0, 2 << 20, flagReqOne, []uint32{4096, 0}},
		{100, 200, 0, []uint32{200, 0}},
		{4000, 200, 0, []uint32{96, 0, 104, hole}},
		{2 << 20, 3 << 30, 0, []uint32{1 << 31, hole, 1 << 30, hole}},
		{2 << 20, math.MaxUint32, flagReqOne, []uint32{1 << 31, hole}},
		{5<<30 - 1, 1, 0, []uint32{1, hole}},
	} {
		a := c.do(cmdBlockStatus, tt.flags, tt.off, tt.n)
		if a.errno != 0 || !slices.Equal(a.status, tt.want) {
			t.Errorf("[%d, +%d) %#x: %v %d, want %d", tt.off, tt.n, tt.flags, a.errno, a.status, tt.want)
		}
	}
	if a := c.do(cmdTrim, 0, 1<<20, 8192); a.errno != 0 {
		t.Fatalf("trim: %v", a.errno)
	}
	if a := c.do(cmdBlockStatus, 0, 1<<20, 16384); !slices.Equal(a.status, []uint32{8192, hole, 4096, 0, 4096, hole}) {
		t.Errorf("after trim: %d", a.status)
	}
	if a := c.do(cmdWriteZeroes, flagNoHole, 2<<20, 8192); a.errno != 0 {
		t.Errorf("provisioned zeroes: %v", a.errno)
	}
	if n := blocksOf(t, file, 2<<20, 8192); n == 0 {
		t.Error("NO_HOLE set no space aside")
	}
}

// blocksOf is the file's space, as a rough proof that a range has some: the
// size on disk before and after a hole is punched there.
func blocksOf(t *testing.T, file string, off, n int64) int64 {
	t.Helper()
	before := spaceOf(t, file)
	dev, err := blockdev.OpenFile(file, blockdev.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := dev.Discard(off, n); err != nil {
		t.Fatal(err)
	}
	return before - spaceOf(t, file)
}

// many is a disk of more extents than fit into a reply.
func TestBlockStatusLimit(t *testing.T) {
	c := serve(t, Options{}, &striped{Mem: mem()}).attach(t, optStructuredReply, optSetMetaContext)
	off, seen := uint64(0), 0
	for off < testSize {
		a := c.do(cmdBlockStatus, 0, off, uint32(testSize-off))
		if a.errno != 0 || len(a.status) == 0 {
			t.Fatalf("at %d: %v", off, a.errno)
		}
		if n := len(a.status) / 2; n > maxDescriptors {
			t.Fatalf("%d descriptors", n)
		}
		for i := 0; i < len(a.status); i += 2 {
			off += uint64(a.status[i])
			seen++
		}
	}
	if off != testSize || seen != testSize/512 {
		t.Errorf("%d extents up to %d", seen, off)
	}
}

// TestGarbage: what is no request ends the connection, and only that.
func TestGarbage(t *testing.T) {
	s := serve(t, Options{}, mem())
	other := s.attach(t)
	for name, b := range map[string][]byte{
		"magic":     append([]byte{0x25, 0x60, 0x95, 0x14}, make([]byte, 24)...),
		"extended":  append([]byte{0x21, 0xe4, 0x1c, 0x71}, make([]byte, 28)...),
		"an option": optionBytes(optGo, info("a name")),
	} {
		t.Run(name, func(t *testing.T) {
			c := s.attach(t)
			c.send(b)
			c.wantEnd()
		})
	}
	other.mustRead(0, testContent()[:512])
}

// TestDisc: what is under way is answered before the end.
func TestDisc(t *testing.T) {
	eachMode(t, func(t *testing.T, how []option) {
		dev := &waiting{Device: mem(), every: 1, gate: make(chan struct{})}
		c := serve(t, Options{}, dev).attach(t, how...)
		c.send(requestBytes(cmdRead, 0, 7, 512, 512), requestBytes(cmdDisc, 0, 8, 0, 0))
		close(dev.gate)
		cookie, a := c.answer(map[uint64]pending{7: {cmdRead, 512, 512}})
		if cookie != 7 || !bytes.Equal(a.data, testContent()[512:1024]) {
			t.Errorf("reply %d, %v", cookie, a.errno)
		}
		c.wantEnd()
	})
}

// TestDeathInTheMiddle: a client that goes away within a write leaves nothing
// behind but what it sent.
func TestDeathInTheMiddle(t *testing.T) {
	s := serve(t, Options{}, &waiting{Device: mem(), every: 2})
	for _, sent := range []int{0, 1, 4096, 300 << 10} {
		c := s.attach(t)
		c.send(requestBytes(cmdWrite, 0, 1, 0, 1<<20), make([]byte, sent))
		c.nc.Close()
	}
	c := s.attach(t)
	c.mustRead(1<<20, testContent()[1<<20:][:512])
}

func spaceOf(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return blocks(info) * 512
}

// TestCache: the range is read, and nothing but it.
func TestCache(t *testing.T) {
	dev := &reads{Mem: mem()}
	c := serve(t, Options{}, dev).attach(t)
	if a := c.do(cmdCache, 0, 4<<20, 600<<10); a.errno != 0 {
		t.Fatal(a.errno)
	}
	next := int64(4 << 20)
	for _, r := range dev.seen {
		if r.Off != next || r.Len == 0 {
			t.Errorf("read of %d bytes at %d, want it at %d", r.Len, r.Off, next)
		}
		next = r.End()
	}
	if next != 4<<20+600<<10 {
		t.Errorf("read up to %d", next)
	}
}

// reads is a disk that remembers what was read.
type reads struct {
	*blockdev.Mem
	seen []blockdev.Extent
}

func (d *reads) ReadAt(p []byte, off int64) (int, error) {
	d.seen = append(d.seen, blockdev.Extent{Off: off, Len: int64(len(p))})
	return d.Mem.ReadAt(p, off)
}

// TestFUA: a change with FUA is flushed before its answer, and nothing else is.
func TestFUA(t *testing.T) {
	eachMode(t, func(t *testing.T, how []option) {
		for _, every := range []int{0, 1} {
			dev := &waiting{Device: mem(), every: every}
			c := serve(t, Options{}, capable{dev, allCaps}).attach(t, how...)
			for cmd, flushes := range map[command]int32{
				cmdWrite: 1, cmdTrim: 1, cmdWriteZeroes: 1, cmdRead: 0, cmdCache: 0, cmdBlockStatus: 0,
			} {
				if cmd == cmdBlockStatus && how == nil {
					continue
				}
				for flags, want := range map[commandFlags]int32{0: 0, flagFUA: flushes} {
					var payload []byte
					if cmd == cmdWrite {
						payload = make([]byte, 4096)
					}
					before := dev.flushes.Load()
					if a := c.do(cmd, flags, 8192, 4096, payload...); a.errno != 0 {
						t.Fatalf("command %d: %v", cmd, a.errno)
					}
					if got := dev.flushes.Load() - before; got != want {
						t.Errorf("command %d with flags %d, every %d: %d flushes, want %d", cmd, flags, every, got, want)
					}
				}
			}
		}
	})
}
