// Command containerdisk finds a disk image, makes it a disk and puts the disk
// on a wire. DESIGN and use are told in docs/; `containerdisk --help` lists
// the subcommands, of which serve is the one without arguments.
//
// This is the only room with arguments, environment, signals and os.Exit: main
// calls run, run calls a subcommand, and each subcommand is one file.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // something went wrong on the way
	exitRefused = 2 // not started: a mistake in the arguments, settings or image
)

// stdio is what the program was given to talk to.
type stdio struct{ in, out, err *os.File }

// environment looks a variable up, as os.LookupEnv does.
type environment func(name string) (string, bool)

// Lookup makes an environment what config.FromEnv reads.
func (e environment) Lookup(name string) (string, bool) { return e(name) }

func main() {
	std := stdio{os.Stdin, os.Stdout, os.Stderr}
	os.Exit(run(context.Background(), os.Args[1:], os.LookupEnv, std))
}

// run is the program: it returns the exit code.
func run(ctx context.Context, args []string, env environment, std stdio) int {
	root := newRoot(env, std)
	root.SetArgs(args)
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	err := root.ExecuteContext(ctx)
	if err != nil && err.Error() != "" {
		explain(std.err, err)
	}
	return exitCode(err)
}

func newRoot(env environment, std stdio) *cobra.Command {
	serve := newServe(env, std)
	root := &cobra.Command{
		Use:   "containerdisk",
		Short: "Find an image, make it a disk, put the disk on a wire",
		Long: "containerdisk finds a disk image, makes it a writable disk and serves that over iSCSI.\n" +
			"Without arguments it does what serve does.",
		Args:          usage(cobra.NoArgs),
		RunE:          serve.RunE,
		SilenceErrors: true, // run tells them
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return refusal{err} })
	root.AddCommand(serve, newPopulate(env, std), newConvert(std), newInspect(std), newProbe(env), newVersion(std))
	return root
}

// usage makes a wrong number of arguments a refusal.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return refusal{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
		}
		return nil
	}
}

// refusal is an error found before anything was done: exit code 2.
type refusal struct{ err error }

func (r refusal) Error() string { return r.err.Error() }
func (r refusal) Unwrap() error { return r.err }

// refuse makes an error a refusal.
func refuse(err error) error {
	if err == nil {
		return nil
	}
	return refusal{err}
}

// coded is an error with an exit code of its own; without err, which stands for
// a result that was told already.
type coded struct {
	code int
	err  error
}

func (c coded) Error() string {
	if c.err == nil {
		return ""
	}
	return c.err.Error()
}

func (c coded) Unwrap() error { return c.err }

func exitCode(err error) int {
	var own coded
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &own):
		return own.code
	case errors.As(err, &refusal{}):
		return exitRefused
	}
	return exitFailed
}

// explain writes err for a person: all mistakes in one message.
func explain(w io.Writer, err error) {
	all := mistakes(err)
	if len(all) == 1 {
		fmt.Fprintf(w, "containerdisk: %s\n", indent(all[0], "  "))
		return
	}
	fmt.Fprintf(w, "containerdisk: %d mistakes:\n", len(all))
	for _, m := range all {
		fmt.Fprintf(w, "  - %s\n", indent(m, "    "))
	}
}

// mistakes takes joined errors apart.
func mistakes(err error) []string {
	switch e := err.(type) { //nolint:errorlint // each layer is looked at, not the chain
	case refusal:
		return mistakes(e.err)
	case coded:
		return mistakes(e.err)
	case interface{ Unwrap() []error }:
		var all []string
		for _, one := range e.Unwrap() {
			all = append(all, mistakes(one)...)
		}
		return all
	}
	return []string{err.Error()}
}

// indent moves all lines but the first to the right.
func indent(text, by string) string {
	return strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by)
}
