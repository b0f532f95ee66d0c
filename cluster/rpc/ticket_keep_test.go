package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// keeperRig is the ticket keys of a cluster as its leader keeps them, and nodes that follow the state or are cut off from it. Hours pass as a test says.
type keeperRig struct {
	now     time.Time
	store   *memoryStore
	service *ticketService
	others  map[string]*followerRig
}

// followerRig is a node that is not the leader: it serves the newest state that it has heard of.
type followerRig struct {
	seen *state.State
	cut  bool
}

func newKeeperRig(t interface{ Helper() }, followers ...string) *keeperRig {
	t.Helper()
	r := &keeperRig{now: now, store: &memoryStore{state: state.New("cluster-1"), next: make(chan struct{})}, others: map[string]*followerRig{}}
	cfg := Config{Node: "leader", Store: r.store, Keys: &testKeys{}, Now: func() time.Time { return r.now }}
	f := newFleet(cfg)
	f.others = r
	for _, name := range followers {
		r.others[name] = &followerRig{seen: r.store.State()}
	}
	cluster := &clusterService{store: r.store, keys: cfg.Keys, fleet: f, writer: newWriter(cfg, context.Background())}
	r.service = &ticketService{store: r.store, fleet: f, observer: &fakeObserver{store: r.store}, cluster: cluster}
	return r
}

// hours lets time pass, the keeper looking every quarter of an hour.
func (r *keeperRig) hours(t interface {
	Helper()
	Fatal(...any)
}, n float64) {
	t.Helper()
	for end := r.now.Add(time.Duration(n * float64(time.Hour))); ; r.now = r.now.Add(15 * time.Minute) {
		if err := r.service.keepOnce(context.Background()); err != nil {
			t.Fatal(err)
		}
		for _, f := range r.others {
			if !f.cut {
				f.seen = r.store.State()
			}
		}
		if !r.now.Before(end) {
			return
		}
	}
}

// ticketRig is a ticket: the key it is under, and when it was issued.
type ticketRig struct {
	epoch int64
	at    time.Time
}

// issue is a ticket of a node that knows this state; epoch 0: it issues none.
func issue(s *state.State, at time.Time) ticketRig {
	k := s.TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE)
	if k == nil || !at.Before(s.Settings().TicketKeys.Until(k)) {
		return ticketRig{}
	}
	return ticketRig{k.GetEpoch(), at}
}

// accepts tells whether a node that knows this state opens the ticket now.
func accepts(s *state.State, ticket ticketRig, at time.Time) bool {
	for k := range s.TicketKeys() {
		if k.GetEpoch() == ticket.epoch {
			return at.Before(s.Settings().TicketKeys.Until(k))
		}
	}
	return false
}

func (r *keeperRig) way(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error) {
	return r.own(ctx, node)
}

// own leads to a follower, unless that is cut off.
func (r *keeperRig) own(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error) {
	f := r.others[node]
	if f == nil || f.cut {
		return ctx, nil, errors.New("no way to " + node)
	}
	return ctx, followerConn{f}, nil
}

// followerConn answers GetTicketKeys.
type followerConn struct{ node *followerRig }

func (c followerConn) Invoke(_ context.Context, method string, _, reply any, _ ...grpc.CallOption) error {
	out, ok := reply.(*raftv1.GetTicketKeysResponse)
	if !ok {
		return errors.New("asked for " + method)
	}
	out.Keys = &lbdv1.TicketKeysOnNode{
		Epoch: c.node.seen.TicketKeyIn(lbdv1.TicketKeyState_TICKET_KEY_STATE_ACTIVE).GetEpoch(), Digest: state.TicketKeysDigest(c.node.seen.TicketKeys()),
	}
	return nil
}

func (followerConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// join makes the followers members.
func (r *keeperRig) join(t *testing.T) {
	t.Helper()
	for name := range r.others {
		result, err := r.store.ProposeCommand(t.Context(), joins(name, "late", "192.0.2.1:7443", nodeCertificate(t, name, nil)))
		if err != nil || result.Err != nil {
			t.Fatal(err, result.Err)
		}
	}
}

// keys is "1 ACCEPTED, 2 ACTIVE, 3 STAGED".
func (r *keeperRig) keys() (text string) {
	for k := range r.store.State().TicketKeys() {
		text += fmt.Sprintf("%d %s, ", k.GetEpoch(), k.GetState().String()[len("TICKET_KEY_STATE_"):])
	}
	return text[:max(0, len(text)-2)]
}

func TestTicketKeysAreKept(t *testing.T) {
	r := newKeeperRig(t)
	for _, step := range []struct {
		hours float64
		want  string
	}{
		{0, "1 ACTIVE, 2 STAGED"},
		{11.75, "1 ACTIVE, 2 STAGED"},
		{0.25, "1 ACCEPTED, 2 ACTIVE, 3 STAGED"},
		{24, "1 ACCEPTED, 2 ACCEPTED, 3 ACCEPTED, 4 ACTIVE, 5 STAGED"},
		{11.75, "1 ACCEPTED, 2 ACCEPTED, 3 ACCEPTED, 4 ACTIVE, 5 STAGED"},
		{0.5, "2 ACCEPTED, 3 ACCEPTED, 4 ACCEPTED, 5 ACTIVE, 6 STAGED"},
	} {
		if r.hours(t, step.hours); r.keys() != step.want {
			t.Fatalf("%s after the start: %s, want %s", r.now.Sub(now), r.keys(), step.want)
		}
	}
}

// A leader that was away for days goes on with the key that was staged: all nodes have it.
func TestTicketKeysAfterALongTimeWithoutLeader(t *testing.T) {
	r := newKeeperRig(t)
	r.hours(t, 0)
	r.now = r.now.Add(100 * time.Hour)
	if issue(r.store.State(), r.now).epoch != 0 {
		t.Fatal("a key issues beyond max_key_age")
	}
	if r.hours(t, 0); r.keys() != "2 ACTIVE, 3 STAGED" && r.keys() != "1 ACCEPTED, 2 ACTIVE, 3 STAGED" {
		t.Fatal(r.keys())
	}
	if r.hours(t, 1); r.keys() != "2 ACTIVE, 3 STAGED" {
		t.Fatal(r.keys())
	}
}

// A node that is in contact and still issues under an old key, whatever keeps it, has that key accepted for longer.
func TestTicketKeysOfALateNode(t *testing.T) {
	r := newKeeperRig(t, nodeID(1))
	r.hours(t, 0)
	late := r.others[nodeID(1)]
	late.seen = r.store.State()
	r.join(t)
	old := late.seen
	for range 30 * 4 { // it answers, and does not move on
		late.seen = old
		r.hours(t, 0)
		r.now = r.now.Add(15 * time.Minute)
	}
	ticket := issue(old, r.now)
	r.hours(t, 35)
	if !accepts(r.store.State(), ticket, r.now) {
		t.Errorf("a ticket that it issued 30 hours after the start is refused %s later: %s", r.now.Sub(ticket.at), r.keys())
	}
	r.hours(t, 10)
	if accepts(r.store.State(), ticket, r.now) {
		t.Error("it is accepted beyond max_key_age")
	}
}

// One node is cut off before a rotation and comes back 13 hours later: no ticket of any node is lost, then.
func TestTicketKeysOverAPartition(t *testing.T) {
	r := newKeeperRig(t, "edge-2")
	r.hours(t, 11.5)
	edge := r.others["edge-2"]
	edge.cut = true
	var elsewhere, here []ticketRig
	for range 13 {
		r.hours(t, 1)
		elsewhere, here = append(elsewhere, issue(r.store.State(), r.now)), append(here, issue(edge.seen, r.now))
		if within := r.now.Sub(now) < 24*time.Hour; within && !accepts(edge.seen, elsewhere[len(elsewhere)-1], r.now) {
			t.Errorf("%s after the start the node that is cut off does not know the others' key", r.now.Sub(now))
		}
		if !accepts(r.store.State(), here[len(here)-1], r.now) {
			t.Errorf("%s after the start the others do not know the key of the node that is cut off", r.now.Sub(now))
		}
	}
	edge.cut = false
	r.hours(t, 0)
	for _, ticket := range slices.Concat(elsewhere, here) {
		for what, s := range map[string]*state.State{"the node that was cut off": edge.seen, "the leader": r.store.State()} {
			if !accepts(s, ticket, r.now) {
				t.Errorf("%s refuses a ticket under epoch %d, issued %s after the start", what, ticket.epoch, ticket.at.Sub(now))
			}
		}
	}
}

// Over random partitions: what a node issues while it is in contact, every node in contact accepts for accept_for; and a node that is cut off for less than
// an interval knows whatever the others issue.
func TestTicketKeysProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newKeeperRig(t, "a", "b")
		r.hours(t, 0)
		settings := r.store.State().Settings().TicketKeys
		var issued []ticketRig
		cutAt := map[string]time.Time{}
		for range rapid.IntRange(5, 40).Draw(t, "steps") {
			name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node")
			if node := r.others[name]; rapid.Bool().Draw(t, "toggle") {
				node.cut = !node.cut
				cutAt[name] = r.now
			}
			r.hours(t, float64(rapid.IntRange(1, 28).Draw(t, "quarters"))/4)
			newest := issue(r.store.State(), r.now)
			issued = append(issued, newest)
			for name, node := range r.others {
				if node.cut && r.now.Sub(cutAt[name]) < settings.Interval && !accepts(node.seen, newest, r.now) {
					t.Fatalf("%s, cut off for %s, does not know epoch %d", name, r.now.Sub(cutAt[name]), newest.epoch)
				}
				for _, ticket := range issued {
					if !node.cut && r.now.Sub(ticket.at) < settings.AcceptFor && !accepts(node.seen, ticket, r.now) {
						t.Fatalf("%s refuses a ticket of epoch %d that is %s old: %s", name, ticket.epoch, r.now.Sub(ticket.at), r.keys())
					}
				}
			}
		}
	})
}
