// Command sandboxd launches confined workers for many clients over a Unix socket.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/daemon"
	"sandboxd/internal/cli"
)

// version is set by the Makefile; a plain `go build` leaves it to the module's build
// information.
var version = ""

func main() {
	switch os.Args[0] { // before anything else
	case daemon.FrontName: // it gives up its rights first
		os.Exit(front(os.Args[1:], os.Stderr))
	case daemon.GuardName:
		os.Exit(daemon.Guard())
	}
	os.Exit(realMain(os.Args[1:], os.Stdout, os.Stderr))
}

// The exit status. With statusRefused another start does not help: a unit's
// RestartPreventExitStatus= names it.
const (
	statusFailed  = 1
	statusRefused = 2
)

// problem ends the program with a status, after one line and one hint.
type problem struct {
	status     int
	line, hint string
}

func (p *problem) Error() string { return p.line }

// refuse is the error of what is wrong before anything is served.
func refuse(hint, format string, args ...any) error {
	return &problem{statusRefused, fmt.Sprintf(format, args...), hint}
}

func realMain(args []string, stdout, stderr io.Writer) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	var p *problem
	if !errors.As(err, &p) {
		p = &problem{statusRefused, err.Error(), "see `sandboxd --help`"}
	}
	cli.Complain(stderr, "sandboxd", p.line, p.hint)
	return p.status
}

// settings are the flags.
type settings struct {
	socket, group, config string
	system, verbose       bool
	drain                 cli.Duration
	logFile, logFormat    string
	logSize               cli.Size
	logKeep               int
	auditLog              string
	frontUser             string
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	s := settings{drain: cli.Duration(10 * time.Second), logSize: 16 << 20}
	c := &cobra.Command{
		Use:   "sandboxd",
		Short: "Launch confined workers for many clients over a Unix socket",
		Long: `sandboxd runs commands that its clients do not trust, confined as sbx does it, and
tells each client the truth afterwards. It consists of two processes: the monitor
launches, and the front, which has no rights, reads what clients send.

  sandboxd                              for this user alone
  sandboxd --system --group sandboxd    root's, for a group; each worker runs as the
                                        user who asks

SIGTERM and SIGINT take no more launches and wait for those under way (--drain); a
second one waits no more. SIGHUP reads --config again and opens the log file anew.
A socket that systemd hands over (LISTEN_FDS) is used as it is.

The exit status is 0 after a stop that was asked for, 2 if something is wrong that
another start does not mend, and 1 else.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       cli.Version(version),
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return serve(c.Context(), s, stderr) },
	}
	c.SetOut(stdout)
	c.SetErr(stderr)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return refuse("see `sandboxd --help`", "%v", err) })
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&s.socket, "socket", "", "listen at `PATH`, by default $XDG_RUNTIME_DIR/sandboxd/socket, or /run/sandboxd/socket with --system")
	f.BoolVar(&s.system, "system", false, "serve all members of --group, each with workers of their own user; needs root")
	f.StringVar(&s.group, "group", "", "the group, by `NAME` or number, that may use the socket of --system")
	f.StringVar(&s.config, "config", "", "read what users may have at most from this TOML `FILE` (docs/daemon.md)")
	f.Var(&s.drain, "drain", "how long workers may go on after SIGTERM, as `DURATION`")
	f.StringVar(&s.auditLog, "audit-log", "", "keep the audit log in `DIR` (docs/audit.md says which by default)")
	f.StringVar(&s.logFile, "log-file", "", "write the log to `FILE` instead of the standard error")
	f.Var(&s.logSize, "log-size", "begin a new log file at `SIZE`")
	f.IntVar(&s.logKeep, "log-keep", 4, "keep `N` full log files")
	f.StringVar(&s.logFormat, "log-format", "text", "`FORMAT` of the log: text or json")
	f.BoolVar(&s.verbose, "verbose", false, "log what helps to find faults, too")
	f.StringVar(&s.frontUser, "front-user", "", "as root, run the front as this `USER`; by default "+frontAccount+", or a number that is nobody's")
	_ = c.RegisterFlagCompletionFunc("log-format", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.MarkFlagFilename("config", "toml")
	c.AddCommand(newCheck(stdout))
	return c
}

// newCheck looks at a configuration without a daemon.
func newCheck(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "check-config FILE",
		Short: "Say what is wrong with a configuration, and whom its parts are for",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := readConfig(args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(stdout, "%s: %d users, %d groups, and everybody else\n", cli.Printable(args[0]), len(c.Users), len(c.Groups))
			return nil
		},
	}
}

// oneOf refuses a word that is none of the words.
func oneOf(flag, word string, words ...string) error {
	for _, w := range words {
		if w == word {
			return nil
		}
	}
	return refuse("choose one of "+strings.Join(words, ", "), "--%s %q is unknown", flag, word)
}
