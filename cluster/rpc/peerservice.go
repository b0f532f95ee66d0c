package rpc

import (
	"context"

	"lbd/cluster"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// peerService answers lbd.raft.v1.PeerService: what nodes ask each other. Who calls is a member: guard has seen to that.
type peerService struct {
	raftv1.UnimplementedPeerServiceServer
	node     string
	seat     Seat // nil: this node has no others beside it
	peers    *Peers
	store    Store
	keys     Keys
	journal  Journal
	failures *failures
	writer   *writer
	observer TicketObserver
}

func newPeerService(cfg Config, w *writer, g *guard) *peerService {
	return &peerService{
		node: cfg.Node, seat: cfg.Seat, peers: cfg.Peers, store: cfg.Store, keys: cfg.Keys, journal: cfg.Journal, failures: &g.failures, writer: w,
		observer: cfg.Observer,
	}
}

var errAlone = unavailable(reasonNoLeader, "this node has no others beside it")

// GetMembers reads who the nodes are.
func (s *peerService) GetMembers(context.Context, *raftv1.GetMembersRequest) (*raftv1.GetMembersResponse, error) {
	if s.seat == nil {
		return nil, errAlone
	}
	out := &raftv1.GetMembersResponse{AppliedIndex: s.seat.Applied(), Leader: s.seat.Leader()} // before the state, which may be newer
	current := s.seat.State()
	out.Epoch = current.Epoch()
	for n := range current.Nodes() {
		out.Members = append(out.Members, n)
	}
	return out, nil
}

// ReadIndex answers a member who is not behind.
func (s *peerService) ReadIndex(ctx context.Context, req *raftv1.ReadIndexRequest) (*raftv1.ReadIndexResponse, error) {
	n, err := peerOf(ctx)
	if err != nil {
		return nil, err
	}
	if s.seat == nil {
		return nil, errAlone
	}
	index, err := s.seat.AnswerReadIndex(ctx, cluster.Report{Node: n.GetId(), Applied: req.GetAppliedIndex(), Served: req.GetServedRevision()})
	if err != nil {
		return nil, err
	}
	return &raftv1.ReadIndexResponse{Index: index}, nil
}

// GetDigest reads what this node holds.
func (s *peerService) GetDigest(ctx context.Context, req *raftv1.GetDigestRequest) (*raftv1.GetDigestResponse, error) {
	if s.seat == nil {
		return nil, errAlone
	}
	index, revision, digest, err := s.seat.DigestAt(ctx, req.GetIndex())
	if err != nil {
		return nil, err
	}
	return &raftv1.GetDigestResponse{Index: index, Revision: revision, Sha256: digest[:]}, nil
}

// ProposeNode takes what a member says of itself, and of no other.
func (s *peerService) ProposeNode(ctx context.Context, req *raftv1.ProposeNodeRequest) (*raftv1.ProposeNodeResponse, error) {
	n, err := peerOf(ctx)
	if err != nil {
		return nil, err
	}
	if s.seat == nil {
		return nil, errAlone
	}
	if req.GetNode().GetId() != n.GetId() {
		return nil, permissionDenied(reasonRole, "node %s speaks for node %s: a node changes its own record alone", n.GetName(), clip(req.GetNode().GetId()))
	}
	if s.peers != nil {
		s.peers.moved.Store(n.GetId(), movedTo{n.GetAddress(), req.GetNode().GetAddress()})
	}
	index, err := s.seat.AcceptNode(ctx, req.GetNode())
	if err != nil {
		return nil, err
	}
	return &raftv1.ProposeNodeResponse{Index: index}, nil
}
