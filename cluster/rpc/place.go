package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"lbd/cluster"
	lbdv1 "lbd/proto/lbd/v1"
)

// place has a call answered where its method's rule says:
//
//   - by the leader: here if this node leads, else it is passed on, once
//   - from the state: here, once this node has all that was acknowledged before; without a leader it has what it has, and says so
//   - by this node: here
//
// Where a credential counts, this node is sure of it: it has not been without a leader for long.
func (g *guard) place(ctx context.Context, c Caller, method string, one call) error {
	answered := g.rules[method].GetAnswered()
	alone := g.seat == nil || one.local || isNodeOnly(ctx) || c.Kind == kindNode
	switch {
	case alone:
		return one.here(ctx)
	case answered == lbdv1.Answered_ANSWERED_LEADER:
		return g.byLeader(ctx, c, method, one)
	case answered == lbdv1.Answered_ANSWERED_STATE:
		if err := g.upToDate(ctx, c); err != nil {
			return err
		}
	default:
		if err := g.confirm(ctx, c); err != nil {
			return err
		}
	}
	return one.here(ctx)
}

// byLeader answers a call here, or passes it on: to whoever leads by the time at which that one can be reached.
func (g *guard) byLeader(ctx context.Context, c Caller, method string, one call) error {
	end := patience(ctx)
	for {
		leader, err := g.leader(ctx, end)
		if err != nil {
			return err
		}
		passed := c.Via != "" || passedOnBy(ctx) != nil
		switch {
		case leader == g.seat.ID():
			err := one.here(ctx)
			if passed && err == nil {
				err = grpc.SetTrailer(ctx, metadata.Pairs(headerApplied, strconv.FormatUint(g.seat.Applied(), 10)))
			}
			return err
		case passed:
			return unavailable(reasonNoLeader, fmt.Sprintf("node %s does not lead any more: node %s does", g.node, g.named(leader)))
		case g.peers == nil:
			return unavailable(reasonNoLeader, fmt.Sprintf("node %s leads, and this one has no control port to reach it by", g.named(leader)))
		}
		limited, cancel := context.WithDeadline(ctx, end)
		conn, err := g.peers.readyFor(limited, leader)
		cancel()
		if err == nil {
			return one.there(ctx, &forward{guard: g, leader: leader, conn: conn, method: method})
		}
		if !time.Now().Before(end) || g.pause(ctx) != nil { // it is gone, and there may soon be another one
			return unavailable(reasonNoLeader, fmt.Sprintf("node %s leads and cannot be reached, so nothing was changed: %v", g.named(leader), err))
		}
	}
}

// pause waits a moment.
func (g *guard) pause(ctx context.Context) error {
	look := time.NewTimer(leaderLook)
	defer look.Stop()
	select {
	case <-look.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.stopping.Done():
		return errStopping
	}
}

// patience is until when a call waits for a leader: for an election's time, but not until its client is gone, who would not hear why.
func patience(ctx context.Context) time.Time {
	wait := leaderWait
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		wait = min(wait, left-min(tellMax, left/4))
	}
	return time.Now().Add(wait)
}

// leader waits until there is one. A node that has had none for long sees no election that would be over in a moment.
func (g *guard) leader(ctx context.Context, end time.Time) (string, error) {
	for {
		if leader := g.seat.Leader(); leader != "" {
			return leader, nil
		}
		age, ever := g.seat.Fresh()
		lost := ever && age > lostAfter
		if lost || !time.Now().Before(end) || g.pause(ctx) != nil {
			return "", unavailable(reasonNoLeader, g.leaderless())
		}
	}
}

// leaderless says that there is no leader, and for how long.
func (g *guard) leaderless() string {
	text := fmt.Sprintf("node %s knows no leader", g.node)
	if age, ever := g.seat.Fresh(); ever {
		text += fmt.Sprintf(", and has not for %s", age.Round(time.Second))
	}
	return text + ": nothing was changed; more than half of the voters have to reach each other, then it may be tried again"
}

// named is what people call a node.
func (g *guard) named(id string) string {
	if n, ok := g.seat.State().Node(id); ok {
		return n.GetName()
	}
	return id
}

// upToDate waits until this node has all that was acknowledged before the call, and looks again whether the caller is known. Where that
// cannot be had the answer says how old it is.
func (g *guard) upToDate(ctx context.Context, c Caller) error {
	age, ever := g.seat.Fresh()
	timeout := barrierTimeout
	if ever && age > lostAfter {
		timeout = barrierTimeoutLost
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := g.seat.ReadBarrier(limited)
	switch {
	case err == nil:
		return g.stillKnown(c)
	case errors.Is(err, cluster.ErrRemoved):
		return permissionDenied(reasonRemoved, "node %s was removed from the cluster: ask another one", g.node)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if err := g.stale(c); err != nil {
		return err
	}
	text := "unknown"
	if age, ever = g.seat.Fresh(); ever {
		text = age.Round(time.Second).String()
	}
	return grpc.SetHeader(ctx, metadata.Pairs(headerStale, text, headerNode, g.node))
}

// confirm makes sure that a credential is still one, where this node has not heard of the leader for a moment.
func (g *guard) confirm(ctx context.Context, c Caller) error {
	age, ever := g.seat.Fresh()
	if c.TokenID == "" || ever && age <= confirmAfter {
		return nil
	}
	if g.seat.Leader() != "" || !ever {
		limited, cancel := context.WithTimeout(ctx, barrierTimeout)
		defer cancel()
		if g.seat.ReadBarrier(limited) == nil {
			return g.stillKnown(c)
		}
	}
	return g.stale(c)
}

// stillKnown refuses a caller whose credential is none any more.
func (g *guard) stillKnown(c Caller) error {
	if c.TokenID == "" {
		return nil
	}
	if _, ok := g.seat.State().Token(c.TokenID); !ok {
		return unauthenticated(reasonBadCredential, "the credential %s was revoked", c.TokenID)
	}
	return nil
}

// stale refuses what may have been revoked since this node last knew. Its own machine's users need no cluster.
func (g *guard) stale(c Caller) error {
	if g.seat == nil || c.TokenID == "" {
		return nil
	}
	age, ever := g.seat.Fresh()
	if ever && age <= staleMax {
		return nil
	}
	since := "its start"
	if ever {
		since = age.Round(time.Second).String()
	}
	return unavailable(reasonStale, fmt.Sprintf("node %s has had no leader for %s, and cannot tell any more which tokens and certificates are good: call another node, or this one by its own socket", g.node, since))
}

// localOnly tells whether a message says that it is about the called node alone.
func localOnly(req any) bool {
	m, ok := req.(interface{ GetNodeOnly() bool })
	return ok && m.GetNodeOnly()
}

type undecidedKey struct{}

// withUndecided is the context of a call whose caller is not known yet.
func withUndecided(ctx context.Context, header metadata.MD) context.Context {
	return context.WithValue(ctx, undecidedKey{}, header)
}

// mayBeOnItsWay tells whether a credential that is not known here may have been made a moment ago, elsewhere.
func (g *guard) mayBeOnItsWay(source string, err error) bool {
	var unknown *unknownCredential
	return g.seat != nil && errors.As(err, &unknown) && g.seat.Leader() != g.seat.ID() && !g.failures.limited(source, g.now())
}

// leaveUndecided takes one of the few places for such calls; the end of the call's context gives it back.
func (g *guard) leaveUndecided(ctx context.Context) bool {
	select {
	case g.undecided <- struct{}{}:
		context.AfterFunc(ctx, func() { <-g.undecided })
		return true
	default:
		return false
	}
}

// decide looks for the credential of an undecided call again, once this node has what the leader has.
func (g *guard) decide(ctx context.Context, method string) (context.Context, error) {
	header, ok := ctx.Value(undecidedKey{}).(metadata.MD)
	if !ok {
		return ctx, nil
	}
	limited, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	unsure := g.seat.ReadBarrier(limited)
	c, err := g.auth.caller(ctx, header)
	if err != nil {
		p, _ := peer.FromContext(ctx)
		answer := g.refuseLogin(sourceOf(p), method, err)
		if unknown := new(unknownCredential); unsure != nil && answer == err && errors.As(err, &unknown) {
			return ctx, unavailable(reasonStale, fmt.Sprintf("node %s does not know this credential, and has no leader to ask whether it is a new one: call another node", g.node))
		}
		return ctx, answer
	}
	return g.let(ctx, c, method)
}

// lost makes an error of this node's of what the way to the leader ended with: nobody knows then what became of the call.
func lost(err error) error {
	code := status.Code(err)
	if reasonOf(err) != "" || code != codes.Unavailable && code != codes.Canceled && code != codes.Unknown {
		return err
	}
	return unavailable(reasonOutcomeUnknown, "the leader was lost before it answered: what was asked may be done or not; repeat it with the same request id")
}
