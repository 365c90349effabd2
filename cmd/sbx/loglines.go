package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"sandboxd/backend"
	"sandboxd/internal/cli"
	"sandboxd/protocol"
	"sandboxd/report"
)

// logLine is one line of `sbx logs`.
type logLine struct {
	At      int64                `json:"at_ms"`
	Kind    string               `json:"kind"`
	Info    *protocol.WorkerInfo `json:"info,omitempty"`
	Outcome json.RawMessage      `json:"outcome,omitempty"`
	Lost    int64                `json:"lost,omitempty"`
}

func (l logLine) key() string {
	if l.Info == nil {
		return ""
	}
	return l.Kind + " " + l.Info.Worker
}

func sortLines(lines []logLine) {
	slices.SortStableFunc(lines, func(a, b logLine) int { return cmp.Compare(a.At, b.At) })
}

// outcomeOf is the outcome in a report; nil if there is none.
func outcomeOf(text []byte) json.RawMessage {
	var r struct {
		Outcome json.RawMessage `json:"outcome"`
	}
	_ = json.Unmarshal(text, &r)
	return r.Outcome
}

func (f *daemonFlags) writeLine(w io.Writer, l logLine) error {
	if f.json {
		enc := json.NewEncoder(w) // a line each
		enc.SetEscapeHTML(false)
		return enc.Encode(l)
	}
	if l.Lost > 0 {
		fmt.Fprintf(w, "(%d events were lost)\n", l.Lost)
	}
	at := time.UnixMilli(l.At).Format("2006-01-02T15:04:05.000Z07:00")
	if l.Info == nil {
		_, err := fmt.Fprintf(w, "%s %s\n", at, cli.Printable(l.Kind))
		return err
	}
	what := cli.Printable(l.Info.Command)
	var outcome backend.Outcome
	switch {
	case l.Kind != protocol.EventWorkerEnded:
		what += fmt.Sprintf(" (%s, level %s)", cli.Printable(l.Info.Mode), orDash(l.Info.Level))
	case json.Unmarshal(l.Outcome, &outcome) == nil && outcome.Kind != "":
		what += ": " + cli.Printable(report.OutcomeText(outcome))
	}
	_, err := fmt.Fprintf(w, "%s %s %s %s\n", at, cli.Printable(l.Kind), cli.Printable(l.Info.Worker), what)
	return err
}
