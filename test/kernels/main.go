// Command kernels boots the kernels of the matrix under QEMU and checks, on each,
// that sbx does what it says: that it answers what expect.toml declares, that
// its report agrees with what the guest's init finds out by itself, and that
// the tests pass. docs/kernel-support.md has its table.
//
//	go run ./test/kernels --only 6.12,7.3
//
// It runs from the repository's root, needs neither KVM nor root, and changes
// nothing on the host but its cache.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// options are the command line.
type options struct {
	only     []string
	set      string
	shell    string
	list     bool
	parallel int
	limit    int
	jobs     string
	cache    string
	out      string
	json     string
	cases    string
	userland bool
	doc      string
	checkDoc string
	host     bool
	boots    bool // machines, and not just --host
}

func main() {
	endWithGoRun()
	// A reader that goes away (| head) is a failed write, not the end: there are
	// machines to stop and files to remove.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	err := newCommand().ExecuteContext(ctx)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "kernels: interrupted")
		os.Exit(130)
	case errors.Is(err, errFailed):
		os.Exit(1)
	case err != nil:
		complain(os.Stderr, err)
		os.Exit(2)
	}
}

// errFailed is the end of a run that has said itself what failed.
var errFailed = errors.New("failed")

func newCommand() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "kernels",
		Short: "Boot the kernels of the matrix and check what sbx says and does on each",
		Long: `Boot the kernels of the matrix under QEMU and check what sbx says and does on each.

Kernels are Debian's, fetched once and cached; one that cannot be had is skipped,
or a failure with SBX_MUST_RUN=1, as are skips of tests that nobody declared.

Exit status: 0 if nothing failed, 1 if something did, 2 if the tool could not
do its work.`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			o.boots = !o.host || c.Flags().Changed("only") || c.Flags().Changed("set")
			return o.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.only, "only", nil, "`machines` to boot, comma-separated: names, patterns ('6.12*') or series")
	f.StringVar(&o.set, "set", "all", "machines to boot: `all` (those of amd64), ci or arm64")
	f.StringVar(&o.shell, "shell", "", "boot one `machine` with a shell on this terminal, and run nothing")
	f.BoolVar(&o.list, "list", false, "list the machines")
	f.IntVar(&o.parallel, "parallel", 2, "`machines` at a time")
	f.IntVar(&o.limit, "limit", 600, "`seconds` that a machine may take")
	f.StringVar(&o.jobs, "jobs", "", "run only jobs whose names match `regexp`, as in features|run-read-only")
	f.StringVar(&o.cache, "cache", "", "`directory` of fetched kernels (default sandboxd-kernels in the user's cache)")
	f.StringVar(&o.out, "out", "", "`directory` for consoles, raw results and each job's output (default a temporary one, kept if something failed)")
	f.StringVar(&o.json, "json", "", "write all results to `file`")
	f.StringVar(&o.cases, "cases", "", "also run the shell cases of `directory` in the guests")
	f.BoolVar(&o.userland, "userland", false, "give the guests the host's bash, coreutils and python, or Debian's (--cases does)")
	f.StringVar(&o.doc, "doc", "", "write the table into `file`, between its marks")
	f.StringVar(&o.checkDoc, "check-doc", "", "fail if the table in `file` is not what was seen")
	f.BoolVar(&o.host, "host", false, "ask sbx under faked ABIs on this host; boot nothing, or what --only or --set names")
	for _, other := range []string{"only", "set", "host"} {
		c.MarkFlagsMutuallyExclusive("shell", "list", other)
	}
	c.MarkFlagsMutuallyExclusive("only", "set")
	return c
}

func (o *options) run(ctx context.Context) error {
	all, err := machines(machinesTOML)
	if err != nil {
		return err
	}
	e, err := parseExpectations(expectTOML, all)
	if err != nil {
		return err
	}
	if o.list {
		list(all)
		return nil
	}
	if err := o.check(); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "kernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	only := o.only
	if o.shell != "" {
		only = []string{o.shell}
	}
	picked, err := pick(all, o.set, only)
	if err != nil {
		return err
	}
	if err := o.canBoot(picked); err != nil {
		return err
	}
	if o.shell != "" {
		return o.runShell(ctx, work, picked[0])
	}
	return o.runAll(ctx, work, e, all, picked)
}

// check finds out early what would fail late.
func (o *options) check() error {
	if runtime.GOOS != "linux" {
		return withHint(errors.New("this runs on Linux only"), "it needs Debian's apt, and a Linux sandbox to compare with")
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil || !strings.HasPrefix(string(mod), "module sandboxd\n") {
		return withHint(errors.New("this is not the repository's root"), "run `go run ./test/kernels` there")
	}
	if o.parallel < 1 || o.limit < 1 {
		return errors.New("--parallel and --limit must be positive")
	}
	if !o.boots {
		return nil
	}
	o.userland = o.userland || o.cases != ""
	if o.cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return withHint(err, "--cache DIR says where kernels go")
		}
		o.cache = filepath.Join(base, "sandboxd-kernels")
	}
	o.cache, err = filepath.Abs(o.cache)
	return err
}

// canBoot finds out what the picked machines need and the host has not.
func (o *options) canBoot(picked []machine) error {
	if !o.boots {
		return nil
	}
	return missing(o.userland, picked)
}

func list(all []machine) {
	for _, m := range all {
		text := strings.Join(m.Series, " or ")
		if p := m.commandLine(); p != nil {
			text += ", " + strings.Join(p, " ")
		}
		if m.Fakes != nil {
			text += ", also as ABI " + strings.Join(m.Fakes, ", ")
		}
		if m.Arch != amd64 {
			text += ", " + m.Arch + ", in the set " + m.Arch + " only"
		}
		if m.CI {
			text += ", in the set ci"
		}
		fmt.Printf("%-18s %s\n", m.Name, text)
	}
}
