//go:build e2e

package e2e

import (
	"maps"
	"strings"
	"testing"
	"time"
)

// The exit codes of libiscsi's programs, and what they say.
const (
	loginFailed = 10
	refused     = "Authentication failure(513)" // RFC 7143 §11.13.5: class 2, detail 1
)

func TestAuthentication(t *testing.T) {
	require(t, "iscsi-inq", "iscsi-ls")
	s := serve(t, createImage(t, mib, ""), nil)
	for _, c := range []struct {
		name    string
		client  account
		options []string
		want    string // "" is a login
	}{
		{"right", reader, nil, ""},
		{"wrong secret", account{reader.name, "reader-secret-2"}, nil, refused},
		{"secret with more", account{reader.name, reader.secret + "x"}, nil, refused},
		{"unknown user", account{"writer", reader.secret}, nil, refused},
		{"user in capitals", account{"READER", reader.secret}, nil, refused},
		{"the target's own account", prover, nil, refused},
		{"no credentials", account{}, nil, refused},
		{"mutual", reader, prover.mutual(), ""},
		{"mutual, other secret expected", reader, account{prover.name, "target-secret-2"}.mutual(), "Invalid CHAP_R"},
		{"mutual, other name expected", reader, account{"impostor", prover.secret}.mutual(), "Wrong CHAP targetname"},
		{"header digest", reader, []string{"header_digest=crc32c"}, ""},
		{"mutual, header digest", reader, append(prover.mutual(), "header_digest=crc32c"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			checkLogin(t, attempt(t, "iscsi-inq", s.as(c.client).url(c.options...)), c.want)
			if d := time.Since(start); c.want == refused && d < time.Second {
				t.Errorf("refused after %v, want a second at least, whatever was wrong", d)
			}
			if c.options == nil { // a discovery session is guarded as well
				r := attempt(t, "iscsi-ls", s.as(c.client).portal())
				if leaked := strings.Contains(r.out, s.name); leaked != (c.want == "") {
					t.Errorf("iscsi-ls: %d: %s", r.code, r.out)
				}
			}
		})
	}
	for _, secret := range []string{reader.secret, prover.secret} {
		if lines := s.log.grep(secret); len(lines) > 0 {
			t.Errorf("a secret is in the log: %s", lines)
		}
	}
}

func checkLogin(t *testing.T, r result, want string) {
	t.Helper()
	switch {
	case want == "" && (r.code != 0 || !strings.Contains(r.out, "DIRECT_ACCESS")):
		t.Errorf("exit code %d: %s, want a login", r.code, r.out)
	case want != "" && (r.code != loginFailed || !strings.Contains(r.out, want)):
		t.Errorf("exit code %d: %s, want %d and %q", r.code, r.out, loginFailed, want)
	}
}

// Without an account of its own the target cannot prove itself; an initiator
// that insists must not get in thinking that it did.
func TestMutualWithoutAccount(t *testing.T) {
	require(t, "iscsi-inq")
	s := serve(t, createImage(t, mib, ""), env{"CHAP_MUTUAL_USERNAME": "", "CHAP_MUTUAL_PASSWORD": ""})
	checkLogin(t, attempt(t, "iscsi-inq", s.url()), "")
	if r := attempt(t, "iscsi-inq", s.url(prover.mutual()...)); r.code == 0 {
		t.Errorf("mutual CHAP with a target that has no account: %s", r.out)
	}
}

// Without CHAP the loopback is open, also for those who come with credentials.
func TestOpen(t *testing.T) {
	require(t, "iscsi-inq", "iscsi-ls", "iscsi-test-cu", "qemu-img")
	s := serve(t, createImage(t, mib, ""), open)
	for _, a := range []account{{}, reader} {
		e := s.as(a)
		checkLogin(t, attempt(t, "iscsi-inq", e.url()), "")
		checkLogin(t, attempt(t, "iscsi-inq", e.url("header_digest=crc32c")), "")
		expect(t, command(t, "iscsi-ls", "-s", e.portal()), `^Lun:1 +Type:DIRECT_ACCESS`)
		expect(t, command(t, "qemu-img", "info", e.url()), `^virtual size: 1 MiB`)
		expect(t, command(t, "iscsi-test-cu", "-t", "ALL.TestUnitReady", e.url()), `^ +tests +1 +1 +1 +0 +0$`)
	}
}

// open is the environment of a server without CHAP.
var open = env{"CHAP_USERNAME": "", "CHAP_PASSWORD": "", "CHAP_MUTUAL_USERNAME": "", "CHAP_MUTUAL_PASSWORD": ""}

// TestFormerNames starts with the variables of 2017.
func TestFormerNames(t *testing.T) {
	require(t, "iscsi-inq")
	more := maps.Clone(open)
	more["USERNAME"], more["PASSWORD_BASE64"] = reader.name, "cmVhZGVyLXNlY3JldC0x"
	s := serve(t, createImage(t, mib, ""), more)
	s.initiator = reader
	checkLogin(t, attempt(t, "iscsi-inq", s.url()), "")
	checkLogin(t, attempt(t, "iscsi-inq", s.as(account{}).url()), refused)
}
