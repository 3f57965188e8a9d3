package iscsi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerdisk/containerdisk/auth"
)

// login is the login phase of one connection, RFC 7143 §6.3: a conversation of
// requests and responses through the stages, until the full feature phase is
// reached or the login fails.
type login struct {
	c   *conn
	neg negotiation

	first     *loginRequest // the header all requests must agree with
	stage     stage
	text      []byte // of a request in several PDUs
	textTotal int
	started   bool // the first complete text has been handled

	names     map[string]string // as they were declared
	initiator string
	target    string
	discovery bool

	chap     chap
	declared map[stage]bool // the stages in which we have said our part
	session  *session

	unsent []byte // what is left of an answer in several responses
}

// loginFailure ends a login with a status that the initiator is told.
type loginFailure struct {
	status status
	err    error
}

func (f *loginFailure) Error() string { return f.status.String() + ": " + f.err.Error() }
func (f *loginFailure) Unwrap() error { return f.err }

func failLogin(s status, format string, args ...any) error {
	return &loginFailure{s, fmt.Errorf(format, args...)}
}

// login leads the connection to the full feature phase. On failure the
// initiator has been told, as far as the RFC wants it to be.
func (c *conn) login(ctx context.Context) error {
	params := defaults()
	l := &login{c: c, names: make(map[string]string), declared: make(map[stage]bool)}
	l.neg = negotiation{params: &params, seen: make(map[string]bool)}
	l.chap = chap{auth: c.srv.o.Auth}
	defer l.chap.end()
	for n := 1; ; n++ {
		p, err := c.read()
		if err != nil {
			return err
		}
		if n > maxLoginPDUs {
			err = failLogin(statusInitiatorError, "the login takes more than %d requests", maxLoginPDUs)
		} else {
			err = l.request(ctx, p)
		}
		if err != nil {
			return l.refuse(ctx, p, err)
		}
		if l.session != nil {
			return nil
		}
	}
}

// refuse tells the initiator why its login fails, where it is to be told.
func (l *login) refuse(ctx context.Context, p pdu, err error) error {
	var failure *loginFailure
	if !errors.As(err, &failure) {
		return err
	}
	if failure.status == statusAuthFailure {
		l.c.srv.stats.loginFailures.Add(1)
		pause(ctx, auth.FailureDelay)
	}
	r := loginResponse{flags: p.BHS[bhsFlags] & 0x0f, itt: p.itt(), status: failure.status}
	copy(r.isid[:], p.BHS[loginISID:])
	l.send(r, nil)
	return err
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// request handles one PDU of the login phase and answers it.
func (l *login) request(ctx context.Context, p pdu) error {
	if p.opcode() != opLogin {
		if l.first == nil {
			return fmt.Errorf("%s before login", p.opcode()) // no answer: §6.3
		}
		return failLogin(statusDuringLogin, "%s during login", p.opcode())
	}
	r := loginRequest{p.BHS}
	if err := l.checkHeader(r); err != nil {
		return err
	}
	if l.textTotal += len(p.data); l.textTotal > maxText {
		return failLogin(statusInitiatorError, "more than %d bytes of text", maxText)
	}
	l.text = append(l.text, p.data...)
	switch {
	case len(l.unsent) > 0 && len(p.data) > 0:
		return failLogin(statusInitiatorError, "a request with text where the rest of our answer was due")
	case len(l.unsent) > 0:
		l.respond(r, 0, l.unsent)
		return nil
	case r.continues():
		l.respond(r, 0, nil)
		return nil
	}
	pairs, err := parseText(l.text)
	if err != nil {
		return failLogin(statusInitiatorError, "%w", err)
	}
	l.text = l.text[:0]
	return l.answer(ctx, r, pairs)
}

// checkHeader refuses a request that does not go with those before, §11.12.
func (l *login) checkHeader(r loginRequest) error {
	if l.first == nil {
		h := *r.BHS
		l.first = &loginRequest{&h}
		l.stage = r.csg()
		l.c.start(r)
	}
	switch f := l.first; {
	case r.versionMin() != 0:
		return failLogin(statusVersion, "version %d at least", r.versionMin())
	case r.itt() != f.itt() || r.isid() != f.isid() || r.tsih() != f.tsih() || r.cid() != f.cid():
		return failLogin(statusInitiatorError, "the requests of one login disagree in ITT, ISID, TSIH or CID")
	case r.csg() != l.stage:
		return failLogin(statusInitiatorError, "%s while in %s", r.csg(), l.stage)
	case r.csg() != stageSecurity && r.csg() != stageOperational:
		return failLogin(statusInitiatorError, "login begins in %s", r.csg())
	case r.transit() && r.continues():
		return failLogin(statusInitiatorError, "T and C together")
	case r.transit() && (r.nsg() <= r.csg() || r.nsg() == 2):
		return failLogin(statusInitiatorError, "transit from %s to %s", r.csg(), r.nsg())
	}
	return nil
}

// answer handles the complete text of a request, moves on as far as asked and
// possible, and answers.
func (l *login) answer(ctx context.Context, r loginRequest, pairs []pair) error {
	l.neg.stage, l.neg.reply = l.stage, l.neg.reply[:0]
	rest, err := l.takeNames(pairs)
	if err != nil {
		return err
	}
	if l.stage == stageSecurity {
		rest, err = l.chap.take(&l.neg, rest)
	} else {
		err = l.mayNegotiate()
	}
	if err != nil {
		return err
	}
	if err := l.neg.take(rest); err != nil {
		return failLogin(statusInitiatorError, "%w", err)
	}
	l.declare()
	var flags byte
	if r.transit() && len(l.neg.reply) <= defaultMaxRecvSegment {
		ok, err := l.mayLeave()
		if err != nil {
			return err
		}
		if ok {
			flags = loginTransit | byte(r.nsg())
			l.stage = r.nsg()
		}
	}
	if l.stage == stageFullFeature {
		if l.session, err = l.c.srv.openSession(ctx, l); err != nil {
			return err
		}
	}
	l.respond(r, flags, l.neg.reply)
	return nil
}

// takeNames takes the keys that say who logs in to what, and returns the rest.
// They must be in the first request, §6.3.
func (l *login) takeNames(pairs []pair) (rest []pair, err error) {
	for _, p := range pairs {
		switch p.key {
		case "InitiatorName", "TargetName", "SessionType":
			if l.isRepetition(p) {
				delete(l.names, p.key) // once is enough
				continue
			}
			if l.started {
				return nil, failLogin(statusInitiatorError, "%s after the first request", p.key)
			}
			if l.neg.seen[p.key] {
				return nil, failLogin(statusInitiatorError, "%s twice", p.key)
			}
			l.neg.seen[p.key] = true
			l.names[p.key] = p.value
			if err := l.takeName(p); err != nil {
				return nil, err
			}
		default:
			rest = append(rest, p)
		}
	}
	if l.started {
		return rest, nil
	}
	l.started = true
	return rest, l.checkNames()
}

// isRepetition reports whether p says a name again at the beginning of the
// operational stage, after the security stage. A key is declared once, §6.3; but
// libiscsi, when it has credentials that we do not ask for, forgets that it has
// been through the security stage (docs/adr/0006).
func (l *login) isRepetition(p pair) bool {
	before, said := l.names[p.key]
	return said && before == p.value && l.declared[stageSecurity] && l.stage == stageOperational && !l.declared[stageOperational]
}

func (l *login) takeName(p pair) error {
	if len(p.value) > maxISCSIName {
		return failLogin(statusInitiatorError, "%s of %d bytes, limit %d", p.key, len(p.value), maxISCSIName)
	}
	switch p.key {
	case "InitiatorName":
		l.initiator = strings.ToLower(p.value) // iSCSI names have no case, RFC 3722
	case "TargetName":
		l.target = p.value
	case "SessionType":
		switch p.value {
		case "Normal":
		case "Discovery":
			l.discovery = true
		default:
			return failLogin(statusSessionType, "SessionType=%q", p.value)
		}
	}
	return nil
}

func (l *login) checkNames() error {
	l.neg.discovery = l.discovery
	switch {
	case l.initiator == "":
		return failLogin(statusMissingParameter, "no InitiatorName")
	case l.discovery && l.target == "":
		return nil
	case l.target == "":
		return failLogin(statusMissingParameter, "no TargetName")
	case !strings.EqualFold(l.target, l.c.srv.o.Name):
		return failLogin(statusNotFound, "there is no target %q here, only %s", l.target, l.c.srv.o.Name)
	}
	return nil
}

// mayNegotiate refuses to go on without the authentication that is required:
// an initiator may begin with the operational stage, §6.3.1.
func (l *login) mayNegotiate() error {
	if !l.chap.satisfied() {
		return failLogin(statusAuthFailure, "%s without authentication", l.stage)
	}
	return nil
}

// mayLeave reports whether the stage can be left now. It can not while the
// initiator has something to answer; it never will when the initiator does not
// take part in the authentication.
func (l *login) mayLeave() (bool, error) {
	if l.stage != stageSecurity || l.chap.satisfied() {
		return true, nil
	}
	if l.chap.step == chapNone {
		return false, failLogin(statusAuthFailure, "authentication is required and was not begun")
	}
	return false, nil
}

// declare says what we declare of ourselves: the portal group with the first
// answer, in discovery sessions too, §6.3.1, and how much we take in one data
// segment.
func (l *login) declare() {
	if len(l.declared) == 0 {
		l.neg.say("TargetPortalGroupTag", portalGroupTag)
	}
	if l.stage == stageOperational && !l.declared[stageOperational] {
		l.neg.say("MaxRecvDataSegmentLength", fmt.Sprint(ourMaxRecvSegment))
	}
	l.declared[l.stage] = true
}

// respond sends text in answer to r. What does not fit in one response goes in
// several: all but the last have C set, and an empty request asks for the next
// one, §6.2. Such an answer never goes with a transit, which is an answer to
// the T of its own request only, §6.3: the initiator asks for it afterwards.
func (l *login) respond(r loginRequest, flags byte, text []byte) {
	n := min(len(text), defaultMaxRecvSegment) // the initiator's own limit counts after the login
	text, l.unsent = text[:n], text[n:]
	if len(l.unsent) > 0 {
		flags |= loginContinue
	}
	resp := loginResponse{flags: byte(r.csg())<<2 | flags, isid: r.isid(), tsih: r.tsih(), itt: r.itt()}
	if l.session != nil {
		resp.tsih = l.session.tsih // in the final response only, §11.13.3
	}
	l.send(resp, text)
}

// send sends one response.
func (l *login) send(r loginResponse, text []byte) {
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	h, data := c.out.reserve(len(text))
	r.header(h)
	bhsDataLen.Put(h[:], uint32(len(text)))
	copy(data, text)
	c.commit(statAdvance)
	c.flush()
}
