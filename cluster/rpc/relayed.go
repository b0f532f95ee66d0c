package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"lbd/cluster"
	lbdv1 "lbd/proto/lbd/v1"
)

// A call that another node has to answer travels with what its caller has shown here, and is judged there as if the caller had come by
// himself: a token by its secret, a client certificate by its key and dates. A socket's user the other node has to be told; it takes
// the word of the node that it knows by its certificate, under that node's name, within cluster_settings.local_admin.

// Metadata between nodes. From anybody else it means nothing.
const (
	headerAuthorization = "lbd-caller-authorization"
	headerCertificate   = "lbd-caller-certificate-bin"
	headerUser          = "lbd-caller-uid"
	headerRole          = "lbd-caller-role"
	headerSource        = "lbd-caller-source"
	// headerNodeOnly: the callee answers for itself alone.
	headerNodeOnly = "lbd-node-only"
	// headerApplied is in a leader's answers: the entry of the log by which they are written.
	headerApplied = "lbd-applied-index"
	// headerStale and headerNode are in the answers of a node without a leader, to everybody: how old they are, and whose.
	headerStale = "lbd-stale"
	headerNode  = "lbd-node"
)

// shown is by what a caller is known.
type shown struct {
	authorization string
	certificate   []byte // DER
	socket        bool
	uid           uint32
	role          lbdv1.Role // what the socket's rules make of the user
}

// relayed is a context for calls to other nodes in the name of the caller of ctx.
func relayed(ctx context.Context) context.Context {
	c, err := callerOf(ctx)
	if err != nil {
		return relayedJoiner(ctx)
	}
	pairs := []string{headerSource, c.Source}
	switch {
	case c.shown.authorization != "":
		pairs = append(pairs, headerAuthorization, c.shown.authorization)
	case c.shown.certificate != nil:
		pairs = append(pairs, headerCertificate, string(c.shown.certificate))
	case c.shown.socket:
		pairs = append(pairs, headerUser, strconv.FormatUint(uint64(c.shown.uid), 10), headerRole, strconv.Itoa(int(c.shown.role)))
	}
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(pairs...))
}

// relayedJoiner is a context for the call of a node that is none yet.
func relayedJoiner(ctx context.Context) context.Context {
	source, leaf := joinerOf(ctx)
	pairs := []string{headerSource, source}
	if leaf != nil {
		pairs = append(pairs, headerCertificate, string(leaf.Raw))
	}
	return metadata.NewOutgoingContext(ctx, metadata.Pairs(pairs...))
}

// nodeOnly is relayed for a question that the other node answers for itself alone.
func nodeOnly(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(relayed(ctx), headerNodeOnly, "1")
}

// isNodeOnly tells whether another node asks this one for itself alone.
func isNodeOnly(ctx context.Context) bool {
	c, err := callerOf(ctx)
	header, _ := metadata.FromIncomingContext(ctx)
	return err == nil && c.Via != "" && len(header.Get(headerNodeOnly)) > 0
}

// fromNode is a call of another node: in somebody's name, or for itself.
func (a *authenticator) fromNode(source string, leaf *x509.Certificate, header metadata.MD) (Caller, error) {
	if a.peers == nil {
		return Caller{}, unauthenticated(reasonBadCredential, "this node has no others beside it")
	}
	n, err := a.peers.verify(leaf)
	switch {
	case errors.Is(err, cluster.ErrRemoved):
		return Caller{}, errRemovedNode(err)
	case errors.Is(err, errUnknownNode):
		a.peers.learnLater()
		return Caller{}, unauthenticated(reasonBadCredential, "%v", err)
	case err != nil:
		return Caller{}, unauthenticated(reasonBadCredential, "%v", err)
	}
	return a.relayedBy(n, source, header)
}

// relayedBy is who a member says to call for.
func (a *authenticator) relayedBy(n *lbdv1.Node, source string, header metadata.MD) (c Caller, err error) {
	authorization, certificate, uid := header.Get(headerAuthorization), header.Get(headerCertificate), header.Get(headerUser)
	from := source
	if said := header.Get(headerSource); len(said) == 1 {
		from = clip(said[0])
	}
	switch {
	case len(authorization)+len(certificate)+len(uid) > 1:
		return Caller{}, unauthenticated(reasonBadCredential, "node %s calls for several at once", n.GetName())
	case len(authorization) == 1:
		c, err = a.bearer(from, authorization)
	case len(certificate) == 1:
		var leaf *x509.Certificate
		if leaf, err = x509.ParseCertificate([]byte(certificate[0])); err != nil {
			return Caller{}, unauthenticated(reasonBadCredential, "node %s passes on what is no certificate", n.GetName())
		}
		c, err = a.certificate(from, []*x509.Certificate{leaf})
	case len(uid) == 1:
		c, err = a.otherSocket(n, uid[0], header.Get(headerRole))
	case len(header.Get(headerSource)) > 0: // somebody's, who has shown nothing: it must not become the node's own
		return Caller{}, unauthenticated(reasonNoCredential, "node %s passes on a call without what its caller is known by", n.GetName())
	default:
		return Caller{Author: "node/" + n.GetName(), Kind: kindNode, Role: lbdv1.Role_ROLE_ADMIN, Source: source, node: n}, nil
	}
	c.Via, c.node = n.GetName(), n
	return c, err
}

// otherSocket is a user of another node's socket. What --local-admin makes of the socket's users there counts there alone.
func (a *authenticator) otherSocket(n *lbdv1.Node, uid string, roles []string) (Caller, error) {
	id, err := strconv.ParseUint(uid, 10, 32)
	role := lbdv1.Role_ROLE_UNSPECIFIED
	if len(roles) == 1 {
		number, _ := strconv.Atoi(roles[0])
		role = lbdv1.Role(number)
	}
	if err != nil || role < lbdv1.Role_ROLE_VIEWER || role > lbdv1.Role_ROLE_ADMIN {
		return Caller{}, unauthenticated(reasonBadCredential, "node %s passes on a user that is none", n.GetName())
	}
	u := user{uid: uint32(id), role: role}
	c := a.socket(n.GetName(), u, false, false)
	c.shown = shown{socket: true, uid: u.uid, role: c.Role}
	return c, nil
}

// joinerOf is who calls to join, and by which certificate (nil: it has shown none): also where a member has passed the call on.
func joinerOf(ctx context.Context) (source string, leaf *x509.Certificate) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", nil
	}
	source = sourceOf(p)
	info, ok := p.AuthInfo.(portPeer)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return source, nil
	}
	leaf = info.State.PeerCertificates[0]
	header, _ := metadata.FromIncomingContext(ctx)
	if said := header.Get(headerSource); len(said) == 1 && passedOnBy(ctx) != nil {
		source, leaf = clip(said[0]), nil
		if shown := header.Get(headerCertificate); len(shown) == 1 {
			leaf, _ = x509.ParseCertificate([]byte(shown[0]))
		}
	}
	return source, leaf
}

type passerKey struct{}

// passedOnBy is the member that has passed on the call of a joiner; nil: none has.
func passedOnBy(ctx context.Context) *lbdv1.Node {
	n, _ := ctx.Value(passerKey{}).(*lbdv1.Node)
	return n
}

// admitJoiner notes the member that has passed on the call of a node that is none yet, if one has.
func (a *authenticator) admitJoiner(ctx context.Context, header metadata.MD) context.Context {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(portPeer)
	if !ok || a.peers == nil || len(info.State.PeerCertificates) == 0 || len(header.Get(headerSource)) == 0 {
		return ctx
	}
	n, err := a.peers.verify(info.State.PeerCertificates[0])
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, passerKey{}, n)
}

// peerOf is the node that calls for itself.
func peerOf(ctx context.Context) (*lbdv1.Node, error) {
	c, err := callerOf(ctx)
	if err == nil && (c.Kind != kindNode || c.node == nil) {
		err = permissionDenied(reasonRole, "%s is no node", c.Author)
	}
	if err != nil {
		return nil, fmt.Errorf("who calls: %w", err)
	}
	return c.node, nil
}
