package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) overrideCommand() *cobra.Command {
	return noun("override", "See and end what was said of single backends", c.overrideList(), c.overrideClear())
}

func (c *cli) overrideList() *cobra.Command {
	return takesNodeLocal(&cobra.Command{
		Use:   "list [POOL]",
		Short: "List drains, maintenance and weights that are in force",
		Long: `List drains, maintenance and weights that operators have given to single backends and that are in force, with who said it
and why. Documents and applies never touch them.

NODE is the node on which alone one holds ("--node-local backend drain"); of those the answering node lists its own, and "cluster status"
tells of all. Where it is empty, all nodes do so.`,
		Example: `  lbctl override list shop`,
		Args:    cobra.MaximumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request := &lbdv1.ListOverridesRequest{Pool: strings.Join(args, "")}
			return c.call(func(cl *client) error {
				answer, err := cl.backend.ListOverrides(ctx, request)
				if err != nil {
					return err
				}
				c.printOverrides(answer.GetOverrides())
				return nil
			})
		}),
	})
}

func (c *cli) printOverrides(overrides []*lbdv1.Override) {
	value, names := overridesValue(overrides)
	c.print(result{value: value, names: names, table: func(w *table) {
		w.wideRow([]string{"POOL", "BACKEND", "SAYS", "NODE", "AUTHOR", "SINCE", "UNTIL", "REASON"}, "CLOSE CONNECTIONS")
		for _, o := range overrides {
			w.wideRow([]string{
				o.GetPool(), o.GetAddress(), overrideSays(o), o.GetNode(), o.GetAuthor(), moment(o.GetCreateTime()), moment(o.GetExpireTime()), o.GetReason(),
			}, fmt.Sprint(o.GetCloseConnections()))
		}
	}})
}

func overridesValue(overrides []*lbdv1.Override) (*document.Value, []string) {
	values := []*document.Value{}
	var names []string
	for _, o := range overrides {
		values = append(values, document.OfAnswer(o))
		names = append(names, backendName(o.GetPool(), o.GetAddress()))
	}
	return document.ListOf(values), names
}

// overrideSays is DRAIN, MAINTENANCE or "weight 5".
func overrideSays(o *lbdv1.Override) string {
	if _, ok := o.GetWhat().(*lbdv1.Override_Weight); ok {
		return fmt.Sprintf("weight %d", o.GetWeight())
	}
	return word(o.GetState())
}

func (c *cli) overrideClear() *cobra.Command {
	return takesNodeLocal(&cobra.Command{
		Use:   "clear POOL[/ADDRESS]",
		Short: "End what was said of a backend, or of all of a pool's",
		Long: `End what was said of a backend, or of all backends of a pool: drains, maintenance and weights. What has ended is listed; that
there was nothing is no error.

With --node-local it ends what was said with --node-local on the node behind the socket, and nothing else; without, nothing of that.`,
		Example: `  lbctl override clear shop/10.0.0.1:8080
  lbctl --node-local override clear shop`,
		Args: cobra.ExactArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			pool, address, named := strings.Cut(withoutKind(state.Pools, args[0]), "/")
			if pool == "" || named && address == "" {
				return fail(exitUsage, "what to clear is named POOL or POOL/ADDRESS, not %q", args[0])
			}
			request := &lbdv1.ClearOverridesRequest{Pool: pool, Address: address, RequestId: newRequestID(), NodeOnly: c.nodeLocal}
			return c.call(func(cl *client) error {
				answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.ClearOverridesResponse, error) {
					return cl.backend.ClearOverrides(ctx, request)
				})
				if err != nil {
					return c.complained(err)
				}
				c.printCleared(answer.GetOverrides())
				return nil
			})
		}),
	})
}

func (c *cli) printCleared(ended []*lbdv1.Override) {
	value, names := overridesValue(ended)
	c.print(result{value: value, names: names, table: func(*table) {
		for i, o := range ended {
			fmt.Fprintf(c.stdout, "%s: %s has ended\n", oneLine(names[i]), overrideSays(o))
		}
	}})
	if len(ended) == 0 {
		c.say("there was nothing to end")
	}
}
