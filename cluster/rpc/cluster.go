package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Membership is what the verbs about nodes need of the node's seat beside the rest of [Seat].
type Membership interface {
	// Members are the nodes of the applied state, as the leader sees them.
	Members() []cluster.Member
	// AwaitMembers waits until raft has the members as wanted. It fails where this node does not lead.
	AwaitMembers(ctx context.Context, wanted func([]cluster.Member) bool) error
	// AwaitReports waits, on a node that leads since a moment ago, until the members have had the time to report to it.
	AwaitReports(ctx context.Context) error
	// Seated is whether raft counts a node in, by its id.
	Seated(id string) bool
	// TransferLeader makes a voter the leader, by its id; empty: the one that is furthest.
	TransferLeader(ctx context.Context, id string) error
	// Recover makes this node the only one of a new epoch.
	Recover(ctx context.Context, epoch *raftv1.EpochCommand) error
}

// Authorities makes certificate authorities of the cluster.
type Authorities interface {
	// Next is one that can take the present one's place, its key sealed under the sealing key with that id. With keep the present one's pin stays
	// good beside the new one's; a warning says why it does not.
	Next(present *raftv1.Authority, keep bool, sealKey string) (next *raftv1.Authority, warning string, err error)
}

// clusterService answers lbd.v1.ClusterService.
type clusterService struct {
	lbdv1.UnimplementedClusterServiceServer
	node        string
	store       Store
	seat        Seat   // nil: this node is alone
	peers       *Peers // nil: likewise
	fleet       *fleet
	system      *systemService
	keys        Keys
	authorities Authorities // nil: this node has no control port
	writer      *writer

	// done are the newest requests that changed the keys. They are kept by this node alone: what a retry elsewhere does again is
	// harmless, another key.
	mu   sync.Mutex
	done map[string]bool // at most requestsDoneMax
}

func newClusterService(cfg Config, f *fleet, system *systemService, w *writer) *clusterService {
	return &clusterService{
		node: cfg.Node, store: cfg.Store, seat: cfg.Seat, peers: cfg.Peers, fleet: f, system: system, keys: cfg.Keys, authorities: cfg.Authorities, writer: w,
	}
}

const (
	requestsDoneMax = 100
	// votersMax is how many nodes vote: more would make every change slower, and the cluster no safer.
	votersMax = 5
)

var errNoPort = notAllowed(reasonPrecondition, "this node is alone: it has no control port by which others could reach it; start it with --control HOST:PORT")

// seated refuses what takes a cluster where there is none.
func (s *clusterService) seated() error {
	if s.seat == nil || s.peers == nil {
		return errNoPort
	}
	return nil
}

// member finds a node by its name or id.
func (s *clusterService) member(name string) (*lbdv1.Node, error) {
	if name == "" {
		return nil, invalidField("node", "the node's name is missing")
	}
	current := s.store.State()
	if n, ok := current.NodeNamed(name); ok {
		return n, nil
	}
	if gone, ok := removedNode(current, name); ok {
		return nil, notFound("nodes/"+name, "node `%s` was removed at %s", gone.GetName(), utc(gone.GetTime().AsTime()))
	}
	return nil, notFound("nodes/"+name, "there is no node `%s`: want a name or an id of `lbctl cluster status`", clip(name))
}

// removedNode finds who was removed, by name or id.
func removedNode(current *state.State, name string) (*raftv1.RemovedNode, bool) {
	if gone, ok := current.RemovedNode(name); ok {
		return gone, true
	}
	return current.RemovedNodeNamed(name)
}

// propose takes a change of a node into the log, in the caller's name.
func (s *clusterService) proposeNode(ctx context.Context, by Caller, request string, cmd *raftv1.NodeCommand) (state.Result, error) {
	cmd.Author, cmd.Time, cmd.Origin, cmd.RequestId = by.Author, timestamppb.New(s.writer.now()), origin(ctx), request
	return s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Node{Node: cmd}})
}

// TransferLeader makes another voter the leader.
func (s *clusterService) TransferLeader(ctx context.Context, req *lbdv1.TransferLeaderRequest) (*lbdv1.TransferLeaderResponse, error) {
	if err := s.seated(); err != nil {
		return nil, err
	}
	if err := s.seat.AwaitReports(ctx); err != nil {
		return nil, err
	}
	id := ""
	if req.GetNode() != "" {
		n, err := s.member(req.GetNode())
		if err != nil {
			return nil, err
		}
		if n.GetId() == s.seat.ID() {
			return &lbdv1.TransferLeaderResponse{Leader: n.GetName()}, nil
		}
		m := s.seatOf(n.GetId())
		switch {
		case !m.Voter:
			return nil, notAllowed(reasonPrecondition, "node `%s` does not vote: promote it first, `lbctl node promote %s`", n.GetName(), n.GetName())
		case !m.Live:
			return nil, notAllowed(reasonPrecondition, "node `%s` is out of contact", n.GetName())
		}
		id = n.GetId()
	}
	if err := s.handOver(ctx, id); err != nil {
		return nil, err
	}
	if n, ok := s.store.State().Node(s.seat.Leader()); ok {
		return &lbdv1.TransferLeaderResponse{Leader: n.GetName()}, nil
	}
	return &lbdv1.TransferLeaderResponse{}, nil
}

// handOver makes another node the leader, and waits until it is known.
func (s *clusterService) handOver(ctx context.Context, id string) error {
	others := slices.ContainsFunc(s.seat.Members(), func(m cluster.Member) bool { return m.Voter && m.Live && m.Node.GetId() != s.seat.ID() })
	if !others {
		return notAllowed(reasonPrecondition, "there is no other voter in contact that could lead")
	}
	switch err := s.seat.TransferLeader(ctx, id); {
	case err == nil:
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, cluster.ErrNoLeader) || errors.Is(err, cluster.ErrClosed):
		return err
	default:
		return unavailable(reasonUnreached, "the leadership stays here: "+err.Error())
	}
	return until(ctx, handOverTimeout, func() bool {
		leader := s.seat.Leader()
		return leader != "" && leader != s.seat.ID()
	})
}

// until waits for what nobody tells, for a limited time.
func until(ctx context.Context, limit time.Duration, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for !done() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// seatOf is how the leader sees a member.
func (s *clusterService) seatOf(id string) cluster.Member {
	for _, m := range s.seat.Members() {
		if m.Node.GetId() == id {
			return m
		}
	}
	return cluster.Member{}
}

// checkLoss refuses to take a node's vote where what is left could not go on.
func (s *clusterService) checkLoss(n *lbdv1.Node) error {
	voters, live, voted := 0, 0, false
	var silent []string
	for _, m := range s.seat.Members() {
		switch {
		case m.Node.GetId() == n.GetId():
			voted = m.Voter
		case m.Voter && m.Live:
			voters, live = voters+1, live+1
		case m.Voter:
			voters++
			silent = append(silent, m.Node.GetName())
		}
	}
	switch {
	case !voted:
		return nil
	case voters == 0:
		return notAllowed(reasonQuorum, "node `%s` is the only voter: the cluster could not go on without it; promote another one first", n.GetName())
	case live < voters/2+1:
		return notAllowed(reasonQuorum, "without node `%s` only %d of %d voters would be in contact, and the cluster could not go on: bring %s back first, or remove what is gone for good",
			n.GetName(), live, voters, strings.Join(silent, ", "))
	}
	return nil
}

// giveWay hands the leadership over where this node itself is to lose its vote: who leads then goes on with the same request.
func (s *clusterService) giveWay(ctx context.Context, n *lbdv1.Node) error {
	if n.GetId() != s.seat.ID() {
		return nil
	}
	if err := s.handOver(ctx, ""); err != nil {
		return err
	}
	return unavailable(reasonNoLeader, "node `"+n.GetName()+"` has led and has handed that over: repeat the call")
}

// SetNodeRole makes a node a voter, or one that does not vote, and waits until it is.
func (s *clusterService) SetNodeRole(ctx context.Context, req *lbdv1.SetNodeRoleRequest) (*lbdv1.SetNodeRoleResponse, error) {
	if err := s.seated(); err != nil {
		return nil, err
	}
	n, err := s.orderRole(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := s.awaitRole(ctx, n, req.GetRole()); err != nil { // without the turn: a node that is slow to catch up keeps nobody from changing something
		return nil, err
	}
	n, _ = s.store.State().Node(n.GetId())
	return &lbdv1.SetNodeRoleResponse{Node: n}, nil
}

// orderRole is the part of SetNodeRole that takes the turn.
func (s *clusterService) orderRole(ctx context.Context, req *lbdv1.SetNodeRoleRequest) (*lbdv1.Node, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if err := s.seat.AwaitReports(ctx); err != nil {
		return nil, err
	}
	n, err := s.member(req.GetNode())
	if err != nil {
		return nil, err
	}
	return n, s.putRole(ctx, by, n, req.GetRole(), req.GetRequestId())
}

// setRole is SetNodeRole once the turn is taken.
func (s *clusterService) setRole(ctx context.Context, by Caller, n *lbdv1.Node, role lbdv1.NodeRole, request string) error {
	if err := s.putRole(ctx, by, n, role, request); err != nil {
		return err
	}
	return s.awaitRole(ctx, n, role)
}

// putRole takes a role into the log. A request that was made before is not judged again.
func (s *clusterService) putRole(ctx context.Context, by Caller, n *lbdv1.Node, role lbdv1.NodeRole, request string) error {
	votes := role == lbdv1.NodeRole_NODE_ROLE_VOTER
	if !s.store.State().HasRequest(request) {
		if err := s.checkRole(ctx, n, votes); err != nil {
			return err
		}
	}
	cmd := &raftv1.NodeCommand{Change: &raftv1.NodeCommand_Role{Role: &raftv1.SetNodeRole{Id: n.GetId(), Role: role}}}
	_, err := s.proposeNode(ctx, by, request, cmd)
	return err
}

// awaitRole waits until raft has a node's role.
func (s *clusterService) awaitRole(ctx context.Context, n *lbdv1.Node, role lbdv1.NodeRole) error {
	votes := role == lbdv1.NodeRole_NODE_ROLE_VOTER
	err := s.seat.AwaitMembers(ctx, func(members []cluster.Member) bool {
		return !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.Node.GetId() == n.GetId() && m.Voter != votes })
	})
	if err != nil && votes && ctx.Err() != nil {
		return withDetails(codes.DeadlineExceeded, reasonDeadline, fmt.Sprintf("node `%s` becomes a voter when it has caught up: it has not yet", n.GetName()))
	}
	return err
}

// checkRole refuses a role that the cluster could not bear.
func (s *clusterService) checkRole(ctx context.Context, n *lbdv1.Node, votes bool) error {
	if !votes {
		if err := s.checkLoss(n); err != nil {
			return err
		}
		return s.giveWay(ctx, n)
	}
	if s.seatOf(n.GetId()).Voter {
		return nil
	}
	var voters []string
	for _, m := range s.seat.Members() {
		if m.Voter {
			voters = append(voters, m.Node.GetName())
		}
	}
	if len(voters) >= votersMax {
		return notAllowed(reasonPrecondition, "there are %d voters already, %s: demote one of them first", len(voters), strings.Join(voters, ", "))
	}
	return nil
}

// askedNode is what became of a question to another node.
type askedNode struct {
	node *lbdv1.Node
	err  error
}

// askOthers puts a question of this node's own to all others but some, at once, and returns those that have not done what they were asked, by name.
func (s *clusterService) askOthers(ctx context.Context, but []string, ask func(context.Context, raftv1.PeerServiceClient) error) []askedNode {
	return askOthers(ctx, s.seat, s.peers, but, askTimeout, ask)
}

func idsOf(all []askedNode) (ids []string) {
	for _, a := range all {
		ids = append(ids, a.node.GetId())
	}
	return ids
}

// askOthers is the method for a node's other services. Where the node is alone there are none.
func askOthers(ctx context.Context, seat Seat, peers *Peers, but []string, patience time.Duration, ask func(context.Context, raftv1.PeerServiceClient) error) []askedNode {
	if seat == nil || peers == nil {
		return nil
	}
	var others []*lbdv1.Node
	for n := range seat.State().Nodes() {
		if !slices.Contains(but, n.GetId()) && n.GetId() != seat.ID() {
			others = append(others, n)
		}
	}
	failed := make([]askedNode, len(others))
	var all sync.WaitGroup
	for i, n := range others {
		all.Go(func() {
			failed[i].node = n
			limited, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			conn, err := peers.Own(n.GetId())
			if err == nil {
				err = ask(limited, raftv1.NewPeerServiceClient(conn))
			}
			failed[i].err = err
		})
	}
	all.Wait()
	failed = slices.DeleteFunc(failed, func(a askedNode) bool { return a.err == nil })
	slices.SortFunc(failed, func(a, b askedNode) int { return strings.Compare(a.node.GetName(), b.node.GetName()) })
	return failed
}

// silentText names the nodes that have not done something, and why.
func silentText(failed []askedNode) string {
	var all []string
	for _, a := range failed {
		why := status.Convert(a.err).Message()
		if errors.Is(a.err, context.DeadlineExceeded) || status.Code(a.err) == codes.DeadlineExceeded {
			why = "no answer in time"
		}
		all = append(all, a.node.GetName()+" ("+why+")")
	}
	return strings.Join(all, ", ")
}
