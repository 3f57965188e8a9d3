package iscsi

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// textState is a text negotiation in the full feature phase, RFC 7143 §11.10.
// There is one at a time.
type textState struct {
	in    []byte // text of a request in several PDUs
	out   []byte // what is left of our answer
	seen  map[string]bool
	agree *params // in force when the negotiation ends well, §6.2; nil: as they are
	under bool    // a negotiation is under way: its next request has our tag
	itt   uint32  // of all its requests, §11.10.4
}

// textTag is the transfer tag of a negotiation that goes on.
const textTag = 0x74657874

// textRequest answers text. It rejects what it cannot make sense of; the
// connection goes on.
func (c *conn) textRequest(h textRequest, p pdu) {
	t := &c.text
	if h.ttt() == reservedTag { // a new negotiation, whatever was before
		*t = textState{seen: make(map[string]bool), itt: h.itt()}
	} else if !t.under || h.ttt() != textTag || h.itt() != t.itt {
		c.reject(rejectInvalidField, p)
		return
	}
	switch {
	case h.continues() && h.final(), len(t.in)+len(p.data) > maxText:
		c.rejectText(p)
		return
	case h.continues():
		t.in = append(t.in, p.data...)
		c.sendText(h, nil, textGoesOn)
		return
	case len(t.out) > 0: // it asks for the rest of our answer
		c.answerText(h)
		return
	}
	pairs, err := parseText(append(t.in, p.data...))
	t.in = t.in[:0]
	if err == nil {
		err = c.answerPairs(pairs)
	}
	if err != nil {
		c.log.Debug("text refused", "error", err)
		c.rejectText(p)
		return
	}
	c.answerText(h)
}

// rejectText ends the negotiation: nothing of it takes effect.
func (c *conn) rejectText(p pdu) {
	c.text = textState{}
	c.reject(rejectProtocol, p)
}

// answerPairs puts the answers to pairs into text.out, and the values aside.
func (c *conn) answerPairs(pairs []pair) error {
	if c.text.agree == nil {
		values := c.params
		c.text.agree = &values
	}
	n := negotiation{params: c.text.agree, discovery: c.sess.discovery, stage: stageFullFeature, seen: c.text.seen}
	var rest []pair
	for _, p := range pairs {
		if p.key == "SendTargets" {
			if err := c.sendTargets(&n, p.value); err != nil {
				return err
			}
			continue
		}
		rest = append(rest, p)
	}
	if err := n.take(rest); err != nil {
		return err
	}
	c.text.out = n.reply
	return nil
}

// sendTargets answers SendTargets, Appendix C. In a normal session only this
// session's own target is to be had, and we give it for "All" as well.
func (c *conn) sendTargets(n *negotiation, value string) error {
	if n.seen["SendTargets"] {
		return fmt.Errorf("%w: SendTargets twice", errNegotiation)
	}
	n.seen["SendTargets"] = true
	name := c.srv.o.Name
	switch {
	case value == "All", value == "" && !c.sess.discovery, strings.EqualFold(value, name):
		n.say("TargetName", name)
		n.say("TargetAddress", portal(c.nc.LocalAddr()))
	case value == "":
		n.say("SendTargets", valReject)
	case !isISCSIName(value):
		return fmt.Errorf("%w: SendTargets=%.*q", errNegotiation, maxISCSIName, value)
	}
	// Another name: there is no such target, and the answer is empty.
	return nil
}

// isISCSIName tells by the type designator, §4.2.7.3.
func isISCSIName(s string) bool {
	return slices.ContainsFunc([]string{"iqn.", "eui.", "naa."}, func(t string) bool {
		return len(s) > len(t) && strings.EqualFold(s[:len(t)], t)
	})
}

// portal is the address by which the initiator found us, §13.8, without the
// interface of ours that a link-local one is on.
func portal(a net.Addr) string {
	if tcp, ok := a.(*net.TCPAddr); ok && tcp.Zone != "" {
		a = &net.TCPAddr{IP: tcp.IP, Port: tcp.Port}
	}
	return a.String() + "," + portalGroupTag
}

// textEnd says whether an answer is the last of its negotiation.
type textEnd uint8

const (
	textGoesOn textEnd = iota
	textEnds
)

// answerText sends as much of text.out as fits. The negotiation ends when the
// initiator says so and there is no more to send.
func (c *conn) answerText(h textRequest) {
	t := &c.text
	n := min(len(t.out), int(c.params.maxSend))
	part := t.out[:n]
	t.out = t.out[n:]
	if len(t.out) == 0 && h.final() {
		if t.agree != nil {
			c.params = *t.agree
		}
		c.sendText(h, part, textEnds)
		return
	}
	c.sendText(h, part, textGoesOn)
}

func (c *conn) sendText(h textRequest, text []byte, end textEnd) {
	r := textResponse{lun: h.lun(), itt: h.itt(), ttt: textTag, n: len(text)}
	if end == textEnds {
		r.flags, r.ttt = flagFinal, reservedTag
	} else if len(c.text.out) > 0 {
		r.flags = textContinue
	}
	c.text.under = end == textGoesOn
	rh, p := c.out.reserve(len(text))
	r.header(rh)
	copy(p, text)
	c.commit(statAdvance)
}
