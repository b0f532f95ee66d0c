package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// saying is what an operator says of backends.
type saying struct {
	state   lbdv1.BackendState
	weight  int32
	isState bool

	expires, reason string
	close, wait     bool
	// here is whether it is said on one node alone.
	here bool
}

func (c *cli) backendDrain() *cobra.Command {
	in := &saying{state: lbdv1.BackendState_BACKEND_STATE_DRAIN, isState: true}
	cmd := &cobra.Command{
		Use:   "drain POOL/ADDRESS…",
		Short: "Give backends no new clients",
		Long: `Give backends no new clients, on every node. What is under way may end until the pool's drain_timeout, and so long clients
that are bound by session_persistence stay.

With --wait it returns when nothing is under way at them any more; at --timeout it ends with exit 8, says what is left, and
the drain stays. It holds through applies and restarts until "backend ready", "override clear" or --expires.

With --node-local it holds on the node behind the socket alone, over what is said of all: for when there is no leader. It needs --expires,
at most 24h.`,
		Example: `  lbctl backend drain shop/10.0.0.1:8080 --reason "new disk" --wait --timeout 5m
  lbctl --node-local backend drain shop/10.0.0.1:8080 --expires 2h`,
		Args: cobra.MinimumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error { return c.setBackends(ctx, args, in) }),
	}
	sayingFlags(cmd, in)
	closeFlag(cmd, in)
	cmd.Flags().BoolVar(&in.wait, "wait", false, "wait until nothing is under way at them")
	return takesNodeLocal(cmd)
}

func (c *cli) backendMaint() *cobra.Command {
	in := &saying{state: lbdv1.BackendState_BACKEND_STATE_MAINTENANCE, isState: true}
	cmd := &cobra.Command{
		Use:     "maint POOL/ADDRESS…",
		Short:   "Give backends no requests at all",
		Long:    `Give backends no requests at all, on every node, until "backend ready", "override clear" or --expires.`,
		Example: `  lbctl backend maint shop/10.0.0.1:8080 --reason "INC-7" --expires 2h`,
		Args:    cobra.MinimumNArgs(1),
		RunE:    c.does(func(ctx context.Context, args []string) error { return c.setBackends(ctx, args, in) }),
	}
	sayingFlags(cmd, in)
	closeFlag(cmd, in)
	return takesNodeLocal(cmd)
}

func (c *cli) backendReady() *cobra.Command {
	in := &saying{state: lbdv1.BackendState_BACKEND_STATE_READY, isState: true}
	cmd := &cobra.Command{
		Use:   "ready POOL/ADDRESS…",
		Short: "End a drain, maintenance or ejection",
		Long: `End a drain or maintenance: the backends get requests as their health says. A weight that was set stays ("override clear"). An
ejection by failed requests ends as well, but only on the node that answers: each ejects by what it has seen itself.

With --node-local it ends what was said with --node-local. With --expires besides, at most 24h, the node behind the socket takes the backends
for ready until then though they are drained on all.`,
		Example: `  lbctl backend ready shop/10.0.0.1:8080`,
		Args:    cobra.MinimumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			if in.expires != "" && !c.nodeLocal {
				return fail(exitUsage, "--expires goes with --node-local here: to be ready is no exception that could end")
			}
			return c.setBackends(ctx, args, in)
		}),
	}
	cmd.Flags().StringVar(&in.expires, "expires", "", "with --node-local: how long it holds over what is said of all nodes, as 30m")
	return takesNodeLocal(cmd)
}

func (c *cli) backendWeight() *cobra.Command {
	in := &saying{}
	cmd := &cobra.Command{
		Use:   "weight POOL/ADDRESS… WEIGHT",
		Short: "Give backends another weight",
		Long: `Give backends another weight than their document's, 0 to 256, on every node, until "override clear" or --expires. With 0 they get
no requests. A weight counts against those of the pool's other backends, which are 1 where the document says nothing: with two
backends, 10 is 91 %. The answer says what it comes to.`,
		Example: `  lbctl backend weight shop/10.0.0.1:8080 0 --expires 1h
  lbctl backend weight shop/10.0.0.1:8080 shop/10.0.0.2:8080 5`,
		Args: cobra.MinimumNArgs(2),
		RunE: c.does(func(ctx context.Context, args []string) error {
			last := len(args) - 1
			n, err := strconv.ParseInt(args[last], 10, 32)
			if err != nil || n < 0 || n > 256 {
				return fail(exitUsage, "a weight is a whole number from 0 to 256, not %q", args[last])
			}
			in.weight = int32(n)
			return c.setBackends(ctx, args[:last], in)
		}),
	}
	sayingFlags(cmd, in)
	return takesNodeLocal(cmd)
}

func sayingFlags(cmd *cobra.Command, in *saying) {
	cmd.Flags().StringVar(&in.expires, "expires", "", "end it by itself after this time, as 30m")
	cmd.Flags().StringVar(&in.reason, "reason", "", "kept with it, for whoever finds it")
}

func closeFlag(cmd *cobra.Command, in *saying) {
	cmd.Flags().BoolVar(&in.close, "close-connections", false, "cut off what is under way at once")
}

// target is one backend of a command line.
type target struct{ pool, address string }

func (t target) String() string { return backendName(t.pool, t.address) }

func parseTargets(args []string) ([]target, error) {
	var all []target
	for _, arg := range args {
		pool, address, _ := strings.Cut(withoutKind(state.Pools, arg), "/")
		if pool == "" || address == "" {
			return nil, fail(exitUsage, "a backend is named POOL/ADDRESS as in `lbctl backend status`, not %q", arg)
		}
		all = append(all, target{pool, address})
	}
	return all, nil
}

// parseExpires is when something that is said now ends; nil: never.
func parseExpires(text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	d, ok := parseSpan(text)
	if !ok {
		return nil, fail(exitUsage, "--expires takes a length of time such as 30m, 2h or 3d, not %q", text)
	}
	return timestamppb.New(time.Now().Add(d)), nil
}

// setBackends says the same of several backends, one after the other, and if asked waits for all.
func (c *cli) setBackends(ctx context.Context, args []string, in *saying) error {
	targets, err := parseTargets(args)
	if err != nil {
		return err
	}
	expires, err := parseExpires(in.expires)
	if err != nil {
		return err
	}
	in.here = c.nodeLocal
	ready := in.isState && in.state == lbdv1.BackendState_BACKEND_STATE_READY
	if in.here && expires == nil && !ready {
		return fail(exitUsage, "what is said on one node alone must end: --expires is needed with --node-local, at most 24h")
	}
	return c.call(func(cl *client) error {
		var before []string
		if !ready {
			before = replaced(ctx, cl, targets, in)
		}
		var inForce []*lbdv1.Override
		var done []target
		for _, t := range targets {
			overrides, err := cl.set(ctx, t, in, expires)
			if err != nil {
				c.printSaid(done, inForce, in, nil)
				return c.complained(err)
			}
			inForce, done = append(inForce, overrides...), append(done, t)
		}
		for _, text := range before {
			c.say("%s", text)
		}
		seen := settled(ctx, cl, targets, in)
		c.printSaid(done, inForce, in, seen)
		if !ready {
			c.warnOfIdlePools(targets, seen)
		} else {
			c.tellWhatStays(inForce)
		}
		if !in.wait {
			return nil
		}
		return c.waitDrained(ctx, cl, targets)
	})
}

// set says it of one backend, and returns what is in force of it then.
func (cl *client) set(ctx context.Context, t target, in *saying, expires *timestamppb.Timestamp) ([]*lbdv1.Override, error) {
	id := newRequestID()
	return retried(ctx, cl, startGrace, func() ([]*lbdv1.Override, error) {
		if !in.isState {
			answer, err := cl.backend.SetWeight(ctx, &lbdv1.SetWeightRequest{
				Pool: t.pool, Address: t.address, Weight: in.weight, ExpireTime: expires, Reason: in.reason, RequestId: id, NodeOnly: in.here,
			})
			return answer.GetOverrides(), err
		}
		answer, err := cl.backend.SetState(ctx, &lbdv1.SetStateRequest{
			Pool: t.pool, Address: t.address, State: in.state, ExpireTime: expires, Reason: in.reason, CloseConnections: in.close, RequestId: id,
			NodeOnly: in.here,
		})
		return answer.GetOverrides(), err
	})
}

// printSaid shows what is in force of backends now, and the share that a weight makes. Of several the first may be done when
// another one fails.
func (c *cli) printSaid(targets []target, inForce []*lbdv1.Override, in *saying, seen []*lbdv1.BackendStatus) {
	if len(targets) == 0 {
		return
	}
	value, _ := overridesValue(inForce)
	var names []string
	for _, t := range targets {
		names = append(names, t.String())
	}
	c.print(result{value: value, names: names, table: func(*table) {
		said := fmt.Sprintf("weight %d", in.weight)
		if in.isState {
			said = word(in.state)
		}
		if in.here {
			said += " on this node alone"
		}
		for _, t := range targets {
			fmt.Fprintf(c.stdout, "%s: %s%s\n", oneLine(t.String()), said, shareAfter(t, in, seen))
		}
	}})
}

// tellWhatStays names the states that are still in force of backends that are to be ready: those of all nodes where one node was told, or of that
// node where all were.
func (c *cli) tellWhatStays(inForce []*lbdv1.Override) {
	for _, o := range inForce {
		if _, isState := o.GetWhat().(*lbdv1.Override_State); isState && o.GetState() != lbdv1.BackendState_BACKEND_STATE_READY {
			c.say("still in force: %s", overrideText(o))
		}
	}
}

// shareAfter is what a weight comes to, as far as the node has told.
func shareAfter(t target, in *saying, seen []*lbdv1.BackendStatus) string {
	for _, b := range seen {
		if !in.isState && isTarget(b, []target{t}) && shows(b, in) {
			if percent, ok := share(b, seen); ok {
				return fmt.Sprintf(", now %d %% of pool %s", percent, oneLine(t.pool))
			}
		}
	}
	return ""
}

// complained tells what a node finds wrong with a command line, each at its flag.
func (c *cli) complained(err error) error {
	if vs := violations(err); len(vs) > 0 {
		c.tellViolations(vs)
		return fail(exitUsage, "%s", countOf(len(vs), "error"))
	}
	if status.Code(err) == codes.InvalidArgument {
		return fail(exitUsage, "%s", status.Convert(err).Message())
	}
	return err
}

// misused is complained for the flags among what a node finds wrong with a change; nil: it is the resources' fault.
func (c *cli) misused(vs []*lbdv1.Violation, fields ...string) error {
	var wrong []*lbdv1.Violation
	for _, v := range vs {
		if slices.Contains(fields, v.GetField()) {
			wrong = append(wrong, v)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	c.tellViolations(wrong)
	return fail(exitUsage, "%s", countOf(len(wrong), "error"))
}
