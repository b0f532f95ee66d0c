package state

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Format is the version of snapshots and of the durable state.
const Format = 1

// Header opens a snapshot and the durable state.
func (s *State) Header() *raftv1.SnapshotHeader {
	return &raftv1.SnapshotHeader{Format: Format, Revision: s.revision, ClusterId: s.clusterID}
}

// Encode writes all records in the order of their keys, to follow a Header. It stops at the first error.
func (s *State) Encode(write func(*raftv1.SnapshotRecord) error) error {
	for _, m := range s.prefix("") {
		if err := write(wrapRecord(m)); err != nil {
			return err
		}
	}
	return nil
}

// Decode makes a state of a header and of the records that Encode wrote; next answers io.EOF after the last.
func Decode(header *raftv1.SnapshotHeader, next func() (*raftv1.SnapshotRecord, error)) (*State, error) {
	e, err := begin(header)
	if err != nil {
		return nil, err
	}
	uploads := make(map[string]int64)
	for {
		record, err := next()
		if errors.Is(err, io.EOF) {
			return e.state(), nil
		}
		if err != nil {
			return nil, err
		}
		m := unwrapRecord(record)
		if part, ok := m.(*raftv1.PartCommand); ok && uploads[string(part.GetDigest())] == 0 {
			uploads[string(part.GetDigest())] = int64(len(uploads) + 1)
		}
		if err := e.load(recordKey(m, uploads), m); err != nil {
			return nil, err
		}
	}
}

// Record is the record under a key that a Result calls touched; not ok when the record is gone.
func (s *State) Record(key string) (*raftv1.SnapshotRecord, bool) {
	m, ok := s.records.Get([]byte(key))
	if !ok {
		return nil, false
	}
	return wrapRecord(m), true
}

// Records are all records with their keys, in order: what Load takes.
func (s *State) Records() iter.Seq2[string, *raftv1.SnapshotRecord] {
	return func(yield func(string, *raftv1.SnapshotRecord) bool) {
		for key, m := range s.prefix("") {
			if !yield(key, wrapRecord(m)) {
				return
			}
		}
	}
}

// Load makes a state of records that were kept one by one under their keys.
func Load(header *raftv1.SnapshotHeader, records iter.Seq2[string, *raftv1.SnapshotRecord]) (*State, error) {
	e, err := begin(header)
	if err != nil {
		return nil, err
	}
	for key, record := range records {
		m := unwrapRecord(record)
		if part, ok := m.(*raftv1.PartCommand); ok && strings.HasPrefix(key, uploadPrefix) {
			if key != partKey(uploadOf(key), part.GetIndex()) {
				return nil, fmt.Errorf("load part %q: %w", key, ErrDamaged)
			}
		} else if key != recordKey(m, nil) {
			return nil, fmt.Errorf("load record %q: %w", key, ErrDamaged)
		}
		if err := e.load(key, m); err != nil {
			return nil, err
		}
	}
	return e.state(), nil
}

func begin(header *raftv1.SnapshotHeader) (*edit, error) {
	if header.GetFormat() != Format {
		return nil, fmt.Errorf("read state of format %d, this build knows %d: %w", header.GetFormat(), Format, ErrFormat)
	}
	if header.GetRevision() < 0 {
		return nil, fmt.Errorf("read state of revision %d: %w", header.GetRevision(), ErrDamaged)
	}
	return &edit{header.GetClusterId(), header.GetRevision(), iradix.New[proto.Message]().Txn(), iradix.New[int64]().Txn(), make(map[string]struct{})}, nil
}

// load puts a record that must be new and known.
func (e *edit) load(key string, m proto.Message) error {
	if key == "" {
		return fmt.Errorf("read a record of a kind that this build does not know: %w", ErrFormat)
	}
	if _, twice := e.records.Get([]byte(key)); twice {
		return fmt.Errorf("read record %q twice: %w", key, ErrDamaged)
	}
	e.put(key, m)
	return nil
}

func wrapRecord(m proto.Message) *raftv1.SnapshotRecord {
	switch m := m.(type) {
	case *raftv1.StoredResource:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Resource{Resource: m}}
	case *lbdv1.Revision:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Revision{Revision: m}}
	case *raftv1.Request:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Request{Request: m}}
	case *raftv1.PartCommand:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Part{Part: m}}
	case *raftv1.Before:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Before{Before: m}}
	case *lbdv1.Override:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Override{Override: m}}
	case *raftv1.StoredToken:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Token{Token: m}}
	case *raftv1.Authority:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Authority{Authority: m}}
	case *raftv1.AuditEntry:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Audit{Audit: m}}
	case *lbdv1.Node:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Node{Node: m}}
	case *raftv1.RemovedNode:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_RemovedNode{RemovedNode: m}}
	case *raftv1.StoredJoinToken:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_JoinToken{JoinToken: m}}
	case *raftv1.PendingJoin:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_PendingJoin{PendingJoin: m}}
	case *raftv1.ClusterRecord:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Cluster{Cluster: m}}
	case *raftv1.TicketKey:
		return &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_TicketKey{TicketKey: m}}
	default:
		panic(fmt.Sprintf("record of type %T", m))
	}
}

// unwrapRecord is nil for a record of an unknown kind.
func unwrapRecord(r *raftv1.SnapshotRecord) proto.Message {
	switch r := r.GetRecord().(type) {
	case *raftv1.SnapshotRecord_Resource:
		return r.Resource
	case *raftv1.SnapshotRecord_Revision:
		return r.Revision
	case *raftv1.SnapshotRecord_Request:
		return r.Request
	case *raftv1.SnapshotRecord_Part:
		return r.Part
	case *raftv1.SnapshotRecord_Before:
		return r.Before
	case *raftv1.SnapshotRecord_Override:
		return r.Override
	case *raftv1.SnapshotRecord_Token:
		return r.Token
	case *raftv1.SnapshotRecord_Authority:
		return r.Authority
	case *raftv1.SnapshotRecord_Audit:
		return r.Audit
	case *raftv1.SnapshotRecord_Node:
		return r.Node
	case *raftv1.SnapshotRecord_RemovedNode:
		return r.RemovedNode
	case *raftv1.SnapshotRecord_JoinToken:
		return r.JoinToken
	case *raftv1.SnapshotRecord_PendingJoin:
		return r.PendingJoin
	case *raftv1.SnapshotRecord_Cluster:
		return r.Cluster
	case *raftv1.SnapshotRecord_TicketKey:
		return r.TicketKey
	default:
		return nil
	}
}

// recordKey is the key under which a record belongs; empty for one that belongs nowhere.
func recordKey(m proto.Message, uploads map[string]int64) string {
	switch m := m.(type) {
	case *raftv1.StoredResource:
		if key, ok := KeyOf(m.GetResource()); ok {
			return resourceKey(key)
		}
	case *lbdv1.Revision:
		return revisionKey(m.GetNumber())
	case *raftv1.Request:
		return requestKey(m.GetRevision(), m.GetId())
	case *raftv1.PartCommand:
		return partKey(uploads[string(m.GetDigest())], m.GetIndex())
	case *raftv1.Before:
		if key, err := ParseKey(m.GetKey()); err == nil {
			return beforeKey(m.GetRevision(), key)
		}
	case *lbdv1.Override:
		return overrideKey(m)
	case *raftv1.StoredToken:
		return tokenKey(m.GetToken().GetId())
	case *raftv1.Authority:
		return authorityKey
	case *raftv1.AuditEntry:
		return auditKey(m.GetNumber())
	case *lbdv1.Node:
		return nodeKey(m.GetId())
	case *raftv1.RemovedNode:
		return removedKey(m.GetId())
	case *raftv1.StoredJoinToken:
		return joinTokenKey(m.GetToken().GetId())
	case *raftv1.PendingJoin:
		return pendingKey(m.GetNode().GetId())
	case *raftv1.ClusterRecord:
		return clusterKey
	case *raftv1.TicketKey:
		return ticketKeyKey(m)
	}
	return ""
}
