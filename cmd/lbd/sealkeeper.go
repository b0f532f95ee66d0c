package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	"lbd/tls/seal"
)

const (
	// sealRetry is the pause before the other nodes are asked again for a sealing key that none of them had.
	sealRetry = time.Second
	// sealAskTimeout is what one of them has to answer.
	sealAskTimeout = 3 * time.Second
)

// sealKeeper sees to it that this node has the cluster's sealing keys, and seals under the one that all others seal under: that of the
// cluster's certificate authority.
type sealKeeper struct {
	store  sealStore
	keys   keys
	others func(id string) (grpc.ClientConnInterface, error) // nil: there are none
	moved  func()                                            // is called when there is another key than before
	log    *slog.Logger

	asked chan struct{} // one slot: somebody needs a key
	mu    sync.Mutex
	needs map[string]bool // by id, what somebody needed and was not there
}

// sealStore is the part of the replicated state that it follows.
type sealStore interface {
	ID() string
	Leader() string
	State() *state.State
	Next() <-chan struct{}
}

func newSealKeeper(store sealStore, k keys, others func(string) (grpc.ClientConnInterface, error), log *slog.Logger) *sealKeeper {
	return &sealKeeper{store: store, keys: k, others: others, moved: func() {}, log: log, asked: make(chan struct{}, 1), needs: map[string]bool{}}
}

// need has a key asked for that is not here. It does not wait.
func (s *sealKeeper) need(id string) {
	s.mu.Lock()
	s.needs[id] = true
	s.mu.Unlock()
	select {
	case s.asked <- struct{}{}:
	default:
	}
}

// run follows the state until ctx ends.
func (s *sealKeeper) run(ctx context.Context) {
	told := map[string]bool{}
	for {
		next := s.store.Next() // before the state, so that none is missed
		missing := s.missing()
		if len(missing) > 0 && s.others != nil && s.fetch(ctx, missing) {
			missing = s.missing()
			s.moved()
		}
		for _, id := range missing {
			if !told[id] {
				s.log.Warn("a sealing key is not here, and none of the other nodes has given it yet", "key", id)
			}
			told[id] = true
		}
		s.follow()
		var again <-chan time.Time
		if len(missing) > 0 {
			again = time.After(sealRetry)
			next = nil // what comes meanwhile is looked at then
		}
		select {
		case <-next:
		case <-s.asked:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// authorityKey is the id of the sealing key under which the cluster's authority is; empty: it has none.
func (s *sealKeeper) authorityKey() string {
	authority, _ := s.store.State().Authority()
	id, err := seal.KeyOf(authority.GetSealedKey())
	if err != nil {
		return ""
	}
	return id
}

// missing are the keys that are needed and not here.
func (s *sealKeeper) missing() []string {
	has := s.keys.ring.Sealer().KeyIDs()
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := s.authorityKey(); id != "" {
		s.needs[id] = true
	}
	maps.DeleteFunc(s.needs, func(id string, _ bool) bool { return slices.Contains(has, id) })
	if len(s.needs) > 0 { // the certificate that needed it may be gone by now
		needed := neededKeys(s.store.State())
		maps.DeleteFunc(s.needs, func(id string, _ bool) bool { return !needed[id] })
	}
	return slices.Sorted(maps.Keys(s.needs))
}

// fetch asks the other nodes for keys, the leader first, and tells whether one has come.
func (s *sealKeeper) fetch(ctx context.Context, ids []string) bool {
	var others []string
	for n := range s.store.State().Nodes() {
		switch n.GetId() {
		case s.store.ID():
		case s.store.Leader():
			others = slices.Insert(others, 0, n.GetId())
		default:
			others = append(others, n.GetId())
		}
	}
	for _, id := range others {
		text, err := s.ask(ctx, id, ids)
		if err != nil || len(text) == 0 {
			continue
		}
		err = s.take(ctx, text)
		clear(text)
		if err == nil {
			s.log.Info("sealing keys have come from another node", "node", id, "keys", ids)
			return true
		}
		s.log.Error("sealing keys have come, and cannot be kept", "node", id, "err", err)
	}
	return false
}

func (s *sealKeeper) ask(ctx context.Context, node string, ids []string) ([]byte, error) {
	conn, err := s.others(node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, sealAskTimeout)
	defer cancel()
	answer, err := raftv1.NewPeerServiceClient(conn).GetSealKeys(ctx, &raftv1.GetSealKeysRequest{Ids: ids})
	return answer.GetSealKeys(), err
}

// take keeps keys: on disk or, where lbd cannot write them, in this process until the operator brings them to their source.
func (s *sealKeeper) take(ctx context.Context, text []byte) error {
	others, err := seal.ParseKeys(text)
	if err != nil {
		return err
	}
	err = s.keys.ring.Add(ctx, others)
	if errors.Is(err, seal.ErrNotWritable) {
		s.log.Warn("sealing keys of the cluster are held until this node ends: bring them to where it has its keys from", "keys", others.KeyIDs(), "err", err)
		return s.keys.ring.Hold(others)
	}
	return err
}

// follow makes the cluster's sealing key the active one here.
func (s *sealKeeper) follow() {
	id := s.authorityKey()
	has := s.keys.ring.Sealer().KeyIDs()
	if id == "" || has[0] == id || !slices.Contains(has, id) {
		return
	}
	if err := s.keys.ring.Activate(id); err != nil {
		s.log.Error("the cluster's sealing key cannot be made the active one here", "key", id, "err", err)
		return
	}
	s.log.Info("another sealing key is the active one", "key", id)
}
