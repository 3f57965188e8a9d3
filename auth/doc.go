// Package auth says who may log in: accounts, their secrets, and the
// challenge handshake (CHAP, RFC 1994 as RFC 7143 §12.1.3 uses it) as pure
// functions. It knows no wire: a transport carries names, challenges and
// responses to and fro, and asks here what they are worth.
//
// What the package promises, whoever calls it:
//
//   - a challenge is 32 random bytes, answered once, and forgotten with its
//     Exchange;
//   - an unknown name costs the same work as a wrong secret and gives the same
//     error;
//   - nobody gets an answer out of us before proving who they are, so the
//     server is no oracle for its own secret;
//   - a challenge that is one of ours, of any login under way, is not answered
//     (§9.2.1), and a response made with the target's secret is not accepted;
//   - a Secret shows itself to nobody who prints it.
package auth
