package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) showCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show revision/N",
		Short: "Show what a revision changed",
		Long: `Show what a revision changed, field by field, with who made it, when and why.

"lbctl rollback --owner OWNER --only N" undoes it alone, where nothing later has changed the same.`,
		Example: `  lbctl show revision/42`,
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			number, ok := parseRevision(args[0])
			if !ok {
				return fail(exitUsage, "want revision/N, as in revision/42, not %q", args[0])
			}
			return c.call(func(cl *client) error {
				answer, err := cl.config.GetRevision(ctx, &lbdv1.GetRevisionRequest{Number: number})
				if err != nil {
					return err
				}
				r := answer.GetRevision()
				c.printRevision(r)
				if c.format.name == "table" {
					c.say("to undo it alone: lbctl rollback --owner %s --only %d", oneLine(r.GetOwner()), r.GetNumber())
				}
				return nil
			})
		}),
	}
}

// parseRevision reads revision/N or revisions/N.
func parseRevision(arg string) (int64, bool) {
	word, ok := strings.CutPrefix(arg, "revision/")
	if !ok {
		word, ok = strings.CutPrefix(arg, "revisions/")
	}
	number, err := strconv.ParseInt(word, 10, 64)
	return number, ok && err == nil && number > 0
}

func (c *cli) printRevision(r *lbdv1.Revision) {
	c.print(result{
		value: document.OfAnswer(r),
		names: []string{fmt.Sprintf("revision/%d", r.GetNumber())},
		table: func(w *table) {
			w.row("REVISION", fmt.Sprint(r.GetNumber()))
			w.row("OWNER", r.GetOwner())
			w.row("AUTHOR", r.GetAuthor())
			w.row("TIME", moment(r.GetTime()))
			w.row("MESSAGE", r.GetMessage())
			w.row("CONTENT HASH", r.GetContentHash())
			w.flush()
			fmt.Fprintln(c.stdout)
			c.writeChanges(r.GetChanges())
		},
	})
}
