package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

// What a node does with traffic, as its status has it.
const (
	trafficReady   = "ready"
	trafficDrained = "drained"
)

func (c *cli) nodeDrain() *cobra.Command {
	var wait bool
	request := &lbdv1.DrainNodeRequest{}
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Make a node give its traffic up",
		Long: `Make a node give its traffic up. It stays a member and follows every change. In order:

  1. it hands the leadership over, if it leads
  2. each listener's health_path answers 503, for drain.grace of cluster_settings (5s), so that what is in front turns away; a node without
     a health_path skips this
  3. its answers say "Connection: close"; who still comes is served
  4. what is under way may end within drain.deadline (30s), and is cut off then

With --wait it returns when nothing is under way any more; at --timeout it ends with exit 8, and the drain stays. It stays over a restart of
the node, too, until "node undrain". Waits for revisions leave drained nodes out.

The last node that takes traffic is refused without --force.`,
		Example: `  lbctl node drain edge-2 --reason "new kernel" --wait --timeout 2m`,
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request.Node, request.RequestId = withoutNodes(args[0]), newRequestID()
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.DrainNodeResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).DrainNode(ctx, request)
				})
				if err != nil {
					return c.complained(err)
				}
				if wait {
					if err := c.waitNodeDrained(ctx, cl, answer.GetNode()); err != nil {
						return err
					}
				}
				c.printNode(answer.GetNode(), "drained", !wait)
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&request.Reason, "reason", "", "kept with it, for whoever finds it")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until nothing is under way there")
	cmd.Flags().BoolVar(&request.Force, "force", false, "also the last node that takes traffic")
	return cmd
}

func (c *cli) nodeUndrain() *cobra.Command {
	return &cobra.Command{
		Use:     "undrain NODE",
		Short:   "Make a drained node take traffic again",
		Long:    `Make a drained node take traffic again, at once: its health_path answers 200. It does not get the leadership back.`,
		Example: `  lbctl node undrain edge-2`,
		Args:    cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request := &lbdv1.UndrainNodeRequest{Node: withoutNodes(args[0]), RequestId: newRequestID()}
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.UndrainNodeResponse, error) {
					return lbdv1.NewClusterServiceClient(cl.conn).UndrainNode(ctx, request)
				})
				if err != nil {
					return c.complained(err)
				}
				c.printNode(answer.GetNode(), "takes traffic", false)
				return nil
			})
		}),
	}
}

// withoutNodes takes what "-o name" prints for a name, too.
func withoutNodes(name string) string { return strings.TrimPrefix(name, "nodes/") }

// printNode shows a node after a verb, and what it does now; begun: it has only begun to.
func (c *cli) printNode(n *lbdv1.Node, does string, begun bool) {
	if begun {
		does = "draining"
	}
	c.print(result{value: document.OfAnswer(n), names: []string{"nodes/" + n.GetName()}, table: func(*table) {
		fmt.Fprintf(c.stdout, "node %s: %s\n", oneLine(n.GetName()), does)
	}})
}

// waitNodeDrained asks a node until nothing is under way there, or the deadline has come. One that does not answer may be back in time.
func (c *cli) waitNodeDrained(ctx context.Context, cl *client, n *lbdv1.Node) error {
	told := ""
	for {
		answer, err := cl.system.GetStatus(ctx, &lbdv1.SystemServiceGetStatusRequest{Node: n.GetId()})
		var doing string
		switch code := status.Code(err); {
		case errors.Is(ctx.Err(), context.Canceled):
			return fail(exitInterrupted, "interrupted: the drain stays")
		case ctx.Err() != nil || code == codes.DeadlineExceeded:
			if told == "" {
				told = "node " + n.GetName() + " has not said what is under way"
			}
			return fail(exitWaitTimedOut, "timed out after %s: %s; the drain stays", cl.timeout, told)
		case code == codes.Unavailable:
			doing = fmt.Sprintf("node %s does not answer: %s", n.GetName(), status.Convert(err).Message())
		case err != nil:
			return err
		case answer.GetTraffic() == trafficDrained:
			return nil
		case answer.GetTraffic() == trafficReady:
			doing = fmt.Sprintf("node %s has not heard of it yet", n.GetName())
		default:
			doing = fmt.Sprintf("node %s drains: %s", n.GetName(), countOf(int(answer.GetConnections()), "connection"))
		}
		if doing = oneLine(doing); doing != told {
			c.say("%s", doing)
			told = doing
		}
		select {
		case <-ctx.Done():
		case <-time.After(awaitPause):
		}
	}
}
