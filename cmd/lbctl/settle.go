package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// settleTimeout bounds how long a verb looks whether the node shows what was said; it is stored in any case.
	settleTimeout = 2 * time.Second
	settlePause   = 50 * time.Millisecond
)

// settled looks at the targets' pools until the answering node shows what was said of the targets, so that whoever looks
// next sees it, too; at most settleTimeout. It returns what was seen last: nothing, if the node does not tell.
func settled(ctx context.Context, cl *client, targets []target, in *saying) []*lbdv1.BackendStatus {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var seen []*lbdv1.BackendStatus
	for {
		now, err := poolsOf(ctx, cl, targets)
		if err != nil {
			return seen
		}
		if seen = now; !slices.ContainsFunc(seen, func(b *lbdv1.BackendStatus) bool { return isTarget(b, targets) && !shows(b, in) }) {
			return seen
		}
		select {
		case <-ctx.Done():
			return seen
		case <-time.After(settlePause):
		}
	}
}

// poolsOf are the backends of all pools that the targets are in.
func poolsOf(ctx context.Context, cl *client, targets []target) ([]*lbdv1.BackendStatus, error) {
	var all []*lbdv1.BackendStatus
	asked := map[string]bool{}
	for _, t := range targets {
		if asked[t.pool] {
			continue
		}
		asked[t.pool] = true
		answer, err := cl.backend.GetStatus(ctx, &lbdv1.BackendServiceGetStatusRequest{Pool: t.pool})
		if err != nil {
			return nil, err
		}
		all = append(all, answer.GetBackends()...)
	}
	return all, nil
}

func isTarget(b *lbdv1.BackendStatus, targets []target) bool {
	return slices.ContainsFunc(targets, func(t target) bool {
		return t.pool == b.GetPool() && state.NormalAddress(t.address) == b.GetAddress()
	})
}

// shows tells whether a node acts upon what was said of a backend.
func shows(b *lbdv1.BackendStatus, in *saying) bool {
	if in.isState {
		return stateOf(b) == word(in.state)
	}
	return b.GetWeight() == in.weight
}

// share is a backend's part of the weight that takes requests on its node, in percent; ok is false where there is none.
func share(b *lbdv1.BackendStatus, all []*lbdv1.BackendStatus) (percent int, ok bool) {
	var sum int32
	for _, o := range all {
		if o.GetEligible() && o.GetPool() == b.GetPool() && o.GetNode() == b.GetNode() {
			sum += o.GetWeight()
		}
	}
	if sum == 0 {
		return 0, false
	}
	if !b.GetEligible() {
		return 0, true
	}
	return int((200*int64(b.GetWeight()) + int64(sum)) / (2 * int64(sum))), true
}

func shareText(b *lbdv1.BackendStatus, all []*lbdv1.BackendStatus) string {
	if percent, ok := share(b, all); ok {
		return fmt.Sprintf("%d %%", percent)
	}
	return ""
}

// warnOfIdlePools tells which pools nobody is left in to take requests, now that the targets are taken out.
func (c *cli) warnOfIdlePools(targets []target, seen []*lbdv1.BackendStatus) {
	told := map[string]bool{}
	for _, t := range targets {
		ofPool := func(b *lbdv1.BackendStatus) bool { return b.GetPool() == t.pool }
		takes := func(b *lbdv1.BackendStatus) bool { return ofPool(b) && b.GetEligible() }
		if !told[t.pool] && slices.ContainsFunc(seen, ofPool) && !slices.ContainsFunc(seen, takes) {
			fmt.Fprintf(c.stderr, "warning: no backend of pool %s takes requests now\n", oneLine(t.pool))
		}
		told[t.pool] = true
	}
}

// replaced says what is in force of the targets until the same is said of them anew. That is only talk: where the node does
// not answer, saying it anew fails, too.
func replaced(ctx context.Context, cl *client, targets []target, in *saying) []string {
	var all []string
	for _, t := range targets {
		answer, err := cl.backend.ListOverrides(ctx, &lbdv1.ListOverridesRequest{Pool: t.pool})
		if status.Code(err) != codes.OK {
			return nil
		}
		for _, o := range answer.GetOverrides() {
			_, isWeight := o.GetWhat().(*lbdv1.Override_Weight)
			if o.GetAddress() == state.NormalAddress(t.address) && isWeight != in.isState && (o.GetNode() != "") == in.here {
				all = append(all, fmt.Sprintf("%s: replaces %s", oneLine(t.String()), overrideText(o)))
			}
		}
	}
	return all
}
