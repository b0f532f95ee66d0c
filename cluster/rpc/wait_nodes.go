package rpc

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// vigil waits for all nodes to serve a revision. One goroutine, run's, has its state; each other node is followed by a goroutine that reads that node's
// own progress and hands it over.
//
//	PENDING ──> SERVED or REFUSED       as the node says
//	PENDING ──> UNREACHABLE ──> PENDING when it has not been heard of for too long, and is again
//	any     ──> LEFT_OUT                it is drained, or no member any more; followed anew when it is back
type vigil struct {
	service   *configService
	number    int64
	reachable bool // do not wait for those that do not answer
	nodes     map[string]*watched
	news      chan news
	stop      context.CancelFunc
	followers sync.WaitGroup
}

// watched is a node that is waited for, or that no one waits for any more.
type watched struct {
	name  string
	now   *lbdv1.WaitForRevisionResponse
	sent  *lbdv1.WaitForRevisionResponse
	heard time.Time          // when it was last heard of
	why   string             // it does not answer
	leave context.CancelFunc // ends its follower; nil: it has none
}

// news is what a follower has heard: progress, or why it has not.
type news struct {
	id       string
	progress *lbdv1.WaitForRevisionResponse
	err      error
}

func newVigil(s *configService, number int64, reachable bool) *vigil {
	return &vigil{service: s, number: number, reachable: reachable, nodes: make(map[string]*watched), news: make(chan news), stop: func() {}}
}

// close returns when the followers are gone.
func (w *vigil) close() {
	w.stop()
	w.followers.Wait()
}

// run sends what changes, node by node, until it is over: all that are waited for, one at least, serve the revision, or one has refused it.
//
//  1. who is a member, and who of them is drained
//  2. what this node itself does, and who has been silent for too long
//  3. tell what is new
//  4. wait for anything to change
func (w *vigil) run(ctx context.Context, send func(*lbdv1.WaitForRevisionResponse) error) error {
	following, stop := context.WithCancel(ctx)
	w.stop = stop
	tick := time.NewTicker(waitTick)
	defer tick.Stop()
	for {
		next := w.service.store.Next()
		p := w.service.observer.Progress()
		w.enlist(following)
		w.judge(p, time.Now())
		if err := w.tell(send); err != nil {
			return err
		}
		if w.over() {
			return nil
		}
		select {
		case n := <-w.news:
			w.hear(n, time.Now())
		case <-p.Changed:
		case <-next:
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// enlist follows whoever is a member now and takes traffic, and leaves out the others.
func (w *vigil) enlist(ctx context.Context) {
	members := make(map[string]bool)
	for _, n := range w.service.fleet.nodes() {
		members[n.GetId()] = true
		known := w.nodes[n.GetId()]
		switch {
		case n.GetDrain() != nil:
			w.leaveOut(n.GetId(), n.GetName(), "it is drained")
		case known == nil || known.now.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_LEFT_OUT:
			w.begin(ctx, n)
		default:
			known.name = n.GetName()
		}
	}
	for id, n := range w.nodes {
		if !members[id] {
			w.leaveOut(id, n.name, "it is no member any more")
		}
	}
}

// begin waits for a node: for this one by looking, for another by following it.
func (w *vigil) begin(ctx context.Context, n *lbdv1.Node) {
	seen := &watched{name: n.GetName(), heard: time.Now()}
	w.nodes[n.GetId()] = seen
	if n.GetId() == w.service.fleet.id {
		return
	}
	seen.now = &lbdv1.WaitForRevisionResponse{Node: n.GetName(), Progress: lbdv1.NodeProgress_NODE_PROGRESS_PENDING, Reason: "it has not answered yet"}
	ctx, seen.leave = context.WithCancel(ctx)
	w.followers.Go(func() { w.follow(ctx, n.GetId()) })
}

func (w *vigil) leaveOut(id, name, why string) {
	seen := w.nodes[id]
	if seen == nil {
		seen = &watched{}
		w.nodes[id] = seen
	}
	if seen.leave != nil {
		seen.leave()
		seen.leave = nil
	}
	seen.name = name
	seen.now = &lbdv1.WaitForRevisionResponse{
		Node: name, Progress: lbdv1.NodeProgress_NODE_PROGRESS_LEFT_OUT, Reason: why,
	}
}

// hear takes what a follower says.
func (w *vigil) hear(n news, at time.Time) {
	seen := w.nodes[n.id]
	switch {
	case seen == nil || seen.leave == nil: // nobody waits for it any more
	case n.err != nil:
		seen.why = w.service.fleet.silence(n.err)
	default:
		seen.now, seen.heard, seen.why = n.progress, at, ""
	}
}

// judge looks at this node, and at those that have not been heard of.
func (w *vigil) judge(p Progress, at time.Time) {
	for id, n := range w.nodes {
		why := cmp.Or(n.why, w.service.fleet.silence(context.DeadlineExceeded))
		switch progress := n.now.GetProgress(); {
		case progress == lbdv1.NodeProgress_NODE_PROGRESS_LEFT_OUT:
		case id == w.service.fleet.id:
			n.now = w.service.progress(w.number, p)
		case progress == lbdv1.NodeProgress_NODE_PROGRESS_PENDING && at.Sub(n.heard) > w.service.fleet.patience:
			n.now = &lbdv1.WaitForRevisionResponse{
				Progress: lbdv1.NodeProgress_NODE_PROGRESS_UNREACHABLE, Reason: why, ServedRevision: n.now.GetServedRevision(),
			}
		case progress == lbdv1.NodeProgress_NODE_PROGRESS_UNREACHABLE:
			n.now.Reason = why
		}
	}
}

// tell sends what is new, by name.
func (w *vigil) tell(send func(*lbdv1.WaitForRevisionResponse) error) error {
	count := int32(0)
	for _, n := range w.nodes {
		if w.waitsFor(n) {
			count++
		}
	}
	byName := func(a, b *watched) int { return cmp.Compare(a.name, b.name) }
	for _, n := range slices.SortedFunc(maps.Values(w.nodes), byName) {
		now := proto.CloneOf(n.now)
		now.Node, now.Nodes = n.name, 0 // another count alone is no news
		if proto.Equal(now, n.sent) {
			continue
		}
		n.sent = proto.CloneOf(now)
		now.Nodes = count
		if err := send(now); err != nil {
			return err
		}
	}
	return nil
}

// waitsFor is whether a node counts.
func (w *vigil) waitsFor(n *watched) bool {
	switch n.now.GetProgress() {
	case lbdv1.NodeProgress_NODE_PROGRESS_LEFT_OUT:
		return false
	case lbdv1.NodeProgress_NODE_PROGRESS_UNREACHABLE:
		return !w.reachable
	}
	return true
}

// over is whether all that count serve the revision, or one has refused it. Where no node counts nobody serves it: one that is undrained may yet.
func (w *vigil) over() bool {
	served, waited := 0, 0
	for _, n := range w.nodes {
		if n.now.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_REFUSED {
			return true
		}
		if w.waitsFor(n) {
			waited++
		}
		if n.now.GetProgress() == lbdv1.NodeProgress_NODE_PROGRESS_SERVED {
			served++
		}
	}
	return served > 0 && served == waited
}

// follow reads a node's progress until that has come to an end, over one call after the other where need be.
func (w *vigil) follow(ctx context.Context, id string) {
	for {
		ended, err := w.read(ctx, id)
		if ended || ctx.Err() != nil || err != nil && !w.say(ctx, news{id: id, err: err}) {
			return
		}
		select {
		case <-time.After(waitPause):
		case <-ctx.Done():
			return
		}
	}
}

// read is one call. ended: the node has served or refused the revision. A node says something each waitBeat; one that does not is as good as gone.
func (w *vigil) read(ctx context.Context, id string) (ended bool, err error) {
	there, conn, err := w.service.fleet.others.way(ctx, id)
	if err != nil {
		return false, err
	}
	there, cancel := context.WithCancel(there)
	defer cancel()
	silent := time.AfterFunc(w.service.fleet.patience, cancel)
	defer silent.Stop()
	stream, err := lbdv1.NewConfigServiceClient(conn).WaitForRevision(there, &lbdv1.WaitForRevisionRequest{Revision: w.number})
	for err == nil {
		var progress *lbdv1.WaitForRevisionResponse
		if progress, err = stream.Recv(); err != nil {
			break
		}
		silent.Reset(w.service.fleet.patience)
		if !w.say(ctx, news{id: id, progress: progress}) || progress.GetProgress() != lbdv1.NodeProgress_NODE_PROGRESS_PENDING {
			return true, nil
		}
	}
	if there.Err() != nil && ctx.Err() == nil {
		return false, context.DeadlineExceeded
	}
	return false, err
}

// say is false when nobody listens any more.
func (w *vigil) say(ctx context.Context, n news) bool {
	select {
	case w.news <- n:
		return true
	case <-ctx.Done():
		return false
	}
}
