package state

import (
	"strings"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// The index answers "who uses this?" without a walk over the state. It is derived from the records: the same records
// give the same index. Parts of a key are separated by NUL, which no name, host or path may hold.
//
//	use      <kind> <name> <user's kind> <user>   the user refers to kind/name
//	match    <listener> <host> <type> <path> <conditions> <route> <its match>
//	name     <host> <key type> <certificate>       of the certificate's leaf
//	listen   <port> <host> <listener>
//	dial     <port> <host> <pool>                  only where the host is an IP address or localhost
//	history  <owner> <revision>                  = revision
//	kept     <owner>                             = number of revisions kept
//	request  <id>                                = revision
//	upload   <digest>                            = upload
//	bytes                                        = bytes of all parts
//	size     <prefix>                            = bytes of all records whose keys begin so, keys included
//	overrides                                    = sum of digests of all overrides
//	overridden                                   = number of overrides
//	tokens                                       = number of tokens
//	pin      <public key> <token>                  of a client certificate
const sep = "\x00"

func join(parts ...string) string { return strings.Join(parts, sep) }

func useIndex(kind Kind, name string) string { return join("use", string(kind), name, "") }

func matchIndex(listener, host, match, path string) string {
	return join("match", listener, host, match, path, "")
}

func nameIndex(host, keyType string) string { return join("name", host, keyType, "") }

func listenIndex(port string) string   { return join("listen", port, "") }
func dialIndex(port string) string     { return join("dial", port, "") }
func historyIndex(owner string) string { return join("history", owner, "") }
func keptIndex(owner string) string    { return join("kept", owner) }
func requestIndex(id string) string    { return join("request", id) }
func uploadIndex(digest string) string { return join("upload", digest) }
func sizeIndex(prefix string) string   { return join("size", prefix) }

const (
	bytesIndex      = "bytes"
	overridesIndex  = "overrides"
	ticketKeysIndex = "ticketkeys"
	tokensIndex     = "tokens"
)

// edit is a state under change: records and index move together, and what was touched is remembered.
type edit struct {
	clusterID string
	revision  int64
	records   *iradix.Txn[proto.Message]
	index     *iradix.Txn[int64]
	touched   map[string]struct{}
}

func (s *State) edit() *edit {
	return &edit{s.clusterID, s.revision, s.records.Txn(), s.index.Txn(), make(map[string]struct{})}
}

// state ends the edit.
func (e *edit) state() *State {
	return &State{e.clusterID, e.revision, e.records.Commit(), e.index.Commit()}
}

// view is the edit as it stands, to be read while the edit goes on.
func (e *edit) view() *State {
	return &State{e.clusterID, e.revision, e.records.Clone().Commit(), e.index.Clone().Commit()}
}

func (e *edit) put(key string, record proto.Message) {
	old, existed := e.records.Insert([]byte(key), record)
	if existed {
		e.unindex(key, old)
	}
	e.touched[key] = struct{}{}
	e.count(sizeIndex(key[:len(resourcePrefix)]), recordBytes(key, record))
	switch r := record.(type) {
	case *raftv1.StoredResource:
		for _, k := range resourceIndex(r) {
			e.index.Insert([]byte(k), 1)
		}
	case *lbdv1.Revision:
		e.index.Insert([]byte(historyIndex(r.GetOwner())+number(r.GetNumber())), r.GetNumber())
		e.count(keptIndex(r.GetOwner()), 1)
	case *raftv1.Request:
		e.index.Insert([]byte(requestIndex(r.GetId())), r.GetRevision())
		e.count(requestIndex(""), 1)
	case *raftv1.PartCommand:
		e.index.Insert([]byte(uploadIndex(string(r.GetDigest()))), uploadOf(key))
		e.count(bytesIndex, int64(len(r.GetData())))
	case *lbdv1.Override:
		e.count(overridesIndex, overrideDigest(r))
	case *raftv1.TicketKey:
		e.count(ticketKeysIndex, ticketKeyDigest(r))
	case *raftv1.StoredToken:
		e.count(tokensIndex, 1)
		if pin := r.GetToken().GetPublicKey(); pin != "" {
			e.index.Insert([]byte(pinIndex(pin)+r.GetToken().GetId()), 1)
		}
	}
}

func (e *edit) remove(key string) {
	if old, existed := e.records.Delete([]byte(key)); existed {
		e.unindex(key, old)
		e.touched[key] = struct{}{}
	}
}

func (e *edit) unindex(key string, record proto.Message) {
	e.count(sizeIndex(key[:len(resourcePrefix)]), -recordBytes(key, record))
	switch r := record.(type) {
	case *raftv1.StoredResource:
		for _, k := range resourceIndex(r) {
			e.index.Delete([]byte(k))
		}
	case *lbdv1.Revision:
		e.index.Delete([]byte(historyIndex(r.GetOwner()) + number(r.GetNumber())))
		e.count(keptIndex(r.GetOwner()), -1)
	case *raftv1.Request:
		e.index.Delete([]byte(requestIndex(r.GetId())))
		e.count(requestIndex(""), -1)
	case *raftv1.PartCommand:
		if !e.hasPrefix(uploadKey(uploadOf(key))) {
			e.index.Delete([]byte(uploadIndex(string(r.GetDigest()))))
		}
		e.count(bytesIndex, -int64(len(r.GetData())))
	case *lbdv1.Override:
		e.count(overridesIndex, -overrideDigest(r))
	case *raftv1.TicketKey:
		e.count(ticketKeysIndex, -ticketKeyDigest(r))
	case *raftv1.StoredToken:
		e.count(tokensIndex, -1)
		if pin := r.GetToken().GetPublicKey(); pin != "" {
			e.index.Delete([]byte(pinIndex(pin) + r.GetToken().GetId()))
		}
	}
}

// count adds to a counter of the index; a counter at zero is not there.
func (e *edit) count(key string, by int64) {
	n, _ := e.index.Get([]byte(key))
	if n += by; n == 0 {
		e.index.Delete([]byte(key))
		return
	}
	e.index.Insert([]byte(key), n)
}

// hasPrefix tells whether any record's key begins so.
func (e *edit) hasPrefix(prefix string) bool {
	it := e.records.Root().Iterator()
	it.SeekPrefix([]byte(prefix))
	_, _, ok := it.Next()
	return ok
}

func resourceIndex(r *raftv1.StoredResource) []string {
	key, ok := KeyOf(r.GetResource())
	if !ok || key.Kind.info().index == nil {
		return nil
	}
	return key.Kind.info().index(r)
}

// indexed walks the index keys that begin so, without the prefix, in order.
func (s *State) indexed(prefix string, visit func(rest string) bool) {
	it := s.index.Root().Iterator()
	it.SeekPrefix([]byte(prefix))
	for {
		key, _, ok := it.Next()
		if !ok || !visit(string(key[len(prefix):])) {
			return
		}
	}
}

// counter reads a number of the index.
func (s *State) counter(key string) int64 {
	n, _ := s.index.Get([]byte(key))
	return n
}

// Users are the keys of those that refer to a resource, ordered as text.
func (s *State) Users(k Key) []Key {
	var keys []Key
	s.indexed(useIndex(k.Kind, k.Name), func(rest string) bool {
		kind, name, _ := strings.Cut(rest, sep)
		keys = append(keys, Key{Kind(kind), name})
		return true
	})
	return keys
}
