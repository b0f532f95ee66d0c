package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"lbd/cluster/rpc"
	"lbd/lb"
	lbdv1 "lbd/proto/lbd/v1"
)

// A node gives its traffic up in one way, whether an operator drains it, it is told to end, or another process takes its place:
//
//  1. the leadership goes to another node
//  2. the health paths answer 503, and the control plane's health service NOT_SERVING; traffic is taken as before
//  3. for drain.grace, where a listener has a health path: who looks at it turns away. Nobody else could see it
//  4. answers say Connection: close, new connections get one
//  5. until nothing is under way, or for drain.deadline
//  6. what is still under way then is cut off
//
// A drained node stays a member, follows every revision and answers who comes all the same: it is ready to take its traffic back.

const (
	// handOverMax is how long a node tries to give the leadership away before it goes on: an election takes about as long.
	handOverMax = 2 * time.Second
	// underWayMin and underWayMax are between two looks at what is under way. Each asks every loop.
	underWayMin = 10 * time.Millisecond
	underWayMax = 250 * time.Millisecond
	// lastCloseMax is what connections without a request get to be closed in order.
	lastCloseMax = time.Second
)

// What a node does with traffic, as NodeStatus names it.
const (
	trafficReady    = "ready"
	trafficDraining = "draining"
	trafficDrained  = "drained"
)

// traffic is what this node does with it.
type traffic struct {
	moved chan struct{} // one slot, for run

	mu   sync.Mutex
	word string
}

func newTraffic() *traffic { return &traffic{moved: make(chan struct{}, 1), word: trafficReady} }

func (t *traffic) get() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.word
}

func (t *traffic) set(word string) {
	t.mu.Lock()
	t.word = word
	t.mu.Unlock()
	select {
	case t.moved <- struct{}{}:
	default:
	}
}

// drainer is a drain under way, or done: until undrain.
type drainer struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

func (d *drainer) end() {
	if d != nil {
		d.cancel()
		d.done.Wait()
	}
}

// record is what the cluster has of this node; nil: nothing yet.
func (a *appliance) record() *lbdv1.Node {
	n, _ := a.node.State().Node(a.node.ID())
	return n
}

// followDrain makes what this node does with traffic what its record says.
func (a *appliance) followDrain() {
	switch drain := a.record().GetDrain(); {
	case drain != nil && a.drainer == nil:
		a.log.Info("this node is drained", "by", drain.GetAuthor(), "reason", drain.GetReason())
		a.events.add("node_draining", "nodes/"+a.cfg.node, "by "+drain.GetAuthor()+inBrackets(drain.GetReason()))
		ctx, cancel := context.WithCancel(context.Background())
		a.drainer = &drainer{cancel: cancel}
		a.traffic.set(trafficDraining)
		a.server.BeginDrain() // at once: a node that starts drained has not been ready for a moment
		pace := a.pace()
		a.drainer.done.Go(func() { a.giveUp(ctx, pace) })
	case drain == nil && a.traffic.get() != trafficReady:
		a.drainer.end()
		a.drainer = nil
		a.server.Undrain()
		a.traffic.set(trafficReady)
		a.log.Info("this node takes traffic again")
		a.events.add("node_ready", "nodes/"+a.cfg.node, "takes traffic again")
	}
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// pace is how long the steps may take.
type pace struct{ grace, deadline time.Duration }

// pace is that of the cluster's settings. Where no listener has a health path the grace would be for nobody.
func (a *appliance) pace() pace {
	settings := a.node.State().Settings()
	p := pace{settings.DrainGrace, settings.DrainDeadline}
	if a.cfg.dev || !a.hasHealthPath() {
		p.grace = 0
	}
	return p
}

func (a *appliance) hasHealthPath() bool {
	view := a.view.Load()
	if view == nil {
		return false
	}
	for _, l := range view.listeners {
		if l.config.HealthPath != "" {
			return true
		}
	}
	return false
}

// giveUp takes the steps of a node that goes on running. It ends early with ctx, when the node is undrained or ends.
func (a *appliance) giveUp(ctx context.Context, p pace) {
	a.handOverLead(ctx)
	if !pause(ctx, p.grace) {
		return
	}
	a.server.CloseGently()
	limited, cancel := context.WithTimeout(ctx, p.deadline)
	defer cancel()
	left := a.untilIdle(limited)
	if ctx.Err() != nil {
		return
	}
	message := "nothing is under way any more"
	if busy(left) > 0 {
		message = leftText(left) + " cut off at the deadline"
		deadline := time.Now()
		if !pause(ctx, lastCloseMax) {
			return
		}
		// Who has come since is none of those that were given the time.
		a.server.KillConnections(lb.ConnectionFilter{Busy: true, Until: deadline})
	}
	a.traffic.set(trafficDrained)
	a.log.Info("this node has given its traffic up", "left", message)
	a.events.add("node_drained", "nodes/"+a.cfg.node, message)
}

// leave takes the steps of a process that ends, after run has. A second signal, again, hurries it. Where nothing is under way it ends at once,
// but for the grace. Of a process whose listening sockets another one has taken over, handedOver, neither leadership nor readiness matter.
func (a *appliance) leave(again context.Context, handedOver bool) {
	a.leaving.Store(true)
	a.drainer.end()
	a.observation.set(rpc.Progress{Revision: a.current.revision})
	p := a.pace()
	if a.cfg.dev && !handedOver {
		p.deadline = 0
	}
	if a.traffic.get() != trafficReady { // who looks has turned away
		p.grace = 0
	}
	a.traffic.set(trafficDraining)
	if !handedOver {
		a.server.BeginDrain()
		a.handOverLead(again)
		pause(again, p.grace)
	}
	limited, cancel := context.WithTimeout(again, p.deadline)
	defer cancel()
	if handedOver {
		a.server.Succeed()
	}
	a.server.CloseGently()
	if handedOver || !a.hasHealthPath() { // else who looks there has turned away, and whoever comes all the same is served
		a.server.StopAccepting()
	}
	if handedOver { // nobody waits for the end, and who has an idle connection learns from one last answer that there is a newer one
		_ = a.server.Settled(limited)
	}
	left := a.untilIdle(limited)
	if busy(left) > 0 && p.deadline > 0 {
		a.log.Warn("requests were cut off", "left", leftText(left))
	}
	last := lastCloseMax
	if busy(left) > 0 {
		last = 0
	}
	closing, cancelClosing := context.WithTimeout(again, last)
	defer cancelClosing()
	_ = a.server.Drain(closing) // what is left then ends with the engine
}

// leaveMax is how long leave may take, for the service manager.
func (a *appliance) leaveMax() time.Duration {
	p := a.pace()
	return handOverMax + p.grace + p.deadline + lastCloseMax
}

// handOverLead gives the leadership to another node, where this one has it and there is one.
func (a *appliance) handOverLead(ctx context.Context) {
	others := 0
	for range a.node.State().Nodes() {
		others++
	}
	if a.node.Role() != "leader" || others < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverMax)
	defer cancel()
	if err := a.node.TransferLeader(ctx, ""); err != nil {
		a.log.Warn("no other node has taken the leadership over", "err", err)
	}
}

// pause waits so long; false: ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// untilIdle waits until nothing is under way, or ctx ends, and returns what was left when it looked last.
func (a *appliance) untilIdle(ctx context.Context) lb.Left {
	for wait := underWayMin; ; wait = min(2*wait, underWayMax) {
		left := a.server.Left()
		if busy(left) == 0 || !pause(ctx, wait) {
			return left
		}
	}
}

// busy counts what an end would cut off. An idle connection is none of it.
func busy(l lb.Left) int64 { return l.Handshakes + l.Requests + l.Tunnels }

func leftText(l lb.Left) string {
	return fmt.Sprintf("%d requests, %d tunnels, %d handshakes", l.Requests, l.Tunnels, l.Handshakes)
}
