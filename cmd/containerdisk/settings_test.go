package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/containerdisk/containerdisk/internal/config"
)

func flags(env map[string]string) (*settings, *pflag.FlagSet) {
	s := newSettings(func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	})
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	s.addFlags(f)
	return s, f
}

func TestFlagsComeBeforeTheEnvironment(t *testing.T) {
	s, f := flags(map[string]string{"WWN": "iqn.2026-01.test:env", "LUN": "7"})
	if err := f.Parse([]string{"--wwn", "iqn.2026-01.test:flag", "--iscsi-listen=127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"WWN": "iqn.2026-01.test:flag", "LUN": "7", "ISCSI_LISTEN": "127.0.0.1:1",
	} {
		if got, ok := s.Lookup(name); got != want || !ok {
			t.Errorf("%s = %q, %v, want %q", name, got, ok, want)
		}
	}
	if got, ok := s.Lookup("DISK_SIZE"); ok {
		t.Errorf("DISK_SIZE = %q, want it unset", got)
	}
}

// A flag is read by every user of the machine, in the list of processes.
func TestSecretsHaveNoFlag(t *testing.T) {
	_, f := flags(nil)
	secrets := 0
	for _, v := range config.Variables() {
		if v.Secret {
			secrets++
			if f.Lookup(flagName(v.Name)) != nil {
				t.Errorf("--%s exists", flagName(v.Name))
			}
		}
	}
	if secrets == 0 {
		t.Error("config knows no secrets: the test looks at nothing")
	}
	if err := f.Parse([]string{"--chap-password", "secret"}); err == nil {
		t.Error("--chap-password was taken")
	}
}

func TestHelpListsEveryVariable(t *testing.T) {
	var b strings.Builder
	const width = 90
	writeVariables(&b, width)
	for _, v := range config.Variables() {
		if !strings.Contains(b.String(), "\n  "+v.Name) {
			t.Errorf("%s is missing", v.Name)
		}
		if v.Default != "" && !strings.Contains(b.String(), "(default "+v.Default+")") {
			t.Errorf("%s: the default %q is missing", v.Name, v.Default)
		}
	}
}
