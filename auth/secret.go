package auth

import (
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// Secret is a password. However it is printed, logged or encoded, it says
// "[redacted]", or "[none]" when it is empty.
//
// The bytes stand behind a pointer because package fmt does not call the
// methods of what it finds in unexported fields; of a pointer to a string, but
// not to a slice, it prints the address whatever the verb.
type Secret struct{ p *string }

// NewSecret returns a Secret with its own copy of b.
func NewSecret(b []byte) Secret {
	if len(b) == 0 {
		return Secret{}
	}
	s := string(b)
	return Secret{&s}
}

// Bytes is a copy of the secret itself.
func (s Secret) Bytes() []byte {
	if s.p == nil {
		return nil
	}
	return []byte(*s.p)
}

// Len is the length of the secret in bytes.
func (s Secret) Len() int {
	if s.p == nil {
		return 0
	}
	return len(*s.p)
}

// Equal compares without telling by its time how much of t is right. The
// lengths are no secret.
func (s Secret) Equal(t Secret) bool {
	return subtle.ConstantTimeCompare(s.Bytes(), t.Bytes()) == 1
}

func (s Secret) String() string {
	if s.Len() == 0 {
		return "[none]"
	}
	return "[redacted]"
}

// GoString is what %#v prints.
func (s Secret) GoString() string { return "auth.Secret{" + s.String() + "}" }

// Format keeps every verb of package fmt, %x and %d too, from the bytes.
func (s Secret) Format(f fmt.State, verb rune) {
	switch {
	case verb == 'v' && f.Flag('#'):
		_, _ = io.WriteString(f, s.GoString())
	case verb == 'q':
		_, _ = fmt.Fprintf(f, "%q", s.String())
	default:
		_, _ = io.WriteString(f, s.String())
	}
}

func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText makes encoding/json and its like print the redacted form.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

var (
	_ fmt.Formatter  = Secret{}
	_ fmt.GoStringer = Secret{}
	_ slog.LogValuer = Secret{}
)
