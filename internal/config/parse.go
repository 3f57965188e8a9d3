package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reader collects what is wrong with the variables.
type reader struct {
	errs   []error
	broken map[string]bool // by name: said to be wrong already
}

func newReader() *reader { return &reader{broken: map[string]bool{}} }

// fail notes that v is unusable.
func (r *reader) fail(v variable, err error) {
	r.broken[v.name] = true
	if v.secret || v.text == "" {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", v.name, err))
		return
	}
	r.errs = append(r.errs, fmt.Errorf("%s=%q: %w", v.name, v.text, err))
}

// bad reports whether one of the variables named is known to be wrong, so that
// a rule about it would only say so again.
func (r *reader) bad(names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return r.broken[n] })
}

var errEmpty = errors.New("set but empty; give it a value or unset it")

// parse reads v, or what holds when it is not set, into c.
func parse[T any](r *reader, v variable, c *T, f func(string) (T, error)) {
	text := v.text
	switch {
	case !v.set && v.fallback == "":
		return
	case !v.set:
		text = v.fallback
	case text == "":
		r.fail(v, errEmpty)
		return
	}
	got, err := f(text)
	if err != nil {
		r.fail(v, err)
		return
	}
	*c = got
}

// alias reads a former name into c, which today's name has been read into.
func alias[T comparable](r *reader, former, today variable, c *T, f func(string) (T, error)) {
	before, wrong := *c, len(r.errs)
	parse(r, former, c, f)
	if len(r.errs) == wrong && former.set && today.set && *c != before && !r.broken[today.name] {
		r.fail(former, conflict(today))
	}
}

func conflict(other variable) error {
	return fmt.Errorf("%s is set as well; unset one of them", other.name)
}

func asIs(s string) (string, error) { return s, nil }

func parseBool(s string) (bool, error) {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return false, errors.New("want true or false")
	}
	return b, nil
}

// oneOf accepts the words given; of others it says what they are not.
func oneOf[T ~string](otherwise string, words ...T) func(string) (T, error) {
	return func(s string) (T, error) {
		if slices.Contains(words, T(s)) {
			return T(s), nil
		}
		return "", fmt.Errorf("%s; want %s", otherwise, list(words))
	}
}

func list[T ~string](words []T) string {
	var b strings.Builder
	for i, w := range words {
		switch {
		case i > 0 && i == len(words)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(string(w))
	}
	return b.String()
}

// orOff lets the word off stand for the zero value.
func orOff[T any](f func(string) (T, error)) func(string) (T, error) {
	return func(s string) (T, error) {
		if s == "off" {
			var zero T
			return zero, nil
		}
		got, err := f(s)
		if err != nil {
			err = fmt.Errorf("%w, or off", err)
		}
		return got, err
	}
}

func parseAbsolute(s string) (string, error) {
	if !filepath.IsAbs(s) {
		return "", errors.New("want an absolute path")
	}
	return filepath.Clean(s), nil
}

// maxSocketPath is the longest path of a Unix socket in bytes, unix(7).
const maxSocketPath = 107

func parseSocket(s string) (string, error) {
	path, err := parseAbsolute(s)
	if err == nil && len(path) > maxSocketPath {
		err = fmt.Errorf("a path of %d bytes; those of sockets have at most %d", len(path), maxSocketPath)
	}
	return path, err
}

// maxSockets is how many sockets we take that are handed over.
const maxSockets = 64

func parseCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > maxSockets {
		return 0, fmt.Errorf("want a number from 0 to %d", maxSockets)
	}
	return n, nil
}

// parseAddrPort takes an address and not a host's name, except localhost: a
// name may mean several addresses, and another one tomorrow.
func parseAddrPort(s string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return netip.AddrPort{}, errors.New("want an address and a port, as in 127.0.0.1:3260 or [::]:3260")
	}
	n, err := parsePort(port)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an IP address; 0.0.0.0 or [::] is every address, 127.0.0.1 only this machine", host)
	}
	return netip.AddrPortFrom(addr.Unmap(), n), nil
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("port %q is not a number from 0 to 65535", s)
	}
	return uint16(n), nil
}

// maxLUN is the last number that the addressing method which every initiator
// knows can say (SAM, "Peripheral device addressing").
const maxLUN = 255

func parseLUN(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n > maxLUN {
		return 0, fmt.Errorf("want a number from 0 to %d", maxLUN)
	}
	return n, nil
}

func parseGrace(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errors.New("want a duration with its unit, as in 25s or 2m")
	}
	return d, nil
}

func parseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, errors.New("unknown; want debug, info, warn or error")
}
