package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
)

// timeoutDefault is how long a call may take, its retries and waiting included.
const timeoutDefault = 30 * time.Second

// cli is one command line under way.
type cli struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) (string, bool)

	// Global flags.
	endpoints []string
	context   string
	timeout   time.Duration
	output    string
	quiet     bool
	nodeLocal bool

	format   format
	problems problemReport
	// Why the answer has nothing at the path of -o jsonpath; nil: it has, or the path was not needed.
	misread *failure
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "lbctl",
		Short: "Change and read a cluster of lbd load balancers",
		Long: `lbctl changes and reads a cluster of lbd load balancers.

A document (or a folder of them) is the desired state of its owner; "apply" makes it so, as one revision.
Data goes to stdout, talk to stderr, and the answer is in the exit code ("lbctl help exit-codes").`,
		Example: `  lbctl init --backend 127.0.0.1:3000 | lbctl apply -f - --wait
  lbctl validate -f site/
  lbctl get pools -o yaml`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.prepare(cmd) },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	flags := root.PersistentFlags()
	flags.StringSliceVar(&c.endpoints, "endpoints", nil, "where nodes answer, tried in order: HOST:PORT or unix:PATH ($LBCTL_ENDPOINTS; default: the context's, else the local node's socket)")
	flags.StringVar(&c.context, "context", "", "which cluster is meant, of those that \"context set\" has named ($LBCTL_CONTEXT; default: the current one)")
	flags.DurationVar(&c.timeout, "timeout", timeoutDefault, "how long the call may take, retries and waiting included ($LBCTL_TIMEOUT)")
	flags.StringVarP(&c.output, "output", "o", "table", "table, wide, json, yaml, name, jsonl or jsonpath=PATH")
	flags.BoolVar(&c.nodeLocal, "node-local", false, "act on the node behind the socket alone, whether or not there is a leader; for the few verbs that say so")
	flags.BoolVarP(&c.quiet, "quiet", "q", false, "no progress on stderr, only warnings and errors")
	root.AddCommand(
		c.initCommand(),
		c.validateCommand(),
		c.fmtCommand(),
		c.explainCommand(),
		c.diffCommand(),
		c.applyCommand(),
		c.getCommand(),
		c.describeCommand(),
		c.editCommand(),
		c.deleteCommand(),
		c.watchCommand(),
		c.waitCommand(),
		c.exportCommand(),
		c.historyCommand(),
		c.showCommand(),
		c.rollbackCommand(),
		c.certCommand(),
		c.clusterCommand(),
		c.ticketKeysCommand(),
		c.nodeCommand(),
		c.backupCommand(),
		c.backendCommand(),
		c.overrideCommand(),
		c.routeCommand(),
		c.testCommand(),
		c.connectionsCommand(),
		c.eventsCommand(),
		c.metricsCommand(),
		c.doctorCommand(),
		c.profileCommand(),
		c.logsCommand(),
		c.debugCommand(),
		takesNodeLocal(c.statusCommand()),
		c.whoamiCommand(),
		c.tokenCommand(),
		c.contextCommand(),
		c.auditCommand(),
		c.versionCommand(),
		c.completionCommand(),
		exitCodesTopic(), connectionTopic(),
	)
	return root
}

// prepare reads what holds for every verb: flags over environment over defaults.
func (c *cli) prepare(cmd *cobra.Command) (err error) {
	if v, ok := c.getenv("LBCTL_TIMEOUT"); ok && v != "" && !cmd.Flags().Changed("timeout") {
		if c.timeout, err = time.ParseDuration(v); err != nil {
			return fmt.Errorf("read LBCTL_TIMEOUT: %w", err)
		}
	}
	if c.timeout <= 0 {
		return fmt.Errorf("the timeout must be longer than 0, not %s", c.timeout)
	}
	if err := c.checkNodeLocal(cmd); err != nil {
		return err
	}
	c.format, err = parseFormat(c.output, cmd.Annotations[moreFormats])
	return err
}

// does makes a verb of a function: its errors get an exit code, and its context the deadline. What cobra finds wrong
// before is a wrong command line.
func (c *cli) does(verb func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
		defer cancel()
		return c.judged(failed(verb(ctx, args)))
	}
}

// follows is does for a verb that ends when it is interrupted: it has a deadline only if the command line sets one.
func (c *cli) follows(verb func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		if cmd.Flags().Changed("timeout") {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.timeout)
			defer cancel()
		}
		return c.judged(failed(verb(ctx, args)))
	}
}

// judged is what a verb came to, once its answer has been printed: a path that no answer has is told instead of a bare "no".
func (c *cli) judged(err error) error {
	var f *failure
	if c.misread != nil && (err == nil || errors.As(err, &f) && f.err == nil) {
		return c.misread
	}
	return err
}

// documentsOnly is the Args of a verb that takes documents by -f.
func documentsOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("documents are named with -f: %s -f %s", cmd.CommandPath(), args[0])
	}
	return nil
}

// noun is a command that only holds verbs.
func noun(use, short string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// say talks to a person: nothing that a script would read.
func (c *cli) say(format string, args ...any) {
	if !c.quiet {
		fmt.Fprintf(c.stderr, format+"\n", args...)
	}
}
