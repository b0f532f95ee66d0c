package rpc

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// A change that a follower is asked for is made by the leader, for whoever asked, and is there when the answer comes.
func TestForwarding(t *testing.T) {
	c := newNodes(t, 3)
	c.hold()
	first, third := c.nodes[0], c.nodes[2]
	made := c.nodes[1].mustApply(owner("web"), web()...)
	if now := c.nodes[1].store0().Revision(); now != made.GetRevision() {
		t.Errorf("the follower has revision %d after its own answer, want %d", now, made.GetRevision())
	}
	if len(c.nodes[1].export("web")) == 0 {
		t.Error("the follower does not read what was written by it")
	}
	revision, _ := first.store0().RevisionAt(made.GetRevision())
	if want := "node/edge-2 uid="; !strings.HasPrefix(revision.GetAuthor(), want) {
		t.Errorf("author %q, want %s…", revision.GetAuthor(), want)
	}
	if e := lastAudit(first); e.GetSource() != "unix via edge-2" || e.GetMethod() != "ConfigService/Apply" {
		t.Errorf("audit %v", e)
	}

	token, secret := first.makeToken(lbdv1.Role_ROLE_EDITOR)
	byToken := third.as(third.dialPort(nil, withToken(secret)))
	made = byToken.mustApply(owner("web"), webFor("s.example")...)
	revision, _ = first.store0().RevisionAt(made.GetRevision())
	if !strings.Contains(revision.GetAuthor(), token.GetId()) {
		t.Errorf("author %q", revision.GetAuthor())
	}
	if e := lastAudit(first); e.GetSource() != "127.0.0.1 via edge-3" {
		t.Errorf("audit %v", e)
	}

	pair := keyPair(t, "client")
	registered := first.register(pair, lbdv1.Role_ROLE_EDITOR)
	made = third.as(third.dialPort(pair)).mustApply(owner("web"), webFor("r.example")...)
	revision, _ = first.store0().RevisionAt(made.GetRevision())
	if !strings.Contains(revision.GetAuthor(), registered.GetId()) {
		t.Errorf("author %q", revision.GetAuthor())
	}
}

// webFor is web with a certificate for a host.
func webFor(host string) []proto.Message { return append(web(), selfSigned("shop", host)) }

func (n *nodeRig) store0() *state.State { return n.seat.State() }

func lastAudit(n *nodeRig) (last *lbdv1.ListAuditResponse) {
	for e := range n.store0().Audit(time.Time{}) {
		last = e
	}
	return last
}

// What was acknowledged is read on every node.
func TestReadsAreUpToDate(t *testing.T) {
	c := newNodes(t, 3)
	c.hold()
	c.nodes[0].mustApply(owner("web"), web()...)
	if len(c.nodes[2].export("web")) == 0 {
		t.Error("a follower reads less than was acknowledged")
	}
}

// A node without a leader answers what it has and how old that is, and after a minute to nobody whose credential may have been revoked.
func TestWithoutALeader(t *testing.T) {
	c := newNodes(t, 3)
	_, secret := c.nodes[0].makeToken(lbdv1.Role_ROLE_ADMIN)
	c.nodes[0].mustApply(owner("web"), web()...)
	n := c.nodes[1]
	n.seat.set(func() { n.seat.cut, n.seat.age = true, 12*time.Second })
	read := func(conn *grpc.ClientConn) (metadata.MD, error) {
		var header metadata.MD
		_, err := lbdv1.NewConfigServiceClient(conn).Get(n.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop"}, grpc.Header(&header))
		if status.Code(err) == codes.NotFound {
			err = nil // by whatever name: it was answered
		}
		return header, err
	}
	stale := func(h metadata.MD) string { return strings.Join(h.Get(headerStale), " ") }
	if h, err := read(n.conn); err != nil || stale(h) != "12s" || strings.Join(h.Get(headerNode), " ") != "edge-2" {
		t.Errorf("by the socket: %v, %v", h, err)
	}
	if h, err := read(n.dialPort(nil, withToken(secret))); err != nil || stale(h) != "12s" {
		t.Errorf("with a token: %v, %v", h, err)
	}

	change := func(timeout time.Duration) (failure, time.Duration) {
		ctx, cancel := context.WithTimeout(n.ctx(), timeout)
		defer cancel()
		began := time.Now()
		_, err := n.auth.CreateToken(ctx, &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_VIEWER})
		return failureOf(t, err), time.Since(began)
	}
	if f, took := change(time.Minute); f.code != codes.Unavailable || f.reason != reasonNoLeader || took > leaderWait {
		t.Errorf("a change after long: %+v after %s", f, took)
	}
	n.seat.set(func() { n.seat.age = time.Second })
	if f, took := change(2 * time.Second); f.reason != reasonNoLeader || took < time.Second {
		t.Errorf("a change during an election: %+v after %s", f, took)
	}
	n.seat.set(func() { n.seat.age = 12 * time.Second })

	if _, err := read(n.dialPort(nil, withToken("lbt_aaaa_bbbb"))); failureOf(t, err).reason != reasonStale {
		t.Errorf("with an unknown token: %+v", failureOf(t, err))
	}
	watching, err := lbdv1.NewConfigServiceClient(n.dialPort(nil, withToken(secret))).Watch(n.ctx(), &lbdv1.WatchRequest{Kind: "pools"})
	if err == nil {
		_, err = watching.Header()
	}
	if err != nil {
		t.Fatal(err)
	}
	n.seat.set(func() { n.seat.age = 61 * time.Second })
	if _, err := read(n.dialPort(nil, withToken(secret))); failureOf(t, err).reason != reasonStale {
		t.Errorf("with a token: %+v", failureOf(t, err))
	}
	for err == nil {
		_, err = watching.Recv()
	}
	if f := failureOf(t, err); f.reason != reasonStale {
		t.Errorf("a stream under way: %+v", f)
	}
	_, err = lbdv1.NewSystemServiceClient(n.dialPort(nil, withToken(secret))).GetVersion(n.ctx(), &lbdv1.GetVersionRequest{})
	if f := failureOf(t, err); f.reason != reasonStale {
		t.Errorf("about the node itself, with a token: %+v", f)
	}
	if _, err := read(n.conn); err != nil {
		t.Errorf("by the socket: %v", err)
	}
	n.seat.set(func() { n.seat.ever = false })
	if h, err := read(n.conn); err != nil || stale(h) != "unknown" {
		t.Errorf("by the socket, never since the start: %v, %v", h, err)
	}
	n.seat.set(func() { n.seat.cut, n.seat.age, n.seat.ever = false, 0, true })
	if h, err := read(n.dialPort(nil, withToken(secret))); err != nil || stale(h) != "" {
		t.Errorf("with a leader: %v, %v", h, err)
	}
}

// A credential that was revoked is none on a node that has not heard of it yet.
func TestRevokedElsewhere(t *testing.T) {
	c := newNodes(t, 2)
	token, secret := c.nodes[0].makeToken(lbdv1.Role_ROLE_ADMIN)
	c.hold()
	n := c.nodes[1]
	conn := n.dialPort(nil, withToken(secret))
	if _, err := n.whoAmI(conn); err != nil {
		t.Fatal(err)
	}
	if _, err := c.nodes[0].auth.RevokeToken(c.nodes[0].ctx(), &lbdv1.RevokeTokenRequest{Id: token.GetId()}); err != nil {
		t.Fatal(err)
	}
	_, err := lbdv1.NewAuthServiceClient(conn).CreateToken(n.ctx(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_VIEWER})
	if f := failureOf(t, err); f.code != codes.Unauthenticated || f.reason != reasonBadCredential {
		t.Errorf("a change passed on: %+v", f)
	}
	if e := c.nodes[0].journal.last(); e.GetResult() != "unauthenticated" {
		t.Errorf("the leader's journal: %v", e)
	}
	if _, ok := n.store0().Token(token.GetId()); !ok {
		t.Fatal("the follower has heard of it: this test tests nothing")
	}
	list, err := lbdv1.NewConfigServiceClient(conn).List(n.ctx(), &lbdv1.ListRequest{Kind: "pools"})
	if failureOf(t, err).code != codes.Unauthenticated {
		t.Errorf("a read: %v, %v", list, err)
	}
}

// A leader that goes while it answers leaves its client with a call that can be repeated.
func TestLeaderLostOnTheWay(t *testing.T) {
	c := newNodes(t, 3)
	reached, over := make(chan struct{}), make(chan struct{})
	first := c.nodes[0]
	defer close(over)
	first.seat.store.instead(func(ctx context.Context, change *raftv1.ChangeCommand) (state.Result, error) {
		result, err := c.apply(first.id, &raftv1.Command{Kind: &raftv1.Command_Change{Change: change}})
		close(reached)
		select {
		case <-over:
		case <-ctx.Done():
			return state.Result{}, ctx.Err()
		}
		return result, err
	})
	head := &lbdv1.ApplyHeader{Owner: "web", RequestId: "r1"}
	lost := make(chan error, 1)
	go func() {
		_, err := c.nodes[1].apply(head, web()...)
		lost <- err
	}()
	<-reached
	c.lead(3)
	if f := failureOf(t, <-lost); f.code != codes.Unavailable || f.reason != reasonOutcomeUnknown {
		t.Errorf("the lost call: %+v", f)
	}
	again := c.nodes[1].mustApply(head, web()...)
	if is := c.nodes[2].store0().Revision(); again.GetRevision() != is {
		t.Errorf("the repeated call made revision %d, the state has %d", again.GetRevision(), is)
	}
}

// A call goes by one other node at most.
func TestNoLoops(t *testing.T) {
	c := newNodes(t, 3)
	c.nodes[0].seat.set(func() { c.nodes[0].seat.believes = nodeID(2) })
	c.nodes[1].seat.set(func() { c.nodes[1].seat.believes = nodeID(1) })
	_, err := c.nodes[0].auth.CreateToken(c.nodes[0].ctx(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_VIEWER})
	if f := failureOf(t, err); f.code != codes.Unavailable || f.reason != reasonNoLeader {
		t.Errorf("%+v", f)
	}
}

// A member that lies gets no further than whoever it lies about could.
func TestLyingFollower(t *testing.T) {
	c := newNodes(t, 3)
	first := c.nodes[0]
	liar := first.asNode(c.nodes[1].shown)
	_, bound := first.makeToken(lbdv1.Role_ROLE_EDITOR, "web")
	_, admin := first.makeToken(lbdv1.Role_ROLE_ADMIN)
	pair, err := newPair([]string{"client"}, now.Add(-48*time.Hour), now.Add(-time.Second))
	if err != nil {
		t.Fatal(err)
	}
	expired := tlsPair(t, pair)
	first.register(expired, lbdv1.Role_ROLE_ADMIN)
	first.mustApply(owner("ops"), &lbdv1.ClusterSettings{LocalAdmin: boolPointer(false)})

	call := func(conn *grpc.ClientConn, pairs ...string) error {
		ctx := metadata.AppendToOutgoingContext(first.ctx(), pairs...)
		_, err := lbdv1.NewAuthServiceClient(conn).CreateToken(ctx, &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_ADMIN})
		return err
	}
	for name, lie := range map[string]struct {
		pairs []string
		code  codes.Code
	}{
		"a forged token":            {[]string{headerAuthorization, "Bearer lbt_aaaa_bbbb"}, codes.Unauthenticated},
		"what is no token":          {[]string{headerAuthorization, "Basic eDp5"}, codes.Unauthenticated},
		"an expired certificate":    {[]string{headerCertificate, string(expired.Certificate[0])}, codes.Unauthenticated},
		"an unknown certificate":    {[]string{headerCertificate, string(keyPair(t, "x").Certificate[0])}, codes.Unauthenticated},
		"no certificate":            {[]string{headerCertificate, "x"}, codes.Unauthenticated},
		"a token out of scope":      {[]string{headerAuthorization, "Bearer " + bound}, codes.PermissionDenied},
		"root, without local_admin": {[]string{headerUser, "0", headerRole, "4"}, codes.PermissionDenied},
		"a role that there is not":  {[]string{headerUser, "0", headerRole, "5"}, codes.Unauthenticated},
		"a user that is none":       {[]string{headerUser, "-1", headerRole, "4"}, codes.Unauthenticated},
		"nobody":                    {nil, codes.Unauthenticated},
		"two at once":               {[]string{headerUser, "0", headerRole, "4", headerAuthorization, "Bearer " + admin}, codes.Unauthenticated},
	} {
		before := len(first.journal.Refusals(time.Time{}))
		if err := call(liar, append([]string{headerSource, "192.0.2.9:1234"}, lie.pairs...)...); failureOf(t, err).code != lie.code {
			t.Errorf("%s: %v, want %v", name, err, lie.code)
		}
		if noted := first.journal.Refusals(time.Time{}); len(noted) == before {
			t.Errorf("%s: the journal has %v", name, noted)
		}
	}
	if err := call(liar); failureOf(t, err).code != codes.PermissionDenied {
		t.Errorf("itself: %v", err)
	}
	// What it may ask for itself it may not ask for nobody, who would be recorded under its name.
	_, err = raftv1.NewPeerServiceClient(liar).GetMembers(metadata.AppendToOutgoingContext(first.ctx(), headerSource, "192.0.2.9:1234"), &raftv1.GetMembersRequest{})
	if f := failureOf(t, err); f.reason != reasonNoCredential {
		t.Errorf("what members ask, for nobody: %+v", f)
	}

	for name, conn := range map[string]*grpc.ClientConn{
		"a stranger":                        first.dialPort(nil),
		"a person's certificate":            first.dialPort(keyPair(t, "person")),
		"a node's certificate of no member": first.asNode(nodeCertificate(t, nodeID(9), nil)),
		"a node's id under another key":     first.asNode(nodeCertificate(t, nodeID(2), nil)),
	} {
		if err := call(conn, headerUser, "0", headerRole, "4"); failureOf(t, err).code != codes.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}

	ctx := metadata.AppendToOutgoingContext(first.ctx(), headerNodeOnly, "1", headerUser, "0")
	who, err := lbdv1.NewAuthServiceClient(first.conn).WhoAmI(ctx, &lbdv1.WhoAmIRequest{})
	if err != nil || !strings.HasSuffix(who.GetAuthor(), "="+uidText()) {
		t.Errorf("by the socket: %v, %v", who, err)
	}
}

func boolPointer(b bool) *bool { return &b }

func uidText() string { return strconv.Itoa(os.Geteuid()) }

// What nodes ask each other is for members, for themselves.
func TestPeerServiceIsForMembers(t *testing.T) {
	c := newNodes(t, 3)
	n := c.nodes[0]
	_, admin := n.makeToken(lbdv1.Role_ROLE_ADMIN)
	for name, one := range map[string]struct {
		conn *grpc.ClientConn
		code codes.Code
	}{
		"a member":                       {n.asNode(c.nodes[2].shown), codes.OK},
		"the socket":                     {n.conn, codes.PermissionDenied},
		"an admin's token":               {n.dialPort(nil, withToken(admin)), codes.PermissionDenied},
		"a stranger":                     {n.dialPort(nil), codes.Unauthenticated},
		"a member's id with another key": {n.asNode(nodeCertificate(t, nodeID(2), nil)), codes.Unauthenticated},
		"an admin's token by a member":   {n.asNode(c.nodes[1].shown, withToken(admin)), codes.PermissionDenied},
	} {
		_, err := raftv1.NewPeerServiceClient(one.conn).GetMembers(n.ctx(), &raftv1.GetMembersRequest{})
		if status.Code(err) != one.code {
			t.Errorf("%s: %v, want %v", name, err, one.code)
		}
	}
	member := raftv1.NewPeerServiceClient(n.asNode(c.nodes[1].shown))
	other, _ := n.store0().Node(nodeID(3))
	if _, err := member.ProposeNode(n.ctx(), &raftv1.ProposeNodeRequest{Node: other}); failureOf(t, err).code != codes.PermissionDenied {
		t.Errorf("another's record: %v", err)
	}
	_, err := n.auth.CreateToken(n.ctx(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_ADMIN, CertificatePem: pemOf(c.nodes[2].shown)})
	if f := failureOf(t, err); f.fields["certificate_pem"] == "" {
		t.Errorf("a token of a node's certificate: %+v", f)
	}
	ctx := metadata.AppendToOutgoingContext(n.ctx(), headerUser, "0", headerRole, "4")
	if _, err := member.GetMembers(ctx, &raftv1.GetMembersRequest{}); failureOf(t, err).code != codes.PermissionDenied {
		t.Errorf("in the name of a user: %v", err)
	}
}
