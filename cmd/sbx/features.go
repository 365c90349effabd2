package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sandboxd/backend"
	"sandboxd/internal/canary"
	"sandboxd/internal/features"
	"sandboxd/policy"
	"sandboxd/profiles"
	"sandboxd/report"
)

func newFeatures(stdout io.Writer) *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "features",
		Short: "Say what this host can enforce, effect by effect, and why not otherwise",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, err := chooseBackends("auto", true)
			if err != nil {
				return err
			}
			f := features.Of(versionString(), all)
			if asJSON {
				return encode(stdout, f)
			}
			writeFeatures(stdout, f)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func writeFeatures(w io.Writer, f features.Report) {
	fmt.Fprintf(w, "%s/%s %s, uid %d\n", f.OS, f.Arch, f.Kernel, f.UID)
	for _, b := range f.Backends {
		if !b.Usable {
			fmt.Fprintf(w, "\n%s: not usable: %s\n  fix: %s\n", b.Backend, b.Reason, b.Fix)
			continue
		}
		fmt.Fprintf(w, "\n%s: usable\n", b.Backend)
		if facts, err := json.Marshal(b.Facts); err == nil {
			fmt.Fprintf(w, "  facts: %s\n", facts)
		}
		fmt.Fprintf(w, "  what `sbx run --mode workspace-write --net none` gets:\n")
		report.WriteEffects(w, b.Effects)
	}
	fmt.Fprintf(w, "\nwhat `sbx run` with these two words and --backend auto takes:\n")
	writeSelection(w, f.Selection)
}

func newDoctor(stdout io.Writer) *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Try on this host what a sandbox must refuse and must allow, through the real launch path",
		Long: `Launch workers that try to write, read, truncate, connect and send where they
must not, and that do what they must be able to do. Each refused attempt is
also made outside the sandbox, where it must succeed. The exit status is 1 if
the enforcement report would have told a lie on this host, or if there is no
backend to try.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return doctor(stdout, asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func doctor(w io.Writer, asJSON bool) error {
	resolve := func(workspace string) (policy.Spec, error) {
		spec, _, err := profiles.Resolve(profiles.Request{
			Mode: policy.WorkspaceWrite, Net: policy.NetNone, Workspace: workspace, Cwd: workspace, Dir: workspace, Cache: profiles.CachePrivate,
			HostEnv: os.Environ(), UID: os.Geteuid(), GID: os.Getegid(), Home: homeDir(), NoProjectProfile: true,
		})
		return spec, err
	}
	results := []canary.Result{}
	unusable := []backend.Capability{}
	tried, ok := false, true
	for _, k := range known {
		b := k.make(true)
		c := b.Probe()
		if !c.Usable {
			unusable = append(unusable, c)
			if !asJSON {
				fmt.Fprintf(w, "%s: not usable: %s\n  fix: %s\n", b.Name(), c.Reason, c.Fix)
			}
			continue
		}
		tried = true
		res, err := canary.Run(b, resolve)
		if err != nil {
			return &exitError{1, fmt.Sprintf("trying %s: %v", b.Name(), err), "run it outside of any sandbox: its listeners and planted files must work"}
		}
		ok = ok && res.OK()
		results = append(results, res)
		if !asJSON {
			writeChecks(w, res)
		}
	}
	if asJSON {
		if err := encode(w, map[string]any{"schema": report.SchemaVersion, "ok": ok && tried, "backends": results, "unusable": unusable}); err != nil {
			return err
		}
	}
	switch {
	case !tried:
		return &exitError{1, "no backend can confine a command on this host", unusableFix(unusable)}
	case !ok:
		return &exitError{1, "this host does not hold what the report would claim", "do not rely on sbx here; please report this output"}
	}
	return nil
}

func unusableFix(list []backend.Capability) string {
	var fixes []string
	for _, c := range list {
		fixes = append(fixes, c.Backend+": "+c.Fix)
	}
	return strings.Join(fixes, "; ")
}

func writeChecks(w io.Writer, res canary.Result) {
	fmt.Fprintf(w, "%s (level %s)\n", res.Backend, res.Level)
	for _, c := range res.Checks {
		mark := "ok  "
		if !c.OK {
			mark = "FAIL"
		}
		fmt.Fprintf(w, "  %s %-40s %s", mark, c.Name, c.Got)
		if c.Detail != "" && (!c.OK || c.Got == "not claimed") {
			fmt.Fprintf(w, " (%s)", policy.Printable(c.Detail))
		}
		if c.Note != "" {
			fmt.Fprintf(w, " (%s)", c.Note)
		}
		fmt.Fprintln(w)
	}
}

func newCanary(stdout io.Writer) *cobra.Command {
	return &cobra.Command{
		Use: canary.Command, Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error { return canary.Attempt(args[0], args[1], stdout) },
	}
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
