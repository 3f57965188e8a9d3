package nbd

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/containerdisk/containerdisk/blockdev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testSize  = 34 << 20
	testLimit = time.Minute // for anything a test waits for
)

// numbered is content in which every eight bytes are their own offset, but for
// a stretch of zeros.
func numbered(size int64) []byte {
	b := make([]byte, size)
	for i := int64(0); i+8 <= size; i += 8 {
		binary.BigEndian.PutUint64(b[i:], uint64(i)+1)
	}
	clear(b[zeroFrom:zeroTo])
	return b
}

// The contexts, in the order of their numbers.
const (
	allocationName = "base:allocation"
	hydrationName  = "containerdisk:hydration"

	allContexts contextSet = 3
)

const (
	zeroFrom = 8 << 20
	zeroTo   = 9 << 20
)

var testContent = sync.OnceValue(func() []byte { return numbered(testSize) })

// testServer is a server on a Unix socket.
type testServer struct {
	*Server
	path   string
	served chan error
}

// serve starts a server of the devices, the first named "first", and sees to
// its end.
func serve(t testing.TB, o Options, devs ...blockdev.Device) *testServer {
	t.Helper()
	for i, d := range devs {
		name := []string{"first", "second", "third"}[i]
		o.Exports = append(o.Exports, NewExport(name, d, ExportOptions{Description: "disk " + name}))
	}
	return serveExports(t, o, TLSOff)
}

func serveExports(t testing.TB, o Options, mode TLSMode) *testServer {
	t.Helper()
	s := &testServer{Server: New(o), path: filepath.Join(t.TempDir(), "s"), served: make(chan error, 1)}
	l, err := ListenUnix(s.path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { s.served <- s.Serve(l, mode) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-s.served; !errors.Is(err, ErrClosed) {
			t.Errorf("Serve: %v, want ErrClosed", err)
		}
	})
	return s
}

// mem is a disk in memory with the tests' content.
func mem() *blockdev.Mem { return blockdev.MemOf(bytes.Clone(testContent())) }

// client speaks the protocol from the other side, and believes nothing.
type client struct {
	t          testing.TB
	nc         net.Conn
	structured bool
	size       uint64
	flags      uint16
}

// dial connects and reads the greeting.
func (s *testServer) dial(t testing.TB) *client {
	t.Helper()
	nc, err := net.Dial("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	return meet(t, nc)
}

func meet(t testing.TB, nc net.Conn) *client {
	t.Helper()
	c := &client{t: t, nc: nc}
	t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(testLimit))
	want := "NBDMAGICIHAVEOPT\x00\x03"
	if got := c.take(len(want)); string(got) != want {
		t.Fatalf("greeting %q", got)
	}
	return c
}

// hello is dial with the usual flags.
func (s *testServer) hello(t testing.TB) *client {
	t.Helper()
	c := s.dial(t)
	c.send(binary.BigEndian.AppendUint32(nil, clientFixedNewstyle|clientNoZeroes))
	return c
}

// attach is hello and GO to the default export; how says what to negotiate.
func (s *testServer) attach(t testing.TB, how ...option) *client {
	t.Helper()
	c := s.hello(t)
	for _, o := range how {
		c.negotiate(o)
	}
	c.goTo("")
	return c
}

func (c *client) negotiate(o option) {
	c.t.Helper()
	var data []byte
	if o == optSetMetaContext {
		data = contexts("", allocationName, hydrationName)
	}
	if r := c.option(o, data); r[len(r)-1].typ != repAck {
		c.t.Fatalf("option %d: %v", o, r)
	}
	if o == optStructuredReply {
		c.structured = true
	}
}

func (c *client) send(b ...[]byte) {
	c.t.Helper()
	if _, err := c.nc.Write(bytes.Join(b, nil)); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

func (c *client) take(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c.nc, b); err != nil {
		c.t.Fatalf("read of %d bytes: %v", n, err)
	}
	return b
}

// wantEnd fails the test unless the server closes without another byte.
func (c *client) wantEnd() {
	c.t.Helper()
	b, err := io.ReadAll(c.nc)
	if len(b) > 0 || errors.Is(err, errTimeout(err)) {
		c.t.Errorf("got % x and %v, want the end", b, err)
	}
}

// errTimeout is err if it is a timeout; a reset is an end as well.
func errTimeout(err error) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return err
	}
	return errors.New("none")
}

// optReply is one option reply.
type optReply struct {
	opt  option
	typ  optionReply
	data string
}

func optionBytes(o option, data []byte) []byte {
	b := binary.BigEndian.AppendUint64(nil, magicOption)
	b = binary.BigEndian.AppendUint32(b, uint32(o))
	b = binary.BigEndian.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

// option sends an option and reads all replies up to the last.
func (c *client) option(o option, data []byte) []optReply {
	c.t.Helper()
	c.send(optionBytes(o, data))
	return c.optionReplies(o)
}

func (c *client) optionReplies(o option) []optReply {
	c.t.Helper()
	var all []optReply
	for {
		h := c.take(20)
		if binary.BigEndian.Uint64(h) != magicReply {
			c.t.Fatalf("option reply begins % x", h)
		}
		r := optReply{
			opt: option(binary.BigEndian.Uint32(h[8:])),
			typ: optionReply(binary.BigEndian.Uint32(h[12:])),
		}
		r.data = string(c.take(int(binary.BigEndian.Uint32(h[16:]))))
		if r.opt != o {
			c.t.Fatalf("reply to option %d, sent %d", r.opt, o)
		}
		all = append(all, r)
		if r.typ == repAck || r.typ>>31 == 1 {
			return all
		}
	}
}

// info is the data of INFO and GO.
func info(name string, wanted ...infoType) []byte {
	b := appendString(nil, name)
	b = binary.BigEndian.AppendUint16(b, uint16(len(wanted)))
	for _, w := range wanted {
		b = binary.BigEndian.AppendUint16(b, uint16(w))
	}
	return b
}

// contexts is the data of LIST_META_CONTEXT and SET_META_CONTEXT.
func contexts(name string, queries ...string) []byte {
	b := appendString(nil, name)
	b = binary.BigEndian.AppendUint32(b, uint32(len(queries)))
	for _, q := range queries {
		b = appendString(b, q)
	}
	return b
}

// goTo enters the transmission phase.
func (c *client) goTo(name string) {
	c.t.Helper()
	for _, r := range c.option(optGo, info(name)) {
		switch {
		case r.typ>>31 == 1:
			c.t.Fatalf("GO: %#x %q", uint32(r.typ), r.data)
		case r.typ == repInfo && infoType(binary.BigEndian.Uint16([]byte(r.data))) == infoExport:
			c.size = binary.BigEndian.Uint64([]byte(r.data[2:]))
			c.flags = binary.BigEndian.Uint16([]byte(r.data[10:]))
		}
	}
}

func requestBytes(cmd command, flags commandFlags, cookie, off uint64, n uint32, payload ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, magicRequest)
	b = binary.BigEndian.AppendUint16(b, uint16(flags))
	b = binary.BigEndian.AppendUint16(b, uint16(cmd))
	b = binary.BigEndian.AppendUint64(b, cookie)
	b = binary.BigEndian.AppendUint64(b, off)
	b = binary.BigEndian.AppendUint32(b, n)
	return append(b, payload...)
}

// answer is a whole reply, put together from its chunks.
type answer struct {
	errno  errno
	text   string // of an error chunk
	data   []byte // of a read
	chunks int    // how many
	holes  int    // of them, OFFSET_HOLE

	status    []uint32 // of BLOCK_STATUS, base:allocation: length, flags, …
	hydration []uint32 // containerdisk:hydration
}

// do sends a request and reads its reply, and that of no other.
func (c *client) do(cmd command, flags commandFlags, off uint64, n uint32, payload ...byte) answer {
	c.t.Helper()
	const cookie = 0x0123456789abcdef
	c.send(requestBytes(cmd, flags, cookie, off, n, payload...))
	got, a := c.answer(map[uint64]pending{cookie: {cmd, off, n}})
	if got != cookie {
		c.t.Fatalf("reply for %#x", got)
	}
	return a
}

// pending is a request whose reply is to come.
type pending struct {
	cmd command
	off uint64
	n   uint32
}

// answer reads replies until one of those pending is whole. It is strict: data
// is within the range asked for and covers it once, the last chunk is marked.
func (c *client) answer(reqs map[uint64]pending) (uint64, answer) {
	c.t.Helper()
	partial := map[uint64]*answer{}
	for {
		magic := binary.BigEndian.Uint32(c.take(4))
		if magic == magicSimple {
			return c.simpleAnswer(reqs)
		}
		if magic != magicChunk || !c.structured {
			c.t.Fatalf("reply begins with %#x", magic)
		}
		h := c.take(16)
		cookie := binary.BigEndian.Uint64(h[4:])
		p, ok := reqs[cookie]
		if !ok {
			c.t.Fatalf("chunk for %#x, which was not asked", cookie)
		}
		a := partial[cookie]
		if a == nil {
			a = &answer{}
			partial[cookie] = a
			if p.cmd == cmdRead {
				a.data = make([]byte, 0, p.n)
			}
		}
		a.chunks++
		done := binary.BigEndian.Uint16(h)&chunkFlagDone != 0
		c.chunk(a, p, chunkType(binary.BigEndian.Uint16(h[2:])), c.take(int(binary.BigEndian.Uint32(h[12:]))))
		if !done {
			continue
		}
		if p.cmd == cmdRead && a.errno == 0 && len(a.data) != int(p.n) {
			c.t.Fatalf("read of %d bytes got %d", p.n, len(a.data))
		}
		return cookie, *a
	}
}

func (c *client) simpleAnswer(reqs map[uint64]pending) (uint64, answer) {
	c.t.Helper()
	h := c.take(12)
	cookie := binary.BigEndian.Uint64(h[4:])
	p, ok := reqs[cookie]
	if !ok {
		c.t.Fatalf("reply for %#x, which was not asked", cookie)
	}
	a := answer{errno: errno(binary.BigEndian.Uint32(h))}
	switch {
	case c.structured && (p.cmd == cmdRead || p.cmd == cmdBlockStatus):
		c.t.Fatalf("simple reply to command %d", p.cmd)
	case p.cmd == cmdRead && a.errno == 0:
		a.data = c.take(int(p.n))
	}
	return cookie, a
}

func (c *client) chunk(a *answer, p pending, typ chunkType, b []byte) {
	c.t.Helper()
	next := func(off uint64, n int) {
		if off != p.off+uint64(len(a.data)) || n == 0 || len(a.data)+n > int(p.n) {
			c.t.Fatalf("data [%d, +%d) behind %d of a read of [%d, +%d)", off, n, len(a.data), p.off, p.n)
		}
	}
	switch typ {
	case chunkNone:
		if len(b) != 0 {
			c.t.Fatalf("NONE with %d bytes", len(b))
		}
	case chunkOffsetData:
		next(binary.BigEndian.Uint64(b), len(b)-8)
		a.data = append(a.data, b[8:]...)
	case chunkOffsetHole:
		n := int(binary.BigEndian.Uint32(b[8:]))
		next(binary.BigEndian.Uint64(b), n)
		a.data = append(a.data, make([]byte, n)...)
		a.holes++
	case chunkBlockStatus:
		id := binary.BigEndian.Uint32(b)
		list := map[uint32]*[]uint32{1: &a.status, 2: &a.hydration}[id]
		if list == nil || *list != nil || len(b)%8 != 4 || len(b) == 4 {
			c.t.Fatalf("BLOCK_STATUS of context %d, %d bytes", id, len(b))
		}
		for b := b[4:]; len(b) > 0; b = b[4:] {
			*list = append(*list, binary.BigEndian.Uint32(b))
		}
	case chunkError:
		a.errno = errno(binary.BigEndian.Uint32(b))
		a.text = string(b[6:])
		if a.errno == 0 || int(binary.BigEndian.Uint16(b[4:])) != len(a.text) {
			c.t.Fatalf("error chunk % x", b)
		}
	default:
		c.t.Fatalf("chunk of type %d", typ)
	}
}

// mustRead reads and compares with what the disk should hold.
func (c *client) mustRead(off uint64, want []byte) {
	c.t.Helper()
	a := c.do(cmdRead, 0, off, uint32(len(want)))
	if a.errno != 0 || !bytes.Equal(a.data, want) {
		c.t.Fatalf("read of %d bytes at %d: %v, data equal: %v", len(want), off, a.errno, bytes.Equal(a.data, want))
	}
}

// disconnect leaves in good order.
func (c *client) disconnect() {
	c.t.Helper()
	c.send(requestBytes(cmdDisc, 0, 0, 0, 0))
	c.wantEnd()
}
