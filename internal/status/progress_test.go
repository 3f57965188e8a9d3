package status

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// drive updates p every 10 ms for so long at rate bytes a second.
func drive(p *Progress, done *int64, total int64, rate int64, d time.Duration) {
	for range d / (10 * time.Millisecond) {
		time.Sleep(10 * time.Millisecond)
		*done += rate / 100
		p.Update(*done, total)
	}
}

func near(got, want, within float64) bool { return math.Abs(got-want) <= within*want }

func TestProgressSteady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, done := newProgress("a"), int64(0)
		if c := p.Snapshot(); c.Rate != 0 || c.Left != nil || c.Percent != 0 {
			t.Errorf("before the first update: %+v", c)
		}
		drive(p, &done, 1000*mib, 100*mib, 4*time.Second)
		c := p.Snapshot()
		if c.Done != 400*mib || c.Total != 1000*mib || c.Percent != 40 || time.Duration(c.Elapsed) != 4*time.Second {
			t.Errorf("got %+v", c)
		}
		if !near(c.Rate, 100*mib, 0.001) {
			t.Errorf("rate: got %f, want %d", c.Rate, 100*mib)
		}
		if c.Left == nil || !near(time.Duration(*c.Left).Seconds(), 6, 0.001) {
			t.Errorf("left: got %v, want 6 s", c.Left)
		}
		if got, want := c.String(), "40 % of 1000.0 MiB, 100.0 MiB/s, 6s left"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// TestProgressIsSmooth: a change of rate shows after the time of smoothing,
// not at once and not much later.
func TestProgressIsSmooth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, done := newProgress("a"), int64(0)
		drive(p, &done, 1<<40, 100*mib, 20*time.Second)
		drive(p, &done, 1<<40, 10*mib, smoothing)
		want := 10*mib + 90*mib/math.E
		if c := p.Snapshot(); !near(c.Rate, want, 0.01) {
			t.Errorf("after %v: got %f, want %f", smoothing, c.Rate, want)
		}
		drive(p, &done, 1<<40, 10*mib, 10*smoothing)
		if c := p.Snapshot(); !near(c.Rate, 10*mib, 0.01) {
			t.Errorf("much later: got %f, want %d", c.Rate, 10*mib)
		}
	})
}

// TestProgressStalls: a copy that makes no progress makes no updates either.
func TestProgressStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, done := newProgress("a"), int64(0)
		drive(p, &done, 1<<40, 100*mib, 20*time.Second)
		time.Sleep(smoothing)
		if c := p.Snapshot(); !near(c.Rate, 100*mib/math.E, 0.01) {
			t.Errorf("after %v without progress: rate %f", smoothing, c.Rate)
		}
		time.Sleep(time.Hour)
		if c := p.Snapshot(); c.Rate > 1 || c.Left != nil {
			t.Errorf("after an hour without progress: rate %f, left %v", c.Rate, c.Left)
		}
	})
}

func TestProgressEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, done := newProgress("a"), int64(0)
		drive(p, &done, 500*mib, 100*mib, 5*time.Second)
		time.Sleep(time.Hour)
		c := p.Snapshot()
		if c.Percent != 100 || !near(c.Rate, 100*mib, 0.001) || time.Duration(c.Elapsed) != 5*time.Second || c.Left == nil || *c.Left != 0 {
			t.Errorf("got %+v", c)
		}
		if got, want := c.String(), "100 % of 500.0 MiB, 100.0 MiB/s"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

func TestProgressOvertaken(t *testing.T) {
	p := newProgress("a")
	p.Update(10, 100)
	p.Update(5, 100)
	if c := p.Snapshot(); c.Done != 10 {
		t.Errorf("got %d, want 10", c.Done)
	}
}

func TestProgressOfNothing(t *testing.T) {
	p := newProgress("a")
	p.Update(0, 0)
	if c := p.Snapshot(); c.Percent != 100 || c.Rate != 0 || c.Left == nil || *c.Left != 0 {
		t.Errorf("got %+v", c)
	}
}

func TestUpdateDoesNotAllocate(t *testing.T) {
	p := newProgress("a")
	if n := testing.AllocsPerRun(100, func() { p.Update(1, 100) }); n != 0 {
		t.Errorf("%f allocations for one update, want 0", n)
	}
}
