package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/containerdisk/containerdisk/internal/config"
	"github.com/containerdisk/containerdisk/internal/status"
)

// Words for a human at a terminal, JSON for a program on a pipe.

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// terminal is f if it is a terminal, or else nil.
func terminal(f *os.File) *os.File {
	if isTerminal(f) {
		return f
	}
	return nil
}

// terminalWidth is the width of f in characters, or a usual one.
func terminalWidth(f *os.File) int {
	const usual = 100
	if w, _, err := term.GetSize(int(f.Fd())); err == nil && w > 40 {
		return min(w, 2*usual)
	}
	return usual
}

// newLogger returns the logger of a run. Auto is for a person on a terminal
// and JSON elsewhere.
func newLogger(w *os.File, format config.LogFormat, level slog.Level) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	switch {
	case format == config.LogText:
		return slog.New(slog.NewTextHandler(w, o))
	case format == config.LogAuto && isTerminal(w):
		return slog.New(newHumanHandler(overBar{w}, level))
	}
	return slog.New(slog.NewJSONHandler(w, o))
}

// overBar writes lines where a progress bar may stand, which draws itself anew
// below them.
type overBar struct{ w io.Writer }

func (o overBar) Write(line []byte) (int, error) {
	const clear = "\r\x1b[K"
	n, err := o.w.Write(append([]byte(clear), line...))
	return max(n-len(clear), 0), err
}

// progressInterval is how often a pipe is told how far the work is.
const progressInterval = 5 * time.Second

// progress shows how far a copy is: a bar on a terminal, elsewhere a log line
// now and then. Its calls must not overlap.
type progress struct {
	what string
	copy *status.Progress
	bar  *progressbar.ProgressBar // nil: nobody watches
	term *os.File
	log  *slog.Logger
	last time.Time // of a log line
}

// newProgress begins to show c on term, or in log if there is no terminal.
func newProgress(term *os.File, log *slog.Logger, what string, c *status.Progress) *progress {
	p := &progress{what: what, copy: c, term: term, log: log, last: time.Now()}
	if term != nil {
		p.bar = progressbar.NewOptions64(1,
			progressbar.OptionSetWriter(term),
			progressbar.OptionSetDescription(what),
			progressbar.OptionShowCount(),
			progressbar.OptionShowBytes(true),
			progressbar.OptionShowTotalBytes(true),
			progressbar.OptionUseIECUnits(true),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionSetWidth(30),
			progressbar.OptionSetPredictTime(true))
	}
	return p
}

// update says that done of total bytes are done.
func (p *progress) update(done, total int64) {
	p.copy.Update(done, total)
	switch {
	case p.bar == nil:
		p.line()
	case total > 0:
		p.bar.ChangeMax64(total)
		_ = p.bar.Set64(done) // a bar that cannot be drawn stops nothing
	}
}

func (p *progress) line() {
	now := time.Now()
	if now.Sub(p.last) < progressInterval {
		return
	}
	p.last = now
	c := p.copy.Snapshot()
	attrs := []any{"disk", c.Disk, "done", c.Done, "total", c.Total, "percent", int(c.Percent), "bytesPerSecond", int64(c.Rate)}
	if c.Left != nil {
		attrs = append(attrs, "secondsLeft", int64(time.Duration(*c.Left).Seconds()))
	}
	p.log.Info(p.what, attrs...)
}

// end leaves the bar as it stands and moves on to the next line.
func (p *progress) end() {
	if p.bar != nil {
		_ = p.bar.Exit()
		fmt.Fprintln(p.term)
	}
}

// size is n bytes for a person: 20 GiB, 1.5 MiB, 512 bytes.
func size(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, u := float64(n)/(1<<10), 0
	for v >= 1<<10 && u < len(units)-1 {
		v, u = v/(1<<10), u+1
	}
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d %s", int64(v), units[u])
	}
	return fmt.Sprintf("%.1f %s", v, units[u])
}
