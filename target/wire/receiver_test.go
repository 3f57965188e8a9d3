package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pair is a connection over a socket: our end and the client's.
func pair(t *testing.T, network string) (ours, theirs net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if theirs, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if ours, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// eachReceiver runs f over what a connection can be, for both ways to wait.
func eachReceiver(t *testing.T, f func(t *testing.T, r *Receiver, linger bool, ours, theirs net.Conn)) {
	for _, network := range []string{"unix", "tcp", "pipe"} {
		for name, linger := range map[string]bool{"parks": false, "lingers": true} {
			t.Run(network+" "+name, func(t *testing.T) {
				ours, theirs := net.Pipe()
				if network != "pipe" {
					ours, theirs = pair(t, network)
				}
				defer ours.Close()
				defer theirs.Close()
				f(t, NewReceiver(ours), linger, ours, theirs)
			})
		}
	}
}

// TestReceiver: what was sent before, at once and later comes, then the end.
func TestReceiver(t *testing.T) {
	eachReceiver(t, func(t *testing.T, r *Receiver, linger bool, _, theirs net.Conn) {
		const rounds = 60
		go func() {
			defer theirs.Close()
			for i := range rounds {
				if i%3 == 0 {
					time.Sleep(3 * lingerTime * time.Millisecond)
				}
				theirs.Write(bytes.Repeat([]byte{byte(i)}, 1000))
			}
		}()
		var got []byte
		for p := make([]byte, 700); ; {
			n, err := r.Read(p, linger)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil || n == 0 {
				t.Fatalf("behind %d bytes: %d, %v", len(got), n, err)
			}
		}
		if len(got) != rounds*1000 {
			t.Fatalf("%d bytes", len(got))
		}
		for i, b := range got {
			if b != byte(i/1000) {
				t.Fatalf("byte %d is %d", i, b)
			}
		}
	})
}

// TestReceiverEnds: a deadline and a Close from elsewhere end a read that waits.
func TestReceiverEnds(t *testing.T) {
	for name, end := range map[string]struct {
		do   func(net.Conn)
		want error
	}{
		"deadline": {func(c net.Conn) { c.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		"close":    {func(c net.Conn) { c.Close() }, net.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			eachReceiver(t, func(t *testing.T, r *Receiver, linger bool, ours, _ net.Conn) {
				ended := make(chan error, 1)
				go func() { _, err := r.Read(make([]byte, 1), linger); ended <- err }()
				time.Sleep(2 * lingerTime * time.Millisecond)
				end.do(ours)
				if err := <-ended; !errors.Is(err, end.want) && !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("got %v, want %v", err, end.want)
				}
			})
		})
	}
}

// TestReceiverReset: an error of the socket comes out.
func TestReceiverReset(t *testing.T) {
	ours, theirs := pair(t, "tcp")
	if err := theirs.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	if n, err := NewReceiver(ours).Read(make([]byte, 1), true); n != 0 || err == nil || err == io.EOF {
		t.Errorf("got %d, %v, want a reset", n, err)
	}
}

// TestReceiverLingers: with nothing to read the try waits once, and only when
// it may; the goroutine is parked then.
func TestReceiverLingers(t *testing.T) {
	ours, theirs := pair(t, "unix")
	r := NewReceiver(ours)
	r.p, r.linger = make([]byte, 10), true
	attempt := func() (done bool, took time.Duration) {
		begin := time.Now()
		if err := r.sock.Control(func(fd uintptr) { done = r.try(fd) }); err != nil {
			t.Fatal(err)
		}
		return done, time.Since(begin)
	}
	if done, took := attempt(); done || took < lingerTime*time.Millisecond || r.linger {
		t.Errorf("done %v after %v, would linger again: %v", done, took, r.linger)
	}
	quick := false
	for range 20 { // any of them: the machine may be busy
		done, took := attempt()
		quick = quick || !done && took < lingerTime*time.Millisecond
	}
	if !quick {
		t.Error("it waits each time")
	}
	r.linger = true
	time.AfterFunc(lingerTime*time.Millisecond/4, func() { theirs.Write([]byte("x")) })
	for done := false; !done; {
		done, _ = attempt()
	}
	if r.n != 1 {
		t.Errorf("%d bytes", r.n)
	}
}

func TestReceiverAllocations(t *testing.T) {
	ours, theirs := pair(t, "unix")
	r, p := NewReceiver(ours), make([]byte, 100)
	if n := testing.AllocsPerRun(200, func() {
		theirs.Write(p)
		if n, err := r.Read(p, true); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
