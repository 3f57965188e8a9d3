package iscsi

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerdisk/containerdisk/auth"
)

const (
	userName, userSecret = "initiator-user", "initiator-secret-1"
	diskName, diskSecret = "target-user", "target-secret-22"
)

// withCHAP requires CHAP, and can prove itself.
func withCHAP(o *Options) {
	o.Auth = auth.NewAuthenticator(auth.CHAP{
		Initiator: auth.Account{Name: userName, Secret: auth.NewSecret([]byte(userSecret))},
		Target:    auth.Account{Name: diskName, Secret: auth.NewSecret([]byte(diskSecret))},
	})
}

func withOneWayCHAP(o *Options) {
	o.Auth = auth.NewAuthenticator(auth.CHAP{Initiator: auth.Account{Name: userName, Secret: auth.NewSecret([]byte(userSecret))}})
}

// encoding is how the client writes binary values.
type encoding func([]byte) string

func asHex(b []byte) string    { return "0x" + hex.EncodeToString(b) }
func asBase64(b []byte) string { return "0b" + base64.StdEncoding.EncodeToString(b) }

// challenged is what the target has asked.
type challenged struct {
	algorithm auth.Algorithm
	id        byte
	challenge []byte
}

func (q challenged) answer(secret string) []byte {
	return q.algorithm.Response(q.id, auth.NewSecret([]byte(secret)), q.challenge)
}

// challenge goes as far as the target's challenge.
func (c *client) challenge(algorithms string, names ...string) challenged {
	c.t.Helper()
	if names == nil {
		names = c.names()
	}
	if r := c.succeed(inSecurityStage, append(names, "AuthMethod=CHAP,None")...); r.value("AuthMethod") != "CHAP" || r.flags() != 0 {
		c.t.Fatalf("AuthMethod: flags %#02x, %q", r.flags(), r.pairs())
	}
	r := c.succeed(inSecurityStage, "CHAP_A="+algorithms)
	a, err1 := strconv.Atoi(r.value("CHAP_A"))
	id, err2 := strconv.ParseUint(r.value("CHAP_I"), 0, 8)
	b, err3 := hex.DecodeString(strings.TrimPrefix(r.value("CHAP_C"), "0x"))
	if err1 != nil || err2 != nil || err3 != nil || len(b) < 16 || r.flags() != 0 || len(r.pairs()) != 3 {
		c.t.Fatalf("challenge: flags %#02x, %q", r.flags(), r.pairs())
	}
	return challenged{auth.Algorithm(a), byte(id), b}
}

// chapTest runs f against a server behind a pipe, in made-up time.
func chapTest(t *testing.T, name string, f func(t *testing.T, s *testServer), change ...func(*Options)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, servePipe(t, append([]func(*Options){withCHAP}, change...)...)) })
	})
}

func TestCHAP(t *testing.T) {
	for _, a := range auth.Algorithms() {
		for name, enc := range map[string]encoding{"hex": asHex, "base64": asBase64} {
			chapTest(t, fmt.Sprintf("%s in %s, one way", a, name), func(t *testing.T, s *testServer) {
				c := s.dial(t)
				q := c.challenge(fmt.Sprint(uint8(a)))
				if q.algorithm != a {
					t.Fatalf("algorithm %d, offered %d alone", q.algorithm, a)
				}
				r := c.succeed(toFullFeature, "CHAP_N="+userName, "CHAP_R="+enc(q.answer(userSecret)))
				if _, ok := r.lookup("CHAP_R"); ok || len(r.pairs()) != 0 {
					t.Errorf("the target proves itself unasked: %q", r.pairs())
				}
				c.finishLogin(r)
				c.clearAttention()
			})
			chapTest(t, fmt.Sprintf("%s in %s, mutual", a, name), func(t *testing.T, s *testServer) {
				c := s.dial(t)
				q := c.challenge(fmt.Sprint(uint8(a)))
				mine := challenged{a, 200, pattern(1, 1024, 7)}
				r := c.succeed(toFullFeature, "CHAP_N="+userName, "CHAP_R="+enc(q.answer(userSecret)), "CHAP_I=200", "CHAP_C="+enc(mine.challenge))
				if want := asHex(mine.answer(diskSecret)); r.value("CHAP_N") != diskName || !strings.EqualFold(r.value("CHAP_R"), want) {
					t.Errorf("got %q, want %s and %s", r.pairs(), diskName, want)
				}
				c.finishLogin(r)
				c.clearAttention()
			})
		}
	}
	for list, want := range map[string]auth.Algorithm{"5,6,7,8": auth.MD5, "8,5": auth.SHA3_256, "99,7": auth.SHA256, "0x7,5": auth.SHA256} {
		chapTest(t, "algorithms "+list, func(t *testing.T, s *testServer) {
			if q := s.dial(t).challenge(list); q.algorithm != want {
				t.Errorf("chose %d, want %d", q.algorithm, want)
			}
		})
	}
	chapTest(t, "by steps through both stages", func(t *testing.T, s *testServer) {
		c := s.dial(t)
		r := c.succeed(toOperational, append(c.names(), "AuthMethod=CHAP")...)
		if r.flags() != 0 { // T is asked for, but the target is not ready
			t.Errorf("flags %#02x before the authentication", r.flags())
		}
		r = c.succeed(toOperational, "CHAP_A=7,5")
		if r.flags() != 0 {
			t.Errorf("flags %#02x with the challenge", r.flags())
		}
		id, _ := strconv.Atoi(r.value("CHAP_I"))
		b, _ := hex.DecodeString(r.value("CHAP_C")[2:])
		q := challenged{auth.SHA256, byte(id), b}
		if r = c.succeed(inSecurityStage, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret))); r.flags() != 0 {
			t.Errorf("flags %#02x without T", r.flags())
		}
		if r = c.succeed(toOperational); r.flags() != toOperational {
			t.Errorf("flags %#02x after the authentication", r.flags())
		}
		c.finishLogin(c.succeed(operationalToFull, "HeaderDigest=CRC32C", "DataDigest=CRC32C"))
		c.clearAttention()
	})
	chapTest(t, "discovery", func(t *testing.T, s *testServer) {
		c := s.dial(t)
		q := c.challenge("7", c.discoveryNames()...)
		c.finishLogin(c.succeed(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret))))
	})
	chapTest(t, "challenges differ", func(t *testing.T, s *testServer) {
		seen := make(map[string]bool)
		for range 20 {
			c := s.dial(t)
			b := string(c.challenge("7").challenge)
			if seen[b] {
				t.Fatal("a challenge came twice")
			}
			seen[b] = true
			c.nc.Close()
		}
		synctest.Wait()
		if n := s.o.Auth.Outstanding(); n != 0 {
			t.Errorf("%d exchanges are outstanding without a login", n)
		}
	})
}

// TestCHAPFailures: who does not prove who it is gets no further, whatever it
// sends instead.
func TestCHAPFailures(t *testing.T) {
	answered := func(secret string) func(*client) {
		return func(c *client) {
			q := c.challenge("7,5")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(secret))))
		}
	}
	for _, v := range []struct {
		name string
		want status
		talk func(c *client)
	}{
		{"wrong secret", 0x0201, answered("not-the-secret-at-all")},
		{"the target's secret", 0x0201, answered(diskSecret)},
		{"unknown name", 0x0201, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N=nobody", "CHAP_R="+asHex(q.answer(userSecret))))
		}},
		{"a prefix of the name", 0x0201, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName[:len(userName)-1], "CHAP_R="+asHex(q.answer(userSecret))))
		}},
		{"a longer name", 0x0201, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName+"x", "CHAP_R="+asHex(q.answer(userSecret))))
		}},
		{"a longer response", 0x0201, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(append(q.answer(userSecret), 0))))
		}},
		{"a shorter response", 0x0201, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)[:31])))
		}},
		{"an oversize response", 0x0201, func(c *client) {
			c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R=0x"+strings.Repeat("00", 1025)))
		}},
		{"a response that is no binary value", 0x0201, func(c *client) {
			c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R=xyz"))
		}},
		{"no CHAP_R", 0x0207, func(c *client) { c.challenge("7"); c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName)) }},
		{"no CHAP_N", 0x0207, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_R="+asHex(q.answer(userSecret))))
		}},
		{"neither", 0x0207, func(c *client) { c.challenge("7"); c.send(c.loginPDU(inSecurityStage)) }},
		{"neither, with T", 0x0207, func(c *client) { c.challenge("7"); c.send(c.loginPDU(toFullFeature)) }},
		{"only a challenge of one's own", 0x0207, func(c *client) {
			c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_I=1", "CHAP_C=0x"+strings.Repeat("ab", 16)))
		}},
		{"CHAP_I without CHAP_C", 0x0200, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)), "CHAP_I=1"))
		}},
		{"CHAP_I out of range", 0x0201, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)), "CHAP_I=256", "CHAP_C=0x00112233"))
		}},
		{"an oversize challenge", 0x0201, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)), "CHAP_I=1", "CHAP_C=0x"+strings.Repeat("ab", 1025)))
		}},
		{"an empty challenge", 0x0201, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)), "CHAP_I=1", "CHAP_C=0x"))
		}},
		{"CHAP_R twice", 0x0200, func(c *client) {
			q := c.challenge("7")
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)), "CHAP_R="+asHex(q.answer(userSecret))))
		}},
		{"algorithm 56", 0x0201, func(c *client) {
			c.succeed(inSecurityStage, append(c.names(), "AuthMethod=CHAP")...)
			c.send(c.loginPDU(inSecurityStage, "CHAP_A=56"))
		}},
		{"no algorithm", 0x0201, func(c *client) {
			c.succeed(inSecurityStage, append(c.names(), "AuthMethod=CHAP")...)
			c.send(c.loginPDU(inSecurityStage, "CHAP_A="))
		}},
		{"no CHAP_A", 0x0207, func(c *client) {
			c.succeed(inSecurityStage, append(c.names(), "AuthMethod=CHAP")...)
			c.send(c.loginPDU(inSecurityStage, "CHAP_N="+userName))
		}},
		{"CHAP_A with the answer", 0x0200, func(c *client) {
			c.succeed(inSecurityStage, append(c.names(), "AuthMethod=CHAP")...)
			c.send(c.loginPDU(inSecurityStage, "CHAP_A=7", "CHAP_N="+userName, "CHAP_R=0x00"))
		}},
		{"CHAP_A again", 0x0207, func(c *client) { c.challenge("7"); c.send(c.loginPDU(inSecurityStage, "CHAP_A=5")) }},
		{"AuthMethod again", 0x0200, func(c *client) { c.challenge("7"); c.send(c.loginPDU(inSecurityStage, "AuthMethod=None")) }},
		{"an answer before the question", 0x0200, func(c *client) {
			c.send(c.loginPDU(toFullFeature, append(c.names(), "CHAP_N="+userName, "CHAP_R=0x00")...))
		}},
		{"None", 0x0201, func(c *client) { c.send(c.loginPDU(toOperational, append(c.names(), "AuthMethod=None")...)) }},
		{"no AuthMethod", 0x0201, func(c *client) { c.send(c.loginPDU(toOperational, c.names()...)) }},
		{"security skipped", 0x0201, func(c *client) { c.send(c.loginPDU(operationalToFull, c.names()...)) }},
		{"security skipped, without T", 0x0201, func(c *client) { c.send(c.loginPDU(inOperationalStage, c.names()...)) }},
		{"discovery without authentication", 0x0201, func(c *client) { c.send(c.loginPDU(operationalToFull, c.discoveryNames()...)) }},
		{"on to the next stage in mid-handshake", 0x0200, func(c *client) { c.challenge("7"); c.send(c.loginPDU(operationalToFull)) }},
	} {
		chapTest(t, v.name, func(t *testing.T, s *testServer) {
			c := s.dial(t)
			start := time.Now()
			v.talk(c)
			c.expectLoginFailure(v.want)
			if d := time.Since(start); v.want == statusAuthFailure && d != auth.FailureDelay {
				t.Errorf("told after %v, want %v for every reason", d, auth.FailureDelay)
			}
			if st := s.Stats(); st.Sessions != 0 || v.want == statusAuthFailure && st.LoginFailures != 1 {
				t.Errorf("%+v", st)
			}
			synctest.Wait()
			if n := s.o.Auth.Outstanding(); n != 0 {
				t.Errorf("%d exchanges are outstanding", n)
			}
		})
	}
	chapTest(t, "mutual without an account for it", func(t *testing.T, s *testServer) {
		c := s.dial(t)
		q := c.challenge("7")
		c.failLogin(statusAuthFailure, toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)), "CHAP_I=1", "CHAP_C=0x"+strings.Repeat("ab", 16))
	}, withOneWayCHAP)
}

// TestCHAPReflection: our own challenge sent back to us ends the connection
// without an answer, RFC 7143 §9.2.1, on whatever connection it went out.
func TestCHAPReflection(t *testing.T) {
	for _, other := range []bool{false, true} {
		chapTest(t, fmt.Sprintf("of another login: %v", other), func(t *testing.T, s *testServer) {
			c := s.dial(t)
			q := c.challenge("7")
			reflected := q.challenge
			if other {
				victim := s.dial(t)
				victim.isid[0]++
				reflected = victim.challenge("7").challenge
			}
			c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)),
				"CHAP_I="+fmt.Sprint(q.id), "CHAP_C="+asBase64(reflected)))
			c.expectClosed()
		})
	}
}

// TestNoAuthOffered: without accounts, an initiator that offers CHAP and None
// gets None.
func TestNoAuthOffered(t *testing.T) {
	s := serveTCP(t)
	for _, list := range []string{"None", "CHAP,None", "None,CHAP", "KRB5,None"} {
		c := s.dial(t)
		if r := c.succeed(toFullFeature, append(c.names(), "AuthMethod="+list)...); !slices.Contains(r.pairs(), "AuthMethod=None") {
			t.Errorf("%s: %q", list, r.pairs())
		}
	}
}
