package state

import (
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// Slim is a change without the resources that it would leave as they are: of ten thousand certificates of which one is new, it is
// the one. On this state it does what the change does, and is remembered as the same request; only the warnings of what is left out are
// not in its answer. On a state in which something of that has moved it is a conflict (ResourceMoved), and the change itself has to be sent.
// A change of which nothing can be left out is returned as it is.
func (s *State) Slim(change *raftv1.ChangeCommand) *raftv1.ChangeCommand {
	normal := normalizeChange(change)
	slim := new(raftv1.ChangeCommand)
	change.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		slim.ProtoReflect().Set(field, value)
		return true
	})
	slim.Upserts, slim.IfEtags, slim.RequestDigest = nil, slices.Clone(change.GetIfEtags()), changeDigest(change)
	for i, up := range change.GetUpserts() {
		key, ok := KeyOf(up.GetResource())
		stored, existed := s.Get(key.Kind, key.Name)
		if !ok || !existed || !same(stored, normal.GetUpserts()[i]) {
			slim.Upserts = append(slim.Upserts, up)
			continue
		}
		slim.IfEtags = append(slim.IfEtags, &raftv1.Precondition{Key: key.String(), Etag: stored.GetResource().GetEtag()})
	}
	if len(slim.GetUpserts()) == len(change.GetUpserts()) {
		return change
	}
	return slim
}
