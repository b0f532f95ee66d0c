package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// Propose makes one revision of a change and returns when it is applied here and durable, on this disk and on a
// majority's:
//
//  1. wait for a leader, a moment
//  2. apply the change to the present state and throw the result away: what is refused there enters no log
//  3. send it; a large one without what is stored already, and in parts
//  4. wait for the answer of the state that it was applied to, which may have moved on meanwhile
//
// Errors: *InvalidError and *ConflictError (nothing stored, repeating does not help), ErrNoLeader (nothing stored, try
// again), ErrOutcomeUnknown (try again with the same request id), ErrClosed, and what the disk says. The time of the
// revision is now unless the change has one.
func (n *Node) Propose(ctx context.Context, change *raftv1.ChangeCommand) (state.Result, error) {
	if change.GetTime() == nil {
		change = proto.CloneOf(change)
		change.Time = timestamppb.New(n.config.Now())
	}
	return n.propose(ctx, &raftv1.Command{Kind: &raftv1.Command_Change{Change: change}})
}

// ProposeOverride sets and ends overrides as Propose makes a revision: the same steps, the same errors and *MissingError (no
// such pool or backend), and the time of the command is now unless it has one.
func (n *Node) ProposeOverride(ctx context.Context, override *raftv1.OverrideCommand) (state.Result, error) {
	if override.GetTime() == nil {
		override = proto.CloneOf(override)
		override.Time = timestamppb.New(n.config.Now())
	}
	return n.propose(ctx, &raftv1.Command{Kind: &raftv1.Command_Override{Override: override}})
}

// ProposeCommand makes any other command durable and applied, by the same steps and with the same errors. Its time has to be set.
func (n *Node) ProposeCommand(ctx context.Context, cmd *raftv1.Command) (state.Result, error) {
	return n.propose(ctx, cmd)
}

func (n *Node) propose(ctx context.Context, cmd *raftv1.Command) (state.Result, error) {
	r, err := n.enter()
	if err != nil {
		return state.Result{}, err
	}
	defer n.callers.Done()
	if n.isRemoved() {
		return state.Result{}, ErrRemoved
	}
	if err := n.leading.wait(ctx, n.closing, n.other); err != nil {
		return state.Result{}, n.explain(err)
	}
	if n.stuck.Load() { // in the log it would wait for a newer build, and be made then
		return state.Result{}, n.explain(ErrNoLeader)
	}
	st := n.State()
	_, tried := st.Apply(cmd)
	if tried.Err != nil || tried.Replayed {
		return tried, tried.Err
	}
	if what := state.Unknown(cmd); what != "" { // no node of this build could apply it
		return state.Result{}, fmt.Errorf("propose %s: %w", what, state.ErrUnknownCommand)
	}
	if err := admit(st, cmd); err != nil {
		return state.Result{}, err
	}
	sent := n.slim(st, cmd)
	for range commitAttempts {
		res, err := n.send(ctx, r, sent)
		if err == nil {
			err = res.Err
		}
		var conflict *ConflictError
		switch {
		case errors.Is(err, state.ErrPartsMissing):
		case sent != cmd && errors.As(err, &conflict) && conflict.Reason == state.ResourceMoved:
			sent = cmd // what was left out has changed on the way
		default:
			if sent != cmd && err == nil {
				res.Warnings = tried.Warnings
			}
			return res, n.explain(err)
		}
	}
	return state.Result{}, fmt.Errorf("%w: too many large changes at once", ErrNoLeader)
}

// slim leaves out of a change what is stored already, where it would not fit one entry.
func (n *Node) slim(st *state.State, cmd *raftv1.Command) *raftv1.Command {
	change := cmd.GetChange()
	if proto.Size(change) <= n.config.MaxPartBytes {
		return cmd
	}
	if slim := st.Slim(change); slim != change {
		return &raftv1.Command{Kind: &raftv1.Command_Change{Change: slim}}
	}
	return cmd
}

// explain adds what this node knows of the cause: without a leader or an answer it is most often its own disk.
func (n *Node) explain(err error) error {
	problems := n.faults.list()
	if len(problems) == 0 || !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w; %s", err, strings.Join(problems, "; "))
}

// enter counts a caller in, so that Close waits for it.
func (n *Node) enter() (*raft.Raft, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed || n.raft == nil {
		return nil, ErrClosed
	}
	n.callers.Add(1)
	return n.raft, nil
}

// send brings a change into the log and waits for its answer.
func (n *Node) send(ctx context.Context, r *raft.Raft, cmd *raftv1.Command) (state.Result, error) {
	entries, err := n.entries(cmd)
	if err != nil {
		return state.Result{}, err
	}
	var futures []raft.ApplyFuture
	for _, entry := range entries {
		futures = append(futures, r.Apply(entry, enqueueWait))
	}
	return n.await(ctx, futures)
}

// entries are the command itself, or the parts of its change and their commit.
func (n *Node) entries(cmd *raftv1.Command) ([][]byte, error) {
	whole, err := proto.MarshalOptions{Deterministic: true}.Marshal(cmd)
	var large proto.Message = cmd.GetChange() // only changes and restores grow large
	if cmd.GetRestore() != nil {
		large = cmd.GetRestore()
	}
	if err != nil || len(whole) <= n.config.MaxPartBytes || cmd.GetChange() == nil && cmd.GetRestore() == nil {
		return [][]byte{whole}, err
	}
	change, err := proto.MarshalOptions{Deterministic: true}.Marshal(large)
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(change)
	var all [][]byte
	add := func(cmd *raftv1.Command) {
		entry, e := proto.Marshal(cmd)
		all, err = append(all, entry), errors.Join(err, e)
	}
	parts, now := int32(0), timestamppb.New(n.config.Now())
	for ; len(change) > 0; parts++ {
		size := min(n.config.MaxPartBytes, len(change))
		part := &raftv1.PartCommand{Digest: digest[:], Index: parts, Data: change[:size], Time: now}
		add(&raftv1.Command{Kind: &raftv1.Command_Part{Part: part}})
		change = change[size:]
	}
	add(&raftv1.Command{Kind: &raftv1.Command_Commit{Commit: &raftv1.CommitCommand{
		Digest: digest[:], Parts: parts, Restore: cmd.GetRestore() != nil,
	}}})
	return all, err
}

// await waits for all futures; the last has the answer. A future cannot be left alone, so when the caller gives up
// someone else goes on waiting, and Close for them.
func (n *Node) await(ctx context.Context, futures []raft.ApplyFuture) (state.Result, error) {
	done := make(chan error, 1)
	n.callers.Go(func() {
		for _, f := range futures {
			if err := f.Error(); err != nil {
				done <- sendError(err)
				return
			}
		}
		done <- nil
	})
	patience := time.NewTicker(diskPatience)
	defer patience.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return state.Result{}, err
			}
			res, ok := futures[len(futures)-1].Response().(state.Result)
			if !ok {
				return state.Result{}, ErrOutcomeUnknown
			}
			return res, nil
		case <-patience.C:
			if len(n.faults.list()) > 0 {
				return state.Result{}, ErrOutcomeUnknown
			}
		case <-ctx.Done():
			return state.Result{}, fmt.Errorf("%w: %w", ErrOutcomeUnknown, ctx.Err())
		}
	}
}

// sendError says of raft's errors what the caller needs to know: was it stored?
func sendError(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	case errors.Is(err, raft.ErrRaftShutdown):
		return ErrClosed
	default: // leadership lost on the way, or the disk said no: the entry may be in a log
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
}

// leading is open while this node leads and has applied everything that was in its log before.
type leading struct {
	notify chan bool // from raft, which waits for no one's reading it here

	mu   sync.Mutex
	open chan struct{} // closed while open
}

func (l *leading) init() {
	l.notify = make(chan bool, 16)
	l.open = make(chan struct{})
}

func (l *leading) set(yes bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
		if !yes {
			l.open = make(chan struct{})
		}
	default:
		if yes {
			close(l.open)
		}
	}
}

// is whether this node leads.
func (l *leading) is() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.open:
		return true
	default:
		return false
	}
}

// wait waits until this node leads, at most leaderWait; where another one does, it does not wait.
func (l *leading) wait(ctx context.Context, closing <-chan struct{}, other func() string) error {
	timer, look := time.NewTimer(leaderWait), time.NewTicker(electionPoll)
	defer timer.Stop()
	defer look.Stop()
	for {
		l.mu.Lock()
		open := l.open
		l.mu.Unlock()
		select {
		case <-open:
			return nil
		default:
		}
		if leader := other(); leader != "" {
			return &NotLeaderError{Leader: leader}
		}
		select {
		case <-open:
			return nil
		case <-look.C:
		case <-closing:
			return ErrClosed
		case <-timer.C:
			return ErrNoLeader
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err())
		}
	}
}

// watchLeadership opens the door after the barrier of each term, and shuts it when the term ends.
func (n *Node) watchLeadership() {
	for {
		select {
		case leads := <-n.leading.notify:
			n.reports.forget() // what was reported to a leader before
			n.led.Store(int64(time.Since(n.began)))
			n.leading.set(leads && n.barrier())
			n.reports.tell()
			if !leads {
				n.standAgain()
			}
		case <-n.closing:
			return
		}
	}
}

// standAgain has a sole voter that has stepped down, as its disk refused, say, lead again without waiting for nobody's vote.
func (n *Node) standAgain() {
	n.mu.Lock()
	r, transport := n.raft, n.transport
	n.mu.Unlock()
	if r != nil && transport != nil && n.isSole(r) && r.State() != raft.Leader {
		transport.stand()
	}
}

// barrier waits until everything in the log so far is applied, or this node leads no more. It counts as a caller: raft
// answers it while it runs.
func (n *Node) barrier() bool {
	r, err := n.enter()
	if err != nil {
		return false
	}
	defer n.callers.Done()
	for {
		err := r.Barrier(enqueueWait).Error()
		if !errors.Is(err, raft.ErrEnqueueTimeout) {
			return err == nil
		}
		select {
		case <-n.closing:
			return false
		default: // a busy leader: ask again
		}
	}
}
