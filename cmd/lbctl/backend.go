package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lbd/cluster/state"
	"lbd/cmd/lbctl/document"
	lbdv1 "lbd/proto/lbd/v1"
)

func (c *cli) backendCommand() *cobra.Command {
	return noun("backend", "Look after single backends", c.backendStatus(), c.backendDrain(), c.backendReady(), c.backendMaint(), c.backendWeight())
}

func (c *cli) backendStatus() *cobra.Command {
	node := ""
	cmd := &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show backends as each node sees them",
		Long: `Show backends as each node sees them, or as one does (--node).

STATE is what an operator has said ("backend drain"), with "here" where it, or the weight, was said on that node alone (--node-local). TAKES tells whether it gets requests now, and if not, why. SHARE is its
part of the weight of those that take requests. LAST ERROR is there, with how long ago it was, while it keeps a backend from
taking them, and the time alone where TAKES says the rest; with -o wide always.`,
		Example: `  lbctl backend status shop -o wide`,
		Args:    cobra.MaximumNArgs(1),
		RunE: c.does(func(ctx context.Context, args []string) error {
			request := &lbdv1.BackendServiceGetStatusRequest{Node: c.meant(node)}
			if len(args) > 0 {
				request.Pool = withoutKind(state.Pools, args[0])
			}
			return c.call(func(cl *client) error {
				answer, err := cl.backend.GetStatus(ctx, request)
				if err != nil {
					return err
				}
				c.warnUnreached(answer.GetUnreached())
				c.printBackends(answer.GetBackends())
				return nil
			})
		}),
	}
	nodesFlag(cmd, &node)
	return takesNodeLocal(cmd)
}

func (c *cli) printBackends(backends []*lbdv1.BackendStatus) {
	now := time.Now()
	values := []*document.Value{}
	var names []string
	for _, b := range backends {
		values = append(values, document.OfAnswer(b))
		names = append(names, backendName(b.GetPool(), b.GetAddress()))
	}
	c.print(result{value: document.ListOf(values), names: names, table: func(w *table) {
		nodes := several(backends)
		w.byNode(nodes, "NODE", []string{"POOL", "BACKEND", "STATE", "HEALTH", "TAKES", "WEIGHT", "SHARE", "IN FLIGHT", "CONNECTIONS", "QUEUED", "REQUESTS", "FAILURES", "LAST ERROR"},
			"SINCE", "BACKUP", "EJECTED UNTIL", "EJECTIONS", "RESOLVED", "LATENCY", "IDLE", "NEW", "REUSED")
		for _, b := range backends {
			w.byNode(nodes, b.GetNode(), []string{
				b.GetPool(), b.GetAddress(), stateText(b), word(b.GetHealth()), takes(b), fmt.Sprint(b.GetWeight()), shareText(b, backends), fmt.Sprint(b.GetInFlight()),
				fmt.Sprint(b.GetConnections()), fmt.Sprint(b.GetQueued()), fmt.Sprint(b.GetRequestsTotal()), fmt.Sprint(b.GetFailuresTotal()), lastError(b, w.wide, now),
			}, moment(b.GetSince()), fmt.Sprint(b.GetBackup()), moment(b.GetEjectedUntil()), fmt.Sprint(b.GetEjectionsTotal()),
				b.GetResolvedAddress(), latency(b), fmt.Sprint(b.GetIdleConnections()), fmt.Sprint(b.GetConnectionsNewTotal()), fmt.Sprint(b.GetConnectionsReusedTotal()))
		}
	}})
}

// backendName is POOL/ADDRESS, as the verbs take it.
func backendName(pool, address string) string { return pool + "/" + address }

// stateOf is what an operator has said; without a word of his it is READY.
func stateOf(b *lbdv1.BackendStatus) string {
	if b.GetState() == lbdv1.BackendState_BACKEND_STATE_UNSPECIFIED {
		return word(lbdv1.BackendState_BACKEND_STATE_READY)
	}
	return word(b.GetState())
}

// stateText is stateOf, and whether it or the weight was said on that node alone.
func stateText(b *lbdv1.BackendStatus) string {
	if b.GetNodeLocal() {
		return stateOf(b) + " here"
	}
	return stateOf(b)
}

// takes is whether a backend gets requests now, or why not.
func takes(b *lbdv1.BackendStatus) string { return yesOr(b.GetEligible(), b.GetIneligibleReason()) }

// lastError is the last failure and how long ago it was, where it matters now, or in any case. What is said already is not said
// again.
func lastError(b *lbdv1.BackendStatus, always bool, now time.Time) string {
	fine := b.GetEligible() && b.GetHealth() != lbdv1.BackendHealth_BACKEND_HEALTH_DOWN
	if b.GetLastError() == "" || fine && !always {
		return ""
	}
	text, when := b.GetLastError(), ""
	if b.GetLastErrorTime() != nil {
		when = ago(now.Sub(b.GetLastErrorTime().AsTime()))
	}
	switch {
	case !always && strings.Contains(takes(b), text):
		return when
	case when == "":
		return text
	}
	return text + ", " + when
}

// yesOr is "yes", or "no" and why.
func yesOr(yes bool, why string) string {
	switch {
	case yes:
		return "yes"
	case why == "":
		return "no"
	default:
		return "no: " + why
	}
}

func latency(b *lbdv1.BackendStatus) string {
	if b.GetLatencyMs() == 0 {
		return ""
	}
	return fmt.Sprintf("%.1fms", b.GetLatencyMs())
}
