package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) statusCommand() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show a node's condition",
		Long:    `Show the condition of the answering node, or of another (--node). Exit 1 if something is wrong with it. "cluster status" shows all.`,
		Example: `  lbctl status -o jsonpath='{.served_revision}'`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			whose, err := oneNode(node)
			if err != nil {
				return err
			}
			return c.call(func(cl *client) error {
				answer, err := cl.system.GetStatus(ctx, &lbdv1.SystemServiceGetStatusRequest{Node: whose})
				if err != nil {
					return err
				}
				c.printStatus(answer)
				if len(answer.GetProblems()) > 0 {
					return &failure{code: exitNo}
				}
				return nil
			})
		}),
	}
	nodeFlag(cmd, &node)
	return cmd
}

// staleShown is how long a node has not heard of a leader when that is told: a follower asks each second.
const staleShown = 5 * time.Second

func (c *cli) printStatus(s *lbdv1.SystemServiceGetStatusResponse) {
	c.print(result{value: document.OfAnswer(s), names: []string{"nodes/" + s.GetNode()}, table: func(w *table) {
		w.row("NODE", "ROLE", "STORED", "SERVED", "BACKENDS UP", "CONNECTIONS", "REQUESTS", "ENGINE", "STATE", "STARTED")
		w.row(s.GetNode(), s.GetRaftRole(), fmt.Sprint(s.GetStoredRevision()), fmt.Sprint(s.GetServedRevision()),
			fmt.Sprintf("%d/%d", s.GetBackendsUp(), s.GetBackendsTotal()), fmt.Sprint(s.GetConnections()),
			fmt.Sprint(s.GetRequestsTotal()), s.GetEngine(),
			fmt.Sprintf("%d/%d MiB", (s.GetStateBytes()+1<<20-1)>>20, s.GetStateBytesMax()>>20), moment(s.GetStartTime()))
		w.flush()
		if s.GetLeader() != "" && s.GetLeader() != s.GetNode() {
			w.row("leader: " + s.GetLeader())
		}
		switch stale := time.Duration(s.GetStaleMs()) * time.Millisecond; {
		case s.GetStaleMs() < 0:
			w.row("stale: it has not heard of a leader since its start")
		case stale > staleShown:
			w.row(fmt.Sprintf("stale: it has not heard of a leader for %s", stale.Round(time.Second)))
		}
		if len(s.GetListeners()) > 0 {
			w.row()
			w.row("LISTENER", "ADDRESSES", "PROGRAMMED", "REASON", "MESSAGE")
		}
		for _, l := range s.GetListeners() {
			w.row(l.GetName(), list(l.GetAddresses()), fmt.Sprint(l.GetProgrammed()), l.GetReason(), l.GetMessage())
		}
		w.flush()
		for _, p := range s.GetProblems() {
			w.row()
			w.row("problem: " + p)
		}
	}})
}
