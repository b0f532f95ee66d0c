package rpc

import (
	"context"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// take waits for the turn of a call that changes something; give ends it.
func (w *writer) take(ctx context.Context) (Caller, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return Caller{}, err
	}
	select {
	case w.turn <- struct{}{}:
		return by, nil
	case <-ctx.Done():
		return Caller{}, context.Cause(ctx)
	}
}

func (w *writer) give() { <-w.turn }

// command makes a command durable and applied. Like propose it does not end with the caller.
func (w *writer) command(cmd *raftv1.Command) (state.Result, error) {
	ctx, cancel := context.WithTimeout(w.life, proposeTimeoutMax)
	defer cancel()
	result, err := w.store.ProposeCommand(ctx, cmd)
	if err == nil {
		err = result.Err
	}
	return result, err
}
