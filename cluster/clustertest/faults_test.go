package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lbd/cluster"
)

// writers count up, each in a pool of its own, at whichever node.
type writers struct {
	stop  chan struct{}
	wait  sync.WaitGroup
	acked atomic.Int64
	last  []int // by writer: the number that was acknowledged last
}

func (c *Cluster) startWriters(n int) *writers {
	w := &writers{stop: make(chan struct{}), last: make([]int, n)}
	nodes := make([]*cluster.Node, len(c.Hosts))
	for i, h := range c.Hosts {
		nodes[i] = h.Node // one that crashes is asked in vain
	}
	for i := range n {
		w.wait.Go(func() { w.write(c, i, nodes) })
	}
	return w
}

// write repeats what may or may not have happened with the same request id, as lbctl does.
func (w *writers) write(c *Cluster, writer int, nodes []*cluster.Node) {
	for size := 1; ; size++ {
		change := pool(fmt.Sprint("w", writer), size)
		change.RequestId = fmt.Sprintf("w%d-%d", writer, size)
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			_, err := nodes[rand.IntN(len(nodes))].Propose(ctx, change)
			cancel()
			if err == nil {
				break
			}
			if !errors.Is(err, cluster.ErrNoLeader) && !errors.Is(err, cluster.ErrOutcomeUnknown) && !errors.Is(err, cluster.ErrClosed) {
				c.t.Errorf("writer %d: %v", writer, err)
				return
			}
			select {
			case <-w.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
		w.last[writer] = size
		w.acked.Add(1)
		select {
		case <-w.stop:
			return
		default:
		}
	}
}

// end stops the writers and looks on every node that runs for what was acknowledged: it is there, and each change is there once.
func (w *writers) end(c *Cluster) {
	c.t.Helper()
	close(w.stop)
	w.wait.Wait()
	c.Leader()
	for _, h := range c.But() {
		for i, size := range w.last {
			name := fmt.Sprint("w", i)
			c.Await(h.Name+" has everything", func() bool { return held(h.Node.State(), name) >= size })
			if got := held(h.Node.State(), name); got > size+1 {
				c.t.Errorf("%s: %s has %d where %d was acknowledged last", h.Name, name, got, size)
			}
			made := 0
			for r := range h.Node.State().Revisions(name) {
				for _, change := range r.GetChanges() {
					if change.GetName() == name {
						made++
					}
				}
			}
			if got := held(h.Node.State(), name); made != got {
				c.t.Errorf("%s: %d revisions of %s for %d changes", h.Name, made, name, got)
			}
		}
	}
	c.Equal()
}

func TestLeaderKilledUnderProposals(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	w := c.startWriters(4)
	c.Await("some writes", func() bool { return w.acked.Load() > 20 })
	leader := c.Leader()
	leader.Crash()
	at := w.acked.Load()
	c.Await("writes without the old leader", func() bool { return w.acked.Load() > at+20 })
	leader.Start()
	w.end(c)
}

// The answer to a request is the next leader's, too.
func TestRequestIsKnownToTheNextLeader(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	change := pool("shop", 1)
	change.RequestId = "r1"
	leader := c.Leader()
	first, err := leader.Node.Propose(t.Context(), change)
	if err != nil {
		t.Fatal(err)
	}
	leader.Crash()
	c.Await("the same answer of another leader", func() bool {
		again, err := c.Leader().Node.Propose(t.Context(), change)
		return err == nil && again.Replayed && again.Revision == first.Revision
	})
}

func TestLeaderIsolated(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{Timing: cluster.Timing{Election: 750 * time.Millisecond}})
	write(c, "shop", 1)
	old := c.Leader()
	rest := c.But(old)
	c.Isolate(old)
	began := time.Now()
	c.Await("a write without the old leader", func() bool {
		for _, h := range rest {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := h.Node.Propose(ctx, pool("shop", 2))
			cancel()
			if err == nil {
				return true
			}
		}
		return false
	})
	if took := time.Since(began); took > 10*time.Second { // 3 s on a quiet machine: netnstest measures it
		t.Errorf("writes resumed after %v", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := old.Node.Propose(ctx, pool("shop", 7)); err == nil {
		t.Error("an isolated leader acknowledged a write")
	}
	if err := old.Node.ReadBarrier(ctx); err == nil {
		t.Error("an isolated leader says that it is up to date")
	}
	c.Heal()
	began = time.Now()
	reads(c, old, "shop", 2)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the node had everything %v after it was back", took)
	}
	c.Equal()
}

// A node whose link comes and goes costs nobody an election.
func TestFlappingLink(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{Timing: cluster.Timing{Election: 750 * time.Millisecond}})
	leader := c.Leader()
	lonely := c.But(leader)[0]
	before := leader.Node.RaftStats().Term
	w := c.startWriters(1)
	for range 4 {
		c.Partition([]*Host{lonely}, c.But(lonely))
		c.Await("it misses its leader", func() bool { return lonely.Node.Leader() == "" })
		c.Heal()
		c.Await("it hears its leader", func() bool { return lonely.Node.Leader() != "" })
	}
	w.end(c)
	if now := leader.Node.RaftStats().Term; now > before {
		t.Errorf("term %d after %d", now, before)
	}
}

func TestOneWayLoss(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	old := c.Leader()
	for _, h := range c.But(old) {
		c.OneWay(h, old)
	}
	c.Await("it gives up", func() bool { return old.Node.Role() != "leader" })
	c.Leader(c.But(old)...)
	c.Heal()
	write(c, "shop", 1)
	leader := c.Leader()
	deaf := c.But(leader)[0]
	c.OneWay(leader, deaf)
	write(c, "shop", 2)
	c.Heal()
	reads(c, deaf, "shop", 2)
	c.Equal()
}

func TestDelayAndDroppedConnections(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	w := c.startWriters(2)
	c.Delay(5 * time.Millisecond)
	for range 5 {
		at := w.acked.Load()
		c.Await("writes", func() bool { return w.acked.Load() > at+5 })
		for _, h := range c.Hosts {
			c.Drop(h)
		}
	}
	c.Heal()
	w.end(c)
}

func TestAllRestart(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	w := c.startWriters(2)
	c.Await("some writes", func() bool { return w.acked.Load() > 20 })
	for _, h := range c.Hosts {
		h.Crash()
	}
	close(w.stop)
	w.wait.Wait()
	w.stop = make(chan struct{})
	for _, h := range c.Hosts {
		h.Start()
	}
	w.end(c)
	write(c, "shop", 1)
	for _, h := range c.Hosts {
		reads(c, h, "shop", 1)
	}
}

// A leader whose disk refuses is followed by another one, and has everything once its disk works again.
func TestDiskOfTheLeader(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	write(c, "shop", 1)
	sick := c.Leader()
	sick.FailDisk(syscall.ENOSPC)
	c.Await("a write at another leader", func() bool {
		for _, h := range c.But(sick) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := h.Propose(ctx, pool("shop", 2))
			cancel()
			if err == nil {
				return true
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _ = sick.Node.Propose(ctx, pool("shop", 3)) // raft looks at its disk when it writes
		return false
	})
	sick.FailDisk(nil)
	write(c, "shop", 5)
	for _, h := range c.Hosts {
		reads(c, h, "shop", 5)
	}
	c.Equal()
}

// Nothing but expiry reads wall time: clocks that are an hour off change nothing.
func TestClocks(t *testing.T) {
	t.Parallel()
	c := New(t, 3, Options{})
	leader := c.Leader()
	followers := c.But(leader)
	leader.SetClock(time.Hour)
	followers[0].SetClock(-time.Hour)
	write(c, "shop", 1)
	for _, h := range c.Hosts {
		reads(c, h, "shop", 1)
		if age, ever := h.Node.Fresh(); !ever || age > patience {
			t.Errorf("%s is fresh since %v, %v", h.Name, age, ever)
		}
	}
	c.Await("all are live", func() bool {
		for _, m := range leader.Node.Members() {
			if !m.Live {
				return false
			}
		}
		return true
	})
	leader.Crash()
	write(c, "shop", 2)
	leader.Start()
	for _, h := range c.Hosts {
		reads(c, h, "shop", 2)
	}
	c.Equal()
}
