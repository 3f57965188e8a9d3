package main

import (
	"bytes"
	"log/slog"
	"regexp"
	"testing"
)

func TestHumanLog(t *testing.T) {
	for _, test := range []struct {
		name string
		log  func(*slog.Logger)
		want string // behind the time
	}{
		{"plain", func(l *slog.Logger) { l.Info("ready") }, "ready \n"},
		{"attributes", func(l *slog.Logger) { l.Info("phase", "phase", "ready", "message", "") }, "phase phase=ready\n"},
		{"a level", func(l *slog.Logger) { l.Warn("odd", "n", 1) }, "WARN odd n=1\n"},
		{"quoted", func(l *slog.Logger) { l.Info("name", "is", "a b\n") }, `name is="a b\n"` + "\n"},
		{"with", func(l *slog.Logger) { l.With("wire", "iscsi").WithGroup("s").Info("login", "msg", "x") }, "login wire=iscsi s.msg=x\n"},
		{"below the level", func(l *slog.Logger) { l.Debug("noise") }, ""},
	} {
		var b bytes.Buffer
		test.log(slog.New(newHumanHandler(&b, slog.LevelInfo)))
		got := regexp.MustCompile(`^\d\d:\d\d:\d\d `).ReplaceAllString(b.String(), "")
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}
