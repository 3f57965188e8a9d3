package config

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"github.com/containerdisk/containerdisk/auth"
)

// part is one of the four things that make up CHAP, with the variables that
// can give it.
type part struct {
	what         auth.Field
	direct, file variable
	plain, coded variable // former names; zero: there are none
	take         func([]byte)
}

// readCHAP reads the credentials from where they are: the variables, files, or
// a mounted Secret.
func readCHAP(r *reader, env *environment, c *Config) {
	c.chapFrom = map[auth.Field]string{}
	parts := chapParts(env, &c.CHAP)
	if dir := env.CHAP.SecretDir; dir.set {
		readSecretDir(r, dir, parts, c)
	} else {
		for _, p := range parts {
			r.readPart(p, c.chapFrom)
		}
	}
	parse(r, env.CHAP.Algorithms, &c.CHAP.Algorithms, parseAlgorithms)
	c.chapFrom[auth.AllowedAlgorithms] = env.CHAP.Algorithms.name
}

func chapParts(env *environment, c *auth.CHAP) []part {
	e, f := env.CHAP, env.Former
	if !f.Password.set && !f.PasswordBase64.set {
		f.Username = variable{} // a desktop's, not ours
	}
	name := func(a *auth.Account) func([]byte) { return func(b []byte) { a.Name = string(b) } }
	secret := func(a *auth.Account) func([]byte) { return func(b []byte) { a.Secret = auth.NewSecret(b) } }
	return []part{
		{auth.InitiatorName, e.Username, e.UsernameFile, f.Username, f.UsernameBase64, name(&c.Initiator)},
		{auth.InitiatorSecret, e.Password, e.PasswordFile, f.Password, f.PasswordBase64, secret(&c.Initiator)},
		{auth.TargetName, e.MutualUsername, e.MutualUsernameFile, variable{}, variable{}, name(&c.Target)},
		{auth.TargetSecret, e.MutualPassword, e.MutualPasswordFile, variable{}, variable{}, secret(&c.Target)},
	}
}

// readSecretDir reads a mounted Secret, which leaves nothing for the others to
// say.
func readSecretDir(r *reader, dir variable, parts []part, c *Config) {
	var others []string
	for _, p := range parts {
		for _, v := range []variable{p.direct, p.file, p.plain, p.coded} {
			if v.set {
				others = append(others, v.name)
			}
		}
		c.chapFrom[p.what] = dir.name
	}
	if len(others) > 0 {
		r.fail(dir, fmt.Errorf("holds all credentials, and %s set as well; unset one or the other", are(others)))
		return
	}
	parse(r, dir, &c.CHAP, auth.ReadSecretDir)
}

func are(names []string) string {
	if len(names) == 1 {
		return names[0] + " is"
	}
	return strings.Join(names, ", ") + " are"
}

// readPart reads one part from the variable that gives it. Several that give
// the same are allowed where one is a former name.
func (r *reader) readPart(p part, from map[auth.Field]string) {
	read := []struct {
		v variable
		f func(string) ([]byte, error)
	}{{p.direct, plainText}, {p.file, fileContent}, {p.plain, plainText}, {p.coded, base64Text}}

	var value []byte
	var source variable
	for _, o := range read {
		wrong := len(r.errs)
		var got []byte
		parse(r, o.v, &got, o.f)
		switch {
		case !o.v.set:
			continue
		case source.set:
			if o.v == p.file || len(r.errs) == wrong && !bytes.Equal(got, value) {
				r.fail(o.v, conflict(source))
			}
			continue
		case len(r.errs) == wrong:
			source, value = o.v, got
		}
		from[p.what] = o.v.name // if it is broken: so that no rule says so again
	}
	p.take(value)
}

// plainText is the variable's own text. A newline at its end was not meant:
// `echo secret | base64` makes such Secrets.
func plainText(s string) ([]byte, error) {
	if strings.HasSuffix(s, "\n") {
		return nil, errors.New("ends in a newline; make the value with printf rather than echo")
	}
	return []byte(s), nil
}

// fileContent reads a name or a secret, whose limits are the same.
func fileContent(path string) ([]byte, error) {
	s, err := auth.ReadSecretFile(path)
	return s.Bytes(), err
}

// base64Text decodes strictly: package base64 would skip newlines.
func base64Text(s string) ([]byte, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("not base64 (RFC 4648 §4, padded, without line breaks)")
	}
	b = bytes.TrimSuffix(b, []byte("\n"))
	if len(b) == 0 {
		return nil, errEmpty
	}
	return b, nil
}

func parseAlgorithms(s string) ([]auth.Algorithm, error) {
	var all []auth.Algorithm
	for name := range strings.SplitSeq(s, ",") {
		a, err := auth.ParseAlgorithm(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}
