package rpc

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// TicketSealing makes what the log has of ticket keys.
type TicketSealing interface {
	// NewTicketKey is a key of an epoch that nobody has had before, sealed under the sealing key with that id.
	NewTicketKey(clusterID string, epoch int64, sealKey string) (*raftv1.TicketKey, error)
	// ImportTicketKey seals the key of another tier, its name first, likewise. Its error says what is wrong with the key.
	ImportTicketKey(clusterID string, key []byte, sealKey string) (*raftv1.TicketKey, error)
}

// TicketObserver is what this node does with session tickets.
type TicketObserver interface {
	// TicketKeys reads it. Node and in_sync are filled in by this package.
	TicketKeys() *lbdv1.TicketKeysOnNode
	// InspectTicket says what a ticket is here. Node is filled in by this package.
	InspectTicket(ticket []byte) *lbdv1.InspectTicketResponse
}

// ticketService answers lbd.v1.SessionTicketService.
type ticketService struct {
	lbdv1.UnimplementedSessionTicketServiceServer
	store    Store
	seat     Seat // nil: this node is alone
	fleet    *fleet
	observer TicketObserver
	cluster  *clusterService // has the sealing keys, and the writer
	asked    time.Time       // when the keeper last asked the nodes under which key they issue; only keep
}

// GetStatus reads which keys there are, and what nodes do with them.
func (s *ticketService) GetStatus(ctx context.Context, req *lbdv1.SessionTicketServiceGetStatusRequest) (*lbdv1.SessionTicketServiceGetStatusResponse, error) {
	current := s.store.State()
	out := &lbdv1.SessionTicketServiceGetStatusResponse{
		Keys: describeTicketKeys(current), Digest: state.TicketKeysDigest(current.TicketKeys()), Results: map[string]uint64{},
	}
	if req.GetNode() != everyNode {
		out.Nodes = []*lbdv1.TicketKeysOnNode{s.here()}
	} else {
		answers, unreached, err := answered(s.fleet, s.ask(ctx))
		if err != nil {
			return nil, err
		}
		out.Unreached = unreached
		for _, a := range answers {
			out.Nodes = append(out.Nodes, a.answer)
		}
	}
	for _, n := range out.GetNodes() {
		n.InSync = n.GetDigest() == out.GetDigest()
		for result, count := range n.GetResults() {
			out.Results[result] += count
		}
	}
	return out, nil
}

// here is what this node does with the keys.
func (s *ticketService) here() *lbdv1.TicketKeysOnNode {
	out := s.observer.TicketKeys()
	out.Node = s.fleet.name
	return out
}

// ask asks all nodes what they do with the keys, by name.
func (s *ticketService) ask(ctx context.Context) []reply[*lbdv1.TicketKeysOnNode] {
	here := func(context.Context) (*lbdv1.TicketKeysOnNode, error) { return s.here(), nil }
	return askBy(ctx, s.fleet, asker.own, here, func(ctx context.Context, conn grpc.ClientConnInterface) (*lbdv1.TicketKeysOnNode, error) {
		answer, err := raftv1.NewPeerServiceClient(conn).GetTicketKeys(ctx, &raftv1.GetTicketKeysRequest{})
		return answer.GetKeys(), err
	})
}

// describeTicketKeys are the stored keys as people see them: the newest epoch first, those from outside last.
func describeTicketKeys(current *state.State) (all []*lbdv1.TicketKey) {
	settings := current.Settings().TicketKeys
	for k := range current.TicketKeys() {
		one := &lbdv1.TicketKey{
			Epoch: k.GetEpoch(), State: k.GetState(), Name: hex.EncodeToString(k.GetName()), CreateTime: k.GetCreateTime(),
			ActivateTime: k.GetActivateTime(), EndTime: k.GetEndTime(), ExpireTime: timestamppb.New(settings.Until(k)),
		}
		if k.GetEpoch() == 0 {
			all = append(all, one)
		} else {
			all = slices.Insert(all, 0, one)
		}
	}
	return all
}

// RotateTicketKeys makes the staged key the active one or, in an emergency, has fresh ones take the place of all. It returns when every node in contact
// has said that it has them, and names the others.
func (s *ticketService) RotateTicketKeys(ctx context.Context, req *lbdv1.RotateTicketKeysRequest) (*lbdv1.RotateTicketKeysResponse, error) {
	err := s.change(ctx, req.GetRequestId(), req.GetMessage(), func(current *state.State, key string) (*raftv1.TicketKeysCommand, error) {
		if active := current.TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE); active != nil && !req.GetEmergency() {
			return s.rotation(current, active, key)
		}
		renew, err := s.cluster.renewTicketKeys(current, key, 1, req.GetEmergency())
		return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Renew{Renew: renew}}, err
	})
	if err != nil {
		return nil, err
	}
	active := s.store.State().TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE)
	return &lbdv1.RotateTicketKeysResponse{Epoch: active.GetEpoch(), Unreached: s.awaitSync(ctx)}, nil
}

// ImportTicketKeys accepts the tickets of another tier.
func (s *ticketService) ImportTicketKeys(ctx context.Context, req *lbdv1.ImportTicketKeysRequest) (*lbdv1.ImportTicketKeysResponse, error) {
	accept := s.store.State().Settings().TicketKeys.AcceptFor
	if d := req.GetAcceptFor(); d != nil {
		accept = d.AsDuration()
	}
	switch {
	case len(req.GetKeys()) == 0 || len(req.GetKeys()) > ticketImportsMax:
		return nil, invalidField("keys", "are %d: want 1 to %d", len(req.GetKeys()), ticketImportsMax)
	case accept < time.Minute || accept > state.TicketImportMax:
		return nil, invalidField("accept_for", "must be 1m to %s, not %s", state.TicketImportMax, accept)
	}
	err := s.change(ctx, req.GetRequestId(), req.GetMessage(), func(current *state.State, key string) (*raftv1.TicketKeysCommand, error) {
		in := &raftv1.ImportTicketKeys{}
		for i, secret := range req.GetKeys() {
			k, err := s.cluster.keys.ImportTicketKey(current.ClusterID(), secret, key)
			if err != nil {
				return nil, invalidField(fmt.Sprintf("keys[%d]", i), "%v", err)
			}
			k.ExpireTime = timestamppb.New(s.cluster.writer.now().Add(accept))
			in.Keys = append(in.Keys, k)
		}
		return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Import{Import: in}}, nil
	})
	if err != nil {
		return nil, err
	}
	out := &lbdv1.ImportTicketKeysResponse{Keys: slices.DeleteFunc(describeTicketKeys(s.store.State()), func(k *lbdv1.TicketKey) bool {
		return k.GetState() != lbdv1.TicketKeyState_TICKET_KEY_STATE_IMPORTED
	})}
	out.Unreached = s.awaitSync(ctx)
	return out, nil
}

// InspectTicket says what a ticket is on this node.
func (s *ticketService) InspectTicket(_ context.Context, req *lbdv1.InspectTicketRequest) (*lbdv1.InspectTicketResponse, error) {
	if len(req.GetTicket()) == 0 || len(req.GetTicket()) > ticketBytesMax {
		return nil, invalidField("ticket", "has %d bytes: want 1 to %d", len(req.GetTicket()), ticketBytesMax)
	}
	out := s.observer.InspectTicket(req.GetTicket())
	out.Node = s.fleet.name
	return out, nil
}

// change proposes a command in the caller's name that is made for the present keys, with secrets under the active sealing key.
func (s *ticketService) change(ctx context.Context, request, message string, make func(current *state.State, sealKey string) (*raftv1.TicketKeysCommand, error)) error {
	by, err := s.cluster.writer.take(ctx)
	if err != nil {
		return err
	}
	defer s.cluster.writer.give()
	key, err := s.cluster.followAuthority()
	if err != nil {
		return err
	}
	cmd, err := make(s.store.State(), key)
	if err != nil {
		return err
	}
	cmd.Author, cmd.Origin, cmd.RequestId, cmd.Message = by.Author, origin(ctx), request, message
	return s.propose(cmd)
}

func (s *ticketService) propose(cmd *raftv1.TicketKeysCommand) error {
	cmd.Time = timestamppb.New(s.cluster.writer.now())
	_, err := s.cluster.writer.command(&raftv1.Command{Kind: &raftv1.Command_TicketKeys{TicketKeys: cmd}})
	return err
}

// rotation is the command that makes the staged key the active one.
func (s *ticketService) rotation(current *state.State, active *raftv1.TicketKey, sealKey string) (*raftv1.TicketKeysCommand, error) {
	next, err := s.cluster.keys.NewTicketKey(current.ClusterID(), current.NewestTicketEpoch()+1, sealKey)
	if err != nil {
		return nil, err
	}
	return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Rotate{Rotate: &raftv1.RotateTicketKeys{From: active.GetEpoch(), Staged: next}}}, nil
}

// renewTicketKeys are keys that nobody has had before; the first is so many epochs after the newest.
func (s *clusterService) renewTicketKeys(current *state.State, sealKey string, ahead int64, wipe bool) (*raftv1.RenewTicketKeys, error) {
	epoch := current.NewestTicketEpoch() + ahead
	active, err := s.keys.NewTicketKey(current.ClusterID(), epoch, sealKey)
	if err != nil {
		return nil, err
	}
	staged, err := s.keys.NewTicketKey(current.ClusterID(), epoch+1, sealKey)
	if err != nil {
		return nil, err
	}
	return &raftv1.RenewTicketKeys{Active: active, Staged: staged, Wipe: wipe}, nil
}

// awaitSync returns when each node in contact has the keys that are stored, or when there is no more time. It names those that have not, and those out of
// contact.
func (s *ticketService) awaitSync(ctx context.Context) []*lbdv1.UnreachedNode {
	wait := ticketSyncMax
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)-ticketSyncRest)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	behind := map[string]*lbdv1.UnreachedNode{}
	for {
		pending := s.behind(ctx, behind)
		if !pending || !sleep(ctx, ticketSyncLook) {
			break
		}
	}
	var all []*lbdv1.UnreachedNode
	for _, name := range slices.Sorted(maps.Keys(behind)) {
		all = append(all, behind[name])
	}
	return all
}

// behind looks once which nodes do not have the keys that are stored, and why. It is pending while one of them may come to have them soon.
func (s *ticketService) behind(ctx context.Context, told map[string]*lbdv1.UnreachedNode) (pending bool) {
	replies := s.ask(ctx)
	want := state.TicketKeysDigest(s.store.State().TicketKeys()) // after the answers: keys that came meanwhile are asked for again
	if ctx.Err() != nil && len(told) > 0 {
		return true // no answers, but what was heard before
	}
	clear(told)
	for _, r := range replies {
		switch {
		case r.err != nil:
			told[r.node.GetName()] = &lbdv1.UnreachedNode{Node: r.node.GetName(), Reason: s.fleet.silence(r.err)}
			pending = pending || s.live(r.node.GetId())
		case r.answer.GetDigest() != want:
			reason := "it does not have the keys yet"
			if p := r.answer.GetProblem(); p != "" {
				reason = p
			}
			told[r.node.GetName()] = &lbdv1.UnreachedNode{Node: r.node.GetName(), Reason: reason}
			pending = true
		}
	}
	return pending
}

// live tells whether a node is in contact with the leader.
func (s *ticketService) live(id string) bool {
	return s.seat != nil && slices.ContainsFunc(s.seat.Members(), func(m cluster.Member) bool { return m.Node.GetId() == id && m.Live })
}

// GetTicketKeys reads what this node does with the ticket keys.
func (s *peerService) GetTicketKeys(context.Context, *raftv1.GetTicketKeysRequest) (*raftv1.GetTicketKeysResponse, error) {
	keys := proto.CloneOf(s.observer.TicketKeys())
	keys.Node = s.node
	return &raftv1.GetTicketKeysResponse{Keys: keys}, nil
}
