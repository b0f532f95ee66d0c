package cluster

import (
	"context"
	"fmt"
	"sync"

	"lbd/cluster/state"
)

// past are the newest states by the entry of the log that made them, so that nodes can be compared at the same one. The machine writes it.
type past struct {
	mu     sync.Mutex
	states []pastState // by index, at most digestsMax
}

type pastState struct {
	index uint64
	state *state.State
}

func (p *past) add(made ...pastState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states = append(p.states, made...)
	if more := len(p.states) - digestsMax; more > 0 {
		p.states = append([]pastState(nil), p.states[more:]...) // none is held on to
	}
}

// begin forgets what was: a snapshot has taken its place.
func (p *past) begin(index uint64, st *state.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.states = []pastState{{index, st}}
}

// at is the state after an entry; 0: the newest.
func (p *past) at(index uint64) (found pastState, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.states {
		if index == 0 || s.index <= index {
			found, ok = s, true
		}
	}
	return found, ok
}

// DigestAt is what this node holds after an entry of the log, which it waits for; 0: now. Errors: ErrClosed, the context's, and ErrPast.
func (n *Node) DigestAt(ctx context.Context, index uint64) (at uint64, revision int64, digest [32]byte, err error) {
	if err := n.WaitApplied(ctx, index); err != nil {
		return 0, 0, digest, err
	}
	found, ok := n.past.at(index)
	if !ok {
		return 0, 0, digest, fmt.Errorf("the state after entry %d: %w: ask for a newer one", index, ErrPast)
	}
	return max(index, found.index), found.state.Revision(), found.state.Digest(), nil
}
