package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// What a resource can be waited for, beside being deleted.
var conditionTypes = []string{"Accepted", "ResolvedRefs", "Programmed", conditionHealthy}

const (
	conditionHealthy = "Healthy" // of pools alone
	forDeleted       = "deleted"
	forServed        = "served"
	forHealthy       = "healthy"
)

// awaitPause is how often a resource that is waited for is looked at.
const awaitPause = 200 * time.Millisecond

func (c *cli) waitCommand() *cobra.Command {
	var what string
	cmd := &cobra.Command{
		Use:   "wait KIND/NAME|revision/N --for=CONDITION",
		Short: "Wait until something is so",
		Long: `Wait until a condition of a resource holds on every node, until a resource is gone, or until every node serves a revision.

--for takes Accepted, ResolvedRefs, Programmed, Healthy (of a pool) or deleted for a resource; for a revision served (the default),
healthy (and its pools have healthy backends) or reachable (leaving out nodes that do not answer); in any case. Drained nodes are not
waited for. At --timeout it ends with exit 8 and says what is lacking on which node.`,
		Example: `  lbctl wait pool/shop --for=Healthy --timeout 2m
  lbctl wait revision/42`,
		Args: oneKey,
		RunE: c.does(func(ctx context.Context, args []string) error {
			if number, ok := parseRevision(args[0]); ok {
				how := cmp.Or(strings.ToLower(what), forServed)
				if !slices.Contains(waitKinds, how) {
					return fail(exitUsage, "a revision is waited for with --for=%s, not %q", oneOf(waitKinds), what)
				}
				return c.call(func(cl *client) error { return c.wait(ctx, cl, number, how) })
			}
			key, err := state.ParseKey(args[0])
			if err != nil {
				if pool, _, named := strings.Cut(args[0], "/"); named && slices.Contains([]string{"backend", "backends"}, pool) {
					return fail(exitUsage, "a backend is no resource: wait for its pool, as pool/shop --for=Healthy")
				}
				return fail(exitUsage, "%w; or revision/N", err)
			}
			condition, err := parseCondition(what)
			if err != nil {
				return err
			}
			if condition == conditionHealthy && key.Kind != state.Pools {
				return fail(exitUsage, "only pools are healthy or not: wait for another condition of %s, or for its pool", key)
			}
			return c.call(func(cl *client) error { return c.await(ctx, cl, key, condition) })
		}),
	}
	cmd.Flags().StringVar(&what, "for", "", "what to wait for: "+strings.Join(conditionTypes, ", ")+", deleted; of a revision "+oneOf(waitKinds))
	return cmd
}

// parseCondition reads a condition's name in any case.
func parseCondition(what string) (string, error) {
	for _, t := range append([]string{forDeleted}, conditionTypes...) {
		if strings.EqualFold(t, what) {
			return t, nil
		}
	}
	return "", fail(exitUsage, "--for takes %s or %s for a resource, not %q", strings.Join(conditionTypes, ", "), forDeleted, what)
}

// await looks at a resource until it is as wanted, or the deadline has come.
func (c *cli) await(ctx context.Context, cl *client, key state.Key, condition string) error {
	told := ""
	for {
		lacking, err := lacks(ctx, cl, key, condition)
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return fail(exitInterrupted, "interrupted")
		case ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded:
			if told == "" {
				return err
			}
			return fail(exitWaitTimedOut, "timed out after %s: %s", cl.timeout, told)
		case err != nil:
			return err
		case lacking == "":
			return nil
		}
		if lacking != told {
			c.say("%s", lacking)
			told = lacking
		}
		select {
		case <-ctx.Done():
		case <-time.After(awaitPause):
		}
	}
}

// lacks says what a resource still lacks, on any node that is not drained; empty: nothing.
func lacks(ctx context.Context, cl *client, key state.Key, condition string) (string, error) {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.GetResponse, error) {
		return cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(key.Kind), Name: key.Name, AllNodes: condition != forDeleted})
	})
	switch gone := status.Code(err) == codes.NotFound; {
	case gone && condition == forDeleted:
		return "", nil
	case gone:
		return fmt.Sprintf("%s does not exist yet", key), nil
	case err != nil:
		return "", err
	case condition == forDeleted:
		return fmt.Sprintf("%s is still there", key), nil
	}
	var lacking []string
	reported := false
	for _, cond := range answer.GetConditions() {
		if cond.GetType() != condition || slices.Contains(answer.GetDrained(), cond.GetNode()) {
			continue
		}
		reported = true
		if !cond.GetStatus() {
			lacking = append(lacking, conditionText(cond))
		}
	}
	for _, n := range answer.GetUnreached() {
		if !slices.Contains(answer.GetDrained(), n.GetNode()) {
			reported = true
			lacking = append(lacking, oneLine("node "+n.GetNode()+" does not answer: "+n.GetReason()))
		}
	}
	if !reported {
		return fmt.Sprintf("%s: no node says whether it is %s", key, condition), nil
	}
	if len(lacking) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%s is not %s: %s", key, condition, strings.Join(lacking, "; ")), nil
}

// conditionText is where and why a condition does not hold.
func conditionText(cond *lbdv1.Condition) string {
	text := "node " + cond.GetNode()
	for _, why := range []string{cond.GetReason(), cond.GetMessage()} {
		if why != "" {
			text += ": " + why
		}
	}
	return oneLine(text)
}
