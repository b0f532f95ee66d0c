package rpc

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// keepSealed finishes what a rotation, a removal or a recovery has left when it was cut off: on the node that leads, all that is under another
// sealing key than the active one is sealed anew. It returns when ctx ends.
func (s *clusterService) keepSealed(ctx context.Context, log *slog.Logger) {
	if s.seat == nil {
		return
	}
	failing := false
	look := time.NewTicker(sealKeepInterval)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		if s.seat.Leader() != s.seat.ID() {
			continue
		}
		n, err := s.finishSealing(ctx)
		switch {
		case err != nil && !failing && ctx.Err() == nil:
			log.Warn("secrets are under another sealing key than the active one, and cannot be sealed anew", "err", err)
		case n > 0:
			log.Info("secrets were sealed anew: a change of the sealing key had been cut off", "secrets", n)
		}
		failing = err != nil
	}
}

// finishSealing seals anew what is left, and counts it.
func (s *clusterService) finishSealing(ctx context.Context) (resealed int64, err error) {
	select {
	case s.writer.turn <- struct{}{}:
		defer s.writer.give()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	active, err := s.followAuthority()
	if err != nil {
		return 0, err
	}
	rest, err := s.toReseal(active)
	if err != nil {
		return 0, err
	}
	for batch := range resealBatches(rest) {
		result, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Reseal{Reseal: &raftv1.ResealCommand{
			Author: "lbd", Time: timestamppb.New(s.writer.now()), Seals: batch, Origin: &raftv1.Origin{Source: "lbd", Method: "seal"},
			Message: "sealing key " + active + " is the active one: what was cut off is finished",
		}}})
		if err != nil {
			return resealed, err
		}
		resealed += result.Count
	}
	return resealed, nil
}
