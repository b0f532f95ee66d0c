package clustertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"lbd/cluster"
)

// operation is what a client does with a pool.
type operation int

const (
	get operation = iota
	apply
	rollback
)

// input is one call.
type input struct {
	pool string
	what operation
	size int // that apply writes
}

// register is a pool in the model: its number, and the one before, to which a rollback goes back.
type register struct{ now, before int }

// model says what calls on pools may answer. Each pool has an owner of its own, so that a rollback undoes the pool's newest revision.
var model = porcupine.Model{
	Init: func() any { return register{} },
	Partition: func(all []porcupine.Operation) (parts [][]porcupine.Operation) {
		byPool := map[string][]porcupine.Operation{}
		for _, o := range all {
			name := o.Input.(input).pool
			byPool[name] = append(byPool[name], o)
		}
		for _, part := range byPool {
			parts = append(parts, part)
		}
		return parts
	},
	Step: func(state, in, out any) (bool, any) {
		r := state.(register)
		switch call := in.(input); call.what {
		case apply:
			return true, register{now: call.size, before: r.now}
		case rollback:
			return true, register{now: r.before, before: r.now}
		}
		return out.(int) == r.now, r
	},
}

// history is what clients have seen.
type history struct {
	began time.Time
	mu    sync.Mutex
	done  []porcupine.Operation
}

// note keeps a call. One whose outcome is not known may take effect at any time later; one that failed never did.
func (h *history) note(client int, in input, out int, call time.Duration, err error) {
	ended := time.Since(h.began)
	switch {
	case errors.Is(err, cluster.ErrOutcomeUnknown) && in.what != get:
		ended = time.Hour
	case err != nil:
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done = append(h.done, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: int64(call), Return: int64(ended)})
}

// client calls one host after the other until ctx ends. A client whose call's outcome is not known goes on as another one.
func (h *history) client(ctx context.Context, c *Cluster, id int, hosts []*Host) {
	for n := 1; ctx.Err() == nil; n++ {
		host := hosts[rand.IntN(len(hosts))]
		in := input{pool: fmt.Sprint("p", rand.IntN(2)), size: 3 + clientsMax*n + id%clientsMax}
		switch rand.IntN(6) {
		case 0, 1:
			in.what = apply
		case 2:
			in.what = rollback
		}
		call := time.Since(h.began)
		limit, cancel := context.WithTimeout(ctx, 2*time.Second)
		out, err := in.run(limit, host)
		cancel()
		h.note(id, in, out, call, err)
		if errors.Is(err, cluster.ErrOutcomeUnknown) {
			id += clientsMax
		}
		time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
	}
}

func (in input) run(ctx context.Context, host *Host) (int, error) {
	if in.what == apply {
		_, err := host.Propose(ctx, pool(in.pool, in.size))
		return 0, err
	}
	if err := host.Node.ReadBarrier(ctx); err != nil {
		return 0, err
	}
	st := host.Node.State()
	if in.what == get {
		return held(st, in.pool), nil
	}
	change, err := st.Rollback(in.pool, -1)
	if err == nil {
		_, err = host.Propose(ctx, change)
	}
	return 0, err
}

// clientsMax is how many call at a time.
const clientsMax = 5

// record lets clients call the nodes of a cluster while its network fails, and returns what they have seen.
func record(t *testing.T, stale bool, took time.Duration) []porcupine.Operation {
	t.Helper()
	c := New(t, 3, Options{StaleReads: stale})
	h := &history{began: time.Now()}
	for i, name := range []string{"p0", "p1"} {
		call := time.Since(h.began)
		write(c, name, i+1)
		h.note(1000, input{pool: name, what: apply, size: i + 1}, 0, call, nil)
	}
	ctx, cancel := context.WithTimeout(t.Context(), took)
	defer cancel()
	var clients sync.WaitGroup
	for id := range clientsMax {
		clients.Go(func() { h.client(ctx, c, id, c.Hosts) })
	}
	for ctx.Err() == nil {
		victim := c.Hosts[rand.IntN(len(c.Hosts))]
		switch rand.IntN(5) {
		case 0:
			c.Isolate(victim)
		case 1:
			c.OneWay(victim, c.But(victim)[rand.IntN(2)])
		case 2:
			c.Drop(victim)
		case 3:
			c.Isolate(c.Leader())
		}
		_ = sleep(ctx, time.Duration(200+rand.IntN(800))*time.Millisecond)
		c.Heal()
		_ = sleep(ctx, time.Duration(rand.IntN(500))*time.Millisecond)
	}
	clients.Wait()
	c.Leader()
	c.Equal()
	return h.done
}

// What clients see of concurrent applies, reads and rollbacks under faults could have happened one after the other.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	done := record(t, false, 6*time.Second)
	kinds := map[operation]int{}
	for _, o := range done {
		kinds[o.Input.(input).what]++
	}
	if kinds[get] < 20 || kinds[apply] < 10 || kinds[rollback] < 3 {
		t.Errorf("too little happened: %v", kinds)
	}
	if result := porcupine.CheckOperationsTimeout(model, done, time.Minute); result != porcupine.Ok {
		t.Errorf("%d calls: %s", len(done), result)
	}
}

// The same test finds a build whose reads ask nobody.
func TestStaleReadsAreNoticed(t *testing.T) {
	t.Parallel()
	done := record(t, true, 6*time.Second)
	if result := porcupine.CheckOperationsTimeout(model, done, time.Minute); result != porcupine.Illegal {
		t.Errorf("%d calls: %s", len(done), result)
	}
}
