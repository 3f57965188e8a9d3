package iscsi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParseText(t *testing.T) {
	long := func(n int) string { return strings.Repeat("k", n) }
	many := func(n int) (s string) {
		for i := range n {
			s += fmt.Sprintf("K%d=\x00", i)
		}
		return s
	}
	for _, c := range []struct {
		name, in string
		want     []pair // nil: an error
	}{
		{"nothing", "", []pair{}},
		{"one", "A=b\x00", []pair{{"A", "b"}}},
		{"two", "A=b\x00C=d,e\x00", []pair{{"A", "b"}, {"C", "d,e"}}},
		{"empty value", "A=\x00", []pair{{"A", ""}}},
		{"value with =", "A=b=c\x00", []pair{{"A", "b=c"}}},
		{"UTF-8 value", "InitiatorAlias=é世\x00", []pair{{"InitiatorAlias", "é世"}}},
		{"repeated key", "A=1\x00A=2\x00", []pair{{"A", "1"}, {"A", "2"}}},
		{"extension names", "X-com.example.a=1\x00X#b=2\x00Y@c+d_e=3\x00", []pair{{"X-com.example.a", "1"}, {"X#b", "2"}, {"Y@c+d_e", "3"}}},
		{"padding of NULs", "A=b\x00\x00\x00", []pair{{"A", "b"}}},
		{"longest name", long(63) + "=v\x00", []pair{{long(63), "v"}}},
		{"longest value", "A=" + long(maxTextValue) + "\x00", []pair{{"A", long(maxTextValue)}}},

		{"no NUL at the end", "A=b", nil},
		{"second without NUL", "A=b\x00C=d", nil},
		{"no =", "AB\x00", nil},
		{"no name", "=b\x00", nil},
		{"name too long", long(64) + "=v\x00", nil},
		{"value too long", "A=" + long(maxTextValue+1) + "\x00", nil},
		{"space in the name", "A b=c\x00", nil},
		{"newline in the name", "A\n=c\x00", nil},
		{"not ASCII in the name", "Ä=c\x00", nil},
		{"invalid UTF-8 in the name", "\xff=c\x00", nil},
		{"too many", many(maxTextKeys + 1), nil},
	} {
		got, err := parseText([]byte(c.in))
		switch {
		case c.want == nil && err == nil:
			t.Errorf("%s: %.80q gives %v, want an error", c.name, c.in, got)
		case c.want != nil && (err != nil || !slices.Equal(got, c.want)):
			t.Errorf("%s: %.80q gives %.80v, %v", c.name, c.in, got, err)
		}
	}
	if got, err := parseText([]byte(many(maxTextKeys))); err != nil || len(got) != maxTextKeys {
		t.Errorf("%d keys: got %d, %v", maxTextKeys, len(got), err)
	}
}

func TestParseNumber(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "1": 1, "65536": 65536, "0x10": 16, "0X1F": 31, "0x00ff": 255, "007": 7, "18446744073709551616": -1,
		"": -1, "-1": -1, "+1": -1, " 1": -1, "1 ": -1, "0x": -1, "x1": -1, "0b1": -1, "1.0": -1, "1e3": -1, "0x-1": -1, "0x+1": -1,
		"1_000": -1, "0x1_0": -1, "one": -1,
	} {
		got, err := parseNumber(in)
		if (err != nil) != (want < 0) || err == nil && got != uint64(want) {
			t.Errorf("parseNumber(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
}

func TestBinaryEncodings(t *testing.T) {
	for in, want := range map[string]string{
		"0x00ff": "\x00\xff", "0XaBcD": "\xab\xcd", "0xf": "\x0f", "0xabc": "\x0a\xbc",
		"0bAP8=": "\x00\xff", "0BaGVsbG8=": "hello",
	} {
		if got, err := decodeBinary(in); err != nil || string(got) != want {
			t.Errorf("decodeBinary(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "00ff", "0xzz", "0bA", "0b!!!!", "AP8=",
		"0x" + strings.Repeat("00", 1025), "0b" + strings.Repeat("AAAA", 342)} {
		if got, err := decodeBinary(in); err == nil {
			t.Errorf("decodeBinary(%.40q) = %d bytes, want an error", in, len(got))
		}
	}
	for _, n := range []int{1, 16, 1024} {
		b := pattern(3, n, 9)
		if got, err := decodeBinary(encodeBinary(b)); err != nil || !slices.Equal(got, b) {
			t.Errorf("%d bytes: decode of encode gives %d, %v", n, len(got), err)
		}
	}
	for _, n := range []int{1023, 1024} {
		if b, err := decodeBinary("0b" + base64Of(n)); err != nil || len(b) != n {
			t.Errorf("%d bytes in base64: got %d, %v", n, len(b), err)
		}
	}
}

// FuzzText: what parses comes out of the formatter as it went in, but for the
// NULs that pad it, and within the limits.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "A=b\x00", "A=b\x00\x00C=\x00", "InitiatorName=iqn.x\x00SessionType=Normal\x00", "=\x00", "A", "A=\x00B"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		pairs, err := parseText(in)
		if err != nil {
			return
		}
		if len(pairs) > maxTextKeys {
			t.Fatalf("%d pairs, limit %d", len(pairs), maxTextKeys)
		}
		var out []byte
		for _, p := range pairs {
			if len(p.key) > maxKeyName || len(p.value) > maxTextValue || strings.ContainsAny(p.key, "=\x00") || strings.Contains(p.value, "\x00") {
				t.Fatalf("%q parsed to %q", in, p)
			}
			out = appendPair(out, p.key, p.value)
		}
		if want := squeezeNULs(in); string(out) != want {
			t.Fatalf("%q came back as %q", want, out)
		}
		again, err := parseText(out)
		if err != nil || !slices.Equal(again, pairs) {
			t.Fatalf("%q parsed to %q first and to %q (%v) then", in, pairs, again, err)
		}
		parseNumber(string(in)) // must not panic
		if b, err := decodeBinary(string(in)); err == nil && len(b) > 1024 {
			t.Fatalf("decodeBinary gives %d bytes", len(b))
		}
	})
}

func squeezeNULs(in []byte) string {
	s := strings.TrimLeft(string(in), "\x00")
	for strings.Contains(s, "\x00\x00") {
		s = strings.ReplaceAll(s, "\x00\x00", "\x00")
	}
	return s
}
