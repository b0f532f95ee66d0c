package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// recoverEpochsAhead leaves room for rotations that are in this node's log and that nobody has agreed on yet: they are carried out first.
const recoverEpochsAhead = 16

// RecoverCluster makes this node the only one of a new epoch, where most voters are lost for good:
//
//  1. it is meant, by somebody on this machine
//  2. nobody leads, for the time that an election takes, nor could: the others are asked
//  3. a new sealing key, a new authority and fresh ticket keys: what the others know is worth nothing
//  4. raft begins anew with this node; the state stays
//  5. everything is sealed under the new key
func (s *clusterService) RecoverCluster(ctx context.Context, req *lbdv1.RecoverClusterRequest) (*lbdv1.RecoverClusterResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if err := s.checkRecovery(by, req); err != nil {
		return nil, err
	}
	if err := s.nobodyCanLead(ctx, req.GetForce()); err != nil {
		return nil, err
	}
	current := s.store.State()
	out := &lbdv1.RecoverClusterResponse{Epoch: current.Epoch() + 1}
	for n := range current.Nodes() {
		if n.GetId() != s.seat.ID() {
			out.Removed = append(out.Removed, n)
		}
	}
	slices.SortFunc(out.Removed, func(a, b *lbdv1.Node) int { return strings.Compare(a.GetName(), b.GetName()) })
	epoch := &raftv1.EpochCommand{
		Author: by.Author, Time: timestamppb.New(s.writer.now()), Origin: origin(ctx), Node: s.seat.ID(), Epoch: out.GetEpoch(),
	}
	key, err := s.keys.StageSealKey(ctx)
	if err != nil {
		return nil, s.withFree(err)
	}
	if present, ok := current.Authority(); ok {
		if epoch.Authority, err = s.nextAuthority(present, true, key); err != nil {
			return nil, errors.Join(err, s.keys.RetireSealKey(key))
		}
	}
	if epoch.TicketKeys, err = s.renewTicketKeys(current, key, recoverEpochsAhead, false); err != nil {
		return nil, errors.Join(err, s.keys.RetireSealKey(key))
	}
	// Not with the caller: once begun, it has to come to its end.
	whole, cancel := context.WithTimeout(s.writer.life, recoverTimeoutMax)
	defer cancel()
	if err := s.seat.Recover(whole, epoch); err != nil {
		return nil, fmt.Errorf("begin epoch %d: %w", out.GetEpoch(), err)
	}
	if err := s.sealAll(ctx, by, fmt.Sprintf("everything sealed anew, as epoch %d has begun", out.GetEpoch())); err != nil {
		return nil, err
	}
	present, _ := s.store.State().Authority()
	out.Authority, _ = pins(present)
	return out, nil
}

// checkRecovery refuses what is not meant, or not needed.
func (s *clusterService) checkRecovery(by Caller, req *lbdv1.RecoverClusterRequest) error {
	current := s.store.State()
	switch {
	case s.seat == nil || s.peers == nil:
		return errNoPort
	case by.Kind != kindSocket || by.Via != "":
		return permissionDenied(reasonSocket, "this is for the control socket of the node that is to go on: call it on its own machine")
	case req.GetClusterId() != current.ClusterID():
		return invalidField("cluster_id", "`%s` is not this cluster's, which is %s", clip(req.GetClusterId()), current.ClusterID())
	}
	if _, ok := current.Node(s.seat.ID()); !ok {
		return notAllowed(reasonPrecondition, "this node is no member of the cluster yet: recover another one")
	}
	return nil
}

// nobodyCanLead refuses to recover a cluster that elects a leader by itself, or has one: a node that has just started, or is cut off, knows of none. It takes
// electionWait where nobody leads. With force it does not matter that enough voters answer, as long as none of them hears a leader.
func (s *clusterService) nobodyCanLead(ctx context.Context, force bool) error {
	for began := time.Now(); ; {
		if n, ok := s.store.State().Node(s.seat.Leader()); ok {
			return notAllowed(reasonPrecondition, "node `%s` leads: there is nothing to recover; remove the nodes that are gone, `lbctl cluster remove NODE`", n.GetName())
		}
		heard := s.askWhoLeads(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, h := range heard {
			if h.leader != "" {
				return notAllowed(reasonPrecondition, "node `%s` answers and hears node %s lead: the cluster lives, and this node is out of contact with it; mend that, or call `lbctl cluster recover` nowhere", h.node, h.leader)
			}
		}
		if time.Since(began) >= electionWait {
			return s.noMajority(heard, force)
		}
		if !sleep(ctx, electionLook) {
			return context.Cause(ctx)
		}
	}
}

// noMajority refuses where the voters that answer can elect a leader.
func (s *clusterService) noMajority(heard []heardLeader, force bool) error {
	voters, names := 0, []string{}
	for _, m := range s.seat.Members() {
		if !m.Voter {
			continue
		}
		voters++
		answers := m.Node.GetId() == s.seat.ID() || slices.ContainsFunc(heard, func(h heardLeader) bool { return h.id == m.Node.GetId() })
		if answers {
			names = append(names, m.Node.GetName())
		}
	}
	if force || len(names) <= voters/2 {
		return nil
	}
	return notAllowed(reasonPrecondition,
		"%d of %d voters answer (%s), which is a majority: they elect a leader by themselves; look at `lbctl cluster status`, and only if it stays like this, --force leaves them behind",
		len(names), voters, strings.Join(names, ", "))
}

// heardLeader is what another node has answered: who leads, if it hears one.
type heardLeader struct{ id, node, leader string }

// askWhoLeads asks all other nodes at once. Those that do not answer in time, or are no members any more, are left out.
func (s *clusterService) askWhoLeads(ctx context.Context) []heardLeader {
	ctx, cancel := context.WithTimeout(ctx, whoLeadsTimeout)
	defer cancel()
	current := s.store.State()
	var mu sync.Mutex
	var heard []heardLeader
	var asked sync.WaitGroup
	for n := range current.Nodes() {
		if n.GetId() == s.seat.ID() {
			continue
		}
		asked.Go(func() {
			conn, err := s.peers.Own(n.GetId())
			if err != nil {
				return
			}
			answer, err := raftv1.NewPeerServiceClient(conn).GetMembers(ctx, &raftv1.GetMembersRequest{})
			if err != nil {
				return
			}
			h := heardLeader{id: n.GetId(), node: n.GetName()}
			if id := answer.GetLeader(); id != "" {
				h.leader = id
				if leader, ok := current.Node(id); ok {
					h.leader = "`" + leader.GetName() + "`"
				}
			}
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, h)
		})
	}
	asked.Wait()
	return heard
}
