package cluster

import (
	"fmt"
	"iter"
	"strings"

	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// commonGate is the newest kinds of entries that all nodes read; 0: there are no nodes.
func commonGate(nodes iter.Seq[*lbdv1.Node]) int32 {
	least, any := int32(state.GateMax), false
	for node := range nodes {
		least, any = min(least, node.GetGate()), true
	}
	if !any {
		return 0
	}
	return least
}

// admit refuses a command that some node cannot read yet.
func admit(st *state.State, cmd *raftv1.Command) error {
	gate := state.CommandGate(cmd)
	if gate <= st.Gate() {
		return nil
	}
	var behind []string
	for node := range st.Nodes() {
		if node.GetGate() < gate {
			behind = append(behind, strings.TrimSpace(node.GetName()+" "+node.GetVersion()))
		}
	}
	if len(behind) == 0 {
		return fmt.Errorf("%w: the leader is about to let it in: try again", ErrGate)
	}
	return fmt.Errorf("%w: %s", ErrGate, strings.Join(behind, ", "))
}

// checkGate refuses what this build must not touch: its nodes write entries that it cannot read.
func checkGate(path string, gate int32, nodes []string) error {
	if gate <= state.GateMax {
		return nil
	}
	who := ""
	if len(nodes) > 0 {
		who = " (" + strings.Join(nodes, ", ") + ")"
	}
	err := fmt.Errorf("the cluster writes entries of gate %d, since every node%s could read them; this build reads gate %d: %w", gate, who, state.GateMax, state.ErrFormat)
	return &OpenError{path, err, "start that version of lbd, or a newer one: there is no way back to this one"}
}

// storedGate reads the gate of a state of which this build may understand no more than that, and who needs it; 0: it finds none.
func (d *durable) storedGate() (gate int32, nodes []string) {
	_ = d.view(func(tx *bbolt.Tx) error { // what cannot be read says nothing
		bucket := tx.Bucket(recordBucket)
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(k, framed []byte) error {
			value, err := unframe(k, framed)
			record := new(raftv1.SnapshotRecord)
			if err != nil || proto.Unmarshal(value, record) != nil {
				return nil
			}
			gate = max(gate, record.GetCluster().GetGate())
			if n := record.GetNode(); n.GetGate() > state.GateMax {
				nodes = append(nodes, n.GetName()+" "+n.GetVersion())
			}
			return nil
		})
	})
	return gate, nodes
}
