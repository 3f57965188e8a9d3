package iscsi

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target/scsi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testTarget = "iqn.2026-01.test:disk"
	testSize   = 64 << 20 // bytes of the test disk
)

// testServer is a server with one disk, LUN 0, and the way to it.
type testServer struct {
	*Server
	disk    *testDisk
	lun     *scsi.LUN
	connect func() (net.Conn, error)
	served  chan error
}

// serveTCP starts a server on loopback.
func serveTCP(t *testing.T, change ...func(*Options)) *testServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, l, change...)
	s.connect = func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) }
	return s
}

// servePipe starts a server behind net.Pipe, where time can be made up.
func servePipe(t *testing.T, change ...func(*Options)) *testServer {
	t.Helper()
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := start(t, l, change...)
	s.connect = l.dial
	return s
}

func start(t *testing.T, l net.Listener, change ...func(*Options)) *testServer {
	t.Helper()
	s := &testServer{disk: newTestDisk(testSize), served: make(chan error, 1)}
	s.lun = scsi.NewLUN(s.disk, scsi.LUNOptions{})
	o := Options{Name: testTarget, Target: scsi.NewTarget(testTarget, map[uint64]*scsi.LUN{0: s.lun})}
	for _, f := range change {
		f(&o)
	}
	s.Server = New(o)
	go func() { s.served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.disk.freeAll()
		s.Close()
		if err := <-s.served; !errors.Is(err, ErrClosed) {
			t.Errorf("Serve: %v, want ErrClosed", err)
		}
	})
	return s
}

// ready is a client that is logged in and has taken its unit attention.
func (s *testServer) ready(t *testing.T, pairs ...string) *client {
	t.Helper()
	c := s.dial(t)
	c.loginReady(pairs...)
	return c
}

// pipeListener makes connections of net.Pipe.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial() (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case l.conns <- b:
		return a, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// testDisk is a disk in memory that can refuse to answer at once, and whose
// reads and writes a test can hold up.
type testDisk struct {
	*blockdev.Mem

	mu    sync.Mutex // guards all below
	block blocking
	bad   int64 // the byte that cannot be read or written; -1: none
	rng   *rand.Rand
	gates []*gate
}

// blocking says when the Try methods give up.
type blocking uint8

const (
	neverBlocks blocking = iota
	alwaysBlocks
	sometimesBlocks
)

func newTestDisk(size int64) *testDisk {
	return &testDisk{Mem: blockdev.NewMem(size), bad: -1, rng: rand.New(rand.NewPCG(1, 2))}
}

func (d *testDisk) setBlocking(b blocking) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.block = b
}

// gate holds up requests of a kind, from when it is set until it is opened.
type gate struct {
	op      string        // "read" or "write"
	arrived chan int64    // the offset of each request that is held
	open    chan struct{} // closed when they may go on
	once    sync.Once
}

func (g *gate) release() { g.once.Do(func() { close(g.open) }) }

// wait waits until a request is held, and returns where it reads or writes.
func (g *gate) wait(t *testing.T) int64 {
	t.Helper()
	select {
	case off := <-g.arrived:
		return off
	case <-time.After(patience):
		t.Fatalf("no %s came to the disk", g.op)
		return 0
	}
}

// hold makes all requests of the kind wait for the gate, whose Try forms would
// block.
func (d *testDisk) hold(op string) *gate {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := &gate{op: op, arrived: make(chan int64, 4096), open: make(chan struct{})}
	d.gates = append(d.gates, g)
	return g
}

// freeAll opens all gates.
func (d *testDisk) freeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.gates {
		g.release()
	}
}

func (d *testDisk) gate(op string) *gate {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range d.gates {
		select {
		case <-g.open:
		default:
			if g.op == op {
				return g
			}
		}
	}
	return nil
}

// wouldBlock reports what a Try method has to say.
func (d *testDisk) wouldBlock(op string) bool {
	if d.gate(op) != nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.block == alwaysBlocks || d.block == sometimesBlocks && d.rng.IntN(2) == 0
}

func (d *testDisk) pass(op string, off int64) {
	if g := d.gate(op); g != nil {
		g.arrived <- off
		<-g.open
	}
}

func (d *testDisk) ReadAt(p []byte, off int64) (int, error) {
	d.pass("read", off)
	if err := d.fault("read", off, len(p)); err != nil {
		return 0, err
	}
	return d.Mem.ReadAt(p, off)
}

func (d *testDisk) WriteAt(p []byte, off int64) (int, error) {
	d.pass("write", off)
	if err := d.fault("write", off, len(p)); err != nil {
		return 0, err
	}
	return d.Mem.WriteAt(p, off)
}

func (d *testDisk) TryReadAt(p []byte, off int64) error {
	if d.wouldBlock("read") {
		return blockdev.ErrWouldBlock
	}
	if err := d.fault("read", off, len(p)); err != nil {
		return err
	}
	return d.Mem.TryReadAt(p, off)
}

func (d *testDisk) TryWriteAt(p []byte, off int64) error {
	if d.wouldBlock("write") {
		return blockdev.ErrWouldBlock
	}
	if err := d.fault("write", off, len(p)); err != nil {
		return err
	}
	return d.Mem.TryWriteAt(p, off)
}

// fill puts the pattern of every block on the disk.
func (d *testDisk) fill(t *testing.T, lba uint32, n int) []byte {
	t.Helper()
	b := pattern(lba, n, 0)
	if _, err := d.Mem.WriteAt(b, int64(lba)*blockSize); err != nil {
		t.Fatal(err)
	}
	return b
}

// content is what the disk holds.
func (d *testDisk) content(t *testing.T, lba uint32, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := d.Mem.ReadAt(b, int64(lba)*blockSize); err != nil {
		t.Fatal(err)
	}
	return b
}

func contextWithin(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
