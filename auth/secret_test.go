package auth

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const password = "correct horse battery"

// holders are the ways in which a secret gets into a log: itself, in exported
// and unexported fields, behind pointers and in collections.
func holders() []any {
	account := Account{"alice", NewSecret([]byte(password))}
	chap := CHAP{Initiator: account}
	a := NewAuthenticator(chap)
	x, err := a.Begin(Algorithms())
	if err != nil {
		panic(err)
	}
	hidden := struct{ chap CHAP }{chap}
	return []any{
		account.Secret, &account.Secret, account, &account, chap, &chap, hidden, &hidden, a, *x, x,
		[]Account{account}, map[string]Secret{"k": account.Secret},
	}
}

// leaks reports whether text has the password in it, in one of the forms in
// which package fmt prints bytes.
func leaks(text string) bool {
	decimal := strings.Trim(fmt.Sprintf("%d", []byte(password)), "[]")
	for _, form := range []string{password, decimal, fmt.Sprintf("%x", password), fmt.Sprintf("%X", password),
		fmt.Sprintf("% x", password), fmt.Sprintf("%#v", []byte(password))[7:20], fmt.Sprintf("%o", []byte(password))[1:20]} {
		if strings.Contains(text, form) {
			return true
		}
	}
	return false
}

func TestSecretIsNotPrinted(t *testing.T) {
	if !leaks(fmt.Sprintf("%v", []byte(password))) || !leaks(fmt.Sprintf("%#v", []byte(password))) || !leaks(password) {
		t.Fatal("the test does not see a leak")
	}
	for _, h := range holders() {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "% x", "%d", "%o", "%b", "%c", "%U", "%t"} {
			if text := fmt.Sprintf(verb, h); leaks(text) {
				t.Errorf("%s of a %T: %s", verb, h, text)
			}
		}
		if text, err := json.Marshal(h); err == nil && leaks(string(text)) {
			t.Errorf("JSON of a %T: %s", h, text)
		}
		var log bytes.Buffer
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "value", h)
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "value", h)
		if leaks(log.String()) {
			t.Errorf("log of a %T: %s", h, log.String())
		}
	}
}

func TestSecretForms(t *testing.T) {
	set, none := NewSecret([]byte(password)), Secret{}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", set)
	asJSON, err := json.Marshal(map[string]Secret{"s": set, "t": none})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ got, want string }{
		{fmt.Sprint(set), "[redacted]"},
		{fmt.Sprintf("%s|%d|%x", set, set, set), "[redacted]|[redacted]|[redacted]"},
		{fmt.Sprintf("%q", set), `"[redacted]"`},
		{fmt.Sprintf("%#v", set), "auth.Secret{[redacted]}"},
		{fmt.Sprint(none), "[none]"},
		{fmt.Sprint(Account{"alice", set}), "{alice [redacted]}"},
		{string(asJSON), `{"s":"[redacted]","t":"[none]"}`},
	}
	for _, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("got %s, want %s", tt.got, tt.want)
		}
	}
	if !strings.Contains(log.String(), "s=[redacted]") {
		t.Errorf("log: %s", log.String())
	}
}

func TestSecretHoldsItsOwnBytes(t *testing.T) {
	b := []byte(password)
	s := NewSecret(b)
	clear(b)
	if string(s.Bytes()) != password {
		t.Errorf("got %q, want %q", s.Bytes(), password)
	}
	if !s.Equal(NewSecret([]byte(password))) || s.Equal(NewSecret([]byte(password+"x"))) || s.Equal(Secret{}) {
		t.Error("Equal does not compare the bytes")
	}
}
