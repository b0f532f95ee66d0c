package rpc

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// GetStatus reads the condition of the cluster, and of every node as it says itself.
func (s *clusterService) GetStatus(ctx context.Context, _ *lbdv1.ClusterServiceGetStatusRequest) (*lbdv1.ClusterServiceGetStatusResponse, error) {
	replies := s.askStatus(ctx, s.fleet.asked(ctx))
	newest := newestStored(replies)
	s.askAgain(ctx, replies, newest)
	current := s.store.State()
	out := &lbdv1.ClusterServiceGetStatusResponse{ClusterId: current.ClusterID(), Epoch: current.Epoch(), Gate: current.Gate()}
	voters := map[string]bool{s.fleet.id: s.seat == nil}
	if s.seat != nil {
		out.Leader = s.fleet.leader()
		for _, m := range s.seat.Members() {
			voters[m.Node.GetId()] = m.Voter
		}
	}
	for _, r := range replies {
		out.Nodes = append(out.Nodes, s.nodeStatus(r, voters[r.node.GetId()]))
	}
	judge(out, newest)
	return out, nil
}

func (s *clusterService) askStatus(ctx context.Context, nodes []*lbdv1.Node) []statusReply {
	request := &lbdv1.SystemServiceGetStatusRequest{}
	return askThese(ctx, s.fleet, nodes, asker.way, func(ctx context.Context) (*lbdv1.SystemServiceGetStatusResponse, error) {
		return s.system.GetStatus(ctx, request)
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*lbdv1.SystemServiceGetStatusResponse, error) {
		return lbdv1.NewSystemServiceClient(conn).GetStatus(ctx, request)
	})
}

// statusReply is what one node has said of itself.
type statusReply = reply[*lbdv1.SystemServiceGetStatusResponse]

// askAgain gives those that answered and are behind a moment: under a writer somebody is a revision behind at nearly every instant. Who has not
// answered has had its time, and is not waited for once more.
func (s *clusterService) askAgain(ctx context.Context, replies []statusReply, newest int64) {
	ctx, cancel := context.WithTimeout(ctx, lagMax)
	defer cancel()
	for behind := lagging(replies, newest); len(behind) > 0 && sleep(ctx, lagPause); behind = lagging(replies, newest) {
		for _, again := range s.askStatus(ctx, behind) {
			i := slices.IndexFunc(replies, func(r statusReply) bool { return r.node.GetId() == again.node.GetId() })
			if again.err == nil {
				replies[i] = again
			}
		}
	}
}

// newestStored is the newest revision that any node has.
func newestStored(replies []statusReply) (newest int64) {
	for _, r := range replies {
		newest = max(newest, r.answer.GetStoredRevision())
	}
	return newest
}

// lagging are the nodes that answer and do not serve a revision.
func lagging(replies []statusReply, revision int64) (nodes []*lbdv1.Node) {
	for _, r := range replies {
		if r.err == nil && r.answer.GetServedRevision() < revision {
			nodes = append(nodes, r.node)
		}
	}
	return nodes
}

// sleep is false if the call ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// nodeStatus is a node as it was found.
func (s *clusterService) nodeStatus(r statusReply, voter bool) *lbdv1.NodeStatus {
	n := &lbdv1.NodeStatus{Node: r.node, Voter: voter}
	if r.err != nil {
		n.UnreachableReason = s.fleet.silence(r.err)
		return n
	}
	said := r.answer
	n.Reachable = true
	n.RaftRole, n.StoredRevision, n.ServedRevision = said.GetRaftRole(), said.GetStoredRevision(), said.GetServedRevision()
	n.AppliedIndex, n.StartTime, n.StaleMs = said.GetAppliedIndex(), said.GetStartTime(), said.GetStaleMs()
	n.Problems, n.Connections, n.Traffic = said.GetProblems(), said.GetConnections(), said.GetTraffic()
	return n
}

// judge says what is wrong with the cluster, and what deserves attention. newest is a revision that every node had time to serve.
func judge(c *lbdv1.ClusterServiceGetStatusResponse, newest int64) {
	live := 0
	for _, n := range c.GetNodes() {
		if n.GetVoter() {
			c.Voters++
			if n.GetReachable() {
				live++
			}
		}
	}
	c.Tolerates = max(c.GetVoters()-1, 0) / 2
	quorum := int(c.GetVoters())/2 + 1
	switch {
	case c.GetVoters() > 0 && live < quorum:
		c.Problems = append(c.Problems, fmt.Sprintf("no quorum: %d of %d voters answer, and it takes %d: traffic is served, changes are refused", live, c.GetVoters(), quorum))
	case c.GetLeader() == "" && c.GetVoters() > 0:
		c.Problems = append(c.Problems, "no leader: traffic is served, changes are refused")
	}
	for _, n := range c.GetNodes() {
		c.Problems = append(c.Problems, nodeProblems(c, n, newest)...)
		if d := n.GetNode().GetDrain(); d != nil {
			text := fmt.Sprintf("node %s is drained by %s since %s", n.GetNode().GetName(), d.GetAuthor(), utc(d.GetTime().AsTime()))
			if d.GetReason() != "" {
				text += ": " + d.GetReason()
			}
			c.Warnings = append(c.Warnings, text)
		}
	}
	if !slices.ContainsFunc(c.GetNodes(), func(n *lbdv1.NodeStatus) bool { return n.GetReachable() && n.GetNode().GetDrain() == nil }) {
		c.Problems = append(c.Problems, "no node that answers takes traffic: `lbctl node undrain NODE`")
	}
	c.Problems = append(c.Problems, ownProblems(c.GetNodes())...)
	switch voters := c.GetVoters(); {
	case voters == 2:
		c.Warnings = append(c.Warnings, "two voters: if either is lost there are no more changes; a third node makes that one bearable")
	case voters > 2 && voters%2 == 0:
		c.Warnings = append(c.Warnings, fmt.Sprintf("%d voters bear the loss of %d, as %d would: demote one, or add one", voters, c.GetTolerates(), voters-1))
	}
	c.Warnings = append(c.Warnings, mixture(c)...)
}

// nodeProblems is what is wrong with one node.
func nodeProblems(c *lbdv1.ClusterServiceGetStatusResponse, n *lbdv1.NodeStatus, newest int64) []string {
	name := "node " + n.GetNode().GetName()
	if !n.GetReachable() {
		return []string{name + " does not answer: " + n.GetUnreachableReason()}
	}
	var all []string
	stale := time.Duration(n.GetStaleMs()) * time.Millisecond
	switch {
	case n.GetNode().GetRole() == lbdv1.NodeRole_NODE_ROLE_VOTER && !n.GetVoter() && c.GetVoters() < votersMax:
		all = append(all, name+" does not vote yet: it becomes a voter when it has caught up")
	case n.GetStaleMs() < 0:
		all = append(all, name+" has not heard of a leader since its start: it serves what it has stored")
	case stale > staleTold:
		all = append(all, fmt.Sprintf("%s has not heard of a leader for %s", name, stale.Round(time.Second)))
	}
	switch {
	case n.GetStoredRevision() < newest:
		all = append(all, fmt.Sprintf("%s has revision %d, others have %d", name, n.GetStoredRevision(), newest))
	case n.GetServedRevision() < min(n.GetStoredRevision(), newest):
		all = append(all, fmt.Sprintf("%s serves revision %d, not yet %d", name, n.GetServedRevision(), n.GetStoredRevision()))
	}
	return all
}

// ownProblems is what the nodes find wrong themselves. What several of them say is told once.
func ownProblems(nodes []*lbdv1.NodeStatus) (all []string) {
	names := map[string][]string{}
	var texts []string
	for _, n := range nodes {
		for _, p := range n.GetProblems() {
			if names[p] == nil {
				texts = append(texts, p)
			}
			names[p] = append(names[p], n.GetNode().GetName())
		}
	}
	for _, p := range texts {
		who := "node " + names[p][0]
		if len(names[p]) > 1 {
			who = "nodes " + strings.Join(names[p], ", ")
		}
		all = append(all, who+": "+p)
	}
	return all
}

// mixture says which builds run, where they differ, and who holds new kinds of entries back.
func mixture(c *lbdv1.ClusterServiceGetStatusResponse) []string {
	builds, newest := map[string][]string{}, c.GetGate()
	var behind []string
	for _, n := range c.GetNodes() {
		builds[n.GetNode().GetVersion()] = append(builds[n.GetNode().GetVersion()], n.GetNode().GetName())
		newest = max(newest, n.GetNode().GetGate())
	}
	for _, n := range c.GetNodes() {
		if n.GetNode().GetGate() < newest {
			behind = append(behind, n.GetNode().GetName())
		}
	}
	var all []string
	if len(builds) > 1 {
		var parts []string
		for _, version := range slices.Sorted(maps.Keys(builds)) {
			parts = append(parts, fmt.Sprintf("%s on %s", cmp.Or(version, "an unknown one"), strings.Join(builds[version], ", ")))
		}
		all = append(all, "nodes run different builds: "+strings.Join(parts, "; "))
	}
	if len(behind) > 0 {
		all = append(all, fmt.Sprintf("entries of gate %d are not written yet: %s would not read them; until then all nodes can go back to the older build", newest, strings.Join(behind, ", ")))
	}
	return all
}

// VerifyCluster compares what the nodes hold at the same entry of the log. An entry that some node has gone past too far, as others wrote
// meanwhile, is no answer: then a newer one is taken.
func (s *clusterService) VerifyCluster(ctx context.Context, _ *lbdv1.VerifyClusterRequest) (*lbdv1.VerifyClusterResponse, error) {
	if s.seat == nil {
		return nil, errAlone
	}
	var out *lbdv1.VerifyClusterResponse
	for range verifyAttempts {
		limited, cancel := context.WithTimeout(ctx, waitBarrierMax)
		err := s.seat.ReadBarrier(limited)
		cancel()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		_ = err // without a leader the nodes are compared as this one is
		again := false
		if out, again = s.compare(ctx, s.seat.Applied()); !again {
			break
		}
	}
	return out, nil
}

// compare asks every node for its digest at one entry; again: some node does not know it any more.
func (s *clusterService) compare(ctx context.Context, index uint64) (out *lbdv1.VerifyClusterResponse, again bool) {
	replies := askBy(ctx, s.fleet, asker.own, func(ctx context.Context) (*raftv1.GetDigestResponse, error) {
		at, revision, digest, err := s.seat.DigestAt(ctx, index)
		return &raftv1.GetDigestResponse{Index: at, Revision: revision, Sha256: digest[:]}, err
	}, func(ctx context.Context, conn grpc.ClientConnInterface) (*raftv1.GetDigestResponse, error) {
		return raftv1.NewPeerServiceClient(conn).GetDigest(ctx, &raftv1.GetDigestRequest{Index: index})
	})
	out = &lbdv1.VerifyClusterResponse{Index: index, Equal: true}
	same := ""
	for _, r := range replies {
		n := &lbdv1.NodeDigest{Node: r.node.GetName()}
		out.Nodes = append(out.Nodes, n)
		switch at := r.answer.GetIndex(); {
		case r.err != nil:
			n.Reason, again = s.fleet.silence(r.err), again || tooLate(r.err)
		case at != index:
			n.Reason, again = fmt.Sprintf("it has told what it holds at entry %d, not at %d", at, index), true
		default:
			n.Digest = hex.EncodeToString(r.answer.GetSha256())
			out.Revision = max(out.GetRevision(), r.answer.GetRevision())
			same = cmp.Or(same, n.GetDigest())
		}
		out.Equal = out.GetEqual() && n.GetDigest() != "" && n.GetDigest() == same
	}
	return out, again
}

// tooLate tells whether a node has forgotten the entry that it was asked for.
func tooLate(err error) bool {
	return errors.Is(err, cluster.ErrPast) || status.Code(err) == codes.OutOfRange
}
