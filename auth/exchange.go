package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// ChallengeSize is the length in bytes of the challenges sent here.
	ChallengeSize = 32
	// MaxChallenge is the greatest length in bytes of a challenge or response
	// that comes from a peer (RFC 7143 §12.1.3).
	MaxChallenge = 1024

	// FailureDelay is how long a transport waits before it tells that a login
	// was refused, so that guessing takes time. It is counted from the moment
	// of the refusal, and the same whatever was wrong.
	FailureDelay = time.Second
)

var (
	// ErrRefused is all that a peer may learn about why its login failed.
	ErrRefused = errors.New("authentication refused")
	// ErrNoAlgorithm: nothing the initiator offered is allowed here.
	ErrNoAlgorithm = errors.New("no common CHAP algorithm")
	// ErrReflected: the initiator's challenge is one that this server sent. The
	// connection must be closed (RFC 7143 §9.2.1).
	ErrReflected = errors.New("the challenge is one of our own")
	// ErrNoTarget: the initiator wants the target to prove itself, and no
	// account is configured for that.
	ErrNoTarget = errors.New("no account for mutual authentication")
	// ErrChallenge: the initiator's challenge is empty or too long.
	ErrChallenge = errors.New("unusable challenge")
)

// Authenticator holds what the logins of a server share: the accounts, and the
// challenges that are out. Its methods may be called from several goroutines.
type Authenticator struct {
	chap    CHAP
	respond func(a Algorithm, id byte, secret Secret, challenge []byte) []byte // Algorithm.Response

	mu          sync.Mutex // guards outstanding
	outstanding map[[ChallengeSize]byte]struct{}
}

// NewAuthenticator returns an Authenticator for c, which should be valid. A c
// that is not Enabled admits nobody.
func NewAuthenticator(c CHAP) *Authenticator {
	if c.Algorithms == nil {
		c.Algorithms = Algorithms()
	}
	return &Authenticator{
		chap:        c,
		respond:     Algorithm.Response,
		outstanding: make(map[[ChallengeSize]byte]struct{}),
	}
}

// Begin starts an exchange with the first of the offered algorithms that is
// allowed (RFC 7143 §6.2.1: the initiator's list is in its order of
// preference). The caller must End it.
func (a *Authenticator) Begin(offered []Algorithm) (*Exchange, error) {
	i := slices.IndexFunc(offered, func(o Algorithm) bool {
		return o.Known() && slices.Contains(a.chap.Algorithms, o)
	})
	if i < 0 {
		return nil, fmt.Errorf("%w: offered %v, allowed %v", ErrNoAlgorithm, offered, a.chap.Algorithms)
	}
	x := &Exchange{a: a, algorithm: offered[i]}
	var id [1]byte
	rand.Read(id[:]) // never fails
	rand.Read(x.challenge[:])
	x.id = id[0]

	a.mu.Lock()
	defer a.mu.Unlock()
	a.outstanding[x.challenge] = struct{}{}
	return x, nil
}

// Outstanding is the number of exchanges that have begun and not ended.
func (a *Authenticator) Outstanding() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.outstanding)
}

// ours reports whether challenge is one that we sent and that is still out.
func (a *Authenticator) ours(challenge []byte) bool {
	if len(challenge) != ChallengeSize {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.outstanding[[ChallengeSize]byte(challenge)]
	return ok
}

// Exchange is one login's challenge. It belongs to one goroutine and goes
// through its states once: begun, verified (or refused), proved, ended.
type Exchange struct {
	a         *Authenticator
	algorithm Algorithm
	id        byte
	challenge [ChallengeSize]byte
	state     state
}

type state uint8

const (
	begun    state = iota // the challenge is out
	verified              // the initiator is who it says
	spent                 // refused, proved or ended: nothing more to be had
)

func (x *Exchange) Algorithm() Algorithm { return x.algorithm }
func (x *Exchange) ID() byte             { return x.id }

// Challenge is what the initiator has to answer, not to be changed.
func (x *Exchange) Challenge() []byte { return x.challenge[:] }

// Verify judges the initiator's answer: nil or ErrRefused. A challenge can be
// answered once. Unknown name, wrong secret and reflected response take the
// same road to the end.
func (x *Exchange) Verify(name string, response []byte) error {
	c := &x.a.chap
	want := x.a.respond(x.algorithm, x.id, c.Initiator.Secret, x.challenge[:])
	mine := x.a.respond(x.algorithm, x.id, c.Target.Secret, x.challenge[:])

	ok := equalNames(name, c.Initiator.Name)
	ok &= subtle.ConstantTimeCompare(response, want)
	ok &^= subtle.ConstantTimeCompare(response, mine)

	answered := x.state != begun
	x.state = spent
	if ok != 1 || answered || !c.Enabled() {
		return ErrRefused
	}
	x.state = verified
	return nil
}

// equalNames is 1 when the names are the same, 0 otherwise. Its time depends
// on the lengths only, and of the configured name that is always the same.
func equalNames(a, b string) int {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:])
}

// Prove answers the initiator's challenge with the target's account. It must
// follow a successful Verify, and can be had once: who has not logged in gets
// no answer to learn from.
func (x *Exchange) Prove(id byte, challenge []byte) (name string, response []byte, err error) {
	t, ready := x.a.chap.Target, x.state == verified
	x.state = spent
	switch {
	case !ready:
		return "", nil, ErrRefused
	case len(challenge) == 0 || len(challenge) > MaxChallenge:
		return "", nil, fmt.Errorf("%w of %d bytes, want 1 to %d", ErrChallenge, len(challenge), MaxChallenge)
	case x.a.ours(challenge):
		return "", nil, ErrReflected
	case t.Name == "" || t.Secret.Len() == 0:
		return "", nil, ErrNoTarget
	}
	return t.Name, x.a.respond(x.algorithm, id, t.Secret, challenge), nil
}

// End forgets the challenge. It may be called more than once.
func (x *Exchange) End() {
	x.state = spent
	x.a.mu.Lock()
	defer x.a.mu.Unlock()
	delete(x.a.outstanding, x.challenge)
}
