package main

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"sandboxd/internal/audit"
	"sandboxd/policy"
)

func init() { programs["mklog"] = mklog }

// mklog DIR FROM TO writes the launches of these numbers to an audit log, as the
// daemon does, and ends without closing it if there is one more argument.
func mklog() {
	if err := makeLog(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func makeLog(args []string) error {
	from, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	to, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	l, err := audit.Open(args[0], audit.Options{Program: "mklog", SegmentBytes: 4 << 10})
	if err != nil {
		return err
	}
	for i := from; i <= to; i++ {
		worker, uid, code := fmt.Sprintf("w%d", i), 1000+i%2, i
		if _, err := l.Request(audit.Request{Worker: worker, UID: uid, Argv: []policy.Raw{"make", "a\x1b[2Jb"}, Cwd: "/w", Mode: "read-only", EnvNames: []policy.Raw{"K=SECRET"}}); err != nil {
			return err
		}
		if _, err := l.Decision(audit.Decision{Worker: worker, UID: uid, Decision: audit.Allow, Source: "mode", Level: "partial", Effects: map[string]string{"fs.read": "enforced", "fs.metadata": "unenforced"}}); err != nil {
			return err
		}
		if _, err := l.End(audit.End{Worker: worker, UID: uid, Outcome: audit.Outcome{Kind: "exited", Code: &code}, ExitStatus: code}); err != nil {
			return err
		}
	}
	if len(args) > 3 {
		return nil
	}
	return l.Close()
}

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("X", 3600)
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, zone)
	for word, want := range map[string]time.Time{
		"2h":                   now.Add(-2 * time.Hour),
		"-2h":                  now.Add(-2 * time.Hour),
		"2026-01-02":           time.Date(2026, 1, 2, 0, 0, 0, 0, zone),
		"2026-01-02 03:04":     time.Date(2026, 1, 2, 3, 4, 0, 0, zone),
		"2026-01-02 03:04:05":  time.Date(2026, 1, 2, 3, 4, 5, 0, zone),
		"2026-01-02T03:04:05":  time.Date(2026, 1, 2, 3, 4, 5, 0, zone),
		"2026-01-02T03:04:05Z": time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	} {
		if got, err := parseTime(word, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %v, %v", word, got, err)
		}
	}
	for _, word := range []string{"yesterday", "7", "2026-13-01", ""} {
		if got, err := parseTime(word, now); err == nil {
			t.Errorf("%q is %v", word, got)
		}
	}
}
