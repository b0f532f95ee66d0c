// Command lbd is one node of a TLS-terminating load balancer.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run is main with an exit code: 0 ended as asked, 1 could not start or failed, or a check has found something, 2 used wrongly.
func run(args []string) int {
	root := command()
	root.SetArgs(args)
	err := root.Execute()
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFound):
		return 1
	case errors.As(err, &usage):
		for line := range strings.Lines(err.Error()) {
			fmt.Fprintf(os.Stderr, "lbd: %s\n", strings.TrimSuffix(line, "\n"))
		}
		fmt.Fprintf(os.Stderr, "see `%s --help`\n", usage.command)
		return 2
	default:
		fmt.Fprintf(os.Stderr, "lbd: %v\n", err)
		return 1
	}
}

// usageError is a mistake in the command line.
type usageError struct {
	command string
	err     error
}

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "lbd",
		Short:         "a TLS-terminating load balancer, one node of it",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.Args = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{c.CommandPath(), fmt.Errorf("unknown command %q", args[0])}
		}
		return nil
	}
	root.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{c.CommandPath(), err} })
	root.AddCommand(runCommand(), joinCommand(), checkCommand(), versionCommand())
	return root
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{c.CommandPath(), fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b := readBuild()
			_, err := fmt.Fprintf(c.OutOrStdout(), "lbd %s %s %s %s\n", b.version, b.commit, b.goVersion, b.platform)
			return err
		},
	}
}
