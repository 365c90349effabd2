package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/client"
	"sandboxd/internal/cli"
	"sandboxd/protocol"
	"sandboxd/report"
)

// What --json prints: the protocol's answers (docs/protocol.md), without what belongs
// to a connection.
type (
	workerList struct {
		Workers []protocol.WorkerInfo `json:"workers"`
		More    int64                 `json:"more,omitempty"`
	}
	inspected struct {
		Info   protocol.WorkerInfo `json:"info"`
		Policy json.RawMessage     `json:"policy,omitempty"`
		Report json.RawMessage     `json:"report,omitempty"`
	}
	health struct {
		Status      string                 `json:"status"`
		Uptime      int64                  `json:"uptime_ms"`
		Workers     int64                  `json:"workers"`
		Connections int64                  `json:"connections"`
		Checks      []protocol.HealthCheck `json:"checks,omitempty"`
	}
)

// daemonFlags are what the commands that ask a daemon have in common.
type daemonFlags struct {
	socket string
	json   bool
	time   durationValue
}

func (f *daemonFlags) register(c *cobra.Command) {
	f.time = durationValue(answerTime)
	c.Flags().StringVar(&f.socket, "daemon", client.Auto, "the daemon's `SOCKET`, or auto for whichever there is")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
	c.Flags().Var(&f.time, "wait", "how long the daemon may take to answer, as `DURATION`")
}

// ask runs f with a connection to the daemon. All of it together is bounded by --wait,
// unless forever: then the connection and its hello are.
func (f *daemonFlags) ask(c *cobra.Command, forever bool, do func(ctx context.Context, c *client.Client) error) error {
	if err := flagsFromEnvironment(c); err != nil {
		return err
	}
	if err := noEmptyFlags(c); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Duration(f.time))
	defer cancel()
	conn, err := client.Dial(ctx, f.socket, "sbx", versionString())
	if err == nil {
		defer conn.Close()
		if forever {
			ctx = c.Context()
		}
		err = do(ctx, conn)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && !forever:
		return refuse("see the daemon's log; --wait DURATION waits longer", "the daemon has not answered within %v", time.Duration(f.time))
	}
	return daemonRefusal(err)
}

// completeWorkers offers the workers that run; all, also those that have ended.
func (f *daemonFlags) completeWorkers(all bool) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := client.Dial(ctx, f.socket, "sbx", versionString())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		list, err := conn.List(ctx, all)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var words []string
		for _, w := range list.Workers {
			words = append(words, w.Worker+"\t"+cli.Printable(w.Command))
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

func newPs(stdout io.Writer) *cobra.Command {
	f, all := &daemonFlags{}, false
	c := &cobra.Command{
		Use: "ps", Aliases: []string{"ls"}, Short: "List the commands that a daemon runs for you", Args: cobra.NoArgs,
		Long: `List the commands that a daemon runs for this user, the latest first. Exit status
0, also if there are none; 125 if the daemon cannot be asked.`,
	}
	f.register(c)
	c.Flags().BoolVarP(&all, "all", "a", false, "also those that have ended and are still remembered")
	c.RunE = func(c *cobra.Command, _ []string) error {
		return f.ask(c, false, func(ctx context.Context, conn *client.Client) error {
			list, err := conn.List(ctx, all)
			if err != nil {
				return err
			}
			if f.json {
				return encode(stdout, workerList{append([]protocol.WorkerInfo{}, list.Workers...), list.More})
			}
			w := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "WORKER\tSTATE\tPID\tMODE\tLEVEL\tAGE\tLABEL\tCOMMAND")
			for _, i := range list.Workers {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cli.Printable(i.Worker), cli.Printable(i.State), pidText(i.PID), cli.Printable(i.Mode),
					orDash(i.Level), ageOf(i, time.Now()), orDash(i.Label), cli.Printable(i.Command))
			}
			if err := w.Flush(); err != nil {
				return nil // output remembers it
			}
			if list.More > 0 {
				fmt.Fprintf(stdout, "and %d more\n", list.More)
			}
			return nil
		})
	}
	return c
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return cli.Printable(s)
}

func pidText(pid int64) string {
	if pid == 0 {
		return "-"
	}
	return fmt.Sprint(pid)
}

// ageOf is how long a worker runs, or ran.
func ageOf(i protocol.WorkerInfo, now time.Time) string {
	if i.Started == 0 {
		return "-"
	}
	end := now
	if i.Ended > 0 {
		end = time.UnixMilli(i.Ended)
	}
	return max(0, end.Sub(time.UnixMilli(i.Started))).Round(time.Second).String()
}

func newInspect(stdout io.Writer) *cobra.Command {
	f := &daemonFlags{}
	c := &cobra.Command{
		Use: "inspect WORKER", Short: "Tell all about a command of a daemon's: its policy, and its report when it has ended", Args: oneWorker,
		Long: `Tell what a daemon knows of a command of this user's: what it may do, and its
report when it has ended. Exit status 0; 125 if there is no such worker or the
daemon cannot be asked.`,
		ValidArgsFunction: f.completeWorkers(true),
	}
	f.register(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return f.ask(c, false, func(ctx context.Context, conn *client.Client) error {
			r, err := conn.Inspect(ctx, args[0])
			if err != nil {
				return err
			}
			if f.json {
				return encode(stdout, inspected{r.Info, json.RawMessage(r.Policy), json.RawMessage(r.Report)})
			}
			return writeInspect(stdout, r)
		})
	}
	return c
}

// oneWorker is cobra.ExactArgs with a line that helps.
func oneWorker(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return refuse("sbx ps lists them", "name one worker")
	}
	return nil
}

func writeInspect(w io.Writer, r *protocol.InspectResult) error {
	i := r.Info
	fmt.Fprintf(w, "worker   %s\nstate    %s\ncommand  %s\npid      %s\nuser     %d\nage      %s\nmode     %s\nnetwork  %s\nbackend  %s\nlevel    %s\n",
		cli.Printable(i.Worker), cli.Printable(i.State), cli.Printable(i.Command), pidText(i.PID), i.UID, ageOf(i, time.Now()), cli.Printable(i.Mode),
		cli.Printable(i.Net), orDash(i.Backend), orDash(i.Level))
	if i.Label != "" {
		fmt.Fprintf(w, "label    %s\n", cli.Printable(i.Label))
	}
	if i.Kept {
		fmt.Fprintln(w, "kept     it lives on when its client ends")
	}
	if len(r.Policy) > 0 {
		p := report.Policy{}
		if err := json.Unmarshal(r.Policy, &p); err != nil {
			return refuse("is the daemon of another version? see --json", "reading the policy: %v", err)
		}
		fmt.Fprintln(w, "\ngrants (r read, w write, x execute, i device ioctls)")
		for _, g := range p.Grants {
			fmt.Fprintf(w, "  %-4s %-44s %s (%s)\n", g.Access, g.Path, cli.Printable(g.Reason), cli.Printable(g.Source))
		}
		for _, d := range p.Deny {
			fmt.Fprintf(w, "  deny %s\n", cli.Printable(string(d)))
		}
		for _, weak := range p.Weakened {
			fmt.Fprintf(w, "weakened by %s: %s\n", cli.Printable(weak.Flag), cli.Printable(weak.Meaning))
		}
	}
	if len(r.Report) > 0 {
		rep := &report.Report{}
		if err := json.Unmarshal(r.Report, rep); err != nil {
			return refuse("is the daemon of another version? see --json", "reading the report: %v", err)
		}
		fmt.Fprintln(w)
		rep.WriteText(w)
	}
	return nil
}

func newKill(stdout io.Writer) *cobra.Command {
	f := &daemonFlags{}
	var grace durationValue
	sig := ""
	c := &cobra.Command{
		Use: "kill WORKER...", Short: "End commands of a daemon's, or send them a signal",
		Long: `End commands that a daemon runs for this user: SIGTERM to the whole tree, and
SIGKILL when the grace of its launch, or --grace, is over. With --signal the
command alone gets that signal, and no more. Exit status 0 if that was set going
for each of them; 125 if not.`,
		Example:           "  sbx kill --grace 0 0123456789abcdef0123456789abcdef\n  sbx kill --signal HUP 0123456789abcdef0123456789abcdef",
		ValidArgsFunction: f.completeWorkers(false),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return refuse("sbx ps lists them", "name the workers")
			}
			return nil
		},
	}
	f.register(c)
	c.Flags().Var(&grace, "grace", "how long they may take to end, as `DURATION`; 0 kills at once (default that of the launch)")
	c.Flags().StringVarP(&sig, "signal", "s", "", "send this signal only, by `NAME`: HUP, INT, TERM, KILL, USR1, STOP, ...")
	c.MarkFlagsMutuallyExclusive("grace", "signal")
	c.RunE = func(c *cobra.Command, args []string) error {
		name := strings.ToUpper(sig)
		if name != "" && !strings.HasPrefix(name, "SIG") {
			name = "SIG" + name
		}
		after := time.Duration(-1)
		if c.Flags().Changed("grace") {
			after = time.Duration(grace)
		}
		return f.ask(c, false, func(ctx context.Context, conn *client.Client) (failed error) {
			for _, worker := range args {
				var err error
				if name != "" {
					err = conn.SignalWorker(ctx, worker, name)
				} else {
					err = conn.CancelWorker(ctx, worker, after)
				}
				if err != nil && failed != nil {
					complain(c.ErrOrStderr(), failed.Error(), "")
				}
				if err != nil {
					failed = err
				} else if f.json {
					_ = encode(stdout, map[string]string{"worker": worker})
				}
			}
			return failed
		})
	}
	return c
}

func newHealth(stdout io.Writer) *cobra.Command {
	f := &daemonFlags{}
	c := &cobra.Command{
		Use: "health", Short: "Ask a daemon how it is", Args: cobra.NoArgs,
		Long: `Ask a daemon how it is. Exit status 0: all is well. 1: something is wrong, or the
daemon is stopping; the lines tell. 125: it cannot be asked, or does not answer.`,
	}
	f.register(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var h *protocol.HealthResult
		err := f.ask(c, false, func(ctx context.Context, conn *client.Client) error {
			begin := time.Now()
			var err error
			if h, err = conn.Health(ctx); err != nil {
				return err
			}
			if f.json {
				return encode(stdout, health{h.Status, h.Uptime, h.Workers, h.Connections, h.Checks})
			}
			d := conn.Hello()
			fmt.Fprintf(stdout, "%s: %s %s at %s, mode %s, up %s; %d workers and %d connections of yours; answered in %v\n", cli.Printable(h.Status),
				cli.Printable(d.Daemon.Name), cli.Printable(d.Daemon.Version), cli.Printable(conn.Socket()), cli.Printable(d.Mode),
				(time.Duration(h.Uptime) * time.Millisecond).Round(time.Second), h.Workers, h.Connections, time.Since(begin).Round(10*time.Microsecond))
			for _, check := range h.Checks {
				word := "ok"
				if !check.OK {
					word = "FAILED"
				}
				fmt.Fprintf(stdout, "  %-7s %s", word, cli.Printable(check.Name))
				if check.Message != "" {
					fmt.Fprintf(stdout, ": %s", cli.Printable(check.Message))
				}
				fmt.Fprintln(stdout)
				if check.Hint != "" {
					fmt.Fprintf(stdout, "          hint: %s\n", cli.Printable(check.Hint))
				}
			}
			return nil
		})
		if err == nil && h.Status != "ok" {
			return &exitError{status: 1}
		}
		return err
	}
	return c
}

func newLogs(stdout io.Writer) *cobra.Command {
	f, follow := &daemonFlags{}, false
	c := &cobra.Command{
		Use: "logs [WORKER]", Short: "Show when commands of a daemon's began and how they ended",
		Long: `Show, in the order of time, when the commands that a daemon ran for this user began
and how they ended, as far as it remembers them; with --follow also what happens
from now on, until Ctrl-C. A daemon keeps nothing of what commands write: that goes
to whoever launched them. For all that was ever asked for and decided, see
"sbx audit show". Exit status 0; 125 if the daemon cannot be asked, or goes away.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: f.completeWorkers(true),
	}
	f.register(c)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now on")
	c.RunE = func(c *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		c.SetContext(ctx)
		worker := ""
		if len(args) > 0 {
			worker = args[0]
		}
		err := f.ask(c, follow, func(ctx context.Context, conn *client.Client) error {
			return f.showLogs(ctx, conn, stdout, worker, follow)
		})
		if follow && ctx.Err() != nil {
			return nil // Ctrl-C is how it ends
		}
		return err
	}
	return c
}

func (f *daemonFlags) showLogs(ctx context.Context, conn *client.Client, stdout io.Writer, worker string, follow bool) error {
	var events *client.Subscription
	var err error
	if follow { // before the list, or what happens between would be missed
		if events, err = conn.Subscribe(ctx, protocol.EventWorkerStarted, protocol.EventWorkerEnded, protocol.EventStopping); err != nil {
			return err
		}
	}
	list, err := conn.List(ctx, true)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	var lines []logLine
	for _, i := range list.Workers {
		if worker != "" && i.Worker != worker {
			continue
		}
		if i.Started > 0 {
			lines = append(lines, logLine{At: i.Started, Kind: protocol.EventWorkerStarted, Info: &i})
		}
		if i.Ended > 0 {
			l := logLine{At: i.Ended, Kind: protocol.EventWorkerEnded, Info: &i}
			if r, err := conn.Inspect(ctx, i.Worker); err == nil { // else it was forgotten meanwhile
				l.Outcome = outcomeOf(r.Report)
			}
			lines = append(lines, l)
		}
	}
	if worker != "" && len(lines) == 0 && !follow {
		return protocol.Errorf(protocol.NotFound, "there is no worker %s, or it has not started", cli.Printable(worker))
	}
	sortLines(lines)
	for _, l := range lines {
		seen[l.key()] = true
		if err := f.writeLine(stdout, l); err != nil {
			return nil // output remembers it
		}
	}
	for follow {
		e, err := events.Next(ctx)
		if err != nil {
			return err
		}
		l := logLine{At: e.At, Kind: e.Kind, Info: e.Info, Outcome: json.RawMessage(e.Outcome), Lost: e.Lost}
		if seen[l.key()] || worker != "" && (e.Info == nil || e.Info.Worker != worker) {
			continue
		}
		if err := f.writeLine(stdout, l); err != nil {
			return nil
		}
	}
	return nil
}
