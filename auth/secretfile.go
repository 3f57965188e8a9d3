package auth

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// The keys of a Kubernetes Secret of type kubernetes.io/iscsi-chap, which are
// open-iscsi's: "_in" is the target's account, proved to the initiator. The
// type's discovery.sendtargets.auth.* keys are not read: one account serves
// both kinds of session.
const (
	keyUsername   = "node.session.auth.username"
	keyPassword   = "node.session.auth.password"
	keyUsernameIn = "node.session.auth.username_in"
	keyPasswordIn = "node.session.auth.password_in"
)

// ReadSecretFile reads a secret from a file. One newline at the end, which
// editors and echo leave there, is not part of it.
func ReadSecretFile(path string) (Secret, error) {
	b, err := readSmall(path, MaxSecret)
	return NewSecret(b), err
}

// ReadNameFile reads an account's name from a file, likewise.
func ReadNameFile(path string) (string, error) {
	b, err := readSmall(path, MaxName)
	return string(b), err
}

// ReadSecretDir reads the accounts from a mounted Secret of type
// kubernetes.io/iscsi-chap. A key that is not there leaves its field empty,
// which Validate judges; none there at all is an error.
func ReadSecretDir(dir string) (CHAP, error) {
	r := dirReader{dir: dir}
	c := CHAP{
		Initiator: Account{string(r.read(keyUsername, MaxName)), NewSecret(r.read(keyPassword, MaxSecret))},
		Target:    Account{string(r.read(keyUsernameIn, MaxName)), NewSecret(r.read(keyPasswordIn, MaxSecret))},
	}
	if len(r.errs) == 0 && r.found == 0 {
		r.errs = append(r.errs, fmt.Errorf("%s has none of the keys %s, %s, %s, %s",
			dir, keyUsername, keyPassword, keyUsernameIn, keyPasswordIn))
	}
	if err := errors.Join(r.errs...); err != nil {
		return CHAP{}, err
	}
	return c, nil
}

// dirReader reads one key after the other and remembers what went wrong.
type dirReader struct {
	dir   string
	found int
	errs  []error
}

func (r *dirReader) read(key string, limit int) []byte {
	b, err := readSmall(filepath.Join(r.dir, key), limit)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		r.errs = append(r.errs, err)
		return nil
	}
	r.found++
	return b
}

// readSmall reads a file of 1 to limit bytes and an optional newline.
func readSmall(path string, limit int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const newline = "\r\n"
	b, err := io.ReadAll(io.LimitReader(f, int64(limit+len(newline)+1)))
	if err != nil {
		return nil, err
	}
	if line, ok := bytes.CutSuffix(b, []byte("\n")); ok {
		b = bytes.TrimSuffix(line, []byte("\r"))
	}
	switch {
	case len(b) == 0:
		return nil, fmt.Errorf("%s is empty", path)
	case len(b) > limit:
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return b, nil
}
