package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sandboxd/policy"
	"sandboxd/profiles"
	"sandboxd/report"
)

func newProfile(stdout, stderr io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use:   "profile",
		Short: "List, show, check, resolve and compare profiles",
		Long: `Profiles are TOML files that yield policy: the built-in presets for toolchains,
an administrator's in /etc/sbx/profiles, yours in $XDG_CONFIG_HOME/sbx/profiles
(~/.config/sbx/profiles). A project's own .sbx.toml can only tighten.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(profileList(stdout), profileShow(stdout), profileLint(stdout), profileResolve(stdout, stderr), profileDiff(stdout, stderr))
	return c
}

func places() profiles.Places { return profiles.PlacesFor(homeDir(), os.Environ()) }

func profileNames(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, e := range profiles.List(places()) {
		names = append(names, e.Name)
	}
	return names, cobra.ShellCompDirectiveDefault
}

func profileList(stdout io.Writer) *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use: "list", Short: "List the profiles that a name can reach", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			entries := profiles.List(places())
			if asJSON {
				return encode(stdout, entries)
			}
			w := tabwriter.NewWriter(stdout, 0, 4, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tORIGIN\tDESCRIPTION")
			for _, e := range entries {
				text := e.Description
				if e.Error != "" {
					text = "broken: " + e.Error
				}
				origin := e.Origin
				if e.Overrides {
					origin += " (overrides built in)"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\n", policy.Printable(e.Name), origin, policy.Printable(text))
			}
			return w.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func profileShow(stdout io.Writer) *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use: "show NAME|FILE", Short: "Show a profile's text and where it comes from", Args: cobra.ExactArgs(1), ValidArgsFunction: profileNames,
		RunE: func(_ *cobra.Command, args []string) error {
			doc, err := profiles.Show(places(), args[0])
			if err != nil {
				return asRefusal(err)
			}
			if asJSON {
				return encode(stdout, doc)
			}
			from := doc.Origin
			if doc.File != "" {
				from += ": " + doc.File
			}
			fmt.Fprintf(stdout, "# %s (%s)\n%s", policy.Printable(doc.Name), policy.Printable(from), doc.Text)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func profileLint(stdout io.Writer) *cobra.Command {
	asJSON := false
	c := &cobra.Command{
		Use: "lint NAME|FILE...", Short: "Check profiles; exit 1 if one has an error", Args: cobra.MinimumNArgs(1), ValidArgsFunction: profileNames,
		RunE: func(_ *cobra.Command, args []string) error {
			all := []profiles.Problem{}
			failed := false
			for _, name := range args {
				problems, err := profiles.Lint(profiles.LintContext{Places: places(), Home: homeDir(), HostEnv: os.Environ()}, name)
				if err != nil {
					return asRefusal(err)
				}
				for _, p := range problems {
					failed = failed || p.Severity == profiles.SeverityError
				}
				all = append(all, problems...)
			}
			if asJSON {
				if err := encode(stdout, all); err != nil {
					return err
				}
			} else {
				for _, p := range all {
					fmt.Fprintf(stdout, "%s: %s\n", p.Severity, p)
					if p.Hint != "" {
						fmt.Fprintf(stdout, "  hint: %s\n", policy.Printable(p.Hint))
					}
				}
			}
			if failed {
				return &exitError{status: 1}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func profileResolve(stdout, stderr io.Writer) *cobra.Command {
	f := &policyFlags{}
	asJSON := false
	c := &cobra.Command{
		Use: "resolve [NAME|FILE...]", Short: "Show the policy that the profiles yield here, with the flags of `sbx run`",
		ValidArgsFunction: profileNames,
		RunE: func(c *cobra.Command, args []string) error {
			if err := flagsFromEnvironment(c); err != nil {
				return err
			}
			f.profiles = append(f.profiles, args...)
			p, err := f.resolveTelling(stderr)
			if err != nil {
				return err
			}
			if asJSON {
				return encode(stdout, report.PolicyOf(p))
			}
			writePolicy(stdout, p)
			return nil
		},
	}
	f.register(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func profileDiff(stdout, stderr io.Writer) *cobra.Command {
	f := &policyFlags{}
	asJSON := false
	c := &cobra.Command{
		Use: "diff A B", Short: "Show what profile B grants or takes away against A, on this host",
		Long: "Resolve both profiles with the same flags and show the difference. The name \"-\" stands for no profile.",
		Args: cobra.ExactArgs(2), ValidArgsFunction: profileNames,
		RunE: func(c *cobra.Command, args []string) error {
			if err := flagsFromEnvironment(c); err != nil {
				return err
			}
			var specs [2]policy.Spec
			base := f.profiles
			for i, name := range args {
				f.profiles = append([]string{}, base...)
				if name != "-" {
					f.profiles = append(f.profiles, name)
				}
				p, err := f.resolveTelling(stderr)
				if err != nil {
					return err
				}
				specs[i] = p.Spec()
			}
			d := profiles.Diff(specs[0], specs[1])
			if asJSON {
				return encode(stdout, d)
			}
			fmt.Fprint(stdout, d.String())
			return nil
		},
	}
	f.register(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// resolveTelling resolves and prints the warnings.
func (f *policyFlags) resolveTelling(stderr io.Writer) (policy.Policy, error) {
	p, notices, err := f.resolve(policy.Limits{})
	for _, n := range notices {
		if n.Level == profiles.Warning {
			complain(stderr, "warning: "+n.Text, "")
		}
	}
	var exit *exitError
	if err != nil && !errors.As(err, &exit) {
		err = asRefusal(err)
	}
	return p, err
}
