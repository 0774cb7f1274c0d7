// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"phalanx/cmd/phalanx/internal/settings"
	"phalanx/internal/nearest"
	"phalanx/node"
)

// version is set by the linker.
var version = "unknown"

// Exit codes beyond those of node: what only reading verbs end with.
const (
	codeUnpublished  = 7 // unpublished or incomplete
	codeIncompatible = node.CodeNewer
)

func main() {
	os.Exit(execute(context.Background(), os.Args[1:], app{os.Stdout, os.Stderr, os.Environ()}))
}

// app is where a command reads and writes.
type app struct {
	stdout, stderr io.Writer
	environ        []string // in the form of os.Environ
}

// variable returns the value of an environment variable, "" when it is not set.
func (a *app) variable(name string) string {
	for _, e := range a.environ {
		if value, ok := strings.CutPrefix(e, name+"="); ok {
			return value
		}
	}
	return ""
}

// execute runs one command line and returns its exit code. Errors are printed here and nowhere else.
func execute(ctx context.Context, args []string, a app) int {
	out := &answer{Writer: a.stdout}
	a.stdout = out
	root := newRoot(&a)
	root.SetArgs(args)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	running := false
	root.PersistentPreRun = func(*cobra.Command, []string) { running = true }
	err := root.ExecuteContext(ctx)
	var exit exitCode
	if (err == nil || errors.As(err, &exit)) && out.err != nil && !errors.Is(out.err, syscall.EPIPE) { // who closed a pipe wants no more
		err = problem(node.CodeFailed, "the answer was not written: send stdout to where there is room", "%w", out.err)
	}
	if err == nil {
		return node.CodeOK
	}
	if errors.As(err, &exit) {
		return int(exit)
	}
	code, hint := node.CodeFailed, ""
	var p *node.Problem
	switch {
	case errors.As(err, &p):
		code, hint, err = p.Code, p.Hint, p.Err
	case !running: // cobra's own: an unknown verb, wrong arguments
		code, hint = node.CodeUsage, "see phalanx --help"
	}
	say(a.stderr, "phalanx: %s\n", err)
	if hint != "" {
		say(a.stderr, "hint: %s\n", hint)
	}
	return code
}

// exitCode ends the command with a code after everything was said.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// problem is an error for the operator.
func problem(code int, hint, format string, args ...any) error {
	return &node.Problem{Code: code, Err: fmt.Errorf(format, args...), Hint: hint}
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "phalanx",
		Short: "Keep a training run going",
		Long: `Phalanx keeps a long training run going. Every rank has a peer daemon; when a rank falls, the ranks close up
and the run goes on, with the same result to the bit.`,
		SilenceUsage: true, SilenceErrors: true,
		Version: version,
	}
	root.SetVersionTemplate("phalanx {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return problem(node.CodeUsage, flagHint(c, err), "%w", settings.FlagError(err))
	})
	root.AddCommand(newRun(a), newDaemon(a), newStatus(a), newMembers(a), newDrain(a), newResize(a), newKey(a), newCkpt(a), newStore(a), newVersion(a))
	return root
}

// flagHint names the flag that was probably meant.
func flagHint(c *cobra.Command, err error) string {
	see := "see " + c.CommandPath() + " --help"
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return see
	}
	var known []string
	c.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
	if best := nearest.Name(name, known); best != "" {
		return fmt.Sprintf("did you mean --%s? %s", best, see)
	}
	return see
}
