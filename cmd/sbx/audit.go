package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sandboxd/internal/audit"
	"sandboxd/policy"
)

func newAudit(stdout, stderr io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Check and read the log of who asked for what, and what was decided",
		Long: `The daemon appends every request, decision and end to an audit log, each record
with the hash of the one before it. These commands read it; they change nothing.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(auditVerify(stdout), auditShow(stdout, stderr), auditHead(stdout, stderr))
	return c
}

// auditDir registers --dir and returns what it, or the default, says.
func auditDir(c *cobra.Command) func() (string, error) {
	dir := ""
	c.Flags().StringVar(&dir, "dir", "", "the log's `DIR`; default: that of this user's daemon")
	_ = c.MarkFlagDirname("dir") // fails only for an unknown flag name
	return func() (string, error) {
		if err := noEmptyFlags(c); err != nil || dir != "" {
			return dir, err
		}
		dir, err := audit.DefaultDir()
		return dir, auditRefusal(err)
	}
}

// auditRefusal gives an error of the log sbx's form.
func auditRefusal(err error) error {
	var e *audit.Error
	if errors.As(err, &e) {
		return refuse(e.Hint, "%v", e)
	}
	if err != nil {
		return refuse("see `sbx audit --help`", "%v", err)
	}
	return nil
}

func auditVerify(stdout io.Writer) *cobra.Command {
	asJSON := false
	var expect []string
	c := &cobra.Command{
		Use: "verify", Short: "Check the whole chain; exit 1 if it is broken", Args: cobra.NoArgs,
		Long: `Read the whole log and check its chain. Exit status 0: it is whole. 1: it is
broken, and the lines tell where. 125: it cannot be read.

A chain alone does not prove that its end is there, nor that nobody wrote a new
one: compare it with what "sbx audit head" printed earlier, by --expect.`,
	}
	dir := auditDir(c)
	c.Flags().StringArrayVar(&expect, "expect", nil, "a record as it was, `SEQ:HASH`, from sbx audit head; repeatable")
	_ = c.RegisterFlagCompletionFunc("expect", cobra.NoFileCompletions)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(*cobra.Command, []string) error {
		path, err := dir()
		if err != nil {
			return err
		}
		var o audit.VerifyOptions
		for _, word := range expect {
			s, err := audit.ParseStamp(word)
			if err != nil {
				return refuse("take it from `sbx audit head`", "--expect %q: %v", word, err)
			}
			o.Expect = append(o.Expect, s)
		}
		res, err := audit.Verify(path, o)
		if err != nil {
			return auditRefusal(err)
		}
		if asJSON {
			if err := encode(stdout, res); err != nil {
				return err
			}
		} else {
			writeVerified(stdout, res)
		}
		if !res.Whole {
			return &exitError{status: 1}
		}
		return nil
	}
	return c
}

func writeVerified(w io.Writer, res audit.Result) {
	for _, p := range res.Problems {
		fmt.Fprintf(w, "broken: %s\n", printableLine(p.String()))
	}
	if res.ProblemsLost > 0 {
		fmt.Fprintf(w, "broken: %d more\n", res.ProblemsLost)
	}
	for _, n := range res.Notes {
		fmt.Fprintf(w, "note: %s\n", printableLine(n.String()))
	}
	if res.NotesLost > 0 {
		fmt.Fprintf(w, "note: %d more\n", res.NotesLost)
	}
	word := "whole"
	if !res.Whole {
		word = "broken"
	}
	fmt.Fprintf(w, "%s: %d records in %d segments, %d to %d\n", word, res.Records, res.Segments, res.First.Seq, res.Head.Seq)
	if res.Pruned {
		fmt.Fprintf(w, "the records before %d were pruned\n", res.First.Seq)
	}
	if res.Head.Seq > 0 {
		fmt.Fprintf(w, "head %s\n", res.Head)
	}
}

func auditHead(stdout, stderr io.Writer) *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use: "head", Short: "Print the newest record's number and hash, to be kept elsewhere", Args: cobra.NoArgs,
		Long: `Print SEQ:HASH of the newest record, after a check of the whole chain. Kept where
the log's writer cannot write, it lets "sbx audit verify --expect" prove that no
record up to it was changed or cut off. Exit status as of verify.`,
	}
	dir := auditDir(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(*cobra.Command, []string) error {
		path, err := dir()
		if err != nil {
			return err
		}
		res, err := audit.Verify(path, audit.VerifyOptions{})
		if err != nil {
			return auditRefusal(err)
		}
		if !res.Whole {
			// A broken log has no head to be relied on.
			return auditBroken(stderr, res)
		}
		if asJSON {
			return encode(stdout, res.Head)
		}
		fmt.Fprintln(stdout, res.Head)
		return nil
	}
	return c
}

// auditBroken tells of the problems and ends with status 1.
func auditBroken(stderr io.Writer, res audit.Result) error {
	for _, p := range res.Problems {
		complain(stderr, p.String(), "")
	}
	return &exitError{1, fmt.Sprintf("the audit log is broken: %d problems", len(res.Problems)+res.ProblemsLost), "see `sbx audit verify`"}
}

// showFlags are the flags of sbx audit show.
type showFlags struct {
	since, until, kind, worker string
	uid, lines                 int
	follow, json               bool

	from, to time.Time
}

func auditShow(stdout, stderr io.Writer) *cobra.Command {
	f := &showFlags{}
	c := &cobra.Command{
		Use: "show", Short: "Show records, the oldest first", Args: cobra.NoArgs,
		Long: `Show the records that all the given flags match, the oldest first. A time is a
date (2026-01-31), a date and time ("2026-01-31 15:04:05", or RFC 3339 with a zone)
or a duration before now (2h). Exit status 1 if the chain is broken.`,
	}
	dir := auditDir(c)
	fs := c.Flags()
	fs.StringVar(&f.since, "since", "", "records from `TIME` on")
	fs.StringVar(&f.until, "until", "", "records before `TIME`")
	fs.StringVar(&f.kind, "kind", "", "records of `KIND`: "+strings.Join(audit.Kinds(), ", ")+", or another")
	fs.StringVar(&f.worker, "worker", "", "records of the launch `ID`")
	fs.IntVar(&f.uid, "uid", -1, "records of the user `N`")
	fs.IntVarP(&f.lines, "lines", "n", 0, "the last `N` of them; 0 is all")
	fs.BoolVarP(&f.follow, "follow", "f", false, "go on with what is appended, until interrupted")
	fs.BoolVar(&f.json, "json", false, "print the records as they are in the log, a JSON object a line")
	for flag, words := range map[string][]string{"since": nil, "until": nil, "worker": nil, "uid": nil, "lines": nil, "kind": audit.Kinds()} {
		_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
	c.RunE = func(*cobra.Command, []string) error {
		path, err := dir()
		if err != nil {
			return err
		}
		if err := f.check(c, time.Now()); err != nil {
			return err
		}
		return f.show(path, stdout, stderr)
	}
	return c
}

func (f *showFlags) check(c *cobra.Command, now time.Time) (err error) {
	for _, t := range []struct {
		flag, word string
		to         *time.Time
	}{{"since", f.since, &f.from}, {"until", f.until, &f.to}} {
		if t.word == "" {
			continue
		}
		if *t.to, err = parseTime(t.word, now); err != nil {
			return refuse("give a date, a date and time, or a duration such as 2h", "--%s %q: %v", t.flag, t.word, err)
		}
	}
	if c.Flags().Changed("uid") && f.uid < 0 {
		return refuse("give the number of a user", "--uid %d is no user", f.uid)
	}
	if f.lines < 0 {
		return refuse("give a number of records", "--lines %d is no number of records", f.lines)
	}
	return nil
}

// parseTime reads a time, in this host's zone unless it names one.
func parseTime(s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d.Abs()), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	for _, layout := range []string{time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New("it is no time")
}

func (f *showFlags) match(e audit.Entry) bool {
	if f.kind != "" && e.Kind != f.kind || !f.from.IsZero() && e.Time.Before(f.from) || !f.to.IsZero() && !e.Time.Before(f.to) {
		return false
	}
	if f.worker == "" && f.uid < 0 {
		return true
	}
	worker, uid := e.Subject()
	return (f.worker == "" || worker == f.worker) && (f.uid < 0 || uid != nil && *uid == f.uid)
}

// show reads the log once to count, if only the last records are wanted, and
// once to print: what it keeps does not depend on what the log holds.
func (f *showFlags) show(path string, stdout, stderr io.Writer) error {
	skip := 0
	if f.lines > 0 {
		err := readLog(path, func(e audit.Entry) error {
			if f.match(e) {
				skip++
			}
			return nil
		})
		if err != nil {
			return auditRefusal(err)
		}
		skip = max(skip-f.lines, 0)
	}
	r, err := audit.NewReader(path)
	if err != nil {
		return auditRefusal(err)
	}
	defer r.Close()
	var failed error
	each := func(e audit.Entry) error {
		if !f.match(e) {
			return nil
		}
		if skip > 0 {
			skip--
			return nil
		}
		if f.json {
			_, failed = fmt.Fprintf(stdout, "%s\n", e.Raw)
		} else {
			_, failed = fmt.Fprintf(stdout, "%d %s %s %s\n", e.Seq, e.Time.Local().Format(time.RFC3339), policy.Printable(e.Kind), e.Text())
		}
		return failed
	}
	err = r.Read(each)
	if err == nil && f.follow {
		err = followLog(r, each)
	}
	if failed != nil {
		return nil // it is told as every answer that cannot be written
	}
	if err != nil {
		return auditRefusal(err)
	}
	if res := r.Result(); !res.Whole {
		return auditBroken(stderr, res)
	}
	return nil
}

func readLog(path string, each func(audit.Entry) error) error {
	r, err := audit.NewReader(path)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Read(each)
}

// followEvery is how often a followed log is looked at.
const followEvery = 250 * time.Millisecond

// followLog reads on until this process is told to end.
func followLog(r *audit.Reader, each func(audit.Entry) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followEvery):
		}
		if err := r.Read(each); err != nil {
			return err
		}
	}
}
