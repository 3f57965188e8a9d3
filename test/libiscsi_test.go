//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// expect fails the test unless out matches every pattern, line by line.
func expect(t *testing.T, out string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile("(?m)" + p).MatchString(out) {
			t.Errorf("want a line like %q in\n%s", p, out)
		}
	}
}

func TestDiscovery(t *testing.T) {
	require(t, "iscsi-ls")
	s := serve(t, createImage(t, 64*mib, ""), nil)
	expect(t, command(t, "iscsi-ls", s.portal()),
		`^Target:`+regexp.QuoteMeta(s.name)+` Portal:`+regexp.QuoteMeta(s.address)+`,1$`)
	expect(t, command(t, "iscsi-ls", "-s", s.portal()), `^Lun:1 +Type:DIRECT_ACCESS \(Size:6[34]M\)$`)
}

// TestName sets everything that a client addresses the disk by.
func TestName(t *testing.T) {
	require(t, "iscsi-ls", "iscsi-readcapacity16")
	const name = "iqn.2026-01.org.example:my.disk"
	s := serve(t, createImage(t, 3*mib, ""), env{"WWN": name, "LUN": "7"})
	expect(t, command(t, "iscsi-ls", "-s", s.portal()), `^Target:`+name+` `, `^Lun:7 +Type:DIRECT_ACCESS`)
	url := strings.TrimSuffix(s.url(), "1") + "7"
	if got := strings.TrimSpace(command(t, "iscsi-readcapacity16", "-s", url)); got != fmt.Sprint(3*mib) {
		t.Errorf("LUN 7 has %s bytes, want %d", got, 3*mib)
	}
	if r := attempt(t, "iscsi-inq", s.url()); r.code != 0 || !strings.Contains(r.out, "NOT_CONNECTED") && !strings.Contains(r.out, "Qualifier:NOT") {
		t.Logf("LUN 1 answered %d: %s", r.code, r.out)
	}
	wrong := s.endpoint
	wrong.name += ".other"
	if r := attempt(t, "iscsi-inq", wrong.url()); r.code == 0 || !strings.Contains(r.out, "Target not found") {
		t.Errorf("a target that does not exist: %d: %s, want Target not found", r.code, r.out)
	}
}

func TestInquiry(t *testing.T) {
	require(t, "iscsi-inq", "iscsi-readcapacity16")
	s := serve(t, createImage(t, oddSize, ""), nil)
	expect(t, command(t, "iscsi-inq", s.url()),
		`^Peripheral Qualifier:CONNECTED$`, `^Peripheral Device Type:DIRECT_ACCESS$`, `^Removable:0$`,
		`^ReponseDataFormat:2$`, `^CmdQue:1$`, `^Vendor:\S`, `^Product:\S`, `^Revision:\S`, `Version Descriptor:.* iSCSI`)
	for page, want := range map[int][]string{
		0x00: {`^Page:0x00 `, `^Page:0x80 `, `^Page:0x83 `, `^Page:0xb0 `, `^Page:0xb1 `, `^Page:0xb2 `},
		0x80: {`(?i)serial.*:\[?\S+`},
		0x83: {`(?i)designator`, regexp.QuoteMeta(s.name)},
		0xb0: {`(?i)^maximum unmap lba count:[1-9]`, `(?i)^maximum unmap block descriptor count:[1-9]`},
		0xb1: {`(?i)medium rotation rate|rotation`},
		0xb2: {`(?i)lbpu:1`, `(?i)lbpws:1`},
	} {
		expect(t, command(t, "iscsi-inq", "-e", "1", "-c", fmt.Sprint(page), s.url()), want...)
	}
	expect(t, command(t, "iscsi-readcapacity16", s.url()),
		fmt.Sprintf(`^RETURNED LOGICAL BLOCK ADDRESS:%d$`, oddSize/sector-1),
		`^LOGICAL BLOCK LENGTH IN BYTES:512$`, `^LBPME:1 LBPRZ:1$`, fmt.Sprintf(`^Total size:%d$`, oddSize))
}

// TestSessions has several clients at work on one disk.
func TestSessions(t *testing.T) {
	image := makeImage(t, 24*mib, quick, "-c")
	s, raw := serve(t, image, env{"ACCESS_MODE": "write-shared"}), expand(t, image)
	stay := attach(t, s.url())
	var clients sync.WaitGroup
	for range 6 {
		clients.Go(func() { compare(t, s.url(), raw) })
	}
	clients.Wait()
	stay.do(t, "write -P 0x77 1M 64k", "wrote 65536/65536")
	other := attach(t, s.url())
	other.do(t, "read -P 0x77 1M 64k", "read 65536/65536")
	other.quit(t)
	stay.quit(t)
}
