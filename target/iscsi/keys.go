package iscsi

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// negotiation is the state of one side's talk about keys: what was said, what
// to answer, and the values that come of it. RFC 7143 §6.2.
type negotiation struct {
	params    *params
	discovery bool
	stage     stage
	seen      map[string]bool
	reply     []byte
}

// textKey is a row of the key table: one key of RFC 7143 §13.
type textKey struct {
	use keyUse
	// answer takes the initiator's value and returns the reply; an empty one
	// means that the key wants none.
	answer func(n *negotiation, value string) (string, error)
}

// keyUse says where a key may stand.
type keyUse uint8

const (
	inLogin       keyUse = 1 << iota // only before the full feature phase (IO, LO)
	inFullFeature                    // also in the full feature phase
	inSecurity                       // also in the security stage
	notDiscovery                     // irrelevant to a discovery session
)

// errNegotiation is an offence against the rules of negotiation, which ends
// the login: §6.2, §7.12.
var errNegotiation = errors.New("negotiation error")

// textKeys is every key of RFC 7143 §13. None of them may be NotUnderstood. The
// names, SessionType, AuthMethod and the CHAP keys are login.go's and chap.go's
// business, SendTargets is textrequest.go's.
var textKeys = map[string]textKey{
	"HeaderDigest": {inLogin, list(func(n *negotiation, v string) { n.params.headerDigest = v == valCRC32C }, valCRC32C, valNone)},
	"DataDigest":   {inLogin, list(func(n *negotiation, v string) { n.params.dataDigest = v == valCRC32C }, valCRC32C, valNone)},

	"MaxConnections": {inLogin | notDiscovery, number(least, 1, 65535, 1, nil)},

	"InitialR2T":    {inLogin | notDiscovery, boolean(or, valNo, func(p *params) *bool { return &p.initialR2T })},
	"ImmediateData": {inLogin | notDiscovery, boolean(and, valYes, func(p *params) *bool { return &p.immediateData })},

	"MaxRecvDataSegmentLength": {inLogin | inFullFeature, (*negotiation).maxRecvSegment},

	"MaxBurstLength":   {inLogin | notDiscovery, number(least, minSegment, maxSegment, ourMaxBurst, func(p *params) *uint32 { return &p.maxBurst })},
	"FirstBurstLength": {inLogin | notDiscovery, (*negotiation).firstBurst},

	"DefaultTime2Wait":   {inLogin, number(greatest, 0, 3600, 0, nil)},
	"DefaultTime2Retain": {inLogin, number(least, 0, 3600, 0, nil)}, // nothing is retained at level 0
	"MaxOutstandingR2T":  {inLogin | notDiscovery, number(least, 1, 65535, ourMaxR2T, func(p *params) *uint32 { return &p.maxR2T })},

	"DataPDUInOrder":      {inLogin | notDiscovery, boolean(or, valYes, nil)},
	"DataSequenceInOrder": {inLogin | notDiscovery, boolean(or, valYes, nil)},
	"ErrorRecoveryLevel":  {inLogin, number(least, 0, 2, 0, nil)},

	"TaskReporting":      {inLogin | notDiscovery, list(nil, "RFC3720", "ResponseFence")},
	"iSCSIProtocolLevel": {inLogin | notDiscovery, number(least, 0, 31, protocolLevel, nil)},

	// Markers went with RFC 7143; the keys must still be understood, §13.25.
	"IFMarker":  {inLogin, always(valReject)},
	"OFMarker":  {inLogin, always(valReject)},
	"IFMarkInt": {inLogin, always(valReject)},
	"OFMarkInt": {inLogin, always(valReject)},

	"InitiatorAlias":     {inLogin | inFullFeature | inSecurity, declaration},
	"X#NodeArchitecture": {inLogin, declaration},

	// A target's own keys, and those of the login and of text requests, which
	// are taken before it comes to this table: what gets here is out of place.
	"TargetAlias": {}, "TargetAddress": {}, "TargetPortalGroupTag": {}, "SendTargets": {},
	"InitiatorName": {}, "TargetName": {}, "SessionType": {},
	"AuthMethod": {}, "CHAP_A": {}, "CHAP_I": {}, "CHAP_C": {}, "CHAP_N": {}, "CHAP_R": {},
}

const valCRC32C = "CRC32C"

// take answers the pairs of one request in their order, but for
// FirstBurstLength, which depends on MaxBurstLength and goes last.
func (n *negotiation) take(pairs []pair) error {
	pairs = slices.Clone(pairs)
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(dependsOnOthers(a), dependsOnOthers(b)) })
	for _, p := range pairs {
		if err := n.takeOne(p); err != nil {
			return fmt.Errorf("%s: %w", p.key, err)
		}
	}
	return nil
}

func dependsOnOthers(p pair) int {
	if p.key == "FirstBurstLength" {
		return 1
	}
	return 0
}

func (n *negotiation) takeOne(p pair) error {
	if n.seen[p.key] {
		return fmt.Errorf("%w: negotiated twice", errNegotiation) // §6.3
	}
	n.seen[p.key] = true
	k, ok := textKeys[p.key]
	if !ok {
		n.say(p.key, valNotUnderstood)
		return nil
	}
	if err := n.mayStandHere(k.use); err != nil {
		return err
	}
	if n.discovery && k.use&notDiscovery != 0 {
		n.say(p.key, valIrrelevant)
		return nil
	}
	switch p.value {
	case valReject, valIrrelevant, valNotUnderstood:
		return fmt.Errorf("%w: %s is an answer and no proposal", errNegotiation, p.value)
	}
	answer, err := k.answer(n, p.value)
	if err != nil {
		return err
	}
	if answer != "" {
		n.say(p.key, answer)
	}
	return nil
}

// mayStandHere refuses a key in a phase that it has no place in, §12 and §13.
func (n *negotiation) mayStandHere(use keyUse) error {
	switch {
	case use == 0,
		n.stage == stageSecurity && use&inSecurity == 0,
		n.stage == stageFullFeature && use&inFullFeature == 0:
		return fmt.Errorf("%w: not allowed in the %s", errNegotiation, n.stage)
	}
	return nil
}

func (n *negotiation) say(key, value string) { n.reply = appendPair(n.reply, key, value) }

// list makes the answer to a list of values in the initiator's order: the
// first that is one of ours, §6.2.1.
func list(set func(*negotiation, string), ours ...string) func(*negotiation, string) (string, error) {
	return func(n *negotiation, value string) (string, error) {
		for v := range strings.SplitSeq(value, ",") {
			if !slices.Contains(ours, v) {
				continue
			}
			if set != nil {
				set(n, v)
			}
			return v, nil
		}
		return valReject, nil
	}
}

// boolRule combines the two sides' values, §6.2.2.
type boolRule func(a, b bool) bool

func and(a, b bool) bool { return a && b }
func or(a, b bool) bool  { return a || b }

// boolean makes the answer to a Yes or No; field says where the result goes.
func boolean(rule boolRule, ours string, field func(*params) *bool) func(*negotiation, string) (string, error) {
	return func(n *negotiation, value string) (string, error) {
		if value != valYes && value != valNo {
			return valReject, nil
		}
		result := rule(value == valYes, ours == valYes)
		if field != nil {
			*field(n.params) = result
		}
		if result {
			return valYes, nil
		}
		return valNo, nil
	}
}

// numberRule combines the two sides' values, §6.2.2.
type numberRule func(a, b uint32) uint32

func least(a, b uint32) uint32    { return min(a, b) }
func greatest(a, b uint32) uint32 { return max(a, b) }

// number makes the answer to a number from lo to hi; field says where the
// result goes.
func number(rule numberRule, lo, hi, ours uint32, field func(*params) *uint32) func(*negotiation, string) (string, error) {
	return func(n *negotiation, value string) (string, error) {
		v, ok := inRange(value, lo, hi)
		if !ok {
			return valReject, nil
		}
		result := rule(v, ours)
		if field != nil {
			*field(n.params) = result
		}
		return strconv.FormatUint(uint64(result), 10), nil
	}
}

func inRange(value string, lo, hi uint32) (uint32, bool) {
	v, err := parseNumber(value)
	if err != nil || v < uint64(lo) || v > uint64(hi) {
		return 0, false
	}
	return uint32(v), true
}

// maxRecvSegment takes what the initiator declares; our own declaration is
// login's business, §13.12.
func (n *negotiation) maxRecvSegment(value string) (string, error) {
	v, ok := inRange(value, minSegment, maxSegment)
	if !ok {
		return valReject, nil
	}
	n.params.maxSend = min(v, ourMaxRecvSegment)
	return "", nil
}

// firstBurst answers FirstBurstLength, which may not pass MaxBurstLength,
// §13.14, and means nothing without any unsolicited data.
func (n *negotiation) firstBurst(value string) (string, error) {
	v, ok := inRange(value, minSegment, maxSegment)
	if !ok {
		return valReject, nil
	}
	n.params.firstBurst = min(v, ourFirstBurst, n.params.maxBurst)
	if n.params.initialR2T && !n.params.immediateData && n.seen["InitialR2T"] && n.seen["ImmediateData"] {
		return valIrrelevant, nil
	}
	return strconv.FormatUint(uint64(n.params.firstBurst), 10), nil
}

// always makes one answer for every value.
func always(answer string) func(*negotiation, string) (string, error) {
	return func(*negotiation, string) (string, error) { return answer, nil }
}

// declaration takes any value of a declarative key and answers nothing, §6.2.
func declaration(_ *negotiation, value string) (string, error) {
	if len(value) > 255 {
		return "", fmt.Errorf("%w: %d bytes, limit 255", errNegotiation, len(value))
	}
	return "", nil
}
