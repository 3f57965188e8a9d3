package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MinSecret is the least length of a secret in bytes: 96 bits (RFC 7143
	// §9.2.1, for connections without IPsec).
	MinSecret = 12
	// MaxSecret is the greatest length of a secret in bytes. It is ours: well
	// above the 128 bits that an initiator must support.
	MaxSecret = 255
	// MaxName is the greatest length of a name in bytes (RFC 7143 §6.1: a
	// text-value without another limit).
	MaxName = 255
)

// Account is a name and what proves it.
type Account struct {
	Name   string
	Secret Secret
}

// IsZero reports whether neither half of the account is set.
func (a Account) IsZero() bool { return a.Name == "" && a.Secret.Len() == 0 }

// CHAP says who may log in and how. The zero value admits nobody.
type CHAP struct {
	Initiator  Account     // what an initiator has to prove
	Target     Account     // what the target proves when asked; zero: it has nothing to prove
	Algorithms []Algorithm // those allowed; nil: all
}

// Enabled reports whether there is an account to log in with.
func (c CHAP) Enabled() bool { return c.Initiator.Name != "" && c.Initiator.Secret.Len() != 0 }

// Field names a part of a CHAP, for the one who knows what the operator calls
// it.
type Field uint8

const (
	InitiatorName Field = iota
	InitiatorSecret
	TargetName
	TargetSecret
	AllowedAlgorithms
)

func (f Field) String() string {
	switch f {
	case InitiatorName:
		return "initiator name"
	case InitiatorSecret:
		return "initiator secret"
	case TargetName:
		return "target name"
	case TargetSecret:
		return "target secret"
	case AllowedAlgorithms:
		return "algorithms"
	}
	return fmt.Sprintf("field %d", uint8(f))
}

// Problem is one thing that is wrong with a CHAP. Its text contains no secret.
type Problem struct {
	Field Field
	Text  string
}

func (p Problem) Error() string { return p.Field.String() + ": " + p.Text }

// Validate returns all Problems of c joined. Nothing set at all is no problem.
func (c CHAP) Validate() error {
	var errs []error
	for _, p := range c.Problems() {
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}

// Problems returns what Validate joins.
func (c CHAP) Problems() []Problem {
	ps := c.Initiator.problems(InitiatorName, InitiatorSecret)
	ps = append(ps, c.Target.problems(TargetName, TargetSecret)...)
	if c.Initiator.IsZero() && !c.Target.IsZero() {
		ps = append(ps, Problem{InitiatorName, "missing: the target proves itself only to an initiator that has logged in"})
	}
	if n := c.Target.Secret.Len(); n != 0 && c.Target.Secret.Equal(c.Initiator.Secret) {
		ps = append(ps, Problem{TargetSecret, "is the same as the initiator's; each side needs its own (RFC 7143 §9.2.1)"})
	}
	return append(ps, algorithmProblems(c.Algorithms)...)
}

// problems checks one account; a zero one has none.
func (a Account) problems(name, secret Field) []Problem {
	if a.IsZero() {
		return nil
	}
	var ps []Problem
	if text := nameProblem(a.Name); text != "" {
		ps = append(ps, Problem{name, text})
	}
	switch n := a.Secret.Len(); {
	case n == 0:
		ps = append(ps, Problem{secret, "missing: a name without a secret protects nothing"})
	case n < MinSecret:
		ps = append(ps, Problem{secret, fmt.Sprintf("has %d bytes, needs at least %d (RFC 7143 §9.2.1)", n, MinSecret)})
	case n > MaxSecret:
		ps = append(ps, Problem{secret, fmt.Sprintf("has %d bytes, at most %d are allowed", n, MaxSecret)})
	}
	return ps
}

func nameProblem(name string) string {
	switch {
	case name == "":
		return "missing: a secret without a name admits nobody"
	case len(name) > MaxName:
		return fmt.Sprintf("has %d bytes, at most %d are allowed", len(name), MaxName)
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.ContainsFunc(name, unicode.IsControl):
		return fmt.Sprintf("%q has a control character in it", name)
	}
	return ""
}

func algorithmProblems(list []Algorithm) []Problem {
	if list != nil && len(list) == 0 {
		return []Problem{{AllowedAlgorithms, "none is allowed, so nobody could log in"}}
	}
	var ps []Problem
	for i, a := range list {
		switch {
		case !a.Known():
			ps = append(ps, Problem{AllowedAlgorithms, a.String() + " is not known"})
		case slices.Contains(list[:i], a):
			ps = append(ps, Problem{AllowedAlgorithms, a.String() + " is named twice"})
		}
	}
	return ps
}
