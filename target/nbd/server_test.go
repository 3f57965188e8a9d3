package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/blockdev/blockdevtest"
)

// eventually waits until ok.
func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testLimit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never came to that")
		}
	}
}

// TestSilentHandshake: who does not get on is dropped in time, however slowly
// it sends.
func TestSilentHandshake(t *testing.T) {
	for name, every := range map[string]time.Duration{"silent": time.Hour, "a byte each second": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{Exports: []*Export{NewExport("x", blockdev.NewMem(512), ExportOptions{})}})
				l := newPipeListener()
				served := make(chan error, 1)
				go func() { served <- s.Serve(l, TLSOff) }()
				nc := l.dial()
				begin := time.Now()
				go func() {
					for _, b := range append([]byte{0, 0, 0, 3}, optionBytes(optGo, info(strings.Repeat("x", 1000)))...) {
						time.Sleep(every)
						if _, err := nc.Write([]byte{b}); err != nil {
							return
						}
					}
				}()
				for err := error(nil); err == nil; {
					_, err = nc.Read(make([]byte, 100))
				}
				if took := time.Since(begin); took != 10*time.Second {
					t.Errorf("dropped after %v, want 10s", took)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				<-served
				time.Sleep(every) // the writer notices
			})
		})
	}
}

// TestNeverReads: a client that takes no answers is given up, and the others
// do not notice it.
func TestNeverReads(t *testing.T) {
	s := serve(t, Options{Stalled: 100 * time.Millisecond}, mem())
	c, other := s.attach(t), s.attach(t)
	var reqs []byte
	for i := range 100 {
		reqs = append(reqs, requestBytes(cmdRead, 0, uint64(i), 0, 1<<20)...)
	}
	c.send(reqs)
	eventually(t, func() bool {
		other.mustRead(512, testContent()[512:1024])
		return s.Stats().Connections == 1
	})
}

// TestFlood: a thousand half-open connections keep nobody out, and touch no
// disk.
func TestFlood(t *testing.T) {
	s := serve(t, Options{MaxHandshakes: 8, Handshake: time.Hour}, untouchable{blockdev.NewMem(testSize)}) // the limit helps, and not the time
	for range 1000 {
		nc, err := net.Dial("unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	c := s.attach(t)
	if a := c.do(cmdFlush, 0, 0, 0); a.errno != eIO {
		t.Errorf("flush: %v, want the device's EIO", a.errno)
	}
	eventually(t, func() bool { return s.door.Len() <= 8+1 })
}

// untouchable fails whatever is asked of it.
type untouchable struct{ *blockdev.Mem }

func (untouchable) Flush() error { return errors.New("touched") }
func (untouchable) TryReadAt([]byte, int64) error {
	panic("a half-open connection has read the disk")
}

// TestCloseHalfOpen: the end of the server does not wait for anybody.
func TestCloseHalfOpen(t *testing.T) {
	s := serve(t, Options{}, mem())
	for range 20 {
		s.hello(t)
	}
	idle := s.attach(t)
	begin := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	idle.wantEnd()
}

// TestMaxClients: a place is free again when its client has left.
func TestMaxClients(t *testing.T) {
	s := serve(t, Options{MaxClients: 2}, mem())
	first := s.attach(t)
	s.attach(t)
	third := s.hello(t)
	if r := third.option(optGo, info("")); r[0].typ != repErrPolicy {
		t.Fatalf("third: %#x, want ERR_POLICY", uint32(r[0].typ))
	}
	first.disconnect()
	third.goTo("")
	third.mustRead(0, testContent()[:512])
}

// TestAdmit: who is not let in may look, ask again, and is told why.
func TestAdmit(t *testing.T) {
	var mu sync.Mutex
	busy := true
	var asked []string
	s := serve(t, Options{Admit: func(client string) (func(), error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, client)
		if busy {
			return nil, errors.New("somebody else is here")
		}
		return func() {}, nil
	}}, mem())
	c := s.hello(t)
	if r := c.option(optInfo, info("")); r[len(r)-1].typ != repAck {
		t.Errorf("INFO: %v", r)
	}
	if r := c.option(optGo, info("")); r[0].typ != repErrPolicy || r[0].data != "somebody else is here" {
		t.Errorf("GO: %v", r)
	}
	byName := s.hello(t)
	byName.send(optionBytes(optExportName, nil))
	byName.wantEnd()
	mu.Lock()
	busy = false
	mu.Unlock()
	c.goTo("")
	c.mustRead(0, testContent()[:512])

	mu.Lock()
	defer mu.Unlock()
	if want := "nbd process "; !strings.HasPrefix(asked[0], want) || asked[0] != asked[len(asked)-1] {
		t.Errorf("asked for %q, want the same %q… each time", asked, want)
	}
}

// TestHandover: a client that comes while another is leaving gets its place.
func TestHandover(t *testing.T) {
	place, full := make(chan struct{}, 1), make(chan struct{}, 1)
	dev := &waiting{Device: mem(), every: 1, gate: make(chan struct{})}
	s := serve(t, Options{Admit: func(string) (func(), error) {
		select {
		case place <- struct{}{}:
			return func() { <-place }, nil
		default:
			full <- struct{}{}
			return nil, errors.New("busy")
		}
	}}, dev)
	c := s.attach(t)
	c.send(requestBytes(cmdFlush, 0, 1, 0, 0))
	c.nc.Close() // its place is taken until the flush has ended
	next := s.hello(t)
	next.send(optionBytes(optGo, info("")))
	<-full
	close(dev.gate)
	if r := next.optionReplies(optGo); r[len(r)-1].typ != repAck {
		t.Errorf("the next client: %#x %q", uint32(r[0].typ), r[0].data)
	}
}

// TestAnswerNotTaken: a client that is gone when it is let in has no place.
func TestAnswerNotTaken(t *testing.T) {
	admitted := 0
	s := New(Options{
		Exports: []*Export{NewExport("x", blockdev.NewMem(512), ExportOptions{})},
		Admit:   func(string) (func(), error) { admitted++; return func() { admitted-- }, nil },
	})
	defer s.Close()
	said := append([]byte{0, 0, 0, 3}, optionBytes(optGo, info(""))...)
	nc := &deaf{script: script{in: bytes.NewReader(said)}}
	if err := newConn(s, nc, TLSOff).handshake(t.Context()); err == nil || admitted != 0 || s.Stats().Connections != 0 {
		t.Errorf("%v, %d admitted, %d in transmission", err, admitted, s.Stats().Connections)
	}
	if s.Stats().Admitted != 1 {
		t.Error("it was never let in")
	}
}

// deaf takes the greeting and nothing more.
type deaf struct {
	script
	writes int
}

func (d *deaf) Write(p []byte) (int, error) {
	if d.writes++; d.writes > 1 {
		return 0, net.ErrClosed
	}
	return len(p), nil
}

// TestMultiConn: a flush on one connection covers what was written on another,
// and every connection sees what any wrote.
func TestMultiConn(t *testing.T) {
	dev := &waiting{Device: mem()}
	s := serve(t, Options{}, dev)
	a, b := s.attach(t), s.attach(t)
	p := bytes.Repeat([]byte{7}, 8192)
	a.do(cmdWrite, 0, 100, 8192, p...)
	b.mustRead(100, p)
	if r := b.do(cmdFlush, 0, 0, 0); r.errno != 0 || dev.flushes.Load() != 1 {
		t.Errorf("flush: %v, %d flushes of the device", r.errno, dev.flushes.Load())
	}
}

// TestShutdown: those who are there are served on, those known may come back,
// strangers may not.
func TestShutdown(t *testing.T) {
	s := serve(t, Options{}, mem())
	known := s.attach(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown(t.Context()) }()
	eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.draining })

	known.mustRead(0, testContent()[:512])
	again := s.attach(t)
	known.disconnect()
	again.mustRead(0, testContent()[:512])

	s.mu.Lock()
	clear(s.known) // now this process is a stranger
	s.mu.Unlock()
	stranger := s.hello(t)
	if r := stranger.option(optGo, info("")); r[0].typ != repErrShutdown {
		t.Errorf("stranger: %#x, want ERR_SHUTDOWN", uint32(r[0].typ))
	}
	select {
	case err := <-ended:
		t.Fatalf("Shutdown did not wait: %v", err)
	default:
	}
	again.disconnect()
	if err := <-ended; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

// TestShutdownOverdue: when time is up the rest is cut off.
func TestShutdownOverdue(t *testing.T) {
	s := serve(t, Options{}, mem())
	c := s.attach(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v, want that time was up", err)
	}
	c.wantEnd()
}

// TestCloseFinishes: what is under way is answered before the end.
func TestCloseFinishes(t *testing.T) {
	dev := &waiting{Device: mem(), every: 1, gate: make(chan struct{})}
	s := serve(t, Options{}, dev)
	c := s.attach(t)
	c.send(requestBytes(cmdWrite, flagFUA, 5, 0, 4096), make([]byte, 4096))
	eventually(t, func() bool { return dev.tries.Load() > 0 })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	time.Sleep(10 * time.Millisecond)
	close(dev.gate)
	if _, a := c.answer(map[uint64]pending{5: {cmdWrite, 0, 4096}}); a.errno != 0 {
		t.Errorf("write: %v", a.errno)
	}
	c.wantEnd()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestErrors: each kind of a device's error has its error value, wherever the
// device is called.
func TestErrors(t *testing.T) {
	kinds := map[blockdev.Kind]errno{
		blockdev.KindIO: eIO, blockdev.KindNoSpace: eNoSpc, blockdev.KindOutOfRange: eInval, blockdev.KindReadOnly: ePerm,
		blockdev.KindUnsupported: eNotSup, blockdev.KindCorrupt: eIO, blockdev.KindClosed: eShutdown,
	}
	requests := map[string]func(c *client) answer{
		"read":         func(c *client) answer { return c.do(cmdRead, 0, 0, 4096) },
		"long read":    func(c *client) answer { return c.do(cmdRead, 0, 0, 3<<20) },
		"write":        func(c *client) answer { return c.do(cmdWrite, 0, 0, 4096, make([]byte, 4096)...) },
		"long write":   func(c *client) answer { return c.do(cmdWrite, 0, 0, 3<<20, make([]byte, 3<<20)...) },
		"FUA":          func(c *client) answer { return c.do(cmdWrite, flagFUA, 0, 1, 0) },
		"flush":        func(c *client) answer { return c.do(cmdFlush, 0, 0, 0) },
		"trim":         func(c *client) answer { return c.do(cmdTrim, 0, 0, 4096) },
		"zeroes":       func(c *client) answer { return c.do(cmdWriteZeroes, 0, 0, 4096) },
		"cache":        func(c *client) answer { return c.do(cmdCache, 0, 0, 1<<20) },
		"block status": func(c *client) answer { return c.do(cmdBlockStatus, 0, 0, 4096) },
	}
	small := func() blockdev.Device { return capable{blockdev.NewMem(4 << 20), allCaps} }
	eachMode(t, func(t *testing.T, how []option) {
		for kind, want := range kinds {
			for name, request := range requests {
				if how == nil && name == "block status" {
					continue
				}
				dev := &waiting{Device: blockdevtest.Fail(small(), 1, kind), every: map[bool]int{true: 1}[name != "flush"]}
				c := serve(t, Options{}, dev).attach(t, how...)
				if a := request(c); a.errno != want {
					t.Errorf("%s, %v: %v, want %v", name, kind, a.errno, want)
				}
				if a := c.do(cmdRead, 0, 0, 512); a.errno != 0 {
					t.Errorf("after %s, %v: %v, want service to go on", name, kind, a.errno)
				}
			}
		}
	})
}

// TestErrorWithinRead fails the n-th call of the device, for every n: the read
// comes back whole and right, or fails, or, where its header is out already,
// ends the connection.
func TestErrorWithinRead(t *testing.T) {
	eachMode(t, func(t *testing.T, how []option) {
		for n := 1; ; n++ {
			f := blockdevtest.Fail(blockdev.MemOf(bytes.Clone(testContent()[:4<<20])), n, blockdev.KindIO)
			s := serve(t, Options{}, f)
			c := s.attach(t, how...)
			c.send(requestBytes(cmdRead, 0, 1, 0, 3<<20))
			if c.structured || n <= 12 { // simple: 12 pieces in the first pass
				_, a := c.answer(map[uint64]pending{1: {cmdRead, 0, 3 << 20}})
				if f.Fired() != (a.errno == eIO) || a.errno == 0 && !bytes.Equal(a.data, testContent()[:3<<20]) {
					t.Fatalf("failure %d: %v", n, a.errno)
				}
			} else if n <= 24 {
				b := make([]byte, 16+3<<20)
				if got, err := io.ReadFull(c.nc, b); err == nil {
					t.Fatalf("failure %d: %d bytes, want fewer", n, got)
				}
			} else {
				c.answer(map[uint64]pending{1: {cmdRead, 0, 3 << 20}})
			}
			if !f.Fired() {
				if n < 12 {
					t.Errorf("only %d calls", n)
				}
				return
			}
		}
	})
}

// TestBudget: however much a client asks for, its share bounds what is held.
func TestBudget(t *testing.T) {
	dev := &waiting{Device: mem(), every: 1, gate: make(chan struct{})}
	s := serve(t, Options{}, dev)
	c := s.attach(t)
	reqs := map[uint64]pending{}
	var batch []byte
	for i := uint64(1); i <= 500; i++ {
		reqs[i] = pending{cmdRead, i << 10, 100 << 10}
		batch = append(batch, requestBytes(cmdRead, 0, i, i<<10, 100<<10)...)
	}
	c.send(batch)
	eventually(t, func() bool { return len(s.door.Conns()) == 1 }) // the handshake's end reaches the client first
	inside := s.door.Conns()[0].(*conn)
	most := func() (int, int64) { inside.mu.Lock(); defer inside.mu.Unlock(); return inside.workers, inside.held }
	eventually(t, func() bool { w, _ := most(); return w == mostWorkers })
	time.Sleep(20 * time.Millisecond)
	if w, held := most(); w != mostWorkers || held > mostHeld {
		t.Errorf("%d workers hold %d bytes", w, held)
	}
	close(dev.gate)
	for len(reqs) > 0 {
		cookie, a := c.answer(reqs)
		if p := reqs[cookie]; !bytes.Equal(a.data, testContent()[p.off:][:p.n]) {
			t.Fatalf("read %d differs", cookie)
		}
		delete(reqs, cookie)
	}
}

func TestShare(t *testing.T) {
	for n := range 200 {
		held, workers := share(n)
		if held > mostHeld || workers > mostWorkers || held*int64(n) > totalHeld || workers*n > totalWorkers || held < 1<<20 || workers < 4 {
			t.Errorf("of %d connections each has %d bytes and %d workers", n, held, workers)
		}
	}
}

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|socketMode {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for _, try := range []func(string) error{CheckUnix, removeStale} {
		if err := try(path); err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("a live socket: %v, want that it is in use", err)
		}
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // as after kill -9
	l.Close()
	if err := CheckUnix(path); err != nil {
		t.Errorf("CheckUnix of a stale socket: %v", err)
	}
	l, err = ListenUnix(path)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("a file: %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "precious" {
		t.Error("the file is gone")
	}
	if err := CheckUnix(filepath.Join(path, "none", "s")); err == nil {
		t.Error("a directory that is none: no error")
	}
}

// pipeListener listens where time can be made up.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) dial() net.Conn {
	here, there := net.Pipe()
	l.conns <- there
	return here
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
