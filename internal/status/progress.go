package status

import (
	"fmt"
	"math"
	"sync"
	"time"
)

const (
	// smoothing is how long an old rate has its weight: after this time e⁻¹ of
	// it is left in the average.
	smoothing = 5 * time.Second
	// sampling is the shortest time over which a rate is taken.
	sampling = 250 * time.Millisecond
)

// Progress is how far one copy is. Its methods may be called from several
// goroutines; updating it is cheap.
type Progress struct {
	disk  string
	begun time.Time

	mu          sync.Mutex // guards the fields below
	state       string     // what the copying does
	done, total int64      // bytes
	ended       time.Time  // when done reached total; zero before

	// The rate of the last whole sample, and where it ended.
	rate    float64 // bytes a second, smoothed; negative: not known yet
	sampled time.Time
	counted int64 // value of done then
}

func newProgress(disk string) *Progress {
	now := time.Now()
	return &Progress{disk: disk, begun: now, sampled: now, rate: -1}
}

// Update tells that done of total bytes are copied. Of calls that overtake one
// another the one that is furthest counts.
func (p *Progress) Update(done, total int64) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = max(p.done, done), total
	if p.done >= p.total && p.ended.IsZero() {
		p.ended = now
	}
	if now.Sub(p.sampled) >= sampling {
		p.rate, p.sampled, p.counted = p.rateAt(now), now, p.done
	}
}

// SetState tells what the copying does: it copies, waits, or has ended.
func (p *Progress) SetState(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
}

// rateAt is the smoothed rate up to now. It falls while nothing is done. The
// caller holds p.mu.
func (p *Progress) rateAt(now time.Time) float64 {
	dt := now.Sub(p.sampled)
	if dt < sampling {
		return p.rate
	}
	latest := float64(p.done-p.counted) / dt.Seconds()
	if p.rate < 0 {
		return latest
	}
	old := math.Exp(-float64(dt) / float64(smoothing))
	return p.rate*old + latest*(1-old)
}

// CopyProgress is how far a copy is at one moment.
type CopyProgress struct {
	Disk    string  `json:"disk"`
	State   string  `json:"state,omitempty"` // "hydrating", "paused", "no space", "complete" …
	Done    int64   `json:"done"`            // bytes
	Total   int64   `json:"total"`           // bytes; 0: not known yet
	Percent float64 `json:"percent"`         // 0 to 100
	Rate    float64 `json:"rate"`            // bytes a second lately; of a copy that has ended, over all of it

	Elapsed Seconds `json:"elapsed"`
	// Left is the time that the rest takes at this rate; absent while it cannot
	// be told, 0 at the end.
	Left *Seconds `json:"left,omitempty"`
}

// Seconds is a duration that JSON shows in seconds.
type Seconds time.Duration

// MarshalJSON rounds to milliseconds.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(s).Seconds()), nil
}

// Snapshot returns how far the copy is now.
func (p *Progress) Snapshot() CopyProgress {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	c := CopyProgress{Disk: p.disk, State: p.state, Done: p.done, Total: p.total, Elapsed: Seconds(now.Sub(p.begun))}
	if p.total > 0 {
		c.Percent = 100 * float64(p.done) / float64(p.total)
	}
	if !p.ended.IsZero() {
		took := p.ended.Sub(p.begun)
		c.Percent, c.Elapsed, c.Left = 100, Seconds(took), new(Seconds)
		if took > 0 {
			c.Rate = float64(p.done) / took.Seconds()
		}
		return c
	}
	if rate := p.rateAt(now); rate > 0 {
		c.Rate = rate
		c.Left = left(p.total-p.done, rate)
	}
	return c
}

// left is how long n bytes take at rate, or nil where that is too long to
// mean anything.
func left(n int64, rate float64) *Seconds {
	const longest = 365 * 24 * time.Hour
	s := float64(n) / rate
	if s > longest.Seconds() {
		return nil
	}
	d := Seconds(s * float64(time.Second))
	return &d
}

// String is the progress for people, as in "42 % of 20.0 GiB, 310.5 MiB/s, 1m3s left".
func (c CopyProgress) String() string {
	text := fmt.Sprintf("%.0f %% of %s", math.Floor(c.Percent), sizeText(float64(c.Total)))
	if c.Rate > 0 {
		text += fmt.Sprintf(", %s/s", sizeText(c.Rate))
	}
	if c.Left != nil && *c.Left > 0 {
		text += fmt.Sprintf(", %v left", time.Duration(*c.Left).Round(time.Second))
	}
	return text
}

// sizeText is a number of bytes for people.
func sizeText(f float64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; f >= 1024 && i < len(units)-1; i++ {
		f /= 1024
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
