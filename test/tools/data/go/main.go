// App greets, with a dependency from the module cache.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func greeting(name string) string { return "hello, " + name }

func main() {
	root := &cobra.Command{Use: "app"}
	var name string
	greet := &cobra.Command{Use: "greet", RunE: func(cmd *cobra.Command, _ []string) error {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s from %d\n", greeting(name), unix.Getpid())
		return err
	}}
	greet.Flags().StringVar(&name, "name", "", "whom to greet")
	root.AddCommand(greet)
	if err := root.Execute(); err != nil {
		os.Exit(1)
	}
}
