package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) historyCommand() *cobra.Command {
	var owner string
	var limit int
	cmd := &cobra.Command{
		Use:   "history",
		Short: "List revisions, newest first",
		Long: `List revisions, newest first, with what each changed and from whom it took something over.

"lbctl show revision/N" has the fields, "lbctl rollback --owner OWNER" undoes the owner's newest, with --to N all after N, with
--only N that one alone.`,
		Example: `  lbctl history --owner web --limit 10`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			if limit < 1 {
				return fail(exitUsage, "--limit must be at least 1")
			}
			return c.call(func(cl *client) error {
				revisions, err := revisions(ctx, cl, owner, limit)
				if err != nil {
					return err
				}
				c.printRevisions(revisions)
				if len(revisions) == 0 && owner != "" {
					c.say("owner `%s` has no revisions", oneLine(owner))
				}
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&owner, "owner", "", "only this owner's")
	cmd.Flags().IntVar(&limit, "limit", 50, "how many")
	return cmd
}

// revisions reads pages until there are limit revisions or no more.
func revisions(ctx context.Context, cl *client, owner string, limit int) ([]*lbdv1.Revision, error) {
	var all []*lbdv1.Revision
	request := &lbdv1.ListRevisionsRequest{Owner: owner}
	for {
		request.PageSize = int32(min(limit-len(all), pageSize))
		page, err := cl.config.ListRevisions(ctx, request)
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetRevisions()...)
		request.PageToken = page.GetNextPageToken()
		if request.PageToken == "" || len(all) >= limit {
			return all[:min(limit, len(all))], nil
		}
	}
}

func (c *cli) printRevisions(revisions []*lbdv1.Revision) {
	values := []*document.Value{}
	var names []string
	for _, r := range revisions {
		values = append(values, document.OfAnswer(r))
		names = append(names, fmt.Sprintf("revision/%d", r.GetNumber()))
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		w.wideRow([]string{"REVISION", "TIME", "OWNER", "AUTHOR", "CHANGES", "MESSAGE"}, "CONTENT HASH")
		for _, r := range revisions {
			w.wideRow([]string{
				fmt.Sprint(r.GetNumber()), moment(r.GetTime()), r.GetOwner(), r.GetAuthor(), list(changeWords(r.GetChanges())), r.GetMessage(),
			}, r.GetContentHash())
		}
	}})
}
