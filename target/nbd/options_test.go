package nbd

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestOptions has a row for each option and each way in which it can be wrong.
// Every row is said to a fresh connection.
func TestOptions(t *testing.T) {
	s := serve(t, Options{}, mem(), mem())
	long := strings.Repeat("x", maxString)
	cut := func(b []byte) []byte { return b[:len(b)-1] }
	for _, tt := range []struct {
		name string
		prep []option // negotiated before
		opt  option
		data []byte
		want []optionReply
	}{
		{"list", nil, optList, nil, []optionReply{repServer, repServer, repAck}},
		{"list with data", nil, optList, []byte{0}, []optionReply{repErrInvalid}},
		{"info of the default", nil, optInfo, info(""), []optionReply{repInfo, repInfo, repAck}},
		{"info by name", nil, optInfo, info("second"), []optionReply{repInfo, repInfo, repAck}},
		{"info, everything", nil, optInfo, info("", infoExport, infoName, infoDescription, infoBlockSize), []optionReply{repInfo, repInfo, repInfo, repInfo, repAck}},
		{"info, twice the same", nil, optInfo, info("", infoName, infoName), []optionReply{repInfo, repInfo, repInfo, repAck}},
		{"info, unknown types", nil, optInfo, info("", 99, infoName, 4711), []optionReply{repInfo, repInfo, repInfo, repAck}},
		{"info of an unknown export", nil, optInfo, info("third"), []optionReply{repErrUnknown}},
		{"info of a long name", nil, optInfo, info(long), []optionReply{repErrUnknown}},
		{"info of too long a name", nil, optInfo, info(long + "x"), []optionReply{repErrInvalid}},
		{"info of no name", nil, optInfo, nil, []optionReply{repErrInvalid}},
		{"info of a name that is cut", nil, optInfo, []byte{0, 0, 0, 9, 'x', 0, 0}, []optionReply{repErrInvalid}},
		{"info of a name of 4 GiB", nil, optInfo, []byte{255, 255, 255, 255, 'x', 0, 0}, []optionReply{repErrInvalid}},
		{"info of a name that is not UTF-8", nil, optInfo, info("\xff"), []optionReply{repErrInvalid}},
		{"info, types are cut", nil, optInfo, cut(info("", infoName)), []optionReply{repErrInvalid}},
		{"info with more behind", nil, optInfo, append(info(""), 0), []optionReply{repErrInvalid}},
		{"GO of an unknown export", nil, optGo, info("third"), []optionReply{repErrUnknown}},
		{"GO malformed", nil, optGo, []byte{1}, []optionReply{repErrInvalid}},
		{"structured reply", nil, optStructuredReply, nil, []optionReply{repAck}},
		{"structured reply twice", []option{optStructuredReply}, optStructuredReply, nil, []optionReply{repAck}},
		{"structured reply with data", nil, optStructuredReply, []byte("x"), []optionReply{repErrInvalid}},
		{"STARTTLS where there is none", nil, optStartTLS, nil, []optionReply{repErrUnsup}},
		{"STARTTLS with data", nil, optStartTLS, []byte("x"), []optionReply{repErrInvalid}},
		{"extended headers", nil, optExtendedHeaders, nil, []optionReply{repErrUnsup}},
		{"PEEK_EXPORT", nil, 4, nil, []optionReply{repErrUnsup}},
		{"zero", nil, 0, []byte("some data"), []optionReply{repErrUnsup}},
		{"unknown", nil, 1 << 31, bytes.Repeat([]byte{1}, maxOptionData), []optionReply{repErrUnsup}},

		{"list contexts early", nil, optListMetaContext, contexts(""), []optionReply{repErrInvalid}},
		{"set contexts early", nil, optSetMetaContext, contexts("", allocationName), []optionReply{repErrInvalid}},
		{"list contexts", []option{optStructuredReply}, optListMetaContext, contexts(""), []optionReply{repMetaContext, repMetaContext, repAck}},
		{"list contexts of a name space", []option{optStructuredReply}, optListMetaContext, contexts("", "x:", "base:"), []optionReply{repMetaContext, repAck}},
		{"list one context", []option{optStructuredReply}, optListMetaContext, contexts("", allocationName), []optionReply{repMetaContext, repAck}},
		{"list one of ours", []option{optStructuredReply}, optListMetaContext, contexts("", hydrationName), []optionReply{repMetaContext, repAck}},
		{"list our name space", []option{optStructuredReply}, optListMetaContext, contexts("", "containerdisk:"), []optionReply{repMetaContext, repAck}},
		{"list both name spaces", []option{optStructuredReply}, optListMetaContext, contexts("", "containerdisk:", "base:"), []optionReply{repMetaContext, repMetaContext, repAck}},
		{"list other contexts", []option{optStructuredReply}, optListMetaContext, contexts("", "base:nothing", "qemu:", "", "base", ":", "containerdisk"), []optionReply{repAck}},
		{"list contexts of an unknown export", []option{optStructuredReply}, optListMetaContext, contexts("third"), []optionReply{repErrUnknown}},
		{"set contexts", []option{optStructuredReply}, optSetMetaContext, contexts("first", allocationName), []optionReply{repMetaContext, repAck}},
		{"set both contexts", []option{optStructuredReply}, optSetMetaContext, contexts("first", hydrationName, allocationName), []optionReply{repMetaContext, repMetaContext, repAck}},
		{"set contexts twice the same", []option{optStructuredReply}, optSetMetaContext, contexts("", allocationName, allocationName), []optionReply{repMetaContext, repAck}},
		{"set no context", []option{optStructuredReply}, optSetMetaContext, contexts(""), []optionReply{repAck}},
		{"set a name space", []option{optStructuredReply}, optSetMetaContext, contexts("", "base:", "containerdisk:"), []optionReply{repAck}},
		{"set unknown contexts", []option{optStructuredReply}, optSetMetaContext, contexts("", "x", "y:z"), []optionReply{repAck}},
		{"set contexts of an unknown export", []option{optStructuredReply}, optSetMetaContext, contexts("third", allocationName), []optionReply{repErrUnknown}},
		{"set contexts, no queries", []option{optStructuredReply}, optSetMetaContext, appendString(nil, ""), []optionReply{repErrInvalid}},
		{"set contexts, a query is cut", []option{optStructuredReply}, optSetMetaContext, cut(contexts("", "base:")), []optionReply{repErrInvalid}},
		{"set contexts, more behind", []option{optStructuredReply}, optSetMetaContext, append(contexts("", "base:"), 1), []optionReply{repErrInvalid}},
		{"set contexts, 2^32-1 queries", []option{optStructuredReply}, optSetMetaContext, append(appendString(nil, ""), 255, 255, 255, 255), []optionReply{repErrInvalid}},
		{"set contexts, 10000 queries", []option{optStructuredReply}, optSetMetaContext, contexts("", make([]string, 10000)...), []optionReply{repAck}},
		{"set contexts, a long query", []option{optStructuredReply}, optSetMetaContext, contexts("", long), []optionReply{repAck}},
		{"set contexts, too long a query", []option{optStructuredReply}, optSetMetaContext, contexts("", long+"x"), []optionReply{repErrInvalid}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := s.hello(t)
			for _, o := range tt.prep {
				c.negotiate(o)
			}
			var got []optionReply
			for _, r := range c.option(tt.opt, tt.data) {
				got = append(got, r.typ)
				c.structured = c.structured || r.opt == optStructuredReply && r.typ == repAck
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %#x, want %#x", got, tt.want)
			}
			c.goTo("") // whatever it was, negotiation goes on
			c.mustRead(4096, testContent()[4096:8192])
			c.disconnect()
		})
	}
}

// TestInfoContent reads what INFO tells, field by field.
func TestInfoContent(t *testing.T) {
	s := serve(t, Options{}, capable{mem(), allCaps})
	c := s.hello(t)
	got := map[infoType]string{}
	for _, r := range c.option(optInfo, info("", infoName, infoDescription)) {
		if r.typ == repInfo {
			got[infoType(binary.BigEndian.Uint16([]byte(r.data)))] = r.data[2:]
		}
	}
	size := binary.BigEndian.AppendUint64(nil, testSize)
	blocks := []byte{0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0}
	for k, want := range map[infoType]string{
		infoExport:      string(binary.BigEndian.AppendUint16(size, s.o.Exports[0].flags(false))),
		infoName:        "first",
		infoDescription: "disk first",
		infoBlockSize:   string(blocks),
	} {
		if got[k] != want {
			t.Errorf("info %d: got % x, want % x", k, got[k], want)
		}
	}
}

// TestPreferredBlock: a device with large blocks is best used in these.
func TestPreferredBlock(t *testing.T) {
	caps := allCaps
	caps.PhysicalBlock = 64 << 10
	c := serve(t, Options{}, capable{mem(), caps}).hello(t)
	want := string([]byte{0, byte(infoBlockSize), 0, 0, 0, 1, 0, 1, 0, 0, 2, 0, 0, 0})
	if r := c.option(optInfo, info("")); !slices.ContainsFunc(r, func(r optReply) bool { return r.data == want }) {
		t.Errorf("got %v, want % x among them", r, want)
	}
}

func TestListContent(t *testing.T) {
	r := serve(t, Options{}, mem(), mem()).hello(t).option(optList, nil)
	want := string(appendString(nil, "second")) + "disk second"
	if r[1].data != want {
		t.Errorf("got %q, want %q", r[1].data, want)
	}
}

// TestExportName is the option without a reply.
func TestExportName(t *testing.T) {
	s := serve(t, Options{}, mem(), mem())
	for _, tt := range []struct {
		name    string
		flags   uint32
		padding int
	}{
		{"", clientFixedNewstyle, 124},
		{"first", clientFixedNewstyle | clientNoZeroes, 0},
		{"second", clientNoZeroes, 0},
		{"second", 0, 124},
	} {
		c := s.dial(t)
		c.send(binary.BigEndian.AppendUint32(nil, tt.flags), optionBytes(optExportName, []byte(tt.name)))
		b := c.take(10 + tt.padding)
		if size := binary.BigEndian.Uint64(b); size != testSize || !bytes.Equal(b[10:], make([]byte, tt.padding)) {
			t.Errorf("%q: % x", tt.name, b)
		}
		c.mustRead(0, testContent()[:4096])
		c.disconnect()
	}
	for _, name := range []string{"third", strings.Repeat("x", maxString+1), "\x00"} {
		c := s.hello(t)
		c.send(optionBytes(optExportName, []byte(name)))
		c.wantEnd()
	}
}

func TestAbort(t *testing.T) {
	for _, data := range []string{"", "ignored"} {
		c := serve(t, Options{}, mem()).hello(t)
		if r := c.option(optAbort, []byte(data)); r[0].typ != repAck {
			t.Errorf("got %v", r)
		}
		c.wantEnd()
	}
}

// TestHandshakeGarbage: what cannot be answered ends the connection.
func TestHandshakeGarbage(t *testing.T) {
	s := serve(t, Options{Handshake: time.Hour}, mem()) // it is not time that ends them
	header := func(magic uint64, n uint32) []byte {
		b := binary.BigEndian.AppendUint64(nil, magic)
		b = binary.BigEndian.AppendUint32(b, uint32(optGo))
		return binary.BigEndian.AppendUint32(b, n)
	}
	for name, b := range map[string][]byte{
		"flags":         {0, 0, 0, 4},
		"all flags":     {255, 255, 255, 255},
		"magic":         append([]byte{0, 0, 0, 3}, header(magicInit, 0)...),
		"length":        append([]byte{0, 0, 0, 3}, header(magicOption, maxOptionData+1)...),
		"length, 4 GiB": append([]byte{0, 0, 0, 3}, header(magicOption, 1<<32-1)...),
		"a request":     append([]byte{0, 0, 0, 3}, requestBytes(cmdRead, 0, 1, 0, 512)...),
	} {
		t.Run(name, func(t *testing.T) {
			c := s.dial(t)
			c.send(b)
			c.wantEnd()
		})
	}
}

// TestTooManyOptions: nobody may haggle for ever.
func TestTooManyOptions(t *testing.T) {
	c := serve(t, Options{Handshake: time.Hour}, mem()).hello(t)
	for range maxOptions + optionsPerExport {
		if r := c.option(optInfo, info("")); r[len(r)-1].typ != repAck {
			t.Fatalf("got %v", r)
		}
	}
	c.wantEnd()
}

// TestContextsFollowTheExport: contexts hold for the export that they were
// chosen for, and the last choice counts even when it failed.
func TestContextsFollowTheExport(t *testing.T) {
	s := serve(t, Options{}, mem(), mem())
	for _, tt := range []struct {
		name string
		set  [][]byte
		goTo string
		want errno
	}{
		{"same name", [][]byte{contexts("second", allocationName)}, "second", eOK},
		{"default by its two names", [][]byte{contexts("first", allocationName)}, "", eOK},
		{"other export", [][]byte{contexts("second", allocationName)}, "first", eInval},
		{"none chosen", nil, "", eInval},
		{"chosen and dropped", [][]byte{contexts("", allocationName), contexts("")}, "", eInval},
		{"chosen, then failed", [][]byte{contexts("", allocationName), contexts("third", allocationName)}, "", eInval},
		{"chosen, then malformed", [][]byte{contexts("", allocationName), {1}}, "", eInval},
		{"failed, then chosen", [][]byte{contexts("third"), contexts("", allocationName)}, "", eOK},
	} {
		c := s.hello(t)
		c.negotiate(optStructuredReply)
		for _, data := range tt.set {
			c.option(optSetMetaContext, data)
		}
		c.goTo(tt.goTo)
		if a := c.do(cmdBlockStatus, 0, 0, 512); a.errno != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, a.errno, tt.want)
		}
	}
}

// TestOptionOrder sends options in random orders. Whatever they are, each gets
// one last reply, and GO leads to a disk that works as negotiated.
func TestOptionOrder(t *testing.T) {
	s := serve(t, Options{}, mem(), mem())
	r := rand.New(rand.NewPCG(6, 6))
	data := map[option][][]byte{
		optList:            {nil, {1}},
		optStartTLS:        {nil},
		optInfo:            {info(""), info("second", infoName), info("nobody"), {9}},
		optStructuredReply: {nil, {1}},
		optListMetaContext: {contexts(""), contexts("x"), nil},
		optSetMetaContext:  {contexts("", allocationName), contexts("second", allocationName), contexts("x"), {0}},
		optExtendedHeaders: {nil},
		99:                 {nil, {1, 2, 3}},
	}
	var opts []option
	for o := range data {
		opts = append(opts, o)
	}
	slices.Sort(opts)
	for range 300 {
		c := s.hello(t)
		allocation := false
		for range r.IntN(12) {
			o := opts[r.IntN(len(opts))]
			d := data[o][r.IntN(len(data[o]))]
			last := c.option(o, d)
			ok := last[len(last)-1].typ == repAck
			switch {
			case o == optStructuredReply && ok:
				c.structured = true
			case o == optSetMetaContext:
				allocation = ok && bytes.Equal(d, data[o][0])
			}
		}
		c.goTo("")
		c.mustRead(1<<20, testContent()[1<<20:][:1000])
		want := eInval
		if allocation {
			want = eOK
		}
		if a := c.do(cmdBlockStatus, 0, 0, 512); a.errno != want {
			t.Fatalf("BLOCK_STATUS: %v, want %v", a.errno, want)
		}
		c.disconnect()
	}
}
