package iscsi

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Limits of text, RFC 7143 §6.1.
const (
	maxKeyName   = 63
	maxTextValue = 8192     // CHAP_C and CHAP_R are the longest: 1024 bytes in hex
	maxText      = 64 << 10 // of one negotiation, over all its PDUs
	maxTextKeys  = 256      // pairs of one negotiation
	maxISCSIName = 223      // §4.2.7.1
	maxLoginPDUs = 32       // requests of one login
)

// Values that stand for an answer and not for a value, §6.2.
const (
	valNotUnderstood = "NotUnderstood"
	valIrrelevant    = "Irrelevant"
	valReject        = "Reject"
	valNone          = "None"
	valYes           = "Yes"
	valNo            = "No"
)

// pair is one key=value.
type pair struct{ key, value string }

// parseText splits the text of a negotiation into its pairs. Every pair ends
// with a NUL; what RFC 7143 §6.1 forbids is an error.
func parseText(b []byte) ([]pair, error) {
	var pairs []pair
	for len(b) > 0 {
		one, rest, ok := bytes.Cut(b, []byte{0})
		if !ok {
			return nil, errors.New("the last key=value pair does not end with a NUL")
		}
		b = rest
		if len(one) == 0 {
			continue // some initiators pad with NULs
		}
		p, err := parsePair(string(one))
		if err != nil {
			return nil, err
		}
		if len(pairs) == maxTextKeys {
			return nil, fmt.Errorf("more than %d keys", maxTextKeys)
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

func parsePair(s string) (pair, error) {
	key, value, ok := strings.Cut(s, "=")
	switch {
	case !ok:
		return pair{}, fmt.Errorf("%.*q is not key=value", maxKeyName, s)
	case key == "" || len(key) > maxKeyName || strings.ContainsFunc(key, notInKeyName):
		return pair{}, fmt.Errorf("%.*q is not a key name", maxKeyName, key)
	case len(value) > maxTextValue:
		return pair{}, fmt.Errorf("the value of %s has %d bytes, limit %d", key, len(value), maxTextValue)
	}
	return pair{key, value}, nil
}

// notInKeyName tells what a key name may not hold; §6.1 is stricter about the
// first letter, which no key of ours depends on.
func notInKeyName(r rune) bool {
	return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune(".-+@_#", r)
}

// appendPair appends key=value and its NUL to b.
func appendPair(b []byte, key, value string) []byte {
	b = append(b, key...)
	b = append(b, '=')
	b = append(b, value...)
	return append(b, 0)
}

// parseNumber parses a numerical value, decimal or hexadecimal, §6.1.
func parseNumber(s string) (uint64, error) {
	if hex, ok := cutHexPrefix(s); ok {
		return strconv.ParseUint(hex, 16, 64)
	}
	if s != "" && (s[0] == '+' || s[0] == '-') {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	return strconv.ParseUint(s, 10, 64)
}

func cutHexPrefix(s string) (string, bool) {
	if len(s) > 2 && s[0] == '0' && (s[1] == 'x' || s[1] == 'X') {
		return s[2:], true
	}
	return s, false
}
