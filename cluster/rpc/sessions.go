package rpc

import (
	"context"
	"sync"
	"time"
)

// sessions are the calls in flight of those who hold a credential. One that is revoked or expires ends its calls.
type sessions struct {
	store Store

	mu   sync.Mutex
	open map[string]map[*session]struct{} // by the credential's id
}

type session struct {
	caller Caller
	end    context.CancelCauseFunc
}

// add counts a call in and returns what counts it out. end is called when the credential ends before the call does.
func (s *sessions) add(c Caller, now time.Time, end context.CancelCauseFunc) (done func()) {
	if c.TokenID == "" {
		return func() {}
	}
	one := &session{c, end}
	s.mu.Lock()
	if s.open[c.TokenID] == nil {
		s.open[c.TokenID] = map[*session]struct{}{}
	}
	s.open[c.TokenID][one] = struct{}{}
	s.mu.Unlock()
	if _, ok := s.store.State().Token(c.TokenID); !ok { // since the call was admitted
		s.endRevoked()
	}
	stop := func() bool { return true }
	if !c.Expire.IsZero() {
		stop = time.AfterFunc(c.Expire.Sub(now), func() {
			end(unauthenticated(reasonExpired, "%s has expired", c.Author))
		}).Stop
	}
	return func() {
		stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open[c.TokenID], one)
		if len(s.open[c.TokenID]) == 0 {
			delete(s.open, c.TokenID)
		}
	}
}

// watch ends the calls of credentials that are revoked, or that this node cannot judge any more, until ctx ends.
func (s *sessions) watch(ctx context.Context, stale func(Caller) error) {
	look := time.NewTicker(staleLook)
	defer look.Stop()
	for {
		next := s.store.Next() // before the state, so that none is missed
		s.endRevoked()
		select {
		case <-next:
		case <-look.C:
			s.endStale(stale)
		case <-ctx.Done():
			return
		}
	}
}

func (s *sessions) endStale(stale func(Caller) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, calls := range s.open {
		for one := range calls {
			if err := stale(one.caller); err != nil {
				one.end(err)
			}
		}
	}
}

func (s *sessions) endRevoked() {
	current := s.store.State()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, calls := range s.open {
		if _, ok := current.Token(id); ok {
			continue
		}
		for one := range calls {
			one.end(unauthenticated(reasonBadCredential, "the credential %s was revoked", id))
		}
	}
}
