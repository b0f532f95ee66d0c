package cluster

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// announcement is what a node has said of itself, and what came of it. Only the pulse uses it.
type announcement struct {
	refused *lbdv1.Node
	at      time.Time
}

// announce makes the node's record say what the node says of itself. Where it was refused it is not repeated for a while, unless the record that
// stands in the way may be another one by now.
func (n *Node) announce(ctx context.Context) {
	if n.config.Self == nil || n.recovery.Load() != nil {
		return
	}
	st := n.State()
	said := n.self()
	known, ok := st.Node(n.id)
	if ok {
		said.Role, said.JoinTime, said.Drain = known.GetRole(), known.GetJoinTime(), known.GetDrain()
	}
	if ok && proto.Equal(said, known) {
		n.said = announcement{}
		n.worries.set(worrySelf, "")
		return
	}
	if proto.Equal(said, n.said.refused) && time.Since(n.said.at) < announceAgain {
		return
	}
	err := n.say(ctx, st, said, ok)
	if err == nil || errors.Is(err, ErrCopied) || errors.Is(err, ErrNoLeader) || errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrClosed) || ctx.Err() != nil {
		n.toldBy(err)
		return
	}
	n.said = announcement{refused: said, at: time.Now()}
	n.worries.set(worrySelf, "what this node says of itself was refused: "+err.Error())
	n.logger.Warn("what this node says of itself was refused", "name", said.GetName(), "address", said.GetAddress(), "error", err)
}

// self is the record that the node would have.
func (n *Node) self() *lbdv1.Node {
	said := proto.CloneOf(n.config.Self)
	said.Id, said.Gate = n.id, state.GateMax
	if said.GetRole() == lbdv1.NodeRole_NODE_ROLE_UNSPECIFIED {
		said.Role = lbdv1.NodeRole_NODE_ROLE_VOTER
	}
	return said
}

// say takes the record to the leader. A node that is not in the state waits for those that let it in, but for the first of a cluster.
func (n *Node) say(ctx context.Context, st *state.State, said *lbdv1.Node, known bool) error {
	if n.leading.is() {
		if known {
			_, err := n.AcceptNode(ctx, said)
			return err
		}
		for range st.Nodes() {
			return nil
		}
		return n.proposeNode(ctx, &raftv1.NodeCommand{Change: &raftv1.NodeCommand_Join{Join: &raftv1.JoinNode{Node: said}}})
	}
	leader := n.Leader()
	if !known || leader == n.id || n.config.Network == nil {
		return nil
	}
	if leader == "" {
		return n.sayToAll(ctx, st, said)
	}
	_, err := n.config.Network.ProposeNode(ctx, leader, said)
	return err
}

// sayToAll takes the record to whichever node leads: one whose address is another than before hears nothing of a leader until that knows it.
func (n *Node) sayToAll(ctx context.Context, st *state.State, said *lbdv1.Node) error {
	for other := range st.Nodes() {
		if other.GetId() == n.id {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, sayTimeout)
		_, err := n.config.Network.ProposeNode(limited, other.GetId(), said)
		cancel()
		if err == nil || errors.Is(err, ErrRemoved) || errors.Is(err, ErrCopied) {
			return err
		}
		n.logger.Debug("what this node says of itself was not taken", "by", other.GetName(), "error", err)
	}
	return ErrNoLeader
}

// sayTimeout is what a node has to answer that may lead or not.
const sayTimeout = time.Second

// AcceptNode makes a member's record say what the member says of itself: name, address, version and gate. The caller has made sure that it is that member who
// says so. It returns the entry of the log to wait for. Errors are those of ProposeCommand.
func (n *Node) AcceptNode(ctx context.Context, node *lbdv1.Node) (uint64, error) {
	err := n.proposeNode(ctx, &raftv1.NodeCommand{Change: &raftv1.NodeCommand_Update{Update: node}})
	return n.Applied(), err
}

func (n *Node) proposeNode(ctx context.Context, cmd *raftv1.NodeCommand) error {
	cmd.Author, cmd.Time, cmd.Origin = "lbd", timestamppb.New(n.config.Now()), &raftv1.Origin{Source: "lbd", Method: "start"}
	_, err := n.ProposeCommand(ctx, &raftv1.Command{Kind: &raftv1.Command_Node{Node: cmd}})
	return err
}
