package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "status",
		Short:   "Show the condition of the answering node",
		Long:    "Show the condition of the answering node. Exit 1 if something is wrong with it.",
		Example: `  lbctl status -o jsonpath='{.served_revision}'`,
		Args:    cobra.NoArgs,
		RunE: c.does(func(ctx context.Context, _ []string) error {
			return c.call(func(cl *client) error {
				answer, err := cl.system.GetStatus(ctx, &lbdv1.SystemServiceGetStatusRequest{})
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
}

func (c *cli) printStatus(s *lbdv1.SystemServiceGetStatusResponse) {
	c.print(result{value: document.OfAnswer(s), names: []string{"nodes/" + s.GetNode()}, table: func(w *table) {
		w.row("NODE", "ROLE", "STORED", "SERVED", "BACKENDS UP", "CONNECTIONS", "REQUESTS", "ENGINE", "STATE", "STARTED")
		w.row(s.GetNode(), s.GetRaftRole(), fmt.Sprint(s.GetStoredRevision()), fmt.Sprint(s.GetServedRevision()),
			fmt.Sprintf("%d/%d", s.GetBackendsUp(), s.GetBackendsTotal()), fmt.Sprint(s.GetConnections()),
			fmt.Sprint(s.GetRequestsTotal()), s.GetEngine(),
			fmt.Sprintf("%d/%d MiB", (s.GetStateBytes()+1<<20-1)>>20, s.GetStateBytesMax()>>20), moment(s.GetStartTime()))
		w.flush()
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
