package scsi

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/containerdisk/containerdisk/internal/be"
)

// TransportIDs of initiator ports of iSCSI, SPC "TransportID for initiator
// ports using SCSI over iSCSI".
const (
	transportProtocol            = 0x05
	maskTransportProtocol        = 0x0f
	maskTransportFormat          = 0xc0
	transportDevice              = 0x00 // the name of the initiator alone
	transportPort                = 0x40 // the name of the port: ",i,0x" and the ISID follow
	transportLength       be.U16 = 2    // ADDITIONAL LENGTH
	transportHeader              = 4
	minTransportName             = 20
	portSeparator                = ",i,0x"

	// maxTransportName holds an iSCSI name of 223 bytes (RFC 7143 §4.2.7.1)
	// and an ISID, with a null and padding.
	maxTransportName = 244
)

func appendTransportID(b []byte, port string) []byte {
	start := len(b)
	b = append(b, transportPort|transportProtocol, 0, 0, 0)
	b = append(b, scsiName(port)...)
	for len(b)-start-transportHeader < minTransportName {
		b = append(b, 0)
	}
	binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start-transportHeader))
	return b
}

// transportName is what a TransportID names.
type transportName struct {
	name string
	port bool // a port; else an initiator with all its ports
}

// takeTransportID decodes the TransportID that b begins with, and returns what
// follows it. ok is false if it is not one of an iSCSI initiator.
func takeTransportID(b []byte) (id transportName, rest []byte, ok bool) {
	if len(b) < transportHeader {
		return id, nil, false
	}
	n := int(transportLength.Get(b))
	format := b[0] & maskTransportFormat
	if b[0]&maskTransportProtocol != transportProtocol || format > transportPort ||
		n < minTransportName || n > maxTransportName || n%4 != 0 || n > len(b)-transportHeader {
		return id, nil, false
	}
	name, padding, ended := bytes.Cut(b[transportHeader:][:n], []byte{0})
	if !ended || len(name) == 0 || len(bytes.Trim(padding, "\x00")) > 0 {
		return id, nil, false
	}
	id = transportName{string(name), format == transportPort}
	if initiator, isid, found := strings.Cut(id.name, portSeparator); found != id.port || id.port && !isISID(isid) {
		return id, nil, false
	} else if id.port {
		id.name = initiator + portSeparator + strings.ToLower(isid)
	}
	return id, b[transportHeader+n:], true
}

// isISID reports whether s is the six bytes of an ISID in hex.
func isISID(s string) bool { return len(s) == 12 && strings.Trim(s, "0123456789abcdefABCDEF") == "" }

// ports are the initiator ports that a TransportID stands for: the one it
// names, or those of the initiator that are connected now.
func (l *LUN) ports(id transportName) (ports []string) {
	if id.port {
		return []string{id.name}
	}
	for _, i := range l.nexuses() {
		if strings.HasPrefix(i.nexus.initiator, id.name+portSeparator) {
			ports = append(ports, i.nexus.initiator)
		}
	}
	return ports
}
