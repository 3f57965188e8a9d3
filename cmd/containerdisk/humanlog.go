package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// humanHandler writes log lines for a person who watches a terminal:
//
//	15:04:05 WARN login refused client=127.0.0.1:5000
//
// Info needs no word, and what is empty no place.
type humanHandler struct {
	mu    *sync.Mutex // guards w and line
	w     io.Writer
	line  *bytes.Buffer // where attrs writes to
	attrs slog.Handler  // the attributes as slog's text
}

func newHumanHandler(w io.Writer, level slog.Level) *humanHandler {
	line := new(bytes.Buffer)
	return &humanHandler{new(sync.Mutex), w, line, slog.NewTextHandler(line, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			builtin := len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey)
			if builtin || a.Value.Kind() == slog.KindString && a.Value.String() == "" {
				return slog.Attr{}
			}
			return a
		},
	})}
}

func (h *humanHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.attrs.Enabled(ctx, l)
}

func (h *humanHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.line.Reset()
	if err := h.attrs.Handle(ctx, r); err != nil {
		return err
	}
	level := ""
	if r.Level != slog.LevelInfo {
		level = r.Level.String() + " "
	}
	_, err := fmt.Fprintf(h.w, "%s %s%s %s", r.Time.Format(time.TimeOnly), level, r.Message, h.line)
	return err
}

func (h *humanHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &humanHandler{h.mu, h.w, h.line, h.attrs.WithAttrs(attrs)}
}

func (h *humanHandler) WithGroup(name string) slog.Handler {
	return &humanHandler{h.mu, h.w, h.line, h.attrs.WithGroup(name)}
}
