// Package state is what the cluster agrees on: resources, revisions and remembered requests, and the one function that
// changes them. It is pure: no clock, disk, network or randomness, so every node that applies the same commands holds
// the same state.
package state

import (
	"encoding/binary"
	"iter"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// State is one immutable state. All methods may be called from any goroutine; what they return is shared and must not
// be changed.
//
// Everything lives in one persistent map of records, ordered by key:
//
//	a/authority                the cluster's certificate authority
//	c/cluster                  epoch and gate
//	g/<id>                     a node that was removed
//	j/<id>                     a join token
//	n/<id>                     a node
//	p/<id>                     a node that waits for an approval
//	b/<revision>/<kind>/<name> a resource as it was before a revision
//	k/e/<epoch>, k/f/<name>    a session-ticket key: ours, or from outside
//	l/<number>                 an entry of the audit
//	o/<pool>/<address>/<what>  an override
//	r/<kind>/<name>            a resource
//	v/<revision>               a revision of the history
//	q/<revision>/<request id>  a remembered request
//	t/<id>                     a credential
//	u/<upload>/<part>          a part of a change under way
//
// The index is derived from the records and never stored: see index.go.
type State struct {
	clusterID string
	revision  int64
	records   *iradix.Tree[proto.Message]
	index     *iradix.Tree[int64]
}

// New is the state of a cluster in which nothing has happened.
func New(clusterID string) *State {
	return &State{clusterID: clusterID, records: iradix.New[proto.Message](), index: iradix.New[int64]()}
}

// Revision is the number of the newest revision; 0 before the first.
func (s *State) Revision() int64 { return s.revision }

// ClusterID names the cluster for good.
func (s *State) ClusterID() string { return s.clusterID }

// Get finds a resource; the name of cluster_settings is empty.
func (s *State) Get(kind Kind, name string) (*raftv1.StoredResource, bool) {
	m, ok := s.records.Get([]byte(resourceKey(Key{kind, name})))
	if !ok {
		return nil, false
	}
	return m.(*raftv1.StoredResource), true
}

// All are the resources of a kind, by name.
func (s *State) All(kind Kind) iter.Seq[*raftv1.StoredResource] {
	return func(yield func(*raftv1.StoredResource) bool) {
		for _, m := range s.prefix(resourceKey(Key{Kind: kind})) {
			if !yield(m.(*raftv1.StoredResource)) {
				return
			}
		}
	}
}

// From are the resources of a kind by name, beginning with the first whose name is not less than the given.
func (s *State) From(kind Kind, name string) iter.Seq[*raftv1.StoredResource] {
	prefix := resourceKey(Key{Kind: kind})
	return func(yield func(*raftv1.StoredResource) bool) {
		it := s.records.Root().Iterator()
		it.SeekLowerBound([]byte(prefix + name))
		for {
			key, m, ok := it.Next()
			if !ok || len(key) < len(prefix) || string(key[:len(prefix)]) != prefix {
				return
			}
			if !yield(m.(*raftv1.StoredResource)) {
				return
			}
		}
	}
}

// Settings are the cluster's rules with defaults filled in.
type Settings struct {
	AllowLoopbackBackends  bool
	AllowLinkLocalBackends bool
	// LocalAdmin: who calls by a node's control socket is an admin.
	LocalAdmin bool
	// DrainGrace is how long a node that gives its traffic up takes it as before, DrainDeadline how long what is open may take then.
	DrainGrace, DrainDeadline time.Duration
	TicketKeys                TicketKeySettings
}

// Settings are the rules in force.
func (s *State) Settings() Settings {
	stored, _ := s.Get(ClusterSettings, "")
	return settingsOf(stored.GetResource().GetClusterSettings())
}

// SettingsOf are the rules that a resource sets.
func SettingsOf(m *lbdv1.ClusterSettings) Settings { return settingsOf(m) }

func settingsOf(m *lbdv1.ClusterSettings) Settings {
	grace, deadline := drainGraceDefault, drainDeadlineDefault
	if d := m.GetDrain(); d.GetGrace() != nil {
		grace = d.GetGrace().AsDuration()
	}
	if d := m.GetDrain(); d.GetDeadline() != nil {
		deadline = d.GetDeadline().AsDuration()
	}
	return Settings{
		DrainGrace:             grace,
		DrainDeadline:          deadline,
		TicketKeys:             ticketKeySettingsOf(m.GetTicketKeys()),
		AllowLoopbackBackends:  m.GetAllowLoopbackBackends(),
		AllowLinkLocalBackends: m.GetAllowLinkLocalBackends(),
		LocalAdmin:             m == nil || m.LocalAdmin == nil || m.GetLocalAdmin(),
	}
}

// RevisionAt finds a revision that is still kept.
func (s *State) RevisionAt(number int64) (*lbdv1.Revision, bool) {
	m, ok := s.records.Get([]byte(revisionKey(number)))
	if !ok {
		return nil, false
	}
	return m.(*lbdv1.Revision), true
}

// Revisions are the revisions that are still kept, newest first; of one owner, or of all when owner is empty.
func (s *State) Revisions(owner string) iter.Seq[*lbdv1.Revision] {
	return s.RevisionsBefore(owner, s.revision+1)
}

// RevisionsBefore are those of Revisions with a number less than before.
func (s *State) RevisionsBefore(owner string, before int64) iter.Seq[*lbdv1.Revision] {
	before = max(before, 1)
	if owner == "" {
		return s.revisionsOfAll(before)
	}
	prefix := historyIndex(owner)
	return func(yield func(*lbdv1.Revision) bool) {
		it := s.index.Root().ReverseIterator()
		it.SeekReverseLowerBound([]byte(prefix + number(before-1)))
		for {
			key, at, ok := it.Previous()
			if !ok || len(key) < len(prefix) || string(key[:len(prefix)]) != prefix {
				return
			}
			if r, ok := s.RevisionAt(at); ok && !yield(r) {
				return
			}
		}
	}
}

func (s *State) revisionsOfAll(before int64) iter.Seq[*lbdv1.Revision] {
	return func(yield func(*lbdv1.Revision) bool) {
		it := s.records.Root().ReverseIterator()
		it.SeekReverseLowerBound([]byte(revisionKey(before - 1)))
		for {
			_, m, ok := it.Previous()
			r, is := m.(*lbdv1.Revision)
			if !ok || !is || !yield(r) {
				return
			}
		}
	}
}

// ChangedSince are the keys that the revisions after the given one changed, ordered as in a document, each once. It
// is not ok when some of these revisions are kept no more or the revision is none of ours: compare everything then.
// The cost is that of the changes, not of the state.
func (s *State) ChangedSince(revision int64) (keys []Key, ok bool) {
	if revision < 0 || revision > s.revision {
		return nil, false
	}
	seen := make(map[Key]bool)
	for n := revision + 1; n <= s.revision; n++ {
		r, kept := s.RevisionAt(n)
		if !kept {
			return nil, false
		}
		for _, c := range r.GetChanges() {
			key := Key{Kind(c.GetKind()), c.GetName()}
			if !seen[key] {
				seen[key] = true
				keys = append(keys, key)
			}
		}
	}
	sortKeys(keys)
	return keys, true
}

// prefix walks the records whose key begins so, in order.
func (s *State) prefix(prefix string) iter.Seq2[string, proto.Message] {
	return func(yield func(string, proto.Message) bool) {
		it := s.records.Root().Iterator()
		it.SeekPrefix([]byte(prefix))
		for {
			key, m, ok := it.Next()
			if !ok || !yield(string(key), m) {
				return
			}
		}
	}
}

const (
	authorityPrefix = "a/"
	clusterPrefix   = "c/"
	removedPrefix   = "g/"
	joinTokenPrefix = "j/"
	nodePrefix      = "n/"
	pendingPrefix   = "p/"
	ticketKeyPrefix = "k/"
	auditPrefix     = "l/"
	tokenPrefix     = "t/"
	beforePrefix    = "b/"
	overridePrefix  = "o/"
	resourcePrefix  = "r/"
	revisionPrefix  = "v/"
	requestPrefix   = "q/"
	uploadPrefix    = "u/"
)

func resourceKey(k Key) string { return resourcePrefix + string(k.Kind) + "/" + k.Name }

func beforeKey(revision int64, k Key) string {
	return beforePrefix + number(revision) + "/" + string(k.Kind) + "/" + k.Name
}

func revisionKey(n int64) string { return revisionPrefix + number(n) }

func requestKey(revision int64, id string) string { return requestPrefix + number(revision) + "/" + id }

func uploadKey(upload int64) string { return uploadPrefix + number(upload) + "/" }

func partKey(upload int64, part int32) string { return uploadKey(upload) + number(int64(part)) }

// number is a number in a key: eight bytes that sort as the number does.
func number(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }
