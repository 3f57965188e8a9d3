//go:build e2e

package crash

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/containerdisk/containerdisk/test/client"
)

// mostSectors is the size of the largest request.
const mostSectors = 384

// load is workers that change a disk at random until it is taken from them.
type load struct {
	oracle *oracle
	taken  atomic.Bool // set before the disk is: from then on connections may break and requests fail
	acked  atomic.Int64
	wg     sync.WaitGroup
	mu     sync.Mutex // guards errs
	errs   []error
}

// start lets a worker work over c, with choices of its own.
func (l *load) start(c client.Disk, r *rand.Rand) {
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		defer c.Close()
		for p := make([]byte, mostSectors*sectorSize); ; {
			err := l.step(c, r, p)
			if err == nil {
				l.acked.Add(1)
				continue
			}
			if l.taken.Load() && !isWrong(err) {
				return
			}
			l.mu.Lock()
			l.errs = append(l.errs, err)
			l.mu.Unlock()
			return
		}
	}()
}

// wait waits until all workers have lost their connections, and returns what
// went wrong before the disk was taken.
func (l *load) wait() error {
	l.wg.Wait()
	return errors.Join(l.errs...)
}

// errWrong is content that is not what it must be: never excused.
type errWrong struct{ error }

func isWrong(err error) bool { w := errWrong{}; return errors.As(err, &w) }

// step is one request.
func (l *load) step(c client.Disk, r *rand.Rand, p []byte) error {
	switch k := r.IntN(100); {
	case k < 12:
		began := l.oracle.flushing()
		if err := c.Flush(); err != nil {
			return err
		}
		l.oracle.flushed(began)
		return nil
	case k < 40:
		return l.read(c, r, p)
	default:
		return l.change(c, r, p, k)
	}
}

func (l *load) read(c client.Disk, r *rand.Rand, p []byte) error {
	s := l.oracle.claim(r, mostSectors)
	defer l.oracle.release(s)
	p = p[:s.bytes()]
	if err := c.Read(s.off(), p); err != nil {
		return err
	}
	if err := l.oracle.check(s, p); err != nil {
		return errWrong{fmt.Errorf("read of sectors %v: %w", s, err)}
	}
	return nil
}

func (l *load) change(c client.Disk, r *rand.Rand, p []byte, k int) error {
	s := l.oracle.claim(r, mostSectors)
	defer l.oracle.release(s)
	how := client.Cached
	if r.IntN(8) == 0 {
		how = client.ThroughCache
	}
	var err error
	switch {
	case k < 46: // the disk may keep or drop what is trimmed: nothing is promised
		l.oracle.begin(s, zeros)
		return c.Trim(s.off(), s.bytes())
	case k < 56:
		l.oracle.begin(s, zeros)
		err = c.Zero(s.off(), s.bytes(), how)
	default:
		v := l.oracle.begin(s, firstWrite)
		p = p[:s.bytes()]
		for i := range s.n {
			fillSector(p[i*sectorSize:][:sectorSize], s.first+i, v)
		}
		err = c.Write(s.off(), p, how)
	}
	if err == nil {
		l.oracle.acknowledge(s, how == client.ThroughCache)
	}
	return err
}
