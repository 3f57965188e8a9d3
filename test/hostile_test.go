//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// attack is something that no honest initiator does, and what may follow: a
// pattern for wire.outcome.
type attack struct {
	name string
	do   func(w *wire, s *server)
	want string
}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n)}).Read(b)
	return b
}

// before the login
var beforeLogin = []attack{
	{"noise", func(w *wire, _ *server) { w.raw(noise(64 << 10)) }, `^closed$`},
	{"zeros", func(w *wire, _ *server) { w.raw(make([]byte, 4096)) }, `^closed$`},
	{"HTTP", func(w *wire, _ *server) {
		w.raw([]byte("GET / HTTP/1.1\r\nHost: disk.example.org\r\nUser-Agent: none\r\n\r\n"))
	}, `^closed$`},
	{"command first", func(w *wire, _ *server) {
		w.numbered(head(opCommand, final|reads).disk().u32(20, 512).cdb(0x28, 0, 0, 0, 0, 0, 0, 0, 1), nil)
	}, `^closed$`},
	{"additional header", func(w *wire, s *server) {
		h := w.loginRequest(transit, operational, fullFFP).bytes(4, 255).length(20)
		w.raw(h[:]).raw(make([]byte, 255*4+20))
	}, `^(login:02.. )?closed$`},
	{"16 MiB announced", func(w *wire, _ *server) {
		h := w.loginRequest(transit, operational, fullFFP).length(0xffffff)
		w.raw(h[:]).raw(noise(64 << 10))
	}, `^(login:02.. )?closed$`},
	{"endless text", func(w *wire, s *server) {
		part := keys("X-key=" + strings.Repeat("x", 8000))
		for range 256 {
			w.send(w.loginRequest(continued, operational, 0), part)
		}
	}, `(login:02.. )?closed$`},
	{"no names", func(w *wire, _ *server) {
		w.send(w.loginRequest(transit, operational, fullFFP), keys("SessionType=Normal"))
	}, `^login:0207 closed$`},
	{"version 9", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, operational, fullFFP).bytes(2, 9, 9), keys(w.names(s)...))
	}, `^login:0205 closed$`},
	{"reserved stage", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, 2, fullFFP), keys(w.names(s)...))
	}, `^login:02.. closed$`},
	{"backwards", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, operational, security), keys(w.names(s)...))
	}, `^login:02.. closed$`},
	{"unknown session", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, operational, fullFFP).bytes(14, 0xbe, 0xef), keys(w.names(s)...))
	}, `^login:020a closed$`},
	{"key twice", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, operational, fullFFP), keys(append(w.names(s), "MaxBurstLength=8192", "MaxBurstLength=4096")...))
	}, `^login:0200 closed$`},
	{"key without value", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, operational, fullFFP), keys(append(w.names(s), "MaxBurstLength")...))
	}, `^login:0200 closed$`},
	{"long name of a key", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, operational, fullFFP), keys(append(w.names(s), strings.Repeat("k", 4000)+"=1")...))
	}, `^login:02.. closed$`},
	{"long name of an initiator", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, operational, fullFFP), keys("InitiatorName=iqn."+strings.Repeat("n", 4000), "TargetName="+s.name))
	}, `^login:02.. closed$`},
	{"numbers out of range", func(w *wire, s *server) {
		w.send(w.loginRequest(transit, operational, fullFFP), keys(append(w.names(s), "MaxRecvDataSegmentLength=99999999999999999999")...))
	}, `^login:`},
	{"two logins", func(w *wire, s *server) {
		w.login(s).send(w.loginRequest(transit, operational, fullFFP), keys(w.names(s)...))
	}, `^(reject:.. )?closed$|^reject:.. silent$`},
}

// of a session that is open
var inSession = []attack{
	{"unknown opcode", func(w *wire, _ *server) { w.numbered(head(0x1e, final), nil) }, `^reject:05`},
	{"a target's opcode", func(w *wire, _ *server) { w.numbered(head(0x25, final), nil) }, `^(reject:.. )?closed$|^reject:..`},
	{"noise", func(w *wire, _ *server) { w.raw(noise(1 << 20)) }, `closed$`},
	{"16 MiB announced", func(w *wire, _ *server) {
		h := head(opNop|immediate, final).tag(1).length(0xffffff)
		w.raw(h[:]).raw(noise(64 << 10))
	}, `closed$`},
	{"data for nobody", func(w *wire, _ *server) {
		w.send(head(opDataOut, final).disk().tag(77).u32(20, 78), noise(512))
	}, `^reject:..|^silent$|^closed$`},
	{"data that was not asked for", func(w *wire, _ *server) {
		w.numbered(write10(0, 8).tag(5).u32(20, 4096), nil)
		w.send(head(opDataOut, final).disk().tag(5).u32(20, noTag).u32(40, 1<<30), noise(512))
	}, `reject:..|status:02|closed$`},
	{"data outside of its request", func(w *wire, _ *server) {
		w.numbered(write10(0, 8).tag(6).u32(20, 4096), nil)
		h, _, err := w.receive(5 * time.Second)
		if err != nil || h[0] != 0x31 {
			w.t.Errorf("want an R2T, got % x, %v", h, err)
		}
		w.send(head(opDataOut, final).disk().tag(6).bytes(20, h[20:24]...).u32(40, 0xfffffe00), noise(512))
	}, `reject:..|status:02|closed$`},
	{"4 GiB expected", func(w *wire, _ *server) {
		w.numbered(write10(0, 65535).tag(7).u32(20, 0xffffffff), nil)
	}, `^r2t|^status:02`},
	{"a whole disk of lies", func(w *wire, _ *server) {
		for i := range 64 {
			w.numbered(write10(0, 0).tag(uint32(i)).u32(20, 0xffffffff).
				cdb(0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff), nil)
		}
	}, `^status:02`},
	{"read past everything", func(w *wire, _ *server) {
		w.numbered(head(opCommand, final|reads).disk().tag(8).u32(20, 0xffffffff).
			cdb(0x88, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), nil)
	}, `^status:02 silent$`},
	{"every operation code", func(w *wire, _ *server) {
		for op := range 256 {
			w.send(head(opCommand|immediate, final|reads).disk().tag(uint32(op)).u32(20, 4096).u32(24, w.cmdSN).
				cdb(byte(op), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), nil)
		}
	}, `status:02|reject:06`},
	{"LUNs that are not there", func(w *wire, _ *server) {
		for i := range 16 {
			w.send(head(opCommand|immediate, final|reads).bytes(8, byte(i<<4), 99, 0xff).tag(uint32(i)).u32(20, 512).u32(24, w.cmdSN).
				cdb(0x28, 0, 0, 0, 0, 0, 0, 0, 1), nil)
		}
	}, `status:02|reject:06`},
	{"one tag for two", func(w *wire, _ *server) {
		w.numbered(write10(0, 8).tag(9).u32(20, 4096), nil)
		w.numbered(write10(0, 8).tag(9).u32(20, 4096), nil)
	}, `reject:07|closed$`},
	{"numbers outside of the window", func(w *wire, _ *server) {
		for i := range 1000 {
			h := head(opCommand, final|reads).disk().tag(uint32(i)).u32(20, 512).u32(24, w.cmdSN+5000)
			w.send(h.cdb(0x28, 0, 0, 0, 0, 0, 0, 0, 1), nil)
		}
	}, `^silent$`},
	{"a gap in the numbers", func(w *wire, _ *server) {
		w.cmdSN += 3
		for range 1000 {
			w.numbered(write10(0, 1).tag(w.cmdSN).u32(20, 512).bytes(1, final|writes), noise(512))
		}
	}, `^silent$|closed$`},
	{"SNACK", func(w *wire, _ *server) { w.send(head(opSNACK, final).tag(noTag).u32(20, noTag), nil) }, `^reject:..|^closed$`},
	{"unknown task function", func(w *wire, _ *server) {
		w.send(head(opTask|immediate, final|0x7f).disk().tag(10).u32(20, 9).u32(24, w.cmdSN), nil)
	}, `^task:(05|ff)|^reject:..`},
	{"abort of nothing", func(w *wire, _ *server) {
		w.send(head(opTask|immediate, final|1).disk().tag(11).u32(20, 0xdead).u32(24, w.cmdSN).u32(32, w.cmdSN-100), nil)
	}, `^task:01`},
	{"logout for no reason", func(w *wire, _ *server) {
		w.send(head(opLogout|immediate, final|0x7f).tag(12).u32(24, w.cmdSN), nil)
	}, `^reject:..|^logout:..|^closed$`},
	{"text of noise", func(w *wire, _ *server) {
		w.numbered(head(opText, final).tag(13).u32(20, noTag), noise(4096))
	}, `^reject:..|^text|closed$`},
	{"text that does not begin", func(w *wire, _ *server) {
		w.numbered(head(opText, final).tag(14).u32(20, 4711), keys("SendTargets=All"))
	}, `^reject:..|^text|closed$`},
	{"endless text", func(w *wire, _ *server) {
		for i := range 500 {
			w.numbered(head(opText, continued).tag(15).u32(20, uint32(max(i-1, -1))), noise(8192))
		}
	}, `reject:..|closed$`},
	{"nothing is taken", func(w *wire, _ *server) { // reads whose data nobody wants
		w.Conn.(*net.TCPConn).SetReadBuffer(4096)
		for i := range 32 {
			w.numbered(head(opCommand, final|reads).disk().tag(uint32(i)).u32(20, 4<<20).
				cdb(0x28, 0, 0, 0, 0, 0, 0, 0x20, 0), nil)
		}
	}, ``},
	{"echo flood", func(w *wire, _ *server) {
		w.Conn.(*net.TCPConn).SetReadBuffer(4096)
		h := head(opNop|immediate, final).tag(1).u32(20, noTag).u32(24, w.cmdSN).length(8192)
		pdu := append(h[:], noise(8192)...)
		w.raw(bytes.Repeat(pdu, 4096)) // 32 MiB
	}, ``},
}

func write10(lba byte, blocks int) header {
	return head(opCommand, final|writes).disk().cdb(0x2a, 0, 0, 0, 0, lba, 0, byte(blocks>>8), byte(blocks))
}

// TestHostile sends all of it, one attack after the other and then at once,
// while another session goes on working.
func TestHostile(t *testing.T) {
	more := env{"ACCESS_MODE": "write-shared"}
	for k := range open {
		more[k] = ""
	}
	s := serve(t, createImage(t, 64*mib, ""), more)
	honest := attach(t, s.url())
	honest.do(t, "write -P 0x5a 32M 1M", "wrote 1048576/1048576")
	files := s.openFiles(t)
	for _, group := range []struct {
		name    string
		attacks []attack
		prepare func(*wire) *wire
	}{
		{"before login", beforeLogin, func(w *wire) *wire { return w }},
		{"in session", inSession, func(w *wire) *wire { return w.login(s) }},
	} {
		for _, a := range group.attacks {
			t.Run(group.name+"/"+a.name, func(t *testing.T) {
				w := group.prepare(dial(t, s))
				a.do(w, s)
				w.check(a.want)
				w.Close()
				honest.do(t, "read -P 0x5a 32M 1M", "read 1048576/1048576")
			})
		}
	}
	t.Run("at once", func(t *testing.T) { atOnce(t, s, honest) })
	settle(t, s, files)
	if peak := s.peakMemory(t); peak >= 128*mib {
		t.Errorf("peak memory %d MiB", peak/mib)
	}
	honest.quit(t)
}

// atOnce runs every attack of a session at the same time and does not wait for
// what follows; some connections end in the middle.
func atOnce(t *testing.T, s *server, honest *shell) {
	var all sync.WaitGroup
	for _, a := range inSession {
		w := dial(t, s).login(s)
		all.Go(func() {
			a.do(w, s)
			w.Conn.(*net.TCPConn).SetLinger(0) // a reset
			w.Close()
		})
	}
	for range 20 {
		honest.do(t, "read -P 0x5a 32M 1M", "read 1048576/1048576")
	}
	all.Wait()
	honest.do(t, "read -P 0x5a 32M 1M", "read 1048576/1048576")
}

// settle waits until the connections that are gone are gone on the server's
// side too.
func settle(t *testing.T, s *server, files int) {
	t.Helper()
	for range 100 {
		if s.openFiles(t) <= files {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("%d open files, want the %d of before", s.openFiles(t), files)
}

// TestFlood opens more connections than the server keeps half-open: an honest
// client gets in all the same, and the silent ones are put out in time.
func TestFlood(t *testing.T) {
	require(t, "iscsi-inq")
	const loginLimit = 20 * time.Second // the server's own is 15 s
	s := serve(t, createImage(t, mib, ""), nil)
	files := s.openFiles(t)
	var silent []*wire
	for i := range 200 {
		w := dial(t, s)
		if h := w.loginRequest(0, security, operational).length(100); i%2 == 0 {
			w.raw(h[:20+i%28])
		}
		silent = append(silent, w)
	}
	checkLogin(t, attempt(t, "iscsi-inq", s.url()), "")
	begin := time.Now()
	for _, w := range silent {
		h, _, err := w.receive(time.Until(begin.Add(loginLimit)))
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a connection that says nothing is not closed: % x, %v", h, err)
		}
	}
	settle(t, s, files)
}

// TestHostileCHAP says the wrong things at the stage of the passwords.
func TestHostileCHAP(t *testing.T) {
	s := serve(t, createImage(t, mib, ""), nil)
	login := func(w *wire, kv ...string) *wire {
		return w.send(w.loginRequest(0, security, operational), keys(kv...))
	}
	// begin gets as far as the challenge.
	begin := func(w *wire) *wire {
		login(w, append(w.names(s), "AuthMethod=CHAP")...)
		w.receive(5 * time.Second)
		login(w, "CHAP_A=5")
		if h, data, err := w.receive(5 * time.Second); err != nil || h[36] != 0 || !bytes.Contains(data, []byte("CHAP_C=")) {
			t.Fatalf("no challenge: % x %q %v", h, data, err)
		}
		return w
	}
	r := "CHAP_R=0x" + strings.Repeat("00", 16)
	for _, a := range []attack{
		{"no method known", func(w *wire, s *server) { login(w, append(w.names(s), "AuthMethod=KRB5,SRP")...) }, `^login:02.. closed$`},
		{"none", func(w *wire, s *server) { login(w, append(w.names(s), "AuthMethod=None")...) }, `^login:0201 closed$`},
		{"past security", func(w *wire, s *server) {
			w.send(w.loginRequest(transit, operational, fullFFP), keys(w.names(s)...))
		}, `^login:0201 closed$`},
		{"past the challenge", func(w *wire, s *server) {
			w.send(w.loginRequest(transit, security, fullFFP), keys(append(w.names(s), "AuthMethod=CHAP")...))
			w.receive(5 * time.Second)
			w.send(w.loginRequest(transit, security, fullFFP), nil)
		}, `^login:02.. closed$`},
		{"no algorithm known", func(w *wire, s *server) {
			login(w, append(w.names(s), "AuthMethod=CHAP")...)
			w.receive(5 * time.Second)
			login(w, "CHAP_A=56,99")
		}, `^login:0201 closed$`},
		{"silence instead", func(w *wire, s *server) { login(begin(w)) }, `^login:02.. closed$`},
		{"no name", func(w *wire, s *server) { login(begin(w), r) }, `^login:0207 closed$`},
		{"no response", func(w *wire, s *server) { login(begin(w), "CHAP_N="+reader.name) }, `^login:0207 closed$`},
		{"empty response", func(w *wire, s *server) { login(begin(w), "CHAP_N="+reader.name, "CHAP_R=") }, `^login:02.. closed$`},
		{"short response", func(w *wire, s *server) { login(begin(w), "CHAP_N="+reader.name, "CHAP_R=0x00") }, `^login:02.. closed$`},
		{"long response", func(w *wire, s *server) {
			login(begin(w), "CHAP_N="+reader.name, "CHAP_R=0x"+strings.Repeat("00", 3000))
		}, `^login:02.. closed$`},
		{"zero response", func(w *wire, s *server) { login(begin(w), "CHAP_N="+reader.name, r) }, `^login:0201 closed$`},
		{"long name", func(w *wire, s *server) { login(begin(w), "CHAP_N="+strings.Repeat("n", 4000), r) }, `^login:02.. closed$`},
		{"wrong identifier", func(w *wire, s *server) {
			login(begin(w), "CHAP_N="+reader.name, r, "CHAP_I=999", "CHAP_C=0x0102")
		}, `^login:02.. closed$`},
		{"unknown keys only", func(w *wire, s *server) { login(begin(w), "X-com.example=1") }, `^login:02.. closed$`},
	} {
		t.Run(a.name, func(t *testing.T) {
			w := dial(t, s)
			a.do(w, s)
			w.check(a.want)
		})
	}
	require(t, "iscsi-inq")
	checkLogin(t, attempt(t, "iscsi-inq", s.url()), "")
}
