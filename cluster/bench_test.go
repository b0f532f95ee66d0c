package cluster

import (
	"fmt"
	"testing"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// routes is one change with a listener, a pool and n routes.
func routes(n int) *raftv1.ChangeCommand {
	change := pool("shop", 4)
	add := func(r *lbdv1.Resource) {
		change.Upserts = append(change.Upserts, &raftv1.StoredResource{Resource: r})
	}
	add(&lbdv1.Resource{Spec: &lbdv1.Resource_Listener{Listener: &lbdv1.Listener{
		Name: "http", Addresses: []string{":80"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP,
	}}})
	for i := range n {
		add(&lbdv1.Resource{Spec: &lbdv1.Resource_Route{Route: route(i, "/")}})
	}
	return change
}

func route(i int, prefix string) *lbdv1.Route {
	return &lbdv1.Route{
		Name: fmt.Sprintf("r%d", i), Listeners: []string{"http"}, Hosts: []string{fmt.Sprintf("h%d.example.com", i)},
		Matches: []*lbdv1.RouteMatch{{Path: &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Prefix{Prefix: prefix}}}},
		Action:  &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "shop"}}}},
	}
}

func oneRoute(i int) *raftv1.ChangeCommand {
	return &raftv1.ChangeCommand{Owner: "web", Upserts: []*raftv1.StoredResource{
		{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Route{Route: route(7, fmt.Sprintf("/%d", i))}}},
	}}
}

// BenchmarkApplyOneRoute is the cost of a small change to a state of that many routes.
func BenchmarkApplyOneRoute(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			st, res := state.New("c").Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: routes(n)}})
			if res.Err != nil {
				b.Fatal(res.Err)
			}
			for i := 0; b.Loop(); i++ {
				if st, res = st.Apply(&raftv1.Command{Kind: &raftv1.Command_Change{Change: oneRoute(i)}}); res.Err != nil {
					b.Fatal(res.Err)
				}
			}
		})
	}
}

func benchNode(b *testing.B, dir string) *Node {
	n, err := Open(config(dir))
	if err == nil {
		err = n.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkPropose is a small change from call to durable answer, on a state of 10,000 routes.
func BenchmarkPropose(b *testing.B) {
	n := benchNode(b, b.TempDir())
	defer n.Close()
	if _, err := n.Propose(b.Context(), routes(10_000)); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		if _, err := n.Propose(b.Context(), oneRoute(i)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkProposeAll is one change of 10,002 resources.
func BenchmarkProposeAll(b *testing.B) {
	for b.Loop() {
		n := benchNode(b, b.TempDir())
		if _, err := n.Propose(b.Context(), routes(10_000)); err != nil {
			b.Fatal(err)
		}
		n.Close()
	}
}

// BenchmarkOpen is from nothing to a readable state of 10,000 routes.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	n := benchNode(b, dir)
	if _, err := n.Propose(b.Context(), routes(10_000)); err != nil {
		b.Fatal(err)
	}
	n.Close()
	for b.Loop() {
		n, err := Open(config(dir))
		if err != nil {
			b.Fatal(err)
		}
		n.Close()
	}
}

// BenchmarkStart is from a closed node to the answer of its first proposal.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	for i := 0; b.Loop(); i++ {
		n := benchNode(b, dir)
		if _, err := n.Propose(b.Context(), pool("shop", 1+i%100)); err != nil {
			b.Fatal(err)
		}
		n.Close()
	}
}
