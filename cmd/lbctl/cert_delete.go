package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) certDelete() *cobra.Command {
	var wait string
	var purge, yes bool
	header := &lbdv1.ApplyHeader{}
	cmd := &cobra.Command{
		Use:   "delete NAME…",
		Short: "Delete certificates, as one revision",
		Long: `Delete certificates of one owner, as one revision. What others refer to is not deleted (exit 3). "rollback" brings it back, with
its key.

With --purge all keys that it has and had go with it: from the history, from log, snapshots and databases of every node. Nobody can
roll back to them then. Where the certificate is to stay, after "cert rotate", "cert purge" is what you want. On a terminal it asks
first; elsewhere --yes is needed. To look first, call it with --dry-run and without --purge. One certificate is purged at a time;
one that is deleted already can be purged as long as the history knows it. Backups, and copies of the data directory that somebody
made, keep the key, sealed. So do other certificates that have the same key.`,
		Example: `  lbctl cert delete old --wait
  lbctl cert delete gone --purge --yes -m "the shop is closed"`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			if err := checkWait(&wait, header.ValidateOnly); err != nil {
				return err
			}
			header.RequestId = newRequestID()
			if purge {
				if len(args) > 1 || header.ValidateOnly {
					return fail(exitUsage, "--purge takes one NAME, and no --dry-run: without --purge that shows what would be deleted")
				}
				name := withoutKind(state.Certificates, args[0])
				if !yes {
					if err := c.confirm("Delete certificates/" + name + " and all keys that it has and had, with no way back?"); err != nil {
						return err
					}
				}
				return c.call(func(cl *client) error { return c.purge(ctx, cl, name, header, wait) })
			}
			var keys []state.Key
			for _, name := range args {
				keys = append(keys, state.Key{Kind: state.Certificates, Name: name})
			}
			return c.call(func(cl *client) error { return c.delete(ctx, cl, keys, header, wait) })
		}),
	}
	cmd.Flags().BoolVar(&header.ValidateOnly, "dry-run", false, "report what would change, change nothing")
	cmd.Flags().BoolVar(&purge, "purge", false, "delete it, and remove all its keys from the history and from the disks, for good")
	cmd.Flags().BoolVar(&yes, "yes", false, "with --purge: do not ask")
	cmd.Flags().StringVarP(&header.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	return cmd
}

func (c *cli) purge(ctx context.Context, cl *client, name string, header *lbdv1.ApplyHeader, wait string) error {
	request := &lbdv1.DeleteRequest{Name: name, Purge: true, RequestId: header.GetRequestId(), Message: header.GetMessage()}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.DeleteResponse, error) { return cl.certificate.Delete(ctx, request) })
	if vs := violations(err); len(vs) > 0 {
		if err := c.misused(vs, "message"); err != nil {
			return err
		}
		c.tellViolations(vs)
		return fail(codeOf(status.Code(err)), "nothing was deleted")
	}
	if err != nil {
		return err
	}
	c.tellViolations(answer.GetWarnings())
	c.print(result{value: document.OfAnswer(answer), names: []string{"certificates/" + name}, table: func(*table) {
		fmt.Fprintf(c.stdout, "revision %d: certificates/%s purged, %s removed from the history\n",
			answer.GetRevision(), name, countOf(int(answer.GetPurged()), "key"))
	}})
	if wait == "" {
		return nil
	}
	return c.wait(ctx, cl, answer.GetRevision(), wait)
}
