package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// links is the carrier of a node with a network. It is two of raft's transports:
//
//	short  heartbeats and votes, with a deadline that is soon over, and whatever comes in
//	bulk   entries and snapshots to others, for which a slow link or a slow disk may need minutes
//
// raft waits longer and longer between attempts to replicate, ten seconds in the end, and would leave a node that is back waiting for that. So an
// attempt that failed is repeated here, as soon as the node answers heartbeats again.
type links struct {
	*raft.NetworkTransport // short
	bulk                   *raft.NetworkTransport
	streams                *streams
	logger                 *slog.Logger
	// ill is whether this node's disk refuses or does not answer. Such a leader gets nothing done, and cannot always step down, as raft's own
	// goroutine waits for the disk; its heartbeats would keep the others from having another one. So they end, and it does not stand.
	ill func() bool
	// follows is whether this node leads and the other one is of its configuration: only then an attempt is repeated.
	follows func(raft.ServerID) bool

	mu    sync.Mutex
	peers map[raft.ServerID]*reach
}

// reach is what heartbeats and attempts say about a peer.
type reach struct {
	beat   time.Time     // last heartbeat that was answered
	failed time.Time     // last attempt that failed
	missed time.Time     // first of the heartbeats that were not answered; zero: the last one was
	misses int           // how many there were since then
	beats  chan struct{} // closed and replaced with each answer
}

func newLinks(n *Node, incoming <-chan net.Conn, follows func(raft.ServerID) bool) *links {
	s := &streams{
		network: n.config.Network, node: n.id, incoming: incoming, refused: n.told, ended: n.orphaned,
		began: time.Now(), open: make(map[*stream]struct{}),
	}
	s.life, s.end = context.WithCancel(context.Background())
	logger := raftLogger(n.logger)
	l := &links{streams: s, logger: n.logger, ill: n.faults.ill, follows: follows, peers: make(map[raft.ServerID]*reach)}
	l.NetworkTransport = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: face{s, short}, MaxPool: pooledMax, Timeout: shortWait, Logger: logger,
	})
	l.bulk = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: face{s, bulk}, MaxPool: pooledMax, Logger: logger,
		// One at a time: raft's pipeline stands still for good, heartbeats going on, when a peer refuses entries (its disk is full) at the
		// wrong moment (hashicorp/raft issue 612): nobody reads its answers any more, and the next request waits for that.
		MaxRPCsInFlight: 1,
	})
	return l
}

// AppendEntries sends a heartbeat, or entries.
func (l *links) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if args.PrevLogEntry == 0 && args.PrevLogTerm == 0 && len(args.Entries) == 0 && args.LeaderCommitIndex == 0 {
		if l.ill() {
			return errIll
		}
		err := unlessIdle(func() error { return l.NetworkTransport.AppendEntries(id, target, args, resp) })
		l.note(id, err)
		return err
	}
	for {
		if err := l.await(id); err != nil {
			return err
		}
		if l.ill() { // entries, even none, are as good as a heartbeat
			if !l.follows(id) || !pause(followsPoll, l.streams.life.Done()) {
				return errIll
			}
			continue
		}
		err := unlessIdle(func() error { return l.bulk.AppendEntries(id, target, args, resp) })
		if err == nil {
			return nil
		}
		l.fail(id)
		if !l.follows(id) || !pause(retryFirst, l.streams.life.Done()) {
			return err
		}
	}
}

// AppendEntriesPipeline sends entries without waiting for each answer.
func (l *links) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	return l.bulk.AppendEntriesPipeline(id, target)
}

// InstallSnapshot is not repeated here: its data can be read once.
func (l *links) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := l.await(id); err != nil {
		return err
	}
	err := l.bulk.InstallSnapshot(id, target, args, resp, data)
	if err != nil {
		l.fail(id)
	}
	return err
}

// RequestVote asks for a vote.
func (l *links) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if l.ill() {
		return errIll
	}
	return unlessIdle(func() error { return l.NetworkTransport.RequestVote(id, target, args, resp) })
}

// RequestPreVote asks whether a vote would be given.
func (l *links) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if l.ill() {
		return errIll
	}
	return unlessIdle(func() error { return l.NetworkTransport.RequestPreVote(id, target, args, resp) })
}

// TimeoutNow hands leadership over.
func (l *links) TimeoutNow(id raft.ServerID, target raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return unlessIdle(func() error { return l.NetworkTransport.TimeoutNow(id, target, args, resp) })
}

// unlessIdle repeats a call that got connections out of the pool that were idle for too long.
func unlessIdle(call func() error) (err error) {
	for range pooledMax + 1 {
		if err = call(); !errors.Is(err, errIdle) {
			return err
		}
	}
	return err
}

// Close ends all connections, and with them what waits on one.
func (l *links) Close() error {
	l.streams.close()
	return errors.Join(l.NetworkTransport.Close(), l.bulk.Close())
}

func (l *links) peerLocked(id raft.ServerID) *reach {
	p := l.peers[id]
	if p == nil {
		p = &reach{beats: make(chan struct{})}
		l.peers[id] = p
	}
	return p
}

// note takes what a heartbeat came to. The log has a line when a node ceases to answer, and one when it answers again: how long it was away, and how many
// heartbeats were lost; not one for each.
func (l *links) note(id raft.ServerID, err error) {
	l.mu.Lock()
	p := l.peerLocked(id)
	missed, misses := p.missed, p.misses
	switch {
	case err == nil:
		p.beat, p.missed, p.misses = time.Now(), time.Time{}, 0
		close(p.beats)
		p.beats = make(chan struct{})
	case missed.IsZero():
		p.missed, p.misses = time.Now(), 1
	default:
		p.misses++
	}
	l.mu.Unlock()
	switch {
	case err == nil && !missed.IsZero():
		l.logger.Info("node answers again", "node", id, "after", time.Since(missed).Round(time.Millisecond), "heartbeats", misses)
		l.streams.cut(id, missed)
	case err != nil && missed.IsZero() && l.follows(id):
		l.logger.Warn("node does not answer", "node", id, "error", err)
	}
}

func (l *links) fail(id raft.ServerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peerLocked(id).failed = time.Now()
}

// answers is whether the last heartbeat to a peer was answered, after the last attempt that failed.
func (l *links) answers(id raft.ServerID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peerLocked(id)
	return p.missed.IsZero() && !p.failed.After(p.beat)
}

var errIll = errors.New("this node's own disk is ill: another one shall lead")

var errUnreachable = errors.New("it does not answer")

// await waits until a peer on which an attempt failed answers a heartbeat.
func (l *links) await(id raft.ServerID) error {
	for {
		l.mu.Lock()
		p := l.peerLocked(id)
		ready, beats := !p.failed.After(p.beat), p.beats
		l.mu.Unlock()
		if ready {
			return nil
		}
		if !l.follows(id) {
			return errUnreachable
		}
		timer := time.NewTimer(followsPoll)
		select {
		case <-beats:
		case <-timer.C:
		case <-l.streams.life.Done():
			timer.Stop()
			return net.ErrClosed
		}
		timer.Stop()
	}
}
