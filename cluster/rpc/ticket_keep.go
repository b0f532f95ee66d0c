package rpc

import (
	"context"
	"log/slog"
	"time"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// keep sees to the ticket keys on the node that leads, until ctx ends:
//
//  1. the first keys, as soon as there is a leader
//  2. another key issues after each interval
//  3. a key whose tickets are accepted no more is wiped
//  4. a key that a node in contact still issues under is accepted for longer
func (s *ticketService) keep(ctx context.Context, log *slog.Logger) {
	if s.seat == nil {
		return
	}
	failing := false
	look := time.NewTicker(ticketKeepInterval)
	defer look.Stop()
	for {
		next := s.store.Next() // before the state, so that none is missed
		if s.seat.Leader() == s.seat.ID() {
			err := s.keepOnce(ctx)
			if err != nil && !failing && ctx.Err() == nil {
				log.Warn("the ticket keys cannot be seen to: the last one goes on until it is too old", "err", err)
			}
			if failing = err != nil; failing {
				next = nil // what fails is not tried again at each change
			}
		}
		if s.store.State().NewestTicketEpoch() > 0 {
			next = nil
		}
		select {
		case <-look.C:
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// keepOnce does what is due now.
func (s *ticketService) keepOnce(ctx context.Context) error {
	now := s.cluster.writer.now()
	current := s.store.State()
	due := current.TicketKeysDue(now)
	late := s.lateIssuer(ctx, current, now)
	if !due.Begin && !due.Rotate && due.Wipe == nil && late == 0 {
		return nil
	}
	select {
	case s.cluster.writer.turn <- struct{}{}:
		defer s.cluster.writer.give()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if late != 0 { // before anything is wiped
		if err := s.proposeOwn(&raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Extend{Extend: &raftv1.ExtendTicketKey{Epoch: late}}}); err != nil {
			return err
		}
	}
	return s.keepUp(now)
}

// keepUp does what time asks for, once the turn is taken.
func (s *ticketService) keepUp(now time.Time) error {
	current := s.store.State()
	due := current.TicketKeysDue(now)
	if due.Begin || due.Rotate {
		cmd, err := s.dueKeys(current, due)
		if err == nil {
			err = s.proposeOwn(cmd)
		}
		if err != nil {
			return err
		}
	}
	if due.Wipe != nil {
		return s.proposeOwn(&raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Wipe{Wipe: due.Wipe}})
	}
	return nil
}

// dueKeys is the command for the first keys, or for the next.
func (s *ticketService) dueKeys(current *state.State, due state.TicketKeysDue) (*raftv1.TicketKeysCommand, error) {
	key, err := s.cluster.followAuthority()
	if err != nil {
		return nil, err
	}
	if due.Begin {
		renew, err := s.cluster.renewTicketKeys(current, key, 1, false)
		return &raftv1.TicketKeysCommand{Change: &raftv1.TicketKeysCommand_Renew{Renew: renew}}, err
	}
	return s.rotation(current, current.TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE), key)
}

func (s *ticketService) proposeOwn(cmd *raftv1.TicketKeysCommand) error {
	cmd.Author, cmd.Origin = "lbd", &raftv1.Origin{Source: "lbd", Method: "ticket-keys"}
	return s.propose(cmd)
}

// lateIssuer is the oldest epoch that is accept-only and that a node in contact still issues under; 0: none. It says so again only after a while, so that
// a node that cannot follow does not fill the log: nodes themselves are asked only then.
func (s *ticketService) lateIssuer(ctx context.Context, current *state.State, now time.Time) int64 {
	settings := current.Settings().TicketKeys
	again := min(ticketExtendMax, settings.AcceptFor/8)
	ended := map[int64]bool{}
	for k := range current.TicketKeys() {
		if k.GetState() == lbdv1.TicketKeyState_TICKET_KEY_STATE_ACCEPTED && now.Sub(k.GetEndTime().AsTime()) >= again {
			ended[k.GetEpoch()] = true
		}
	}
	if len(ended) == 0 || now.Sub(s.asked) < again {
		return 0
	}
	s.asked = now
	oldest := int64(0)
	for _, r := range s.ask(ctx) {
		if epoch := r.answer.GetEpoch(); r.err == nil && ended[epoch] && (oldest == 0 || epoch < oldest) {
			oldest = epoch
		}
	}
	return oldest
}
