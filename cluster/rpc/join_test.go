package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// newcomer is a node that is to join.
type newcomer struct {
	rig     *nodesRig
	shown   *tls.Certificate
	request *raftv1.JoinRequest
}

func (c *nodesRig) newcomer(i int) *newcomer {
	c.t.Helper()
	shown := nodeCertificate(c.t, nodeID(i), nil)
	public, err := x509.MarshalPKIXPublicKey(shown.Leaf.PublicKey)
	if err != nil {
		c.t.Fatal(err)
	}
	return &newcomer{rig: c, shown: shown, request: &raftv1.JoinRequest{PublicKey: public, Node: &lbdv1.Node{
		Id: nodeID(i), Name: fmt.Sprintf("edge-%d", i), Address: fmt.Sprintf("127.0.0.1:%d", i), Role: lbdv1.NodeRole_NODE_ROLE_VOTER,
		Version: "1.2.3", Gate: state.GateMax, Key: publicKeyPin(shown.Leaf),
	}}}
}

// join asks a node to be let in, the first by 0.
func (n *newcomer) join(at int, token string) (*raftv1.JoinResponse, error) {
	n.rig.t.Helper()
	token = strings.TrimPrefix(token, joinTokenPrefix)
	if i := strings.LastIndexByte(token, '_'); i > 0 {
		token = token[:i] // without the pin
	}
	n.request.Token = token
	node := n.rig.nodes[at]
	return raftv1.NewPeerServiceClient(node.asNode(n.shown)).Join(node.ctx(), n.request)
}

func (n *nodeRig) cluster() lbdv1.ClusterServiceClient { return lbdv1.NewClusterServiceClient(n.conn) }

// joinToken makes one at the leader.
func (c *nodesRig) joinToken(change func(*lbdv1.CreateJoinTokenRequest)) *lbdv1.CreateJoinTokenResponse {
	c.t.Helper()
	request := &lbdv1.CreateJoinTokenRequest{}
	if change != nil {
		change(request)
	}
	answer, err := c.nodes[0].cluster().CreateJoinToken(c.nodes[0].ctx(), request)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer
}

func TestJoinTokens(t *testing.T) {
	c := newNodes(t, 2)
	leader := c.nodes[0]
	request := &lbdv1.CreateJoinTokenRequest{Ttl: durationpb.New(10 * time.Minute), Node: "edge-9", Sources: []string{"10.0.0.0/24"}, RequestId: "one"}
	answer, err := c.nodes[1].cluster().CreateJoinToken(leader.ctx(), request) // by a follower
	if err != nil {
		t.Fatal(err)
	}
	token := answer.GetToken()
	pinned := strings.TrimPrefix(pin(leader.shown.Certificate[0]), "sha256:")
	if want := joinTokenPrefix + token.GetId() + "_"; !strings.HasPrefix(answer.GetSecret(), want) || !strings.HasSuffix(answer.GetSecret(), "_"+pinned) {
		t.Errorf("secret %q", answer.GetSecret())
	}
	if token.GetUses() != 1 || !token.GetExpireTime().AsTime().Equal(now.Add(10*time.Minute)) || token.GetNode() != "edge-9" || !strings.HasPrefix(token.GetAuthor(), "node/edge-2 uid=") {
		t.Errorf("token %v", token)
	}
	if len(answer.GetAddresses()) != 2 || answer.GetAddresses()[0] != leader.address {
		t.Errorf("addresses %v, the leader's is %s", answer.GetAddresses(), leader.address)
	}
	if again, err := leader.cluster().CreateJoinToken(leader.ctx(), request); err != nil || again.GetSecret() != "" || again.GetToken().GetId() != token.GetId() {
		t.Errorf("a retry: %v, %v", again, err)
	}
	list, err := c.nodes[1].cluster().ListJoinTokens(leader.ctx(), &lbdv1.ListJoinTokensRequest{})
	made := slices.IndexFunc(list.GetTokens(), func(t *lbdv1.JoinToken) bool { return t.GetId() == token.GetId() })
	if err != nil || len(list.GetTokens()) != 2 || made < 0 { // and the one of the rig
		t.Errorf("%v, %v", list, err)
	}
	if _, err := leader.cluster().RevokeJoinToken(leader.ctx(), &lbdv1.RevokeJoinTokenRequest{Id: token.GetId()}); err != nil {
		t.Error(err)
	}
	if _, err := leader.cluster().RevokeJoinToken(leader.ctx(), &lbdv1.RevokeJoinTokenRequest{Id: token.GetId()}); failureOf(t, err).code != codes.NotFound {
		t.Errorf("revoked twice: %v", err)
	}
	for _, bad := range []*lbdv1.CreateJoinTokenRequest{
		{Ttl: durationpb.New(25 * time.Hour)}, {Ttl: durationpb.New(time.Second)}, {Uses: 101}, {Uses: 2, Reusable: true}, {Sources: []string{"10.0.0.9"}}, {Node: "a b"},
	} {
		if _, err := leader.cluster().CreateJoinToken(leader.ctx(), bad); failureOf(t, err).code != codes.InvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestJoinTokenNeedsAPort(t *testing.T) {
	r := newRig(t)
	_, err := lbdv1.NewClusterServiceClient(r.conn).CreateJoinToken(r.ctx(), &lbdv1.CreateJoinTokenRequest{})
	if f := failureOf(t, err); f.code != codes.FailedPrecondition || !strings.Contains(f.message, "--control HOST:PORT") {
		t.Errorf("%+v", f)
	}
}

// TestJoin: a node becomes a member by whichever node it asks, and gets what it needs; cut off, it asks again.
func TestJoin(t *testing.T) {
	c := newNodes(t, 2)
	token := c.joinToken(nil).GetSecret()
	n := c.newcomer(7)
	for range 2 { // the token is used up by the second
		answer, err := n.join(1, token)
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetPending() || answer.GetClusterId() != testClusterID || answer.GetEpoch() != 1 || len(answer.GetMembers()) != 3 || !bytes.Equal(answer.GetSealKeys(), []byte(testSealKeys)) {
			t.Errorf("answer %v", answer)
		}
	}
	member, ok := c.nodes[0].store0().Node(nodeID(7))
	if !ok || member.GetName() != "edge-7" {
		t.Errorf("member %v", member)
	}
	audit := lastAudit(c.nodes[0])
	if !strings.HasPrefix(audit.GetAuthor(), "join token ") || audit.GetSource() != "127.0.0.1" || audit.GetMethod() != "PeerService/Join" || !strings.Contains(audit.GetMessage(), "node edge-7 (") {
		t.Errorf("audit %v", audit)
	}
	other := c.newcomer(8)
	if _, err := other.join(1, token); failureOf(t, err).code != codes.Unauthenticated || !strings.Contains(err.Error(), "it was used") {
		t.Errorf("a token that was used: %v", err)
	}
}

// TestJoinRefused: each says why, leaves a note, and lets nobody in.
func TestJoinRefused(t *testing.T) {
	c := newNodes(t, 2)
	for _, test := range []struct {
		name   string
		token  func(*lbdv1.CreateJoinTokenRequest)
		change func(*newcomer)
		later  time.Duration
		reason string
		want   string
	}{
		{name: "another name", token: func(r *lbdv1.CreateJoinTokenRequest) { r.Node = "edge-8" }, reason: reasonJoinToken, want: "is for a node named `edge-8`, not `edge-7`"},
		{name: "another source", token: func(r *lbdv1.CreateJoinTokenRequest) { r.Sources = []string{"10.0.0.0/8"} }, reason: reasonJoinToken, want: "is for nodes of 10.0.0.0/8, not for 127.0.0.1"},
		{name: "expired", later: 2 * time.Hour, reason: reasonJoinToken, want: "expired at"},
		{name: "another key than shown", change: func(n *newcomer) { n.shown = nodeCertificate(t, nodeID(7), nil) }, reason: reasonBadCredential, want: "is not the one that it has shown"},
		{name: "no certificate", change: func(n *newcomer) { n.shown = nil }, reason: reasonInvalid, want: "shows its key by a client certificate"},
		{name: "a name that is taken", change: func(n *newcomer) { n.request.Node.Name = "edge-2" }, reason: reasonInvalid, want: "`edge-2` is another node's"},
		{name: "an address that is taken", change: func(n *newcomer) { n.request.Node.Address = c.nodes[1].address }, reason: reasonInvalid, want: "is that of node `edge-2`"},
		{name: "keys that it cannot get", change: func(n *newcomer) { n.request.KeepsSealKeys = true }, reason: reasonSealKey, want: "lacks key k1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			token := c.joinToken(test.token).GetSecret()
			n := c.newcomer(7)
			if test.change != nil {
				test.change(n)
			}
			before := len(list(c.nodes[0].store0()))
			c.nodes[0].later.Store(int64(test.later))
			_, err := n.join(1, token)
			c.nodes[0].later.Store(0)
			if f := failureOf(t, err); f.reason != test.reason || !strings.Contains(f.message, test.want) {
				t.Errorf("%+v", f)
			}
			if after := len(list(c.nodes[0].store0())); after != before {
				t.Errorf("%d members, before %d", after, before)
			}
		})
	}
	noted := []string{}
	for _, entry := range c.nodes[0].journal.Refusals(time.Time{}) {
		noted = append(noted, entry.GetMethod()+" "+entry.GetAuthor()+" "+entry.GetSource()+" "+entry.GetResult())
	}
	const forbidden, stranger = "PeerService/Join node edge-7 127.0.0.1 forbidden", "PeerService/Join node edge-7 127.0.0.1 unauthenticated"
	if want := []string{forbidden, forbidden, forbidden, stranger}; !slices.Equal(noted, want) { // the first four, each once
		t.Errorf("in the leader's journal: %q, want %q", noted, want)
	}
	if passed := c.nodes[1].journal.Refusals(time.Time{}); len(passed) > 0 {
		t.Errorf("the node that has passed them on has noted %v, too", passed)
	}
}

func list(s *state.State) (all []*lbdv1.Node) {
	for n := range s.Nodes() {
		all = append(all, n)
	}
	return all
}

// TestJoinGuesses: who guesses is slowed down.
func TestJoinGuesses(t *testing.T) {
	c := newNodes(t, 1)
	n := c.newcomer(7)
	for i := range failuresBurst + 1 {
		_, err := n.join(0, fmt.Sprintf("lbj_aaaaaaaa_guess%d_pin", i))
		f := failureOf(t, err)
		if limited := f.reason == reasonLimited; limited != (i == failuresBurst) {
			t.Fatalf("guess %d: %+v", i, f)
		}
	}
	if _, err := n.join(0, c.joinToken(nil).GetSecret()); err != nil {
		t.Errorf("a good token from the same address: %v", err)
	}
}

// TestJoinApproval: a node waits until somebody lets it in, or turns it away.
func TestJoinApproval(t *testing.T) {
	c := newNodes(t, 2)
	approval := func(r *lbdv1.CreateJoinTokenRequest) { r.Approval, r.Uses = true, 2 }
	token := c.joinToken(approval).GetSecret()
	good, bad := c.newcomer(7), c.newcomer(8)
	for _, n := range []*newcomer{good, good, bad} {
		if answer, err := n.join(1, token); err != nil || !answer.GetPending() || len(answer.GetSealKeys())+len(answer.GetMembers()) > 0 {
			t.Fatalf("%v, %v", answer, err)
		}
		n.request.Waiting = true
	}
	answer, err := c.nodes[1].cluster().ListJoinTokens(c.nodes[1].ctx(), &lbdv1.ListJoinTokensRequest{})
	if err != nil || len(answer.GetPending()) != 2 || answer.GetPending()[0].GetKey() != good.request.GetNode().GetKey() || answer.GetPending()[0].GetSource() != "127.0.0.1" {
		t.Errorf("%v, %v", answer, err)
	}
	decide := func(node string, reject bool) error {
		_, err := c.nodes[1].cluster().ApproveNode(context.Background(), &lbdv1.ApproveNodeRequest{Node: node, Reject: reject})
		return err
	}
	if err := decide("edge-9", false); failureOf(t, err).code != codes.NotFound {
		t.Errorf("approve nobody: %v", err)
	}
	if err := decide("edge-7", false); err != nil {
		t.Fatal(err)
	}
	if err := decide(nodeID(8), true); err != nil {
		t.Fatal(err)
	}
	if answer, err := good.join(0, token); err != nil || answer.GetPending() || len(answer.GetMembers()) != 3 {
		t.Errorf("approved: %v, %v", answer, err)
	}
	if _, err := bad.join(0, token); failureOf(t, err).reason != reasonRejected {
		t.Errorf("turned away: %v", err)
	}
}

// TestJoinRemoved: a node that was removed is not let in again, whatever token it shows.
func TestJoinRemoved(t *testing.T) {
	c := newNodes(t, 2)
	n := c.newcomer(7)
	if _, err := n.join(0, c.joinToken(nil).GetSecret()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.apply(nodeID(1), removes(nodeID(7), c.nodes[0].shown)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.join(0, c.joinToken(nil).GetSecret()); failureOf(t, err).reason != reasonRemoved {
		t.Errorf("%v", err)
	}
}

// TestVotersAreFew: the sixth voter is refused, and so is what would leave too few in contact.
func TestVotersAreFew(t *testing.T) {
	c := newNodes(t, 3)
	leader, ctx := c.nodes[0], c.nodes[0].ctx()
	role := func(node string, role lbdv1.NodeRole) error {
		_, err := leader.cluster().SetNodeRole(ctx, &lbdv1.SetNodeRoleRequest{Node: node, Role: role})
		return err
	}
	leader.seat.set(func() { leader.seat.silent = map[string]bool{nodeID(3): true} })
	for what, err := range map[string]error{
		"demote one of two": role("edge-2", lbdv1.NodeRole_NODE_ROLE_NON_VOTER),
		"remove one of two": func() error {
			_, err := leader.cluster().RemoveNode(ctx, &lbdv1.RemoveNodeRequest{Node: nodeID(2)})
			return err
		}(),
	} {
		if f := failureOf(t, err); f.reason != reasonQuorum || !strings.Contains(f.message, "only 1 of 2 voters would be in contact") || !strings.Contains(f.message, "bring edge-3 back first") {
			t.Errorf("%s: %+v", what, f)
		}
	}
	if err := role("edge-3", lbdv1.NodeRole_NODE_ROLE_NON_VOTER); err != nil {
		t.Errorf("demote the one that is gone: %v", err)
	}
	if _, err := leader.cluster().TransferLeader(ctx, &lbdv1.TransferLeaderRequest{Node: "edge-3"}); failureOf(t, err).reason != reasonPrecondition {
		t.Errorf("lead without contact: %v", err)
	}
	for i := 4; i <= 6; i++ {
		n := c.newcomer(i)
		if _, err := n.join(0, c.joinToken(nil).GetSecret()); err != nil {
			t.Fatal(err)
		}
	}
	leader.seat.set(func() { leader.seat.mute = map[string]bool{nodeID(6): true} })
	if f := failureOf(t, role("edge-6", lbdv1.NodeRole_NODE_ROLE_VOTER)); f.reason != reasonPrecondition || !strings.Contains(f.message, "there are 5 voters already") {
		t.Errorf("a sixth voter: %+v", f)
	}
	for _, node := range []string{"", "edge-9"} {
		if f := failureOf(t, role(node, lbdv1.NodeRole_NODE_ROLE_VOTER)); f.code != codes.InvalidArgument && f.code != codes.NotFound {
			t.Errorf("node %q: %+v", node, f)
		}
	}
}

// TestPurgeIsEverywhere: each node's disk forgets; one that cannot be asked is named.
func TestPurgeIsEverywhere(t *testing.T) {
	c := newNodes(t, 3)
	leader := c.nodes[0]
	id := newIdentity(t, "a.example")
	leader.mustApply(owner("web"), pemCertificate("a", id.chain, id.key))
	if _, err := leader.certs.Delete(leader.ctx(), &lbdv1.DeleteRequest{Name: "a", Purge: true}); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		if got := n.seat.store.scrubbed.Load(); got != 1 {
			t.Errorf("%s has scrubbed %d times", n.name, got)
		}
	}
	_ = c.nodes[2].server.Close()
	ctx, cancel := context.WithTimeout(leader.ctx(), 10*time.Second)
	defer cancel()
	_, err := leader.certs.Delete(ctx, &lbdv1.DeleteRequest{Name: "a", Purge: true})
	if f := failureOf(t, err); f.reason != reasonUnreached || !strings.Contains(f.message, "the disk of edge-3 (") {
		t.Errorf("with one that is gone: %+v", f)
	}
}

// fakeAuthorities makes authorities whose certificates are their numbers.
type fakeAuthorities struct{}

func (fakeAuthorities) Next(present *raftv1.Authority, keep bool, sealKey string) (*raftv1.Authority, string, error) {
	next := &raftv1.Authority{Certificate: append([]byte("next "), present.GetCertificate()...), SealedKey: []byte("under " + sealKey)}
	if keep {
		next.Former = append([]*raftv1.FormerAuthority{{CrossCertificate: []byte("cross"), Certificate: present.GetCertificate()}}, present.GetFormer()...)
	}
	return next, "", nil
}

// TestRemoveNode: whoever is asked, once or again, removes it once; who is out of contact keeps it from being done, or is named.
func TestRemoveNode(t *testing.T) {
	c := newNodes(t, 4)
	first := pin(c.nodes[0].shown.Certificate[0])
	remove := func(at int, req *lbdv1.RemoveNodeRequest) (*lbdv1.RemoveNodeResponse, error) {
		return c.nodes[at].cluster().RemoveNode(c.nodes[at].ctx(), req)
	}
	if _, err := remove(0, &lbdv1.RemoveNodeRequest{Node: "edge-9"}); failureOf(t, err).code != codes.NotFound {
		t.Errorf("nobody: %v", err)
	}
	_ = c.nodes[3].server.Close()
	_, err := remove(1, &lbdv1.RemoveNodeRequest{Node: "edge-3"})
	if f := failureOf(t, err); f.reason != reasonUnreached || f.code != codes.FailedPrecondition || !strings.Contains(f.message, "has not come to edge-4 (") {
		t.Errorf("with one out of contact: %+v", f)
	}
	if _, ok := c.nodes[0].store0().NodeNamed("edge-3"); !ok {
		t.Error("it is removed though that was refused")
	}
	for i := range 2 { // the second by another node
		answer, err := remove(i, &lbdv1.RemoveNodeRequest{Node: "edge-3", Force: true, RequestId: "one"})
		if err != nil || answer.GetNode().GetName() != "edge-3" || answer.GetPreviousAuthority() != first || answer.GetAuthority() == first {
			t.Errorf("call %d: %v, %v", i, answer, err)
		}
		if want := 1 - i; len(answer.GetUnreached()) != want {
			t.Errorf("call %d: out of contact %v", i, answer.GetUnreached())
		}
	}
	removals := 0
	for entry := range c.nodes[0].store0().Audit(time.Time{}) {
		if entry.GetMethod() == "ClusterService/RemoveNode" && strings.HasPrefix(entry.GetMessage(), "node edge-3 (") {
			removals++
		}
	}
	if removals != 1 {
		t.Errorf("removed %d times", removals)
	}
	if _, err := remove(0, &lbdv1.RemoveNodeRequest{Node: "edge-3", RequestId: "two"}); failureOf(t, err).code != codes.NotFound || !strings.Contains(err.Error(), "node `edge-3` was removed at") {
		t.Errorf("once more: %v", err)
	}
	answer, err := remove(0, &lbdv1.RemoveNodeRequest{Node: "edge-4", Compromised: true})
	if err != nil || answer.GetPreviousAuthority() != "" || len(answer.GetUnreached()) != 0 {
		t.Errorf("compromised: %v, %v", answer, err)
	}
	if _, err := remove(1, &lbdv1.RemoveNodeRequest{Node: "edge-1"}); failureOf(t, err).reason != reasonNoLeader {
		t.Errorf("the leader itself hands over first: %v", err)
	}
}

// TestRotateAuthority: the pins before are good until they are retired.
func TestRotateAuthority(t *testing.T) {
	c := newNodes(t, 2)
	ctx, cluster := c.nodes[0].ctx(), c.nodes[1].cluster()
	first := pin(c.nodes[0].shown.Certificate[0])
	second := ""
	for range 2 {
		answer, err := cluster.RotateAuthority(ctx, &lbdv1.RotateAuthorityRequest{RequestId: "one"})
		if err != nil || answer.GetPreviousAuthority() != first || answer.GetAuthority() == first || second != "" && answer.GetAuthority() != second {
			t.Fatalf("%v, %v", answer, err)
		}
		second = answer.GetAuthority()
	}
	for range state.FormerAuthoritiesMax - 1 {
		answer, err := cluster.RotateAuthority(ctx, &lbdv1.RotateAuthorityRequest{})
		if err != nil || answer.GetPreviousAuthority() != second {
			t.Fatalf("%v, %v", answer, err)
		}
		second = answer.GetAuthority()
	}
	if _, err := cluster.RotateAuthority(ctx, &lbdv1.RotateAuthorityRequest{}); failureOf(t, err).reason != reasonPrecondition || !strings.Contains(err.Error(), "--retire") {
		t.Errorf("one too many: %v", err)
	}
	for range 2 {
		if answer, err := cluster.RetireAuthority(ctx, &lbdv1.RetireAuthorityRequest{RequestId: "two"}); err != nil || answer.GetAuthority() != second {
			t.Errorf("%v, %v", answer, err)
		}
	}
	if answer, err := cluster.RotateAuthority(ctx, &lbdv1.RotateAuthorityRequest{}); err != nil || answer.GetPreviousAuthority() != second {
		t.Errorf("after that: %v, %v", answer, err)
	}
}

// TestRecoverIsForTheSocket: and for a cluster that has no leader.
func TestRecoverIsForTheSocket(t *testing.T) {
	c := newNodes(t, 3)
	node := c.nodes[1]
	_, admin := node.makeToken(lbdv1.Role_ROLE_ADMIN)
	request := &lbdv1.RecoverClusterRequest{ClusterId: testClusterID}
	_, err := lbdv1.NewClusterServiceClient(node.dialPort(nil, withToken(admin))).RecoverCluster(node.ctx(), request)
	if f := failureOf(t, err); f.reason != reasonSocket || f.code != codes.PermissionDenied {
		t.Errorf("with a token: %+v", f)
	}
	if _, err := node.cluster().RecoverCluster(node.ctx(), &lbdv1.RecoverClusterRequest{ClusterId: "c-1"}); failureOf(t, err).code != codes.InvalidArgument {
		t.Errorf("another cluster: %v", err)
	}
	if _, err := node.cluster().RecoverCluster(node.ctx(), request); failureOf(t, err).reason != reasonPrecondition || !strings.Contains(err.Error(), "node `edge-1` leads") {
		t.Errorf("with a leader: %v", err)
	}
}

// TestRecoverByOneThatIsOut: what another node knows counts although a node that has not heard of it answers as before, and whatever is forced.
func TestRecoverByOneThatIsOut(t *testing.T) {
	for name, by := range map[string]struct {
		out  func(c *nodesRig) *raftv1.Command
		says error
	}{
		"removed":     {func(c *nodesRig) *raftv1.Command { return removes(nodeID(3), c.nodes[0].shown) }, cluster.ErrRemoved},
		"left behind": {func(c *nodesRig) *raftv1.Command { return begins(nodeID(1), c.nodes[0].shown) }, cluster.ErrLeftBehind},
	} {
		t.Run(name, func(t *testing.T) {
			c := newNodes(t, 3)
			gone := c.nodes[2]
			c.hold()
			if _, err := c.apply(nodeID(1), by.out(c)); err != nil {
				t.Fatal(err)
			}
			c.lead(0)
			_, err := gone.cluster().RecoverCluster(gone.ctx(), &lbdv1.RecoverClusterRequest{ClusterId: testClusterID, Force: true})
			if f := failureOf(t, err); f.reason != reasonPrecondition || !strings.Contains(err.Error(), "node `edge-1` answers: "+by.says.Error()+":") {
				t.Errorf("it recovers: %v", err)
			}
		})
	}
}

// begins is the command by which an epoch begins with one node alone.
func begins(id string, shown *tls.Certificate) *raftv1.Command {
	return &raftv1.Command{Kind: &raftv1.Command_Epoch{Epoch: &raftv1.EpochCommand{
		Author: "test", Time: timestamppb.New(now), Node: id, Epoch: 2,
		Authority: &raftv1.Authority{Certificate: shown.Certificate[0], SealedKey: []byte("sealed anew")},
	}}}
}
