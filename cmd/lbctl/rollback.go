package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) rollbackCommand() *cobra.Command {
	var wait string
	var to, only int64
	request := &lbdv1.RollbackRequest{}
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "rollback --owner OWNER",
		Short: "Undo an owner's newest revisions, or one alone, as a new one",
		Long: `Undo an owner's newest revisions, as a new one: by default the newest, with --to all of the owner's after that one, with --only
that one alone, whatever came after it.

Where somebody else has changed one of the resources since, with --only where any later revision has, nothing is undone (exit
6), and what is in the way is named. "lbctl history --owner OWNER" lists what there is to go back to.`,
		Example: `  lbctl rollback --owner web --dry-run
  lbctl rollback --owner web --to 41 --wait -m "the new pool was slow"
  lbctl rollback --owner web --only 42 --dry-run`,
		Args: cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			if err := checkWait(&wait, request.ValidateOnly); err != nil {
				return err
			}
			if cmd.Flags().Changed("to") && cmd.Flags().Changed("only") {
				return fail(exitUsage, "--to undoes all after a revision, --only one revision: say one of them")
			}
			if cmd.Flags().Changed("to") {
				request.To = &to
			}
			if cmd.Flags().Changed("only") {
				request.Only = &only
			}
			request.RequestId = newRequestID()
			return c.call(func(cl *client) error { return c.rollback(ctx, cl, request, wait) })
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Owner, "owner", "", "whose revisions")
	flags.Int64Var(&to, "to", 0, "the revision to go back to, whosever it is, 0 for before the first (default: the one before the newest)")
	flags.Int64Var(&only, "only", 0, "the one revision to undo; those after it stay")
	flags.BoolVar(&request.ValidateOnly, "dry-run", false, "report what would change, change nothing")
	flags.BoolVar(&request.AllowOlderCertificates, "allow-older-certificates", false, "bring back certificates that have expired or are older than the stored ones, too")
	flags.StringVarP(&request.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	if err := cmd.MarkFlagRequired("owner"); err != nil {
		panic(err)
	}
	return cmd
}

func (c *cli) rollback(ctx context.Context, cl *client, request *lbdv1.RollbackRequest, wait string) error {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.RollbackResponse, error) { return cl.config.Rollback(ctx, request) })
	if vs := violations(err); len(vs) > 0 {
		if err := c.misused(vs, "message", "to", "only", "owner"); err != nil {
			return err
		}
		c.tellViolations(vs)
		return fail(codeOf(status.Code(err)), "%s", countOf(len(vs), "error"))
	}
	if err != nil {
		return withFlag(err)
	}
	applied := &lbdv1.ApplyResponse{Revision: answer.GetRevision(), Changes: answer.GetChanges(), Warnings: answer.GetWarnings()}
	return c.finish(ctx, cl, applied, request.GetValidateOnly(), wait)
}
