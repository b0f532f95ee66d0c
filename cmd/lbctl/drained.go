package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// drainedWord is why a backend is not eligible once its drain has ended.
const drainedWord = "drained"

// waitDrained looks at backends until nothing is under way at them, or the deadline has come.
func (c *cli) waitDrained(ctx context.Context, cl *client, targets []target) error {
	told := ""
	for {
		left, err := underWay(ctx, cl, targets, c.meant(allNodes))
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return fail(exitInterrupted, "interrupted: the drain stays")
		case ctx.Err() != nil || status.Code(err) == codes.DeadlineExceeded:
			if told == "" {
				told = "no node has said what is under way"
			}
			return fail(exitWaitTimedOut, "timed out after %s: %s; the drain stays", cl.timeout, told)
		case err != nil:
			return err
		case left == "":
			return nil
		}
		if left != told {
			c.say("%s", left)
			told = left
		}
		select {
		case <-ctx.Done():
		case <-time.After(awaitPause):
		}
	}
}

// underWay says what is still under way at draining backends, on the node that is named or on each; empty: nothing.
func underWay(ctx context.Context, cl *client, targets []target, node string) (string, error) {
	var left []string
	for _, t := range targets {
		bound, err := persistent(ctx, cl, t.pool)
		if err != nil {
			return "", err
		}
		answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.BackendServiceGetStatusResponse, error) {
			return cl.backend.GetStatus(ctx, &lbdv1.BackendServiceGetStatusRequest{Pool: t.pool, Node: node})
		})
		if err != nil {
			return "", err
		}
		for _, u := range answer.GetUnreached() {
			left = append(left, fmt.Sprintf("node %s does not answer: %s", u.GetNode(), u.GetReason()))
		}
		for _, b := range answer.GetBackends() {
			if b.GetAddress() != state.NormalAddress(t.address) {
				continue
			}
			if why := remains(b, bound); why != "" {
				left = append(left, fmt.Sprintf("node %s: %s %s", b.GetNode(), t, why))
			}
		}
	}
	return oneLine(strings.Join(left, "; ")), nil
}

// persistent tells whether clients are bound to the pool's backends: they stay while it drains.
func persistent(ctx context.Context, cl *client, pool string) (bool, error) {
	answer, err := retried(ctx, cl, startGrace, func() (*lbdv1.GetResponse, error) {
		return cl.config.Get(ctx, &lbdv1.GetRequest{Kind: string(state.Pools), Name: pool})
	})
	return answer.GetResource().GetPool().GetSessionPersistence() != nil, err
}

// remains says what one node still has to do with a draining backend; empty: nothing. A client that is bound may be between
// two requests, so that its backend has none in flight: until the node calls it drained an open connection counts.
func remains(b *lbdv1.BackendStatus, bound bool) string {
	switch {
	case b.GetState() != lbdv1.BackendState_BACKEND_STATE_DRAIN:
		return "does not drain yet"
	case b.GetInFlight() > 0:
		return "has " + countOf(int(b.GetInFlight()), "request") + " in flight"
	case bound && b.GetConnections() > 0 && b.GetIneligibleReason() != drainedWord:
		return "has " + countOf(int(b.GetConnections()), "connection") + " for clients that are bound to it"
	}
	return ""
}
