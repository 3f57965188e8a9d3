package auth

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha3"
	"fmt"
	"hash"
	"strings"
)

// Algorithm is the hash of a CHAP response, numbered as IANA's registry "PPP
// Authentication Algorithms" does and as CHAP_A carries it.
type Algorithm uint8

const (
	MD5      Algorithm = 5 // RFC 1994; every initiator offers it
	SHA1     Algorithm = 6
	SHA256   Algorithm = 7
	SHA3_256 Algorithm = 8
)

// Algorithms returns every algorithm there is, the strongest first.
func Algorithms() []Algorithm { return []Algorithm{SHA3_256, SHA256, SHA1, MD5} }

// Known reports whether a is an algorithm that this package can compute.
func (a Algorithm) Known() bool { return MD5 <= a && a <= SHA3_256 }

func (a Algorithm) String() string {
	switch a {
	case MD5:
		return "MD5"
	case SHA1:
		return "SHA1"
	case SHA256:
		return "SHA-256"
	case SHA3_256:
		return "SHA3-256"
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

// ParseAlgorithm reads an algorithm's name as a person writes it: sha256,
// SHA-256, sha3-256, md5. The numbers of the wire are not names.
func ParseAlgorithm(name string) (Algorithm, error) {
	fold := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "-", "")) }
	for _, a := range Algorithms() {
		if fold(name) == fold(a.String()) {
			return a, nil
		}
	}
	return 0, fmt.Errorf("unknown CHAP algorithm %q (known: sha3-256, sha256, sha1, md5)", name)
}

// Size is the length of a response in bytes.
func (a Algorithm) Size() int {
	switch a {
	case MD5:
		return md5.Size
	case SHA1:
		return sha1.Size
	default:
		return sha256.Size
	}
}

// Response is the hash over the identifier, the secret and the challenge (RFC
// 1994 §4.1, "Value"). The algorithm must be known.
func (a Algorithm) Response(id byte, secret Secret, challenge []byte) []byte {
	h := a.hash()
	h.Write([]byte{id})
	h.Write(secret.Bytes())
	h.Write(challenge)
	return h.Sum(nil)
}

func (a Algorithm) hash() hash.Hash {
	switch a {
	case MD5:
		return md5.New()
	case SHA1:
		return sha1.New()
	case SHA256:
		return sha256.New()
	case SHA3_256:
		return sha3.New256()
	}
	panic("auth: " + a.String() + " is not known")
}
