package cluster

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
)

// machine is raft's side of the node: the only writer of the state. raft calls it from one goroutine.
type machine struct {
	node *Node
	// applied is the index of the last entry within the state. Entries up to it are skipped: raft replays from its
	// last snapshot, state.db is further.
	applied uint64
	// refusing is set once a command was not taken: the node closes and the disk refuses, or a newer build wrote the command.
	// What comes after it must not be taken either.
	refusing error
}

var errRefusing = errors.New("the node closes and its disk refuses")

var _ raft.BatchingFSM = (*machine)(nil)

// Apply is ApplyBatch of one.
func (m *machine) Apply(entry *raft.Log) any { return m.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch takes the state over a batch of committed entries, in one transaction:
//
//  1. apply each command to the state before it
//  2. make the result durable, however often the disk has to be asked
//  3. show it and wake the publisher
//
// Each answer is a state.Result.
func (m *machine) ApplyBatch(entries []*raft.Log) []any {
	answers := make([]any, len(entries))
	if m.refusing != nil {
		return refuse(answers, m.refusing)
	}
	before := m.node.State()
	st := before
	touched := make(map[string]struct{})
	var made []pastState
	for i, entry := range entries {
		if entry.Type != raft.LogCommand || entry.Index <= m.applied {
			continue
		}
		next, res := m.apply(st, entry)
		if errors.Is(res.Err, state.ErrFormat) {
			m.stay(entry.Index, res.Err)
			refuse(answers[i:], m.refusing)
			entries = entries[:i]
			break
		}
		st, answers[i] = next, res
		made = append(made, pastState{entry.Index, st})
		for _, key := range res.Touched {
			touched[key] = struct{}{}
		}
	}
	if len(entries) == 0 || entries[len(entries)-1].Index <= m.applied {
		return answers
	}
	last := entries[len(entries)-1].Index
	err := m.node.faults.retry(m.node.durable.path, m.node.closing, func() error {
		return m.node.durable.advance(st, touched, last)
	})
	if err != nil { // closing: the entries are in the log, the next start applies them
		m.refusing = errRefusing
		return refuse(answers, err)
	}
	m.applied = last
	m.node.past.add(made...)
	m.node.show(before, st)
	m.node.arrive(last)
	return answers
}

// stay stops before a command that this build does not know: it goes on with the state that it has, which is whole. raft is
// left alone, so that a newer build finds the log as it is.
func (m *machine) stay(index uint64, err error) {
	m.refusing = fmt.Errorf("entry %d: %w", index, err)
	m.node.stuck.Store(true)
	m.node.logger.Error("the log holds what this build does not know: this node stays where it is", "index", index, "error", err)
	m.node.faults.keep(m.node.log.path, fmt.Errorf("%w: this node takes no changes any more: start a newer lbd on it", m.refusing))
}

// apply applies one command. Whatever is wrong with it, the log goes on; but for ErrFormat.
func (m *machine) apply(st *state.State, entry *raft.Log) (*state.State, state.Result) {
	cmd := new(raftv1.Command)
	err := state.Parse(entry.Data, cmd)
	if errors.Is(err, state.ErrFormat) {
		return st, state.Result{Revision: st.Revision(), Err: err}
	}
	if err != nil {
		m.node.logger.Error("entry of the log cannot be read", "index", entry.Index, "error", err)
		return st, state.Result{Revision: st.Revision(), Err: fmt.Errorf("%w: %v", state.ErrUnknownCommand, err)}
	}
	next, res := st.Apply(cmd)
	var fault *state.PanicError
	switch {
	case errors.As(res.Err, &fault):
		m.node.logger.Error("command panicked: it is refused", "index", entry.Index, "panic", fault.Value, "stack", string(fault.Stack))
	case errors.Is(res.Err, state.ErrUnknownCommand):
		m.node.logger.Error("command is unknown: it is refused", "index", entry.Index, "error", res.Err)
	}
	return next, res
}

func refuse(answers []any, err error) []any {
	for i := range answers {
		answers[i] = state.Result{Err: fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)}
	}
	return answers
}

// Snapshot holds on to the state as it is: it is immutable.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	if m.refusing != nil {
		return nil, m.refusing
	}
	return &snapshot{m.node.State(), m.applied}, nil
}

type snapshot struct {
	state *state.State
	index uint64
}

// Persist writes the snapshot; raft cancels the sink on an error.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	return writeSnapshot(sink, s.state, s.index)
}

// Release has nothing to release.
func (s *snapshot) Release() {}

// Restore puts a leader's snapshot in place of the state.
func (m *machine) Restore(r io.ReadCloser) error {
	st, index, err := readSnapshot(r)
	if err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	if err := m.replace(st, index); err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	return nil
}

// replace puts another state in place of the present one.
func (m *machine) replace(st *state.State, index uint64) error {
	err := m.node.faults.retry(m.node.durable.path, m.node.closing, func() error {
		return m.node.durable.replace(st, index)
	})
	if err != nil {
		return err
	}
	m.applied = index
	m.node.past.begin(index, st)
	m.node.show(m.node.State(), st)
	m.node.arrive(index)
	return nil
}
