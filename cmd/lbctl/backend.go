package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) backendCommand() *cobra.Command {
	return noun("backend", "Look after single backends", c.backendStatus())
}

func (c *cli) backendStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show backends as the answering node sees them",
		Args:  cobra.MaximumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request := &lbdv1.BackendServiceGetStatusRequest{}
			if len(args) > 0 {
				request.Pool = args[0]
			}
			return c.call(func(cl *client) error {
				answer, err := cl.backend.GetStatus(ctx, request)
				if err != nil {
					return err
				}
				c.printBackends(answer.GetBackends())
				return nil
			})
		}),
	}
}

func (c *cli) printBackends(backends []*lbdv1.BackendStatus) {
	values := []*document.Value{}
	var names []string
	for _, b := range backends {
		values = append(values, document.OfAnswer(b))
		names = append(names, b.GetPool()+"/"+b.GetAddress())
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		w.wideRow([]string{"POOL", "BACKEND", "HEALTH", "SINCE", "WEIGHT", "IN FLIGHT", "REQUESTS", "FAILURES", "LAST ERROR"},
			"NODE", "IDLE", "NEW", "REUSED")
		for _, b := range backends {
			w.wideRow([]string{
				b.GetPool(), b.GetAddress(), word(b.GetHealth()), moment(b.GetSince()), fmt.Sprint(b.GetWeight()),
				fmt.Sprint(b.GetInFlight()), fmt.Sprint(b.GetRequestsTotal()), fmt.Sprint(b.GetFailuresTotal()), b.GetLastError(),
			}, b.GetNode(), fmt.Sprint(b.GetIdleConnections()), fmt.Sprint(b.GetConnectionsNewTotal()), fmt.Sprint(b.GetConnectionsReusedTotal()))
		}
	}})
}
