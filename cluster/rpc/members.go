package rpc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"lbd/cluster"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Who is a member says the applied state. Where that is behind, other members are asked; where it does not have this node itself yet,
// the answer to its join counts. Who was removed is out, whatever others say.

// errUnknownNode: the node is in no list that this one has.
var errUnknownNode = errors.New("it is no node of this cluster")

func errStranger(id string) error { return fmt.Errorf("node %s: %w", clip(id), errUnknownNode) }

// Member finds who is let in, by id.
func (p *Peers) Member(id string) (*lbdv1.Node, bool) {
	seat := p.seated()
	if seat == nil {
		return nil, false
	}
	return p.memberOf(seat, id)
}

func (p *Peers) memberOf(seat Seat, id string) (*lbdv1.Node, bool) {
	current := seat.State()
	if n, ok := current.Node(id); ok {
		return n, true
	}
	if _, removed := current.RemovedNode(id); removed {
		return nil, false
	}
	if n, ok := p.learning.member(id, seat); ok {
		return n, true
	}
	if _, ok := current.Node(seat.ID()); ok {
		return nil, false
	}
	for _, n := range p.cfg.Seed {
		if n.GetId() == id {
			return n, true
		}
	}
	return nil, false
}

// admits tells whether a node may come in by a key.
func (p *Peers) admits(id, key string) bool {
	n, ok := p.memberOf(p.seat, id)
	return ok && n.GetKey() == key && key != ""
}

// verify finds out which member shows a certificate. It does not wait. Its error is cluster.ErrRemoved for one that was a member,
// and errUnknownNode where another member may know it.
func (p *Peers) verify(leaf *x509.Certificate) (*lbdv1.Node, error) {
	seat := p.seated()
	if seat == nil {
		return nil, errors.New("this node is no member yet")
	}
	who, err := readIdentity(leaf)
	if err != nil {
		return nil, err
	}
	current := seat.State()
	if who.cluster != current.ClusterID() {
		return nil, fmt.Errorf("node %s is of another cluster: %s", clip(who.id), clip(who.cluster))
	}
	if r, ok := current.RemovedNode(who.id); ok && r.GetKey() == who.key {
		return nil, fmt.Errorf("node %s (%s) at %s: %w", r.GetName(), who.id, utc(r.GetTime().AsTime()), removal(r))
	}
	n, ok := p.memberOf(seat, who.id)
	switch {
	case !ok:
		return nil, errStranger(who.id)
	case n.GetKey() != who.key:
		return nil, fmt.Errorf("node %s (%s) has another key than %s", n.GetName(), who.id, who.key)
	case who.id == seat.ID():
		return nil, fmt.Errorf("node %s (%s) is this node itself: its data directory was copied", n.GetName(), who.id)
	}
	return n, who.valid(p.cfg.Now())
}

// removal is how a node ceased to be a member.
func removal(r *raftv1.RemovedNode) error {
	if r.GetLeftBehind() {
		return cluster.ErrLeftBehind
	}
	return cluster.ErrRemoved
}

// verifyAsking is verify, and where this node does not know the other one, or has not heard of a leader for so long that it may have
// been removed since, it asks those that it knows.
func (p *Peers) verifyAsking(ctx context.Context, leaf *x509.Certificate) (*lbdv1.Node, error) {
	n, err := p.verify(leaf)
	switch {
	case errors.Is(err, errUnknownNode):
		p.learn(ctx)
		return p.verify(leaf)
	case err != nil || !p.behind():
		return n, err
	}
	limited, cancel := context.WithTimeout(ctx, confirmMemberTimeout)
	defer cancel()
	p.learn(limited)
	if p.learning.lacks(n.GetId(), p.seated()) {
		return nil, errStranger(n.GetId())
	}
	return p.verify(leaf)
}

// behind tells whether this node may not have heard of a removal.
func (p *Peers) behind() bool {
	age, ever := p.seated().Fresh()
	return !ever || age > lostAfter
}

// learning is what other members have said of the membership.
type learning struct {
	mu       sync.Mutex
	at       uint64 // the entry of the log that it is of
	members  map[string]*lbdv1.Node
	told     time.Time // when the members were told
	asked    time.Time
	answered bool          // since then
	running  chan struct{} // closed when the question under way is answered; nil: there is none
}

func (l *learning) init() { l.members = map[string]*lbdv1.Node{} }

// member finds a node that others have told of, as long as the own state is behind theirs.
func (l *learning) member(id string, seat Seat) (*lbdv1.Node, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.countsLocked(seat) {
		return nil, false
	}
	n, ok := l.members[id]
	return n, ok
}

// lacks tells whether others, whose state is newer than the own one, know nothing of a node.
func (l *learning) lacks(id string, seat Seat) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.members[id]
	return l.countsLocked(seat) && !ok
}

// countsLocked tells whether what was told is newer than the own state, which has everything once the leader has confirmed it since. The entry that
// was named says no more than whoever named it: that one may have been removed, and have named one that never comes.
func (l *learning) countsLocked(seat Seat) bool {
	age, ever := seat.Fresh()
	return l.at > seat.Applied() && (!ever || age > time.Since(l.told))
}

// take keeps an answer, if it is the newest since the last question was asked.
func (l *learning) take(answer *raftv1.GetMembersResponse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answered && answer.GetAppliedIndex() <= l.at {
		return
	}
	l.answered, l.at, l.told = true, answer.GetAppliedIndex(), time.Now()
	l.members = map[string]*lbdv1.Node{}
	for _, n := range answer.GetMembers()[:min(len(answer.GetMembers()), membersLearnedMax)] {
		l.members[n.GetId()] = n
	}
}

// begin finds out whether somebody has to ask: where a question is under way, done is when it is answered; where one was asked a
// moment ago, nobody has to and done is nil.
func (l *learning) begin(now time.Time) (ask bool, done chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		return false, l.running
	}
	if since := now.Sub(l.asked); since >= 0 && since < learnInterval {
		return false, nil
	}
	l.running, l.asked, l.answered = make(chan struct{}), now, false
	return true, l.running
}

func (l *learning) ended() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.running)
	l.running = nil
}

// learn asks the members that this node knows who the members are, and waits for the answers, at most until ctx ends.
func (p *Peers) learn(ctx context.Context) {
	done := p.learnLater()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// learnLater is learn for who cannot wait. done is closed when there are answers; nil: nobody asks now.
func (p *Peers) learnLater() (done <-chan struct{}) {
	ask, running := p.learning.begin(p.cfg.Now())
	if ask && !p.start(p.askMembers) {
		p.learning.ended()
	}
	if running == nil {
		return nil
	}
	return running
}

// start runs f as one of the goroutines that Close waits for; false: it is too late.
func (p *Peers) start(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.done.Go(f)
	return true
}

func (p *Peers) askMembers() {
	defer p.learning.ended()
	ctx, cancel := context.WithTimeout(p.life, learnTimeout)
	defer cancel()
	var asked sync.WaitGroup
	for _, id := range p.known() {
		asked.Go(func() {
			conn, err := p.Own(id)
			if err != nil {
				return
			}
			answer, err := raftv1.NewPeerServiceClient(conn).GetMembers(ctx, &raftv1.GetMembersRequest{})
			if err == nil {
				p.learning.take(answer)
			}
		})
	}
	asked.Wait()
}

// known are the ids of the other members that the applied state has, or the seed.
func (p *Peers) known() []string {
	seat := p.seated()
	if seat == nil {
		return nil
	}
	var ids []string
	for n := range seat.State().Nodes() {
		if n.GetId() != seat.ID() {
			ids = append(ids, n.GetId())
		}
	}
	for _, n := range p.cfg.Seed {
		if _, ok := p.memberOf(seat, n.GetId()); ok && len(ids) < membersLearnedMax && n.GetId() != seat.ID() {
			ids = append(ids, n.GetId())
		}
	}
	return ids
}
