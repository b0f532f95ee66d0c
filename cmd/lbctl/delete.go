package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) deleteCommand() *cobra.Command {
	var wait string
	header := &lbdv1.ApplyHeader{}
	cmd := &cobra.Command{
		Use:   "delete KIND/NAME…",
		Short: "Delete resources, as one revision",
		Long: `Delete resources of one owner, as one revision. What others refer to is not deleted (exit 3), unless they are deleted
with it. "rollback" brings back what was deleted.`,
		Example: `  lbctl delete route/old pool/old --wait`,
		Args: func(cmd *cobra.Command, args []string) error {
			return cmp.Or(keysApart(args), cobra.MinimumNArgs(1)(cmd, args))
		},
		RunE: c.does(func(ctx context.Context, args []string) error {
			if err := checkWait(&wait, header.ValidateOnly); err != nil {
				return err
			}
			keys, err := parseKeys(args)
			if err != nil {
				return err
			}
			header.RequestId = newRequestID()
			return c.call(func(cl *client) error { return c.delete(ctx, cl, keys, header, wait) })
		}),
	}
	flags := cmd.Flags()
	flags.BoolVar(&header.ValidateOnly, "dry-run", false, "report what would change, change nothing")
	flags.StringVarP(&header.Message, "message", "m", "", "kept with the revision")
	waitFlag(cmd, &wait)
	return cmd
}

// parseKeys reads KIND/NAME of several.
func parseKeys(args []string) ([]state.Key, error) {
	var keys []state.Key
	for _, arg := range args {
		key, err := state.ParseKey(arg)
		switch {
		case err != nil:
			return nil, fail(exitUsage, "%w", err)
		case key.Kind.Single():
			return nil, fail(exitUsage, "%s cannot be deleted: `lbctl edit %s` changes them", key, key)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// delete asks whose the resources are and sends one change.
func (c *cli) delete(ctx context.Context, cl *client, keys []state.Key, header *lbdv1.ApplyHeader, wait string) error {
	all := &lbdv1.ApplyResources{}
	for _, key := range keys {
		answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.GetResponse, error) {
			return cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(key.Kind), Name: key.Name})
		})
		if err != nil {
			return err
		}
		owner := answer.GetResource().GetOwner()
		if header.GetOwner() != "" && owner != header.GetOwner() {
			return fail(exitUsage, "%s belongs to owner %s, %s to %s: one revision is one owner's, so delete them apart",
				keys[0], header.GetOwner(), key, owner)
		}
		header.Owner = owner
		all.Deletes = append(all.Deletes, key.String())
	}
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.ApplyResponse, error) { return send(ctx, cl, header, all) })
	if vs := violations(err); len(vs) > 0 {
		if err := c.misused(vs, "message"); err != nil {
			return err
		}
		for _, v := range vs {
			fmt.Fprintf(c.stderr, "error: %s %s\n", called(keys, v.GetField()), v.GetDescription())
		}
		return fail(codeOf(status.Code(err)), "nothing was deleted")
	}
	if err != nil {
		return err
	}
	return c.finish(ctx, cl, answer, header.GetValidateOnly(), wait)
}

// called is what the command line calls a field of an answer.
func called(keys []state.Key, field string) string {
	for _, key := range keys {
		if key.Field() == field {
			return key.String()
		}
	}
	return field
}

// finish ends a verb that changes what documents do not say: it tells, prints and, if asked, waits.
func (c *cli) finish(ctx context.Context, cl *client, answer *lbdv1.ApplyResponse, dryRun bool, wait string) error {
	c.tellViolations(answer.GetWarnings())
	c.printApplied(answer, dryRun)
	if wait == "" {
		return nil
	}
	return c.wait(ctx, cl, answer.GetRevision(), wait)
}
