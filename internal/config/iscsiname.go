package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// maxISCSIName is the greatest length of an iSCSI name in bytes (RFC 7143
// §4.2.7.1).
const maxISCSIName = 223

// The forms of RFC 7143 §4.2.7.3 to §4.2.7.6. Names that need more than ASCII
// exist (§4.2.7.2 prepares them like those of hosts); nobody uses them, and two
// that look the same could differ.
var (
	iqnForm = regexp.MustCompile(`^iqn\.[0-9]{4}-(0[1-9]|1[0-2])\.[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[a-z0-9.:-]+)?$`)
	euiForm = regexp.MustCompile(`^eui\.[0-9a-f]{16}$`)
	naaForm = regexp.MustCompile(`^naa\.([0-9a-f]{16}|[0-9a-f]{32})$`)
)

// parseISCSIName checks the syntax of an iSCSI name.
func parseISCSIName(s string) (string, error) {
	if len(s) > maxISCSIName {
		return "", fmt.Errorf("an iSCSI name has at most %d bytes, this one %d", maxISCSIName, len(s))
	}
	for _, form := range []*regexp.Regexp{iqnForm, euiForm, naaForm} {
		switch lower := strings.ToLower(s); {
		case form.MatchString(s):
			return s, nil
		case form.MatchString(lower):
			return "", fmt.Errorf("iSCSI names are lower case; want %s", lower)
		}
	}
	return "", errors.New("not an iSCSI name; want iqn.YYYY-MM.domain-reversed:name as in iqn.2017-01.io.kubevirt:wrapper, " +
		"eui. and 16 hexadecimal digits, or naa. and 16 or 32 of them")
}
