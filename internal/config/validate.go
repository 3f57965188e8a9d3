package config

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containerdisk/containerdisk/auth"
)

// problem is a rule between settings that is broken.
type problem struct {
	about []string // the variables concerned
	text  string
}

func (p problem) Error() string { return p.text }

// Validate checks the rules between the settings and returns all that are
// broken, joined. What FromEnv returned has passed.
func (c Config) Validate() error {
	var errs []error
	for _, p := range c.problems() {
		errs = append(errs, p)
	}
	return errors.Join(errs...)
}

func (c Config) problems() []problem {
	ps := c.chapProblems()
	if c.CHAP.Initiator.IsZero() && !c.InsecureNoAuth && c.ISCSIListen.IsValid() && !c.ISCSIListen.Addr().IsLoopback() {
		ps = append(ps, problem{
			append([]string{"ISCSI_LISTEN", "PORT", "INSECURE_NO_AUTH"}, chapSources...),
			fmt.Sprintf("ISCSI_LISTEN=%q: other machines could read and write the disk without logging in; "+
				"set CHAP_USERNAME and CHAP_PASSWORD, or listen on 127.0.0.1, "+
				"or set INSECURE_NO_AUTH=true where everybody who reaches the port may have the disk", c.ISCSIListen),
		})
	}
	ps = append(ps, c.nbdProblems()...)
	ps = append(ps, c.portProblems()...)
	ps = append(ps, c.storeProblems()...)
	if c.MultiDisk && c.DiskSize != 0 {
		ps = append(ps, problem{
			[]string{"MULTI_DISK", "DISK_SIZE"},
			"DISK_SIZE: cannot be for several disks; unset it or MULTI_DISK",
		})
	}
	return ps
}

// nbdProblems are those of the NBD wire, and of there being no wire at all.
func (c Config) nbdProblems() []problem {
	var ps []problem
	nbd := c.NBDSocket != "" || c.NBDListen.IsValid() || c.Sockets > 0
	if !nbd && !c.ISCSIListen.IsValid() {
		ps = append(ps, problem{
			[]string{"ISCSI_LISTEN", "PORT", "NBD_SOCKET", "NBD_LISTEN", "LISTEN_FDS"},
			`ISCSI_LISTEN="off": nothing is left to serve the disk on; set NBD_SOCKET or NBD_LISTEN`,
		})
	}
	if !nbd && c.NBDTLSDir != "" {
		ps = append(ps, problem{
			[]string{"NBD_TLS_DIR", "NBD_SOCKET", "NBD_LISTEN", "LISTEN_FDS"},
			fmt.Sprintf("NBD_TLS_DIR=%q: NBD is not served; set NBD_LISTEN or NBD_SOCKET as well", c.NBDTLSDir),
		})
	}
	if c.NBDListen.IsValid() && !c.NBDListen.Addr().IsLoopback() && c.NBDTLSDir == "" {
		ps = append(ps, problem{
			[]string{"NBD_LISTEN", "NBD_TLS_DIR"},
			fmt.Sprintf("NBD_LISTEN=%q: other machines could read and write the disk; "+
				"set NBD_TLS_DIR, so that clients need a certificate, or listen on 127.0.0.1, or use NBD_SOCKET", c.NBDListen),
		})
	}
	return ps
}

// portProblems are ports that two listeners want.
func (c Config) portProblems() []problem {
	type listener struct {
		name  string
		at    netip.AddrPort
		about []string
	}
	all := []listener{
		{"ISCSI_LISTEN", c.ISCSIListen, []string{"ISCSI_LISTEN", "PORT"}},
		{"NBD_LISTEN", c.NBDListen, []string{"NBD_LISTEN"}},
		{"STATUS_LISTEN", c.StatusListen, []string{"STATUS_LISTEN"}},
	}
	var ps []problem
	for i, l := range all {
		for _, other := range all[:i] {
			if l.at.IsValid() && other.at.IsValid() && l.at.Port() != 0 && l.at.Port() == other.at.Port() {
				ps = append(ps, problem{
					append(l.about, other.about...),
					fmt.Sprintf("%s=%q: the port is that of %s; give it another one", l.name, l.at, other.name),
				})
			}
		}
	}
	return ps
}

const secretDir = "CHAP_SECRET_DIR"

// chapNames are today's names of the parts of CHAP.
var chapNames = map[auth.Field]string{
	auth.InitiatorName:     "CHAP_USERNAME",
	auth.InitiatorSecret:   "CHAP_PASSWORD",
	auth.TargetName:        "CHAP_MUTUAL_USERNAME",
	auth.TargetSecret:      "CHAP_MUTUAL_PASSWORD",
	auth.AllowedAlgorithms: "CHAP_ALGORITHMS",
}

// chapSources are all variables that can give a part of the initiator's
// account. Where one of them is broken, that is what is wrong.
var chapSources = []string{
	"CHAP_USERNAME", "CHAP_USERNAME_FILE", "USERNAME", "USERNAME_BASE64",
	"CHAP_PASSWORD", "CHAP_PASSWORD_FILE", "PASSWORD", "PASSWORD_BASE64", secretDir,
}

// chapProblems are those of the credentials, in the operator's words.
func (c Config) chapProblems() []problem {
	var ps []problem
	for _, p := range c.CHAP.Problems() {
		name, given := c.chapFrom[p.Field], true
		if name == "" {
			name, given = chapNames[p.Field], false
		}
		text := fmt.Sprintf("%s: %s", name, p.Text)
		switch {
		case name == secretDir: // which part of it?
			text = fmt.Sprintf("%s: %v", name, p)
		case !given:
			text += fmt.Sprintf("; set %s, %s_FILE or CHAP_SECRET_DIR", name, name)
		}
		ps = append(ps, problem{[]string{name}, text})
	}
	return ps
}
