package main

import (
	"context"

	"github.com/spf13/cobra"

	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) nodeCommand() *cobra.Command {
	return noun("node", "The cluster's nodes", c.nodeDrain(), c.nodeUndrain(), c.nodePromote(), c.nodeDemote(), c.nodeUpgradeCheck())
}

func (c *cli) nodePromote() *cobra.Command {
	return &cobra.Command{
		Use:   "promote NODE",
		Short: "Make a node a voter",
		Long: `Make a node a voter, and wait until it is: it has to catch up first. At most five nodes vote; with three or five of them one or two may
be lost.`,
		Example: "  lbctl node promote edge-4",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			return c.setRole(ctx, args[0], lbdv1.NodeRole_NODE_ROLE_VOTER, "votes")
		}),
	}
}

func (c *cli) nodeDemote() *cobra.Command {
	return &cobra.Command{
		Use:   "demote NODE",
		Short: "Take a node's vote away",
		Long: `Take a node's vote away. It stays a member, follows every change and serves. Refused where the voters that are left could not go on.
A leader hands over first.`,
		Example: "  lbctl node demote edge-4",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			return c.setRole(ctx, args[0], lbdv1.NodeRole_NODE_ROLE_NON_VOTER, "does not vote")
		}),
	}
}
