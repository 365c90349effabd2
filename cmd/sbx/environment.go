package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// envPrefix begins the variables that stand for flags: SBX_MODE for --mode.
const envPrefix = "SBX_"

// notFromEnvironment are flags that only the command line may set, as they
// change what kind of answer a caller gets.
var notFromEnvironment = map[string]bool{"help": true, "json": true, "dry-run": true, "explain-selection": true}

// flagsFromEnvironment gives each flag that the command line does not set the
// value of its variable. What weakens is as loud as if it were typed. A flag
// that may be repeated gets one value this way.
func flagsFromEnvironment(c *cobra.Command) error {
	var failure error
	c.Flags().VisitAll(func(f *pflag.Flag) {
		name := envName(f.Name)
		value, set := os.LookupEnv(name)
		if !set || f.Changed || notFromEnvironment[f.Name] || failure != nil {
			return
		}
		if err := c.Flags().Set(f.Name, value); err != nil {
			failure = refuse("unset it, or give it a value that --"+f.Name+" takes", "variable %s: %v", name, err)
		}
	})
	return failure
}

func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}
