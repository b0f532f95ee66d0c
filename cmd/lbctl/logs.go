package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// logLevels are the words of the command line.
var logLevels = map[string]lbdv1.LogLevel{
	"debug": lbdv1.LogLevel_LOG_LEVEL_DEBUG,
	"info":  lbdv1.LogLevel_LOG_LEVEL_INFO,
	"warn":  lbdv1.LogLevel_LOG_LEVEL_WARN,
	"error": lbdv1.LogLevel_LOG_LEVEL_ERROR,
}

func (c *cli) logsCommand() *cobra.Command {
	level, node := "", ""
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Say how much a node's own log tells, or change it",
		Long: `Say how much the log of the answering node, or of another (--node), tells, or change it with --level, at once and without a restart. A restarted node
has the level of its --log-level again.

The log itself goes to the node's standard error, with systemd: journalctl -u lbd. The last lines are in "lbctl debug bundle", too.`,
		Example: `  lbctl logs --level debug`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			whose, err := oneNode(node)
			if err != nil {
				return err
			}
			request := &lbdv1.SetLogLevelRequest{Node: whose}
			if level != "" {
				known := false
				if request.Level, known = logLevels[level]; !known {
					return fail(exitUsage, "--level takes debug, info, warn or error, not %q", level)
				}
			}
			return c.call(func(cl *client) error {
				answer, err := cl.system.SetLogLevel(ctx, request)
				if err != nil {
					return c.complained(err)
				}
				c.printLevel(answer)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&level, "level", "", "debug, info, warn or error (default: only tell)")
	nodeFlag(cmd, &node)
	return cmd
}

func (c *cli) printLevel(answer *lbdv1.SetLogLevelResponse) {
	now, before := strings.ToLower(word(answer.GetLevel())), strings.ToLower(word(answer.GetBefore()))
	c.print(result{value: document.OfAnswer(answer), names: []string{now}, table: func(*table) {
		if now == before {
			fmt.Fprintf(c.stdout, "level %s\n", now)
		} else {
			fmt.Fprintf(c.stdout, "level %s, before %s\n", now, before)
		}
	}})
}
