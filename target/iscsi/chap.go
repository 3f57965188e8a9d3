package iscsi

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/containerdisk/containerdisk/auth"
)

// chap is the security stage of a login, RFC 7143 §12.1: AuthMethod, and then
// the steps of CHAP. A nil Authenticator asks nothing of anybody.
//
//	I AuthMethod=CHAP   T AuthMethod=CHAP
//	I CHAP_A=7,5        T CHAP_A=7 CHAP_I CHAP_C
//	I CHAP_N CHAP_R [CHAP_I CHAP_C]   T [CHAP_N CHAP_R]
type chap struct {
	auth     *auth.Authenticator
	step     chapStep
	exchange *auth.Exchange
}

type chapStep uint8

const (
	chapNone      chapStep = iota // nothing was said yet
	chapMethod                    // CHAP is agreed; CHAP_A is due
	chapChallenge                 // our challenge is out; CHAP_N and CHAP_R are due
	chapDone
)

// satisfied reports whether the initiator may go on.
func (ch *chap) satisfied() bool { return ch.auth == nil || ch.step == chapDone }

func (ch *chap) end() {
	if ch.exchange != nil {
		ch.exchange.End()
	}
}

// chapKeys are the keys of the steps, §12.1.3.
var chapKeys = []string{"CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R"}

// take handles the security keys among pairs and returns the rest. The answer
// goes to n.
func (ch *chap) take(n *negotiation, pairs []pair) (rest []pair, err error) {
	said := make(map[string]string)
	method := ""
	for _, p := range pairs {
		switch {
		case p.key == "AuthMethod":
			if n.seen[p.key] {
				return nil, failLogin(statusInitiatorError, "AuthMethod negotiated twice")
			}
			n.seen[p.key] = true
			method = p.value
		case slices.Contains(chapKeys, p.key):
			if _, twice := said[p.key]; twice {
				return nil, failLogin(statusInitiatorError, "%s twice", p.key)
			}
			said[p.key] = p.value
		default:
			rest = append(rest, p)
		}
	}
	if method != "" {
		if len(said) > 0 {
			return nil, failLogin(statusInitiatorError, "CHAP keys before the method is agreed")
		}
		return rest, ch.method(n, method)
	}
	if len(said) == 0 && (ch.step == chapNone || ch.step == chapDone) {
		return rest, nil
	}
	return rest, ch.next(n, said)
}

// method answers AuthMethod: the first of the initiator's list that is allowed.
func (ch *chap) method(n *negotiation, list string) error {
	ours := valNone
	if ch.auth != nil {
		ours = "CHAP"
	}
	if !slices.Contains(strings.Split(list, ","), ours) {
		return failLogin(statusAuthFailure, "AuthMethod=%q, and only %s is allowed", list, ours)
	}
	if ch.auth != nil {
		ch.step = chapMethod
	}
	n.say("AuthMethod", ours)
	return nil
}

// next takes one step. Keys that are not of the step end the login, and so do
// none: a step left out would leave the reflection of our own challenge
// unnoticed.
func (ch *chap) next(n *negotiation, said map[string]string) error {
	switch ch.step {
	case chapMethod:
		return ch.algorithm(n, said)
	case chapChallenge:
		return ch.response(n, said)
	case chapNone, chapDone:
	}
	return failLogin(statusInitiatorError, "CHAP keys where none are due")
}

func (ch *chap) algorithm(n *negotiation, said map[string]string) error {
	list, ok := said["CHAP_A"]
	if !ok {
		return failLogin(statusMissingParameter, "no CHAP_A")
	}
	if len(said) > 1 {
		return failLogin(statusInitiatorError, "CHAP_A together with later keys")
	}
	x, err := ch.auth.Begin(parseAlgorithms(list))
	if err != nil {
		return failLogin(statusAuthFailure, "%w", err)
	}
	ch.exchange = x
	ch.step = chapChallenge
	n.say("CHAP_A", strconv.Itoa(int(x.Algorithm())))
	n.say("CHAP_I", strconv.Itoa(int(x.ID())))
	n.say("CHAP_C", encodeBinary(x.Challenge()))
	return nil
}

// parseAlgorithms parses CHAP_A; what is not the number of an algorithm is
// left out, as an unknown one would be.
func parseAlgorithms(list string) []auth.Algorithm {
	var algorithms []auth.Algorithm
	for s := range strings.SplitSeq(list, ",") {
		if v, err := parseNumber(s); err == nil && v <= 255 {
			algorithms = append(algorithms, auth.Algorithm(v))
		}
	}
	return algorithms
}

func (ch *chap) response(n *negotiation, said map[string]string) error {
	for _, key := range []string{"CHAP_N", "CHAP_R"} {
		if said[key] == "" {
			return failLogin(statusMissingParameter, "no %s", key)
		}
	}
	_, hasID := said["CHAP_I"]
	_, hasChallenge := said["CHAP_C"]
	_, hasAlgorithm := said["CHAP_A"]
	if hasAlgorithm || hasID != hasChallenge {
		return failLogin(statusInitiatorError, "CHAP_N and CHAP_R with the wrong keys beside them")
	}
	response, err := decodeBinary(said["CHAP_R"])
	if err != nil {
		return failLogin(statusAuthFailure, "CHAP_R: %w", err)
	}
	if err := ch.exchange.Verify(said["CHAP_N"], response); err != nil {
		return failLogin(statusAuthFailure, "%w", err)
	}
	if hasChallenge {
		if err := ch.prove(n, said["CHAP_I"], said["CHAP_C"]); err != nil {
			return err
		}
	}
	ch.step = chapDone
	return nil
}

// prove answers the initiator's own challenge: mutual authentication.
func (ch *chap) prove(n *negotiation, id, challenge string) error {
	number, err := parseNumber(id)
	if err != nil || number > 255 {
		return failLogin(statusAuthFailure, "CHAP_I=%q is not a number up to 255", id)
	}
	c, err := decodeBinary(challenge)
	if err != nil {
		return failLogin(statusAuthFailure, "CHAP_C: %w", err)
	}
	name, response, err := ch.exchange.Prove(byte(number), c)
	switch {
	case errors.Is(err, auth.ErrReflected):
		return err // the connection ends without a word, §9.2.1
	case err != nil:
		return failLogin(statusAuthFailure, "%w", err)
	}
	n.say("CHAP_N", name)
	n.say("CHAP_R", encodeBinary(response))
	return nil
}

// encodeBinary encodes a binary value; of the two encodings of §6.1 some
// initiators read this one only.
func encodeBinary(b []byte) string { return "0x" + hex.EncodeToString(b) }

// decodeBinary decodes a binary value in either encoding, §6.1, bounded.
func decodeBinary(s string) ([]byte, error) {
	if len(s) < 2 {
		return nil, errors.New("neither hexadecimal nor base64")
	}
	if base64.StdEncoding.DecodedLen(len(s)) > 2*auth.MaxChallenge {
		return nil, errors.New("too long")
	}
	var b []byte
	var err error
	switch digits := s[2:]; s[:2] {
	case "0x", "0X":
		if len(digits)%2 == 1 {
			digits = "0" + digits // a leading zero may be left out
		}
		b, err = hex.DecodeString(digits)
	case "0b", "0B":
		b, err = base64.StdEncoding.DecodeString(digits)
	default:
		err = errors.New("neither hexadecimal nor base64")
	}
	if err == nil && len(b) > auth.MaxChallenge {
		err = errors.New("too long")
	}
	return b, err
}
