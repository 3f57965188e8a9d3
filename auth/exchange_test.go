package auth

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
)

var (
	alice  = Account{"alice", NewSecret([]byte("alice's secret"))}
	server = Account{"server", NewSecret([]byte("the server's secret"))}
	mutual = CHAP{Initiator: alice, Target: server}
)

func begin(t *testing.T, a *Authenticator) *Exchange {
	t.Helper()
	x, err := a.Begin(Algorithms())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.End)
	return x
}

// answer is what an initiator with the secret s responds.
func answer(x *Exchange, s Secret) []byte {
	return x.Algorithm().Response(x.ID(), s, x.Challenge())
}

func TestBeginTakesTheFirstAllowed(t *testing.T) {
	tests := []struct {
		allowed, offered []Algorithm
		want             Algorithm
	}{
		{nil, []Algorithm{5, 6, 7, 8}, MD5},
		{nil, []Algorithm{8, 7, 6, 5}, SHA3_256},
		{nil, []Algorithm{56, 0, 9, 7, 5}, SHA256},
		{[]Algorithm{SHA256, SHA3_256}, []Algorithm{5, 6, 8, 7}, SHA3_256},
		{[]Algorithm{MD5, 99}, []Algorithm{99, 5}, MD5},
		{nil, nil, 0},
		{nil, []Algorithm{56}, 0},
		{[]Algorithm{SHA256}, []Algorithm{5, 6}, 0},
	}
	for _, tt := range tests {
		a := NewAuthenticator(CHAP{Initiator: alice, Algorithms: tt.allowed})
		x, err := a.Begin(tt.offered)
		if tt.want == 0 {
			if !errors.Is(err, ErrNoAlgorithm) || x != nil || a.Outstanding() != 0 {
				t.Errorf("allowed %v, offered %v: got %v, %v, want %v", tt.allowed, tt.offered, x, err, ErrNoAlgorithm)
			}
			continue
		}
		if err != nil || x.Algorithm() != tt.want {
			t.Errorf("allowed %v, offered %v: got %v, %v, want %v", tt.allowed, tt.offered, x, err, tt.want)
		}
	}
}

func TestVerify(t *testing.T) {
	tests := []struct {
		name   string
		chap   CHAP
		user   string
		answer func(*Exchange) []byte
		want   error
	}{
		{"right", mutual, "alice", func(x *Exchange) []byte { return answer(x, alice.Secret) }, nil},
		{"right, one way", CHAP{Initiator: alice}, "alice", func(x *Exchange) []byte { return answer(x, alice.Secret) }, nil},
		{"wrong secret", mutual, "alice", func(x *Exchange) []byte { return answer(x, secretOf(14, 'x')) }, ErrRefused},
		{"unknown name", mutual, "bob", func(x *Exchange) []byte { return answer(x, alice.Secret) }, ErrRefused},
		{"prefix of the name", mutual, "ali", func(x *Exchange) []byte { return answer(x, alice.Secret) }, ErrRefused},
		{"name and more", mutual, "alice2", func(x *Exchange) []byte { return answer(x, alice.Secret) }, ErrRefused},
		{"other case", mutual, "Alice", func(x *Exchange) []byte { return answer(x, alice.Secret) }, ErrRefused},
		{"no name", mutual, "", func(x *Exchange) []byte { return answer(x, alice.Secret) }, ErrRefused},
		{"the target's account", mutual, "server", func(x *Exchange) []byte { return answer(x, server.Secret) }, ErrRefused},
		{"the target's secret", mutual, "alice", func(x *Exchange) []byte { return answer(x, server.Secret) }, ErrRefused},
		{"nothing", mutual, "alice", func(*Exchange) []byte { return nil }, ErrRefused},
		{"cut short", mutual, "alice", func(x *Exchange) []byte { return answer(x, alice.Secret)[:15] }, ErrRefused},
		{"too long", mutual, "alice", func(x *Exchange) []byte { return append(answer(x, alice.Secret), 0) }, ErrRefused},
		{"the challenge", mutual, "alice", func(x *Exchange) []byte { return x.Challenge() }, ErrRefused},
		{"other identifier", mutual, "alice", func(x *Exchange) []byte {
			return x.Algorithm().Response(x.ID()+1, alice.Secret, x.Challenge())
		}, ErrRefused},
		{"other algorithm of the same size", mutual, "alice", func(x *Exchange) []byte {
			return SHA256.Response(x.ID(), alice.Secret, x.Challenge())
		}, ErrRefused},

		{"nothing configured", CHAP{}, "", func(x *Exchange) []byte { return answer(x, Secret{}) }, ErrRefused},
		{"no secret configured", CHAP{Initiator: Account{Name: "alice"}}, "alice",
			func(x *Exchange) []byte { return answer(x, Secret{}) }, ErrRefused},
		{"no name configured", CHAP{Initiator: Account{Secret: alice.Secret}}, "",
			func(x *Exchange) []byte { return answer(x, alice.Secret) }, ErrRefused},
		// Validate refuses this configuration. Should it come through, a
		// response that we could have made ourselves is still worth nothing.
		{"reflected under equal secrets", CHAP{Initiator: alice, Target: Account{"server", alice.Secret}}, "alice",
			func(x *Exchange) []byte { return answer(x, alice.Secret) }, ErrRefused},
	}
	for _, tt := range tests {
		x := begin(t, NewAuthenticator(tt.chap))
		if err := x.Verify(tt.user, tt.answer(x)); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestChallengeIsAnsweredOnce(t *testing.T) {
	x := begin(t, NewAuthenticator(mutual))
	right := answer(x, alice.Secret)
	if err := x.Verify("alice", []byte("guess")); !errors.Is(err, ErrRefused) {
		t.Fatalf("guess: %v", err)
	}
	if err := x.Verify("alice", right); !errors.Is(err, ErrRefused) {
		t.Errorf("right answer after a guess: got %v, want %v", err, ErrRefused)
	}

	x = begin(t, NewAuthenticator(mutual))
	right = answer(x, alice.Secret)
	if err := x.Verify("alice", right); err != nil {
		t.Fatal(err)
	}
	if err := x.Verify("alice", right); !errors.Is(err, ErrRefused) {
		t.Errorf("right answer again: got %v, want %v", err, ErrRefused)
	}

	x = begin(t, NewAuthenticator(mutual))
	right = answer(x, alice.Secret)
	x.End()
	if err := x.Verify("alice", right); !errors.Is(err, ErrRefused) {
		t.Errorf("right answer after End: got %v, want %v", err, ErrRefused)
	}
}

func TestAnswerDoesNotFitAnotherExchange(t *testing.T) {
	a := NewAuthenticator(mutual)
	x, y := begin(t, a), begin(t, a)
	y.id = x.id // only the challenge differs
	if err := y.Verify("alice", answer(x, alice.Secret)); !errors.Is(err, ErrRefused) {
		t.Errorf("got %v, want %v", err, ErrRefused)
	}
}

// TestVerifyDoesTheSameWork looks at what is computed, not at how long it
// takes: the same hashes over the same secrets, in the same order.
func TestVerifyDoesTheSameWork(t *testing.T) {
	work := func(c CHAP, name string, secret Secret, spoil func(*Exchange)) []string {
		a := NewAuthenticator(c)
		var done []string
		x := begin(t, a)
		response := answer(x, secret)
		spoil(x)
		a.respond = func(alg Algorithm, id byte, s Secret, challenge []byte) []byte {
			done = append(done, fmt.Sprintf("%v over %q and %d bytes", alg, s.Bytes(), len(challenge)))
			return alg.Response(id, s, challenge)
		}
		_ = x.Verify(name, response)
		return done
	}
	keep := func(*Exchange) {}
	for _, c := range []CHAP{mutual, {Initiator: alice}} {
		want := work(c, "alice", alice.Secret, keep)
		if len(want) == 0 {
			t.Fatal("no work seen")
		}
		for name, got := range map[string][]string{
			"wrong secret": work(c, "alice", secretOf(14, 'x'), keep),
			"unknown name": work(c, "bob", alice.Secret, keep),
			"reflection":   work(c, "alice", server.Secret, keep),
			"used up":      work(c, "alice", alice.Secret, (*Exchange).End),
		} {
			if !slices.Equal(got, want) {
				t.Errorf("%s: did %q, want %q", name, got, want)
			}
		}
	}
}

func TestProve(t *testing.T) {
	a := NewAuthenticator(mutual)
	x := begin(t, a)
	if err := x.Verify("alice", answer(x, alice.Secret)); err != nil {
		t.Fatal(err)
	}
	challenge := []byte("what an initiator made up")
	name, got, err := x.Prove(200, challenge)
	want := x.Algorithm().Response(200, server.Secret, challenge)
	if name != "server" || !bytes.Equal(got, want) || err != nil {
		t.Errorf("Prove = %q, %x, %v, want server, %x", name, got, err, want)
	}
	if _, got, err := x.Prove(200, challenge); !errors.Is(err, ErrRefused) || got != nil {
		t.Errorf("second Prove = %x, %v, want %v", got, err, ErrRefused)
	}
}

func TestProveRefuses(t *testing.T) {
	logIn := func(x *Exchange) { _ = x.Verify("alice", answer(x, alice.Secret)) }
	fail := func(x *Exchange) { _ = x.Verify("alice", []byte("guess")) }
	a := NewAuthenticator(mutual)
	other := begin(t, a) // another connection's login, under way
	tests := []struct {
		name      string
		chap      *Authenticator
		before    func(*Exchange)
		challenge func(*Exchange) []byte
		want      error
	}{
		{"before the login", a, func(*Exchange) {}, fixed("hello"), ErrRefused},
		{"after a failed login", a, fail, fixed("hello"), ErrRefused},
		{"after End", a, func(x *Exchange) { logIn(x); x.End() }, fixed("hello"), ErrRefused},
		{"our own challenge", a, logIn, (*Exchange).Challenge, ErrReflected},
		{"another login's challenge", a, logIn, func(*Exchange) []byte { return other.Challenge() }, ErrReflected},
		{"empty challenge", a, logIn, fixed(""), ErrChallenge},
		{"long challenge", a, logIn, func(*Exchange) []byte { return make([]byte, 1025) }, ErrChallenge},
		{"longest challenge", a, logIn, func(*Exchange) []byte { return make([]byte, 1024) }, nil},
		{"shortest challenge", a, logIn, fixed("x"), nil},
		{"our challenge and more", a, logIn, func(x *Exchange) []byte { return append(x.Challenge(), 0) }, nil},
		{"one way", NewAuthenticator(CHAP{Initiator: alice}), logIn, fixed("hello"), ErrNoTarget},
		{"reflection, one way", NewAuthenticator(CHAP{Initiator: alice}), logIn, (*Exchange).Challenge, ErrReflected},
		{"target without a secret", NewAuthenticator(CHAP{Initiator: alice, Target: Account{Name: "t"}}), logIn, fixed("hello"), ErrNoTarget},
	}
	for _, tt := range tests {
		x := begin(t, tt.chap)
		tt.before(x)
		name, response, err := x.Prove(1, tt.challenge(x))
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
		if err != nil && (name != "" || response != nil) {
			t.Errorf("%s: gave %q, %x with the error", tt.name, name, response)
		}
	}
}

func fixed(s string) func(*Exchange) []byte { return func(*Exchange) []byte { return []byte(s) } }

func TestEndForgetsTheChallenge(t *testing.T) {
	a := NewAuthenticator(mutual)
	x, y := begin(t, a), begin(t, a)
	old := bytes.Clone(x.Challenge())
	if n := a.Outstanding(); n != 2 {
		t.Fatalf("outstanding: got %d, want 2", n)
	}
	x.End()
	x.End()
	if n := a.Outstanding(); n != 1 || a.ours(old) || !a.ours(y.Challenge()) {
		t.Errorf("after End: %d outstanding, the ended one %v, the other %v", n, a.ours(old), a.ours(y.Challenge()))
	}
	y.End()
	if n := a.Outstanding(); n != 0 {
		t.Errorf("after both: %d outstanding, want 0", n)
	}
}

func TestChallengesDiffer(t *testing.T) {
	a := NewAuthenticator(mutual)
	ids := map[byte]bool{}
	const n = 1000
	for range n {
		x := begin(t, a)
		ids[x.ID()] = true
		if len(x.Challenge()) != 32 {
			t.Fatalf("challenge of %d bytes, want 32", len(x.Challenge()))
		}
	}
	if got := a.Outstanding(); got != n {
		t.Errorf("%d different challenges of %d", got, n)
	}
	if len(ids) < 200 { // of 256; fewer than 240 come once in many years
		t.Errorf("%d different identifiers of %d draws", len(ids), n)
	}
}

func TestLoginsInParallel(t *testing.T) {
	a := NewAuthenticator(mutual)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				x, err := a.Begin(Algorithms())
				if err != nil {
					t.Error(err)
					return
				}
				if err := x.Verify("alice", answer(x, alice.Secret)); err != nil {
					t.Error(err)
				}
				if _, _, err := x.Prove(1, x.Challenge()); !errors.Is(err, ErrReflected) {
					t.Error(err)
				}
				x.End()
			}
		})
	}
	wg.Wait()
	if n := a.Outstanding(); n != 0 {
		t.Errorf("%d exchanges left", n)
	}
}

func TestZeroValuesCompare(t *testing.T) {
	if (CHAP{}).Enabled() || !(Account{}).IsZero() || !reflect.DeepEqual(NewSecret(nil), Secret{}) {
		t.Error("the zero values do not say that nothing is set")
	}
}
