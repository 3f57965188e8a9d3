package nbd

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// sink is a client that takes everything.
type sink struct {
	net.Conn
	n int
}

func (s *sink) Write(p []byte) (int, error) { s.n += len(p); return len(p), nil }
func (s *sink) Close() error                { return nil }
func (s *sink) LocalAddr() net.Addr         { return &net.UnixAddr{} }
func (s *sink) RemoteAddr() net.Addr        { return &net.UnixAddr{} }

// loose is a connection in transmission that no goroutine serves.
func loose(t testing.TB, dev blockdev.Device, structured bool) (*conn, *sink) {
	t.Helper()
	s := New(Options{Exports: []*Export{NewExport("x", dev, ExportOptions{})}})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	to := &sink{}
	c := newConn(s, to, TLSOff)
	c.export, c.structured = s.o.Exports[0], structured
	return c, to
}

// feed hands bytes to the loop as if they had been read.
func (c *conn) feed(b []byte) error {
	for len(b) > 0 {
		n := copy(c.in.Room(c.need), b)
		c.in.Got(n)
		b = b[n:]
		c.mu.Lock()
		err := c.batch()
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func file(t testing.TB, size int64) *blockdev.File {
	t.Helper()
	dev, err := blockdev.CreateFile(filepath.Join(t.TempDir(), "disk"), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	if _, err := dev.WriteAt(testContent()[:size], 0); err != nil {
		t.Fatal(err)
	}
	return dev
}

// TestAllocations: nothing is allocated for a read or write that need not wait.
func TestAllocations(t *testing.T) {
	const size = 4 << 20
	for mode, structured := range map[string]bool{"simple": false, "structured": true} {
		for name, req := range map[string][]byte{
			"read 4K":  requestBytes(cmdRead, 0, 1, 8192, 4096),
			"read 1M":  requestBytes(cmdRead, 0, 1, 8192, 1<<20),
			"write 4K": requestBytes(cmdWrite, 0, 1, 8192, 4096, make([]byte, 4096)...),
			"write 1M": requestBytes(cmdWrite, 0, 1, 8192, 1<<20, make([]byte, 1<<20)...),
		} {
			c, to := loose(t, file(t, size), structured)
			for range 4 { // buffers grow
				if err := c.feed(req); err != nil {
					t.Fatal(err)
				}
			}
			to.n = 0
			if n := testing.AllocsPerRun(100, func() { _ = c.feed(req) }); n != 0 {
				t.Errorf("%s, %s: %v allocations", name, mode, n)
			}
			if to.n < 101*simpleLen {
				t.Errorf("%s, %s: %d bytes of answers", name, mode, to.n)
			}
		}
	}
}

func BenchmarkRead4K(b *testing.B) { benchmark(b, requestBytes(cmdRead, 0, 1, 8192, 4096)) }
func BenchmarkRead1M(b *testing.B) { benchmark(b, requestBytes(cmdRead, 0, 1, 8192, 1<<20)) }
func BenchmarkWrite4K(b *testing.B) {
	benchmark(b, requestBytes(cmdWrite, 0, 1, 8192, 4096, make([]byte, 4096)...))
}
func BenchmarkWrite1M(b *testing.B) {
	benchmark(b, requestBytes(cmdWrite, 0, 1, 8192, 1<<20, make([]byte, 1<<20)...))
}

// benchmark measures all but the socket.
func benchmark(b *testing.B, req []byte) {
	c, _ := loose(b, file(b, 4<<20), true)
	b.ReportAllocs()
	b.SetBytes(int64(reqLength.Get(req)))
	for b.Loop() {
		if err := c.feed(req); err != nil {
			b.Fatal(err)
		}
	}
}
