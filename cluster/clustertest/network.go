package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"lbd/cluster"
	lbdv1 "lbd/proto/lbd/v1"
)

// Network is what lies between the nodes, in memory. Ways may be cut in either direction, take time, and be slow.
type Network struct {
	mu     sync.Mutex
	ports  map[string]*port // by id, those that are plugged in
	cut    map[path]bool
	delay  time.Duration
	rate   map[path]int // bytes a second; 0: any
	halves map[*half]struct{}
	healed chan struct{}          // closed and replaced with each change
	nodes  map[string]*lbdv1.Node // that were let in, as the members were told
}

// path is a direction between two nodes.
type path struct{ from, to string }

func newNetwork() *Network {
	return &Network{
		ports: make(map[string]*port), cut: make(map[path]bool),
		rate: make(map[path]int), healed: make(chan struct{}), halves: make(map[*half]struct{}), nodes: make(map[string]*lbdv1.Node),
	}
}

// change alters the network, and wakes all that wait for it.
func (w *Network) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
	close(w.healed)
	w.healed = make(chan struct{})
	for h := range w.halves {
		h.cond.Broadcast()
	}
}

var (
	errRefused  = fmt.Errorf("dial: %w", syscall.ECONNREFUSED)
	errStranger = errors.New("not a member that is known here")
)

// port is where a node is plugged in. It is the node's cluster.Network.
type port struct {
	network *Network
	id      string
	node    *cluster.Node
	address string
	calls   chan net.Conn
	done    chan struct{}
	once    sync.Once
	conns   map[*conn]struct{}
	moved   map[string]string // where members have said that they are now
}

func (w *Network) port(id, address string) *port {
	return &port{
		network: w, id: id, address: address,
		calls: make(chan net.Conn), done: make(chan struct{}), conns: make(map[*conn]struct{}), moved: make(map[string]string),
	}
}

// plug makes the port reachable.
func (p *port) plug(n *cluster.Node) {
	p.node = n
	p.network.change(func() { p.network.ports[p.id] = p })
}

// Close ends the port and its connections.
func (p *port) Close() error {
	p.once.Do(func() {
		close(p.done)
		p.network.change(func() {
			if p.network.ports[p.id] == p {
				delete(p.network.ports, p.id)
			}
			for c := range p.conns {
				c.closeLocked()
			}
		})
	})
	return nil
}

// Accept returns the next connection.
func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.calls:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// Dial connects to a node that knows this one.
func (p *port) Dial(ctx context.Context, id string) (net.Conn, error) {
	other, err := p.reach(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := other.admit(p.id); err != nil {
		return nil, err
	}
	near, far := p.network.pair(p, other)
	select {
	case other.calls <- far:
		return near, nil
	case <-other.done:
		err = errRefused
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, near.Close(), far.Close())
}

// admit is whether a node is let in: it is a member as far as this one knows, or was told when it joined.
func (p *port) admit(id string) error {
	st := p.node.State()
	if r, gone := st.RemovedNode(id); gone {
		if r.GetLeftBehind() {
			return cluster.ErrLeftBehind
		}
		return cluster.ErrRemoved
	}
	if _, ok := st.Node(id); ok {
		return nil
	}
	if _, own := st.Node(p.id); !own {
		p.network.mu.Lock()
		defer p.network.mu.Unlock()
		if p.network.nodes[id] != nil {
			return nil
		}
	}
	return fmt.Errorf("%w: %s at %s", errStranger, id, p.id)
}

// reach finds the way to a node, and back.
func (p *port) reach(ctx context.Context, id string) (*port, error) {
	if err := p.network.trip(ctx, p.id, id); err != nil {
		return nil, err
	}
	other := p.at(id)
	if other == nil {
		return nil, errRefused
	}
	return other, p.network.trip(ctx, id, p.id)
}

// at is the port at the address where this node believes the other one to be; nil: nobody is there.
func (p *port) at(id string) *port {
	address := ""
	if n, ok := p.node.State().Node(id); ok {
		address = n.GetAddress()
	}
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	if n := p.network.nodes[id]; address == "" && n != nil {
		address = n.GetAddress()
	}
	if moved := p.moved[id]; moved != "" {
		address = moved
	}
	if other := p.network.ports[id]; other != nil && other.address == address {
		return other
	}
	return nil
}

// trip is one way: it takes the network's delay, and does not end while it is cut.
func (w *Network) trip(ctx context.Context, from, to string) error {
	for {
		w.mu.Lock()
		cut, healed, delay := w.cut[path{from, to}], w.healed, w.delay
		w.mu.Unlock()
		if !cut {
			return sleep(ctx, delay)
		}
		select {
		case <-healed:
		case <-ctx.Done():
			return fmt.Errorf("from %s to %s: %w", from, to, context.Cause(ctx))
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// call asks another node. An answer that does not come back is not known.
func call[T any](ctx context.Context, p *port, id string, ask func(*cluster.Node) (T, error)) (T, error) {
	var none T
	if err := p.network.trip(ctx, p.id, id); err != nil {
		return none, err
	}
	other := p.at(id)
	if other == nil {
		return none, errRefused
	}
	if err := other.admit(p.id); err != nil {
		return none, err
	}
	answer, err := ask(other.node)
	if back := p.network.trip(ctx, id, p.id); back != nil {
		return none, fmt.Errorf("%w: %w", cluster.ErrOutcomeUnknown, back)
	}
	return answer, err
}

// ReadIndex asks the leader.
func (p *port) ReadIndex(ctx context.Context, leader string, report cluster.Report) (uint64, error) {
	return call(ctx, p, leader, func(n *cluster.Node) (uint64, error) { return n.AnswerReadIndex(ctx, report) })
}

// ProposeNode tells the other node where this one is, whatever becomes of the entry.
func (p *port) ProposeNode(ctx context.Context, leader string, node *lbdv1.Node) (uint64, error) {
	return call(ctx, p, leader, func(n *cluster.Node) (uint64, error) {
		p.network.mu.Lock()
		if other := p.network.ports[leader]; other != nil {
			other.moved[p.id] = node.GetAddress()
		}
		p.network.mu.Unlock()
		return n.AcceptNode(ctx, node)
	})
}
