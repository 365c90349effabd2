// Command sbx runs untrusted commands confined by the host's kernel and tells
// what was enforced.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"sandboxd/backend"
	"sandboxd/internal/cli"
	"sandboxd/internal/guard"
)

// version is set by the Makefile; a plain `go build` leaves it to the module's
// build information.
var version = ""

func main() {
	if isGuard() {
		os.Exit(guard.Main())
	}
	findKeeper()
	os.Exit(realMain(os.Args[1:], os.Stdout, os.Stderr))
}

// realMain is main without the process: it returns the exit status.
func realMain(args []string, stdout, stderr io.Writer) int {
	out := &output{w: stdout}
	root := newRoot(out, stderr, len(args) > 0 && args[0] == "run")
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil && out.err != nil {
		err = &exitError{1, fmt.Sprintf("writing the answer: %v", out.err), ""}
	}
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.line != "" {
			complain(stderr, exit.line, exit.hint)
		}
		return exit.status
	}
	complain(stderr, err.Error(), "see `sbx --help`")
	return backend.StatusRefused
}

// output remembers that an answer could not be written: a caller must not take
// half of one, or none, for success.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// exitError ends the program with a status, after one line and one hint.
type exitError struct {
	status int
	line   string
	hint   string
}

func (e *exitError) Error() string { return e.line }

// refuse is the error of everything that sbx refuses before it runs anything.
func refuse(hint, format string, args ...any) error {
	return &exitError{backend.StatusRefused, fmt.Sprintf(format, args...), hint}
}

func complain(w io.Writer, line, hint string) { cli.Complain(w, "sbx", line, hint) }

func printableLine(s string) string { return cli.Printable(s) }

// newRoot builds the commands. A launch, which is to be quick, needs but one.
func newRoot(stdout, stderr io.Writer, runOnly bool) *cobra.Command {
	root := &cobra.Command{
		Use:   "sbx",
		Short: "Run untrusted commands confined by the kernel, and tell what was enforced",
		Long: `sbx runs a command that you do not trust, confined by the best that this host
has, and tells the truth afterwards: what was enforced, effect by effect, how
the command ended, and what was denied.

  sbx run -- make test          confined to the current directory
  sbx features                  what this host can enforce, and why not more
  sbx doctor                    try it: canaries through the real launch path`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       versionString(),
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return refuse(fmt.Sprintf("see `%s --help`", c.CommandPath()), "%v", err)
	})
	root.AddCommand(newRun(stdout, stderr))
	if runOnly {
		root.CompletionOptions.DisableDefaultCmd = true
		return root
	}
	root.AddCommand(newFeatures(stdout), newDoctor(stdout), newProfile(stdout, stderr), newAudit(stdout, stderr), newCanary(stdout),
		newPs(stdout), newInspect(stdout), newKill(stdout), newLogs(stdout), newHealth(stdout))
	return root
}

func versionString() string { return cli.Version(version) }
