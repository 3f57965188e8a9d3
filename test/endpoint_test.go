//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

// account is one side's CHAP name and secret. The zero account is none.
type account struct{ name, secret string }

func (a account) userinfo() string {
	if a == (account{}) {
		return ""
	}
	return a.name + "%" + a.secret + "@"
}

// endpoint is an iSCSI target as its clients know it.
type endpoint struct {
	address   string // host:port
	name      string // of the target
	initiator account
	target    account // for mutual CHAP
}

const lun = 1 // where the disk is unless the LUN variable says otherwise

// url is the disk in libiscsi's notation, which qemu shares. Options are
// key=value; see iscsi_parse_full_url.
func (e endpoint) url(options ...string) string {
	u := fmt.Sprintf("iscsi://%s%s/%s/%d", e.initiator.userinfo(), e.address, e.name, lun)
	if len(options) > 0 {
		u += "?" + strings.Join(options, "&")
	}
	return u
}

// mutual gives the url options by which libiscsi asks the target to prove
// itself with a.
func (a account) mutual() []string {
	return []string{"target_user=" + a.name, "target_password=" + a.secret}
}

// portal is the target's address for discovery.
func (e endpoint) portal() string { return "iscsi://" + e.initiator.userinfo() + e.address }

func (e endpoint) port(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(e.address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// as gives the endpoint with other credentials.
func (e endpoint) as(a account) endpoint {
	e.initiator = a
	return e
}
