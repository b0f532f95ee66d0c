package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) clusterStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the cluster's condition, and each node's",
		Long: `Show the cluster's condition, and each node's as it says itself; one that does not answer within 5s is unreachable. TRAFFIC is what a node
does with clients: ready, draining or drained. With -o wide GATE is the newest kind of log entry that a node's build writes: the
cluster writes none that a node would not read.

Exit 1 if something is wrong: a node that does not answer, no leader, a voter too few, a node that is behind, or anything that
"status" finds on a node. Warnings are no fault: two voters, an even number of them, nodes of different builds, drained nodes.`,
		Example: `  lbctl cluster status
  lbctl cluster status -o jsonpath='{.nodes[*].node.name}'`,
		Args: cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := clusterState(ctx, cl)
				if err != nil {
					return err
				}
				c.printCluster(answer)
				if len(answer.GetProblems()) > 0 {
					return &failure{code: exitNo}
				}
				return nil
			})
		}),
	}
}

// clusterState reads the condition of the cluster and of each node.
func clusterState(ctx context.Context, cl *client) (*lbdv1.ClusterServiceGetStatusResponse, error) {
	return retried(ctx, cl, 0, func() (*lbdv1.ClusterServiceGetStatusResponse, error) {
		return lbdv1.NewClusterServiceClient(cl.conn).GetStatus(ctx, &lbdv1.ClusterServiceGetStatusRequest{})
	})
}

func (c *cli) printCluster(s *lbdv1.ClusterServiceGetStatusResponse) {
	var names []string
	for _, n := range s.GetNodes() {
		names = append(names, "nodes/"+n.GetNode().GetName())
	}
	c.print(result{value: document.OfAnswer(s), names: names, table: func(w *table) {
		fmt.Fprintf(c.stdout, "cluster %s, epoch %d, gate %d; leader: %s; %s, of which %d more may be lost\n\n", oneLine(s.GetClusterId()), s.GetEpoch(), s.GetGate(),
			oneLine(cmp.Or(s.GetLeader(), "none")), countOf(int(s.GetVoters()), "voter"), s.GetTolerates())
		w.wideRow([]string{"NODE", "ROLE", "VOTES", "TRAFFIC", "STORED", "SERVED", "CONNECTIONS", "VERSION", "ADDRESS", "STARTED"},
			"ID", "GATE", "APPLIED", "STALE", "JOINED")
		for _, n := range s.GetNodes() {
			w.wideRow(nodeCells(n), n.GetNode().GetId(), fmt.Sprint(n.GetNode().GetGate()), ifReached(n, fmt.Sprint(n.GetAppliedIndex())), ifReached(n, stale(n)),
				moment(n.GetNode().GetJoinTime()))
		}
		w.flush()
		for _, list := range []struct {
			word  string
			lines []string
		}{{"problem", s.GetProblems()}, {"warning", s.GetWarnings()}} {
			for i, text := range list.lines {
				if i == 0 {
					w.row()
				}
				w.row(list.word + ": " + text)
			}
		}
	}})
}

// nodeCells is a node's row.
func nodeCells(n *lbdv1.NodeStatus) []string {
	role, votes := n.GetRaftRole(), "no"
	if !n.GetReachable() {
		role = "unreachable"
	}
	if n.GetVoter() {
		votes = "yes"
	}
	return []string{
		n.GetNode().GetName(), role, votes, n.GetTraffic(), ifReached(n, fmt.Sprint(n.GetStoredRevision())), ifReached(n, fmt.Sprint(n.GetServedRevision())),
		ifReached(n, fmt.Sprint(n.GetConnections())), n.GetNode().GetVersion(), n.GetNode().GetAddress(), moment(n.GetStartTime()),
	}
}

// ifReached is what a node has said, or nothing where it does not answer.
func ifReached(n *lbdv1.NodeStatus, text string) string {
	if n.GetReachable() {
		return text
	}
	return ""
}

// stale is how long ago a node last knew that it has what the leader has.
func stale(n *lbdv1.NodeStatus) string {
	if n.GetStaleMs() < 0 {
		return "since its start"
	}
	return (time.Duration(n.GetStaleMs()) * time.Millisecond).Round(100 * time.Millisecond).String()
}

func (c *cli) clusterVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Compare what the nodes hold",
		Long: `Compare what the nodes hold: each makes a digest (SHA-256) of its whole state, at the same entry of the log. Exit 1 if two differ, or a
node has not answered.`,
		Example: "  lbctl cluster verify",
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, 0, func() (*lbdv1.VerifyClusterResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).VerifyCluster(ctx, &lbdv1.VerifyClusterRequest{})
				})
				if err != nil {
					return err
				}
				c.printVerified(answer)
				if !answer.GetEqual() {
					return &failure{code: exitNo}
				}
				return nil
			})
		}),
	}
}

func (c *cli) printVerified(v *lbdv1.VerifyClusterResponse) {
	var names []string
	for _, n := range v.GetNodes() {
		names = append(names, "nodes/"+n.GetNode())
	}
	c.print(result{value: document.OfAnswer(v), names: names, table: func(w *table) {
		w.row("NODE", "DIGEST", "WHY NOT")
		for _, n := range v.GetNodes() {
			w.row(n.GetNode(), n.GetDigest(), n.GetReason())
		}
		w.flush()
		verdict := "all nodes hold the same"
		if !v.GetEqual() {
			verdict = "not all nodes are known to hold the same"
		}
		fmt.Fprintf(c.stdout, "\nentry %d, revision %d: %s\n", v.GetIndex(), v.GetRevision(), verdict)
	}})
}
