package iscsi

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// manyLogins is how many TestManyLogins makes, and mostGrowth what the heap may
// have grown by in their course, bytes: some 25 for each.
const (
	manyLogins = 10000
	mostGrowth = 256 << 10
)

// TestManyLogins: half of them end well and half are cut off somewhere, from
// the first byte of the login to the middle of commands. Nothing is left of
// any: no session, no challenge, no goroutine, no memory. Every initiator has
// a name of its own.
func TestManyLogins(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		s := servePipe(t, withCHAP)
		l := logins{t: t, s: s, rng: rand.New(rand.NewPCG(seed, 0))}
		l.run(manyLogins / 10) // buffers, pools and tables have their size
		goroutines, heap := runtime.NumGoroutine(), l.settle()
		l.run(manyLogins)
		grown := l.settle() - heap
		if n := runtime.NumGoroutine(); n > goroutines {
			t.Errorf("%d goroutines, %d before", n, goroutines)
		}
		if grown > mostGrowth {
			t.Errorf("the heap has grown by %d bytes in %d logins", grown, manyLogins)
		}
		t.Logf("%d logins, half of them broken off: the heap has grown by %d bytes", manyLogins, grown)
		if st := s.Stats(); st.Connections != 0 || st.Sessions != 0 {
			t.Errorf("%+v", st)
		}
		if n := s.o.Auth.Outstanding(); n != 0 {
			t.Errorf("%d challenges are out", n)
		}
	})
}

// logins makes one after the other.
type logins struct {
	t   *testing.T
	s   *testServer
	rng *rand.Rand
	n   int
}

func (l *logins) run(n int) {
	for range n {
		l.n++
		nc, err := l.s.connect()
		if err != nil {
			l.t.Fatal(err)
		}
		c := newClient(l.t, nc)
		c.initiator = fmt.Sprint("iqn.2026-01.test:initiator-", l.n)
		if l.n%2 == 0 {
			l.whole(c)
		} else {
			breaks[l.rng.IntN(len(breaks))](c, l)
		}
		c.leave()
		// Until all is quiet: a reset that is cut off still aborts what others
		// begin, and timers that end together would need memory together.
		time.Sleep(100 * time.Millisecond)
	}
}

// settle waits until all is over that only waits for its time, and measures the
// heap.
func (l *logins) settle() int64 {
	time.Sleep(time.Minute) // more than any timer that was set
	synctest.Wait()
	runtime.GC()
	runtime.GC() // what the first has taken out of the pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// whole is a session that ends as it should.
func (l *logins) whole(c *client) {
	l.in(c)
	c.clearAttention()
	c.expectFor(opLogoutResp, c.request(newPacket(0x06, 0x80)))
	c.expectClosed()
}

// in logs in by CHAP.
func (l *logins) in(c *client) {
	q := c.challenge("7")
	c.finishLogin(c.succeed(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret))))
}

// breaks leave a connection somewhere to be cut.
var breaks = []func(*client, *logins){
	func(*client, *logins) {},
	func(c *client, l *logins) { // within the first request
		b := c.loginPDU(inSecurityStage, c.names()...).bytes(false, false)
		c.sendBytes(b[:l.rng.IntN(len(b))])
	},
	func(c *client, l *logins) { // before the first response is read
		c.send(c.loginPDU(inSecurityStage, append(c.names(), "AuthMethod=CHAP")...))
	},
	func(c *client, l *logins) { c.succeed(inSecurityStage|loginMore, c.names()...) },
	func(c *client, l *logins) { c.challenge("5") },
	func(c *client, l *logins) { // the last request, without its response
		q := c.challenge("5")
		c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret))))
	},
	func(c *client, l *logins) { // refused, and gone before it is told
		c.challenge("5")
		c.send(c.loginPDU(toFullFeature, "CHAP_N="+userName, "CHAP_R=0x00"))
	},
	func(c *client, l *logins) { l.in(c) },
	func(c *client, l *logins) { // a write whose data does not come
		l.in(c)
		c.clearAttention()
		c.expectFor(opR2T, c.request(writeCommand(0, 64)))
	},
	func(c *client, l *logins) { // within its data
		l.in(c)
		c.clearAttention()
		r := c.expectFor(opR2T, c.request(writeCommand(0, 64)))
		b := dataOutPDU(flagF, r.tag(), r.u32(20), 0, 0, make([]byte, 64*blockSize)).bytes(false, false)
		c.sendBytes(b[:l.rng.IntN(len(b))])
	},
	func(c *client, l *logins) { // reads whose data is not taken
		l.in(c)
		c.clearAttention()
		for range 8 {
			c.request(readCommand(0, 256))
		}
	},
	func(c *client, l *logins) { // a reset that waits for data
		l.in(c)
		c.clearAttention()
		c.expectFor(opR2T, c.request(writeCommand(0, 64)))
		c.request(taskPDU(tmfLUReset, nil))
	},
	func(c *client, l *logins) { // behind a gap
		l.in(c)
		c.nextCmdSN++
		c.request(writeCommand(0, 1).with(make([]byte, blockSize)))
		c.request(taskPDU(tmfAbortTaskSet, nil))
	},
	func(c *client, l *logins) { // a text negotiation
		l.in(c)
		c.expectFor(opTextResponse, c.request(newPacket(0x04, 0x40).set32(20, reservedTag).with(text("X-com.example.a=1"))))
	},
	func(c *client, l *logins) { // the session is taken over, and lost again
		l.in(c)
		nc, err := l.s.connect()
		if err != nil {
			l.t.Fatal(err)
		}
		again := newClient(l.t, nc)
		again.initiator = c.initiator
		l.in(again)
		again.leave()
	},
}
