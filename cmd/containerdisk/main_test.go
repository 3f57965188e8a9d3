package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	one, two := errors.New("LUN: not a number"), errors.New("found:\na\nb")
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"one", refusal{one}, "containerdisk: LUN: not a number\n"},
		{"one with lines", two, "containerdisk: found:\n  a\n  b\n"},
		{"several", refusal{errors.Join(one, errors.Join(two, nil))},
			"containerdisk: 2 mistakes:\n  - LUN: not a number\n  - found:\n    a\n    b\n"},
		{"joined later", errors.Join(refusal{one}, two),
			"containerdisk: 2 mistakes:\n  - LUN: not a number\n  - found:\n    a\n    b\n"},
		{"wrapped", fmt.Errorf("disk 1: %w", errors.Join(one, two)),
			"containerdisk: disk 1: LUN: not a number\n  found:\n  a\n  b\n"},
	} {
		var b bytes.Buffer
		explain(&b, test.err)
		if b.String() != test.want {
			t.Errorf("%s: got %q, want %q", test.name, b.String(), test.want)
		}
	}
}

func TestExitCode(t *testing.T) {
	failure := errors.New("broken")
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{failure, 1},
		{refusal{failure}, 2},
		{errors.Join(refusal{failure}, failure), 2},
		{fmt.Errorf("wrapped: %w", refusal{failure}), 2},
	} {
		if got := exitCode(test.err); got != test.want {
			t.Errorf("exitCode(%v) = %d, want %d", test.err, got, test.want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 bytes", 1023: "1023 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 20 << 30: "20 GiB",
		1<<40 - 1: "1024.0 GiB", 64 << 40: "64 TiB", 1<<63 - 1: "8 EiB",
	} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	const text = "one  two three a-very-long-word four"
	got := strings.Join(wrap(text, 9), "|")
	if want := "one two|three|a-very-long-word|four"; got != want {
		t.Errorf("wrap: %q, want %q", got, want)
	}
	if got := wrap("", 9); got != nil {
		t.Errorf("wrap of nothing: %q", got)
	}
}
