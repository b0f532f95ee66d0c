package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) nodeUpgradeCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade-check NODE",
		Short: "Say whether a node may be restarted now",
		Long: `Say whether a node may be stopped and started again now: whether the other voters can go on without it, another node takes its traffic,
and all others are up to date. Exit 1 if not, and why. A second "lbd run" on the node's data directory takes its connections over and
needs only that the other voters can go on.`,
		Example: "  lbctl node upgrade-check edge-2 && ssh edge-2 systemctl restart lbd",
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			return c.call(func(cl *client) error {
				s, err := clusterState(ctx, cl)
				if err != nil {
					return err
				}
				name := withoutNodes(args[0])
				at := slices.IndexFunc(s.GetNodes(), func(n *lbdv1.NodeStatus) bool { return n.GetNode().GetName() == name || n.GetNode().GetId() == name })
				if at < 0 {
					return fail(exitNotFound, "there is no node `%s`: `lbctl cluster status` lists them", oneLine(name))
				}
				return c.tellUpgrade(s.GetNodes()[at], hindrances(s, s.GetNodes()[at]))
			})
		}),
	}
}

// hindrances are the reasons for which a node must not be stopped now; none: it may be.
func hindrances(s *lbdv1.ClusterServiceGetStatusResponse, n *lbdv1.NodeStatus) []string {
	var all []string
	live, takes, newest := int32(0), 0, int64(0)
	for _, o := range s.GetNodes() {
		newest = max(newest, o.GetStoredRevision())
	}
	for _, o := range s.GetNodes() {
		if o.GetNode().GetId() == n.GetNode().GetId() {
			continue
		}
		name := o.GetNode().GetName()
		switch {
		case !o.GetReachable():
			all = append(all, fmt.Sprintf("node %s does not answer: %s", name, o.GetUnreachableReason()))
			continue
		case o.GetServedRevision() < newest:
			all = append(all, fmt.Sprintf("node %s serves revision %d, not yet %d", name, o.GetServedRevision(), newest))
		case o.GetTraffic() == "ready":
			takes++
		}
		if o.GetVoter() {
			live++
		}
	}
	if quorum := s.GetVoters()/2 + 1; n.GetVoter() && live < quorum && s.GetVoters() > 1 {
		all = append(all, fmt.Sprintf("without it %d of %d voters are left, and changes take %d", live, s.GetVoters(), quorum))
	}
	if takes == 0 && n.GetTraffic() != "drained" {
		all = append(all, "no other node takes traffic")
	}
	return all
}

func (c *cli) tellUpgrade(n *lbdv1.NodeStatus, against []string) error {
	why := []*document.Value{}
	for _, text := range against {
		why = append(why, document.Text(text))
	}
	name := n.GetNode().GetName()
	value := document.MapOf().With("node", document.Text(name)).With("may_restart", document.Truth(len(against) == 0)).With("reasons", document.ListOf(why))
	c.print(result{value: value, names: []string{"nodes/" + name}, table: func(w *table) {
		if len(against) == 0 {
			w.row("node " + name + " may be restarted")
		}
		for _, text := range against {
			w.row("node " + name + " must stay: " + text)
		}
	}})
	if len(against) > 0 {
		return &failure{code: exitNo}
	}
	if n.GetRaftRole() == "leader" {
		c.say("it leads, and hands that over when it is stopped")
	}
	return nil
}
