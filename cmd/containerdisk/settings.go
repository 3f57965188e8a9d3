package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/containerdisk/containerdisk/internal/config"
)

// settings are the environment's variables with what the command line says
// laid over them. Each variable that is not secret has a flag: ISCSI_LISTEN is
// --iscsi-listen. Secrets have none, as other users see a command line.
type settings struct {
	env  environment
	over map[string]string // by variable
}

func newSettings(env environment) *settings {
	return &settings{env: env, over: map[string]string{}}
}

// Lookup makes settings what config.FromEnv reads.
func (s *settings) Lookup(name string) (string, bool) {
	if v, ok := s.over[name]; ok {
		return v, true
	}
	return s.env(name)
}

// addFlags adds a flag for each of the variables named, or for all that there
// are.
func (s *settings) addFlags(f *pflag.FlagSet, only ...string) {
	for _, v := range flagVariables() {
		if len(only) > 0 && !slices.Contains(only, v.Name) {
			continue
		}
		f.Func(flagName(v.Name), v.Help, func(text string) error {
			s.over[v.Name] = text
			return nil
		})
	}
}

// flagVariables are the variables that have a flag.
func flagVariables() []config.Variable {
	return slices.DeleteFunc(config.Variables(), func(v config.Variable) bool {
		return v.Secret || v.Passed || v.Alias != ""
	})
}

func flagName(variable string) string {
	return strings.ToLower(strings.ReplaceAll(variable, "_", "-"))
}

// writeVariables lists every variable for a person, in their groups.
func writeVariables(w io.Writer, width int) {
	group := ""
	for _, v := range config.Variables() {
		if v.Group != group {
			group = v.Group
			fmt.Fprintf(w, "\n%s:\n", group)
		}
		fmt.Fprintf(w, "  %s\n", variableTitle(v))
		for _, line := range wrap(v.Help, width-8) {
			fmt.Fprintf(w, "        %s\n", line)
		}
	}
}

// variableTitle is a variable's name, its flag or what it is called today, and
// its default.
func variableTitle(v config.Variable) string {
	t := v.Name
	switch {
	case v.Alias != "":
		return t + ": now " + v.Alias
	case !v.Secret && !v.Passed:
		t += ", --" + flagName(v.Name)
	}
	if v.Default != "" {
		t += " (default " + v.Default + ")"
	}
	return t
}

// wrap breaks text between words into lines of at most width bytes.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
