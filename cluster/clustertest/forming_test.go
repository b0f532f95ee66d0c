package clustertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pool is a change that gives a pool so many backends: a register of numbers that everybody can read.
func pool(name string, size int) *raftv1.ChangeCommand {
	p := &lbdv1.Pool{Name: name}
	for i := range size {
		p.Backends = append(p.Backends, &lbdv1.Backend{Address: fmt.Sprintf("10.%d.%d.%d:80", i>>16&255, i>>8&255, i&255)})
	}
	return &raftv1.ChangeCommand{Owner: name, Upserts: []*raftv1.StoredResource{
		{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Pool{Pool: p}}},
	}}
}

// held is the number in a pool; 0: it is not there.
func held(st *state.State, name string) int {
	stored, _ := st.Get(state.Pools, name)
	return len(stored.GetResource().GetPool().GetBackends())
}

// write puts a number into a pool.
func write(c *Cluster, name string, size int) {
	c.t.Helper()
	c.Do(&raftv1.Command{Kind: &raftv1.Command_Change{Change: pool(name, size)}})
}

// reads waits until a host, asked for all that was acknowledged, has a number in a pool.
func reads(c *Cluster, h *Host, name string, size int) {
	c.t.Helper()
	c.Await(fmt.Sprintf("%s reads %s = %d", h.Name, name, size), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return h.Node.ReadBarrier(ctx) == nil && held(h.Node.State(), name) == size
	})
}

func TestThreeNodesForm(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	write(c, "shop", 1)
	for _, h := range c.Hosts {
		reads(c, h, "shop", 1)
		if age, ever := h.Node.Fresh(); !ever || age > 20*time.Second {
			t.Errorf("%s is fresh since %v, %v", h.Name, age, ever)
		}
		if p := h.Node.Problems(); len(p) > 0 {
			t.Errorf("%s has problems: %q", h.Name, p)
		}
		if m := h.Node.Members(); len(m) != 3 {
			t.Errorf("%s knows %d members", h.Name, len(m))
		}
	}
	for _, m := range c.Leader().Node.Members() {
		if !m.Voter || !m.Live || m.Applied == 0 {
			t.Errorf("member %+v", m)
		}
	}
	c.Equal()
}
