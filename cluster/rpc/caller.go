package rpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Kinds of callers, as WhoAmI names them.
const (
	kindSocket      = "socket"
	kindToken       = "token"
	kindCertificate = "certificate"
	kindNode        = "node"
)

// Caller is who makes a call, and what that caller may do.
type Caller struct {
	// Author is who a revision is recorded for: "node/edge-1 uid=0", "token ci-shop (k3v9…)".
	Author string
	// Kind is "socket", "token", "certificate" or, of another node that calls for itself, "node".
	Kind string
	Role lbdv1.Role
	// Owners that the caller is bound to; none: not bound.
	Owners []string
	// Source is where the call came from: "10.0.0.9:51234", or "unix".
	Source string
	// TokenID is empty for a caller without a credential of the cluster's.
	TokenID string
	// Expire is when the credential ends by itself; zero: never.
	Expire time.Time
	// Via is the name of the node that has passed the call on; empty: it came directly.
	Via string

	// node is who calls, or has passed the call on; nil: no node.
	node *lbdv1.Node
	// shown is by what the caller is known.
	shown shown
}

// bound tells whether the caller may touch only what some owners have.
func (c Caller) bound() bool { return len(c.Owners) > 0 }

type callerKey struct{}

// withCaller is the context of an admitted call.
func withCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// callerOf is who makes the call that a context belongs to. Where nobody was admitted it is UNAUTHENTICATED.
func callerOf(ctx context.Context) (Caller, error) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	if !ok {
		return Caller{}, withDetails(codes.Unauthenticated, reasonNoCredential, "the caller is not known")
	}
	return c, nil
}

// requireOwner refuses a caller that is bound to other owners.
func requireOwner(ctx context.Context, owner string) error {
	c, err := callerOf(ctx)
	if err != nil || !c.bound() || slices.Contains(c.Owners, owner) {
		return err
	}
	return withDetails(codes.PermissionDenied, reasonOwner, fmt.Sprintf("%s is bound to %s: it may not touch what owner `%s` has",
		c.Author, ownersText(c.Owners), owner))
}

func roleTooLow(c Caller, least lbdv1.Role) error {
	return withDetails(codes.PermissionDenied, reasonRole, fmt.Sprintf("%s has the role %s, this takes %s", c.Author, roleWord(c.Role), roleWord(least)))
}

func boundTooTight(c Caller) error {
	return withDetails(codes.PermissionDenied, reasonOwner, fmt.Sprintf("%s is bound to %s: this concerns the whole cluster", c.Author, ownersText(c.Owners)))
}

// origin is where a command of this call comes from, for the audit.
func origin(ctx context.Context) *raftv1.Origin {
	method, _ := grpc.Method(ctx)
	c, _ := callerOf(ctx)
	return &raftv1.Origin{Source: c.from(), Method: shortMethod(method)}
}

// from is where a call came from, for the audit: "10.0.0.9", "10.0.0.9 via edge-2".
func (c Caller) from() string {
	if c.Via != "" {
		return hostOf(c.Source) + " via " + c.Via
	}
	return hostOf(c.Source)
}

// hostOf is a source without its port.
func hostOf(source string) string {
	if host, _, err := net.SplitHostPort(source); err == nil {
		return host
	}
	return source
}

// shortMethod makes "ConfigService/Apply" of "/lbd.v1.ConfigService/Apply"; other words stay.
func shortMethod(full string) string {
	service, method, ok := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	if !ok {
		return full
	}
	return service[strings.LastIndexByte(service, '.')+1:] + "/" + method
}

// sourceOf is where a call came from.
func sourceOf(p *peer.Peer) string {
	if p == nil || p.Addr == nil || p.Addr.Network() == "unix" {
		return "unix"
	}
	return p.Addr.String()
}

// roleWord is "viewer", "operator", "editor" or "admin".
func roleWord(r lbdv1.Role) string { return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")) }

func ownersText(owners []string) string {
	if len(owners) == 1 {
		return "owner `" + owners[0] + "`"
	}
	return "owners `" + strings.Join(owners, "`, `") + "`"
}
