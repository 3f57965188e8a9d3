package iscsi

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
)

func base64Of(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }

// negotiate runs the pairs through a negotiation as one request.
func negotiate(discovery bool, at stage, in ...string) ([]string, params, error) {
	values := defaults()
	n := negotiation{params: &values, discovery: discovery, stage: at, seen: make(map[string]bool)}
	var pairs []pair
	for _, s := range in {
		k, v, _ := strings.Cut(s, "=")
		pairs = append(pairs, pair{k, v})
	}
	err := n.take(pairs)
	return splitText(n.reply), values, err
}

// TestKeys is RFC 7143 §13, key by key: what a proposal is answered with.
func TestKeys(t *testing.T) {
	const none = "" // no answer: a declaration
	for _, c := range []struct{ in, want string }{
		// §13.1
		{"HeaderDigest=None", "None"}, {"HeaderDigest=CRC32C", "CRC32C"}, {"HeaderDigest=CRC32C,None", "CRC32C"},
		{"HeaderDigest=None,CRC32C", "None"}, {"HeaderDigest=X-md5,CRC32C", "CRC32C"}, {"HeaderDigest=X-md5", "Reject"},
		{"HeaderDigest=crc32c", "Reject"}, {"HeaderDigest=", "Reject"},
		{"DataDigest=None", "None"}, {"DataDigest=CRC32C,None", "CRC32C"}, {"DataDigest=None,CRC32C", "None"}, {"DataDigest=sum", "Reject"},
		// §13.2
		{"MaxConnections=1", "1"}, {"MaxConnections=65535", "1"}, {"MaxConnections=0", "Reject"}, {"MaxConnections=65536", "Reject"},
		{"MaxConnections=0x8", "1"}, {"MaxConnections=", "Reject"}, {"MaxConnections=-1", "Reject"},
		// §13.10, §13.11
		{"InitialR2T=Yes", "Yes"}, {"InitialR2T=No", "No"}, {"InitialR2T=yes", "Reject"}, {"InitialR2T=1", "Reject"},
		{"ImmediateData=Yes", "Yes"}, {"ImmediateData=No", "No"}, {"ImmediateData=", "Reject"},
		// §13.12
		{"MaxRecvDataSegmentLength=512", none}, {"MaxRecvDataSegmentLength=16777215", none}, {"MaxRecvDataSegmentLength=0x10000", none},
		{"MaxRecvDataSegmentLength=511", "Reject"}, {"MaxRecvDataSegmentLength=16777216", "Reject"}, {"MaxRecvDataSegmentLength=4294967808", "Reject"},
		// §13.13
		{"MaxBurstLength=512", "512"}, {"MaxBurstLength=262144", "262144"}, {"MaxBurstLength=16776192", "1048576"},
		{"MaxBurstLength=0x40000", "262144"}, {"MaxBurstLength=511", "Reject"}, {"MaxBurstLength=16777216", "Reject"}, {"MaxBurstLength=x", "Reject"},
		// §13.14
		{"FirstBurstLength=512", "512"}, {"FirstBurstLength=65536", "65536"}, {"FirstBurstLength=16777215", "262144"},
		{"FirstBurstLength=511", "Reject"}, {"FirstBurstLength=16777216", "Reject"},
		// §13.15, §13.16
		{"DefaultTime2Wait=0", "0"}, {"DefaultTime2Wait=2", "2"}, {"DefaultTime2Wait=3600", "3600"}, {"DefaultTime2Wait=3601", "Reject"},
		{"DefaultTime2Retain=0", "0"}, {"DefaultTime2Retain=20", "0"}, {"DefaultTime2Retain=3600", "0"}, {"DefaultTime2Retain=3601", "Reject"},
		// §13.17
		{"MaxOutstandingR2T=1", "1"}, {"MaxOutstandingR2T=3", "3"}, {"MaxOutstandingR2T=65535", "4"}, {"MaxOutstandingR2T=0", "Reject"},
		{"MaxOutstandingR2T=65536", "Reject"},
		// §13.18, §13.19
		{"DataPDUInOrder=Yes", "Yes"}, {"DataPDUInOrder=No", "Yes"}, {"DataPDUInOrder=maybe", "Reject"},
		{"DataSequenceInOrder=Yes", "Yes"}, {"DataSequenceInOrder=No", "Yes"},
		// §13.20
		{"ErrorRecoveryLevel=0", "0"}, {"ErrorRecoveryLevel=2", "0"}, {"ErrorRecoveryLevel=3", "Reject"},
		// §13.22
		{"X-com.example.key=value", "NotUnderstood"}, {"X#private=1", "NotUnderstood"}, {"Unheardof=1", "NotUnderstood"},
		{"maxburstlength=512", "NotUnderstood"}, // key names are case-sensitive
		// §13.23, §13.24
		{"TaskReporting=RFC3720", "RFC3720"}, {"TaskReporting=ResponseFence,RFC3720", "ResponseFence"},
		{"TaskReporting=FastAbort,ResponseFence", "ResponseFence"}, {"TaskReporting=FastAbort", "Reject"},
		{"iSCSIProtocolLevel=1", "1"}, {"iSCSIProtocolLevel=0", "0"}, {"iSCSIProtocolLevel=2", "1"}, {"iSCSIProtocolLevel=31", "1"},
		{"iSCSIProtocolLevel=32", "Reject"},
		// §13.25
		{"IFMarker=No", "Reject"}, {"IFMarker=Yes", "Reject"}, {"OFMarker=No", "Reject"}, {"IFMarkInt=2048~8192", "Reject"}, {"OFMarkInt=2048", "Reject"},
		// §13.5, §13.26
		{"InitiatorAlias=my host", none}, {"X#NodeArchitecture=linux", none},
	} {
		got, _, err := negotiate(false, stageOperational, c.in)
		var want []string
		if key, _, _ := strings.Cut(c.in, "="); c.want != none {
			want = []string{key + "=" + c.want}
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %v, %v; want %v", c.in, got, err, want)
		}
	}
}

// TestKeyValues looks at what comes of the negotiation.
func TestKeyValues(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want func(*params)
	}{
		{[]string{}, func(*params) {}},
		{[]string{"HeaderDigest=CRC32C"}, func(p *params) { p.headerDigest = true }},
		{[]string{"DataDigest=CRC32C,None"}, func(p *params) { p.dataDigest = true }},
		{[]string{"HeaderDigest=None,CRC32C"}, func(*params) {}},
		{[]string{"InitialR2T=No"}, func(p *params) { p.initialR2T = false }},
		{[]string{"ImmediateData=No"}, func(p *params) { p.immediateData = false }},
		{[]string{"MaxRecvDataSegmentLength=512"}, func(p *params) { p.maxSend = 512 }},
		{[]string{"MaxRecvDataSegmentLength=262144"}, func(p *params) { p.maxSend = 262144 }},
		{[]string{"MaxBurstLength=4096"}, func(p *params) { p.maxBurst = 4096 }},
		{[]string{"MaxBurstLength=4"}, func(*params) {}}, // rejected: the default stays
		{[]string{"MaxOutstandingR2T=0x2"}, func(p *params) { p.maxR2T = 2 }},
		{[]string{"FirstBurstLength=4096", "MaxBurstLength=2048"}, func(p *params) { p.maxBurst, p.firstBurst = 2048, 2048 }},
	} {
		want := defaults()
		c.want(&want)
		if _, got, err := negotiate(false, stageOperational, c.in...); err != nil || got != want {
			t.Errorf("%v: got %+v, %v; want %+v", c.in, got, err, want)
		}
	}
	// What is more than we send at a time is no more to us than that.
	if _, got, _ := negotiate(false, stageOperational, "MaxRecvDataSegmentLength=16777215"); got.maxSend > ourMaxRecvSegment {
		t.Errorf("maxSend = %d, limit %d", got.maxSend, ourMaxRecvSegment)
	}
}

func TestFirstBurst(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want string
	}{
		{[]string{"MaxBurstLength=8192", "FirstBurstLength=65536"}, "8192"}, // never above MaxBurstLength
		{[]string{"FirstBurstLength=65536", "MaxBurstLength=8192"}, "8192"}, // in whatever order they come
		{[]string{"InitialR2T=Yes", "ImmediateData=No", "FirstBurstLength=65536"}, "Irrelevant"},
		{[]string{"FirstBurstLength=65536", "ImmediateData=No", "InitialR2T=Yes"}, "Irrelevant"},
		{[]string{"InitialR2T=Yes", "ImmediateData=Yes", "FirstBurstLength=4096"}, "4096"},
		{[]string{"InitialR2T=No", "ImmediateData=No", "FirstBurstLength=4096"}, "4096"},
	} {
		got, _, err := negotiate(false, stageOperational, c.in...)
		if err != nil || !slices.Contains(got, "FirstBurstLength="+c.want) {
			t.Errorf("%v: got %v, %v; want %s", c.in, got, err, c.want)
		}
	}
}

// TestKeysOfDiscovery: RFC 7143 §7.4.1 and the "Irrelevant when" of §13.
func TestKeysOfDiscovery(t *testing.T) {
	for _, key := range []string{"MaxConnections=1", "InitialR2T=No", "ImmediateData=Yes", "MaxBurstLength=262144", "FirstBurstLength=65536",
		"MaxOutstandingR2T=1", "DataPDUInOrder=Yes", "DataSequenceInOrder=Yes", "TaskReporting=RFC3720"} {
		name, _, _ := strings.Cut(key, "=")
		if got, _, err := negotiate(true, stageOperational, key); err != nil || !slices.Equal(got, []string{name + "=Irrelevant"}) {
			t.Errorf("%s: got %v, %v; want Irrelevant", key, got, err)
		}
	}
	for in, want := range map[string]string{"ErrorRecoveryLevel=2": "0", "HeaderDigest=CRC32C": "CRC32C", "DefaultTime2Wait=2": "2", "X-a=b": "NotUnderstood"} {
		name, _, _ := strings.Cut(in, "=")
		if got, _, err := negotiate(true, stageOperational, in); err != nil || !slices.Equal(got, []string{name + "=" + want}) {
			t.Errorf("%s: got %v, %v; want %s", in, got, err, want)
		}
	}
}

// TestNegotiationErrors are the offences that end a login.
func TestNegotiationErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		at   stage
		in   []string
	}{
		{"a key twice", stageOperational, []string{"InitialR2T=Yes", "InitialR2T=Yes"}},
		{"an unknown key twice", stageOperational, []string{"X-a=1", "X-a=1"}},
		{"Reject proposed", stageOperational, []string{"MaxBurstLength=Reject"}},
		{"Irrelevant proposed", stageOperational, []string{"InitialR2T=Irrelevant"}},
		{"NotUnderstood proposed", stageOperational, []string{"HeaderDigest=NotUnderstood"}},
		{"an operational key in the security stage", stageSecurity, []string{"InitialR2T=Yes"}},
		{"a login key in the full feature phase", stageFullFeature, []string{"MaxBurstLength=4096"}},
		{"digests in the full feature phase", stageFullFeature, []string{"HeaderDigest=None"}},
		{"a declaration too long", stageOperational, []string{"InitiatorAlias=" + strings.Repeat("a", 256)}},

		// Keys that the RFC defines are never NotUnderstood (§6.2): out of
		// their place they are an error.
		{"AuthMethod in the operational stage", stageOperational, []string{"AuthMethod=None"}},
		{"CHAP in the operational stage", stageOperational, []string{"CHAP_A=5"}},
		{"SendTargets in a login", stageOperational, []string{"SendTargets=All"}},
		{"TargetAlias from an initiator", stageOperational, []string{"TargetAlias=x"}},
		{"TargetAddress from an initiator", stageOperational, []string{"TargetAddress=1.2.3.4:3260,1"}},
		{"TargetPortalGroupTag from an initiator", stageOperational, []string{"TargetPortalGroupTag=1"}},
		{"TargetPortalGroupTag not understood", stageOperational, []string{"TargetPortalGroupTag=NotUnderstood"}},
		{"InitiatorName in the full feature phase", stageFullFeature, []string{"InitiatorName=iqn.x"}},
		{"SessionType in the full feature phase", stageFullFeature, []string{"SessionType=Normal"}},
	} {
		got, _, err := negotiate(false, c.at, c.in...)
		if !errors.Is(err, errNegotiation) {
			t.Errorf("%s: %v gives %v, %v; want a negotiation error", c.name, c.in, got, err)
		}
	}
	if got, _, err := negotiate(false, stageSecurity, "X-a=1", "InitiatorAlias=x"); err != nil || !slices.Equal(got, []string{"X-a=NotUnderstood"}) {
		t.Errorf("allowed keys in the security stage: got %v, %v", got, err)
	}
}
