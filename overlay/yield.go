package overlay

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// What holds the hydrator back: the guest, a rate, and Pause.

const (
	// tick is how often it is looked at what the guest does.
	tick = 10 * time.Millisecond
	// hints is how many of the guest's last reads from the base are known.
	hintCount = 16
)

// guest is what the hydrator knows about the guest.
type guest struct {
	requests atomic.Uint64 // so far
	load     atomic.Uint64 // requests in the last tick
	cost     atomic.Int64  // nanoseconds that the first worker's last piece took

	hints [hintCount]atomic.Int64 // offset+1 in bytes of reads from the base; 0: none
	at    atomic.Uint64
}

func (d *Disk) noteGuest() { d.hydrator.guest.requests.Add(1) }

// hint tells that the guest has read from the base at off.
func (d *Disk) hint(off int64) {
	g := &d.hydrator.guest
	g.hints[g.at.Add(1)%hintCount].Store(off + 1)
}

// watch measures the load until it is stopped.
func (g *guest) watch() (stop func()) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(tick)
		defer t.Stop()
		for last := g.requests.Load(); ; {
			select {
			case <-end:
				g.load.Store(0)
				return
			case <-t.C:
			}
			now := g.requests.Load()
			g.load.Store(now - last)
			last = now
		}
	})
	return func() { close(end); wg.Wait() }
}

// took notes how long a piece took.
func (g *guest) took(t time.Duration) { g.cost.Store(int64(t)) }

// busy is how many requests in a tick make a guest that is not to be disturbed.
const busy = 20

// giveWay holds a worker up while the guest works. All but the first stop; the
// first rests as long as its last piece took, or four times as long when the
// guest is busy, so that hydration always comes to its end.
func (g *guest) giveWay(ctx context.Context, index int) bool {
	for {
		load := g.load.Load()
		switch {
		case load == 0:
			return true
		case index == 0:
			rest := time.Duration(g.cost.Load())
			if load >= busy {
				rest *= 4
			}
			return sleep(ctx, min(rest, 50*time.Millisecond))
		}
		if !sleep(ctx, tick) {
			return false
		}
	}
}

// near takes a piece from todo that the guest has read from lately, or one next
// to it, and returns -1 when there is none.
func (g *guest) near(todo set, piece int64) int64 {
	last := g.at.Load()
	for i := range uint64(hintCount) {
		h := g.hints[(last-i)%hintCount].Load()
		if h == 0 {
			continue
		}
		at := (h - 1) / piece
		for _, p := range [...]int64{at, at + 1, at + 2, at + 3, at - 1} {
			if p >= 0 && p < int64(len(todo))*wordBits && todo.has(p) && todo.take(p) {
				return p
			}
		}
	}
	return -1
}

// pace keeps to a rate.
type pace struct {
	rate int64 // bytes a second; 0: no limit

	mu   sync.Mutex // guards next
	next time.Time  // when the next piece may be copied
}

func (p *pace) wait(ctx context.Context) bool {
	if p.rate <= 0 {
		return true
	}
	p.mu.Lock()
	rest := time.Until(p.next)
	p.mu.Unlock()
	return rest <= 0 || sleep(ctx, rest)
}

// spend notes that n bytes were copied. Time that was not used is lost.
func (p *pace) spend(n int64) {
	if p.rate <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
}

// gate is what Pause shuts.
type gate struct {
	mu   sync.Mutex    // guards way
	way  chan struct{} // closed while the gate is open
	isUp bool
}

func (g *gate) init() {
	g.way = make(chan struct{})
	close(g.way)
	g.isUp = true
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isUp {
		g.way, g.isUp = make(chan struct{}), false
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.isUp {
		close(g.way)
		g.isUp = true
	}
}

func (g *gate) shut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.isUp
}

func (g *gate) pass(ctx context.Context) bool {
	g.mu.Lock()
	way := g.way
	g.mu.Unlock()
	select {
	case <-way:
		return true
	case <-ctx.Done():
		return false
	}
}
