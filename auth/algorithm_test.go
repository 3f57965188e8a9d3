package auth

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestResponseVectors(t *testing.T) {
	files, err := filepath.Glob("testdata/vectors/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Algorithm]int{}
	for _, file := range files {
		v := readVector(t, file)
		seen[v.algorithm]++
		got := v.algorithm.Response(v.id, NewSecret(v.secret), v.challenge)
		if !bytes.Equal(got, v.response) {
			t.Errorf("%s: got %x, want %x", file, got, v.response)
		}
		if len(got) != v.algorithm.Size() {
			t.Errorf("%s: %v.Size() = %d, want %d", file, v.algorithm, v.algorithm.Size(), len(got))
		}
	}
	for _, a := range Algorithms() {
		if seen[a] == 0 {
			t.Errorf("no vector for %v among %q", a, files)
		}
	}
}

type vector struct {
	algorithm                   Algorithm
	id                          byte
	secret, challenge, response []byte
}

func readVector(t *testing.T, file string) vector {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && k[0] != '#' {
			fields[k] = v
		}
	}
	unhex := func(key string) []byte {
		b, err := hex.DecodeString(fields[key])
		if err != nil || len(b) == 0 {
			t.Fatalf("%s: %s %q: %v", file, key, fields[key], err)
		}
		return b
	}
	number, err := strconv.ParseUint(fields["algorithm"], 10, 8)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return vector{Algorithm(number), unhex("id")[0], unhex("secret"), unhex("challenge"), unhex("response")}
}

func TestParseAlgorithm(t *testing.T) {
	tests := []struct {
		name string
		want Algorithm
	}{
		{"md5", MD5}, {"MD5", MD5}, {"sha1", SHA1}, {"SHA-1", SHA1}, {"sha256", SHA256}, {"SHA-256", SHA256},
		{"sha3-256", SHA3_256}, {"SHA3-256", SHA3_256},
		{"", 0}, {"5", 0}, {"sha", 0}, {"sha512", 0}, {"md5 ", 0}, {"none", 0},
	}
	for _, tt := range tests {
		got, err := ParseAlgorithm(tt.name)
		if got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("ParseAlgorithm(%q) = %v, %v, want %v", tt.name, got, err, tt.want)
		}
	}
	for _, a := range Algorithms() {
		if got, err := ParseAlgorithm(a.String()); got != a || err != nil {
			t.Errorf("ParseAlgorithm(%q) = %v, %v, want itself", a.String(), got, err)
		}
	}
}

func TestKnown(t *testing.T) {
	for n := range 256 {
		a := Algorithm(n)
		if got, want := a.Known(), n >= 5 && n <= 8; got != want {
			t.Errorf("Algorithm(%d).Known() = %v, want %v", n, got, want)
		}
	}
}
