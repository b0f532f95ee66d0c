package main

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/seal"
)

// movingState is a state that a test moves on.
type movingState struct {
	mu    sync.Mutex
	state *state.State
	next  chan struct{}
}

func newMovingState() *movingState {
	return &movingState{state: state.New("c"), next: make(chan struct{})}
}

func (m *movingState) ID() string     { return "n-0000000000000001" }
func (m *movingState) Leader() string { return "n-0000000000000002" }

func (m *movingState) State() *state.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

func (m *movingState) Next() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next
}

func (m *movingState) apply(t *testing.T, cmd *raftv1.Command) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	next, res := m.state.Apply(cmd)
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	m.state = next
	close(m.next)
	m.next = make(chan struct{})
}

// joins adds a member with that number.
func (m *movingState) joins(t *testing.T, digit, address string) {
	t.Helper()
	token := "token" + digit
	m.apply(t, &raftv1.Command{Kind: &raftv1.Command_JoinToken{JoinToken: &raftv1.JoinTokenCommand{
		Time: timestamppb.Now(), Create: &raftv1.StoredJoinToken{SecretSha256: make([]byte, 32), Token: &lbdv1.JoinToken{
			Id: token, ExpireTime: timestamppb.New(time.Now().Add(time.Hour)), Uses: 1,
		}},
	}}})
	key := "sha256:"
	for range 64 {
		key += digit
	}
	m.apply(t, &raftv1.Command{Kind: &raftv1.Command_Node{Node: &raftv1.NodeCommand{Time: timestamppb.Now(), Change: &raftv1.NodeCommand_Join{Join: &raftv1.JoinNode{
		TokenId: token, Node: &lbdv1.Node{
			Id: "n-000000000000000" + digit, Name: "edge-" + digit, Address: address, Role: lbdv1.NodeRole_NODE_ROLE_VOTER, Gate: 1, Key: key,
		},
	}}}}})
}

// sealedUnder puts an authority in place whose key is under a sealing key.
func (m *movingState) sealedUnder(t *testing.T, s *seal.Sealer, replaces []byte) {
	t.Helper()
	m.apply(t, &raftv1.Command{Kind: &raftv1.Command_Authority{Authority: &raftv1.AuthorityCommand{
		Time: timestamppb.Now(), ReplacesSha256: replaces,
		Authority: &raftv1.Authority{Certificate: []byte("ca"), SealedKey: s.Seal(seal.Binding{Kind: "authority"}, []byte("key"))},
	}}})
}

// keyGiver is another node that has sealing keys, or has none yet.
type keyGiver struct {
	grpc.ClientConnInterface
	mu    sync.Mutex
	ring  *seal.Ring
	asked int
}

func (k *keyGiver) Invoke(_ context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	if k.ring != nil {
		reply.(*raftv1.GetSealKeysResponse).SealKeys = k.ring.Sealer().KeyText(args.(*raftv1.GetSealKeysRequest).GetIds()...)
	}
	return nil
}

func fileRing(t *testing.T) *seal.Ring {
	t.Helper()
	source, err := seal.ParseSource("", filepath.Join(t.TempDir(), sealKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := seal.OpenRing(t.Context(), source, true)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// TestSealKeeper: what the cluster seals under is fetched, kept, and made the active key; what a certificate needs is fetched, too.
func TestSealKeeper(t *testing.T) {
	mine, theirs := fileRing(t), fileRing(t)
	synctest.Test(t, func(t *testing.T) {
		store, other := newMovingState(), &keyGiver{}
		moved := 0
		k := newSealKeeper(store, keys{ring: mine}, func(string) (grpc.ClientConnInterface, error) { return other, nil }, slog.New(slog.DiscardHandler))
		k.moved = func() { moved++ }
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { k.run(ctx) })
		store.joins(t, "1", "10.0.0.1:7443")
		store.joins(t, "2", "10.0.0.2:7443")
		store.sealedUnder(t, mine.Sealer(), nil)
		synctest.Wait()
		if other.asked > 0 || moved > 0 {
			t.Errorf("asked %d times for what is here", other.asked)
		}
		before := mine.Sealer().KeyID()
		next := theirs.Sealer()
		store.apply(t, &raftv1.Command{Kind: &raftv1.Command_Reseal{Reseal: &raftv1.ResealCommand{Time: timestamppb.Now(), Seals: []*raftv1.Reseal{{
			BeforeSha256: digestOf(store), Sealed: next.Seal(seal.Binding{Kind: "authority"}, []byte("key")),
		}}}}})
		time.Sleep(5 * sealRetry) // nobody has it yet
		synctest.Wait()
		if ids := mine.Sealer().KeyIDs(); other.asked < 3 || len(ids) != 1 {
			t.Errorf("asked %d times, keys %v", other.asked, ids)
		}
		other.mu.Lock()
		other.ring = theirs
		other.mu.Unlock()
		time.Sleep(2 * sealRetry)
		synctest.Wait()
		if ids := mine.Sealer().KeyIDs(); !slices.Equal(ids, []string{next.KeyID(), before}) || moved != 1 {
			t.Errorf("keys %v, moved %d", ids, moved)
		}
		asked := other.asked
		k.need("0123456789abcdef") // of a certificate that is gone by now
		time.Sleep(5 * sealRetry)
		synctest.Wait()
		if other.asked != asked {
			t.Errorf("asked %d times for what nothing is under", other.asked-asked)
		}
		cancel()
		running.Wait()
	})
}

// digestOf names the seal of the authority's key.
func digestOf(m *movingState) []byte {
	authority, _ := m.State().Authority()
	sum := sha256.Sum256(authority.GetSealedKey())
	return sum[:]
}
