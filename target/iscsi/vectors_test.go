package iscsi

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/target/scsi"
)

// A vector is a PDU in testdata/vectors, in annotated hexadecimal: what is
// behind a # is a comment. Its "expect:" lines tell what it means, as
// field=value, or what comes of it.
type vector struct {
	name   string
	bytes  []byte
	expect []string
}

func vectors(t testing.TB, glob string) []vector {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "vectors", glob))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors %s (%v)", glob, err)
	}
	var all []vector
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		v := vector{name: filepath.Base(f)}
		for line := range strings.Lines(string(b)) {
			if e, ok := strings.CutPrefix(line, "expect:"); ok {
				v.expect = append(v.expect, strings.Fields(e)...)
				continue
			}
			line, _, _ = strings.Cut(line, "#")
			b, err := hex.DecodeString(strings.Join(strings.Fields(line), ""))
			if err != nil {
				t.Fatalf("%s: %q: %v", f, line, err)
			}
			v.bytes = append(v.bytes, b...)
		}
		if len(v.expect) == 0 || len(v.bytes) < bhsLen {
			t.Fatalf("%s: %d bytes and %d expectations", f, len(v.bytes), len(v.expect))
		}
		all = append(all, v)
	}
	return all
}

// TestRequestVectors reads requests by the views of the package.
func TestRequestVectors(t *testing.T) {
	for _, v := range vectors(t, "request-*.hex") {
		r := &receiver{maxData: ourMaxRecvSegment}
		copy(r.Room(r.need), v.bytes)
		r.Got(len(v.bytes))
		p, ok, err := r.next()
		if !ok || err != nil || len(r.Bytes()) > 0 {
			t.Errorf("%s: whole %v, %v, %d bytes left", v.name, ok, err, len(r.Bytes()))
			continue
		}
		got := fieldsOf(p)
		for _, e := range v.expect {
			k, want, _ := strings.Cut(e, "=")
			if g, ok := got[k]; !ok || g != want {
				t.Errorf("%s: %s=%s, want %s", v.name, k, g, want)
			}
		}
		if len(v.expect) != len(got) {
			t.Errorf("%s: %d fields expected, there are %d: %v", v.name, len(v.expect), len(got), got)
		}
	}
}

// fieldsOf is every field of a request that the package reads.
func fieldsOf(p pdu) map[string]string {
	f := make(map[string]string)
	tag := func(k string, v uint32) { f[k] = fmt.Sprintf("%#x", v) }
	f["opcode"] = strings.ReplaceAll(p.opcode().String(), " ", "-")
	f["immediate"] = fmt.Sprint(p.immediate())
	tag("itt", p.itt())
	if len(p.ahs) > 0 {
		f["ahs"] = fmt.Sprintf("%x", p.ahs)
	}
	f["data"] = fmt.Sprintf("%x", p.data)
	if p.opcode() != opDataOut {
		tag("cmdsn", p.cmdSN())
	}
	tag("expstatsn", p.expStatSN())
	switch p.opcode() {
	case opSCSICommand:
		c := scsiCommand{p.BHS}
		f["final"], f["reads"], f["writes"] = fmt.Sprint(c.final()), fmt.Sprint(c.reads()), fmt.Sprint(c.writes())
		f["edtl"], f["cdb"], f["lun"] = fmt.Sprint(c.edtl()), fmt.Sprintf("%x", *c.cdb()), fmt.Sprintf("%#x", c.lun())
	case opDataOut:
		d := dataOut{p.BHS}
		f["final"], f["sn"], f["offset"], f["lun"] = fmt.Sprint(d.final()), fmt.Sprint(d.sn()), fmt.Sprint(d.offset()), fmt.Sprintf("%#x", d.lun())
		tag("ttt", d.ttt())
	case opNopOut:
		tag("ttt", nopOut{p.BHS}.ttt())
		f["lun"] = fmt.Sprintf("%#x", p.lun())
	case opTaskRequest:
		r := taskRequest{p.BHS}
		f["function"], f["lun"] = fmt.Sprint(uint8(r.function())), fmt.Sprintf("%#x", r.lun())
		tag("reftag", r.refTag())
		tag("refcmdsn", r.refCmdSN())
	case opLogin:
		l := loginRequest{p.BHS}
		f["transit"], f["continue"] = fmt.Sprint(l.transit()), fmt.Sprint(l.continues())
		f["csg"], f["nsg"] = fmt.Sprint(uint8(l.csg())), fmt.Sprint(uint8(l.nsg()))
		f["versionmin"], f["isid"] = fmt.Sprint(l.versionMin()), l.isid().String()
		f["tsih"], f["cid"] = fmt.Sprint(l.tsih()), fmt.Sprint(l.cid())
	case opText:
		r := textRequest{p.BHS}
		f["final"], f["continue"], f["lun"] = fmt.Sprint(r.final()), fmt.Sprint(r.continues()), fmt.Sprintf("%#x", r.lun())
		tag("ttt", r.ttt())
	case opLogout:
		r := logoutRequest{p.BHS}
		f["reason"], f["cid"] = fmt.Sprint(r.reason()), fmt.Sprint(r.cid())
	}
	return f
}

// responses are the headers that the response vectors hold. The numbers are
// the connection's business and stay 0.
var responses = map[string]func(*BHS){
	"response-nop-in.hex":        nopIn{lun: 1 << 48, itt: 0x0a0b0c0d, ttt: reservedTag, n: 5}.header,
	"response-scsi.hex":          scsiResponse{itt: 0x0a0b0c0d, status: scsi.CheckCondition, expDataSN: 3, residualFlag: rspFlagUnderflow, residual: 0x200}.header,
	"response-task.hex":          taskResponse{itt: 0x0a0b0c0d, response: scsi.FunctionRejected}.header,
	"response-login.hex":         loginResponse{flags: 0x87, isid: isid{0x80, 1, 2, 3, 4, 5}, tsih: 0x1234, itt: 0x0a0b0c0d, status: statusDuringLogin}.header,
	"response-text.hex":          textResponse{flags: flagFinal, lun: 1 << 48, itt: 0x0a0b0c0d, ttt: reservedTag, n: 4}.header,
	"response-data-in.hex":       dataIn{itt: 0x0a0b0c0d, sn: 2, offset: 0x4000, n: 0x2000, flags: flagFinal}.header,
	"response-data-in-final.hex": dataIn{itt: 0x0a0b0c0d, sn: 2, offset: 0x4000, n: 0x1ff, flags: flagFinal | dataFlagStatus | rspFlagOverflow, residual: 9}.header,
	"response-r2t.hex":           r2t{lun: 1 << 48, itt: 0x0a0b0c0d, ttt: 0x01020304, sn: 2, offset: 0x4000, length: 0x10000}.header,
	"response-logout.hex":        logoutReply{itt: 0x0a0b0c0d, response: logoutNoRecovery}.header,
	"response-reject.hex":        reject{reason: rejectInvalidField, n: 48}.header,
	"response-async.hex":         async{event: asyncLogout, seconds: 60}.header,
}

// TestResponseVectors compares the headers that the package makes, over stale
// bytes, with the vectors.
func TestResponseVectors(t *testing.T) {
	all := vectors(t, "response-*.hex")
	if len(all) != len(responses) {
		t.Errorf("%d vectors, %d headers", len(all), len(responses))
	}
	for _, v := range all {
		header, ok := responses[v.name]
		if !ok {
			t.Errorf("%s: no header to compare it with", v.name)
			continue
		}
		var h BHS
		for i := range h {
			h[i] = 0xee
		}
		header(&h)
		if string(h[:]) != string(v.bytes) {
			t.Errorf("%s:\n got % x\nwant % x", v.name, h[:], v.bytes)
		}
		if want := strings.ReplaceAll(h.opcode().String(), " ", "-"); v.expect[0] != "opcode="+want {
			t.Errorf("%s: %v, want opcode=%s", v.name, v.expect, want)
		}
	}
}
