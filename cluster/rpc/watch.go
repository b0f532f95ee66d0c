package rpc

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Watch streams the resources that the request chooses, then every change of them, until the call ends or the node stops. A
// client that reads slowly gets the outcome of several revisions as one change.
func (s *configService) Watch(req *lbdv1.WatchRequest, stream grpc.ServerStreamingServer[lbdv1.WatchResponse]) error {
	kind, err := parseKind(req.GetKind())
	if err != nil {
		return err
	}
	w := &watch{kind: kind, name: req.GetName(), owner: req.GetOwner(), seen: state.New("")}
	for {
		next := s.store.Next() // before the state, so that none is missed
		current := s.store.State()
		for name := range w.changed(current) {
			if change := w.compare(name, current); change != nil {
				if err := stream.Send(change); err != nil {
					return err
				}
			}
		}
		w.seen = current
		select {
		case <-next:
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

// watch is what a client wants to know, and what it knows.
type watch struct {
	kind  state.Kind
	name  string
	owner string
	seen  *state.State
}

// changed are the names that may have changed since, each once: those of the revisions in between or, where these are not
// all kept and at the beginning, all that there are and were.
func (w *watch) changed(current *state.State) iter.Seq[string] {
	return func(yield func(string) bool) {
		keys, ok := current.ChangedSince(w.seen.Revision())
		if ok && w.seen.ClusterID() == current.ClusterID() {
			for _, key := range keys {
				if key.Kind == w.kind && !yield(key.Name) {
					return
				}
			}
			return
		}
		for stored := range w.seen.All(w.kind) {
			key, _ := state.KeyOf(stored.GetResource())
			if _, exists := current.Get(key.Kind, key.Name); !exists && !yield(key.Name) {
				return
			}
		}
		for stored := range current.All(w.kind) {
			if key, _ := state.KeyOf(stored.GetResource()); !yield(key.Name) {
				return
			}
		}
	}
}

// compare is what the client is told of a resource; nil: nothing.
func (w *watch) compare(name string, current *state.State) *lbdv1.WatchResponse {
	if w.name != "" && w.name != name {
		return nil
	}
	was, is := w.pick(w.seen, name), w.pick(current, name)
	out := &lbdv1.WatchResponse{Name: name, Revision: current.Revision()}
	switch {
	case is == nil && was == nil:
		return nil
	case is == nil:
		out.Action, out.Resource = lbdv1.ChangeAction_CHANGE_ACTION_DELETE, &lbdv1.Resource{Owner: was.GetResource().GetOwner()}
		return out
	case was == nil:
		out.Action = lbdv1.ChangeAction_CHANGE_ACTION_CREATE
	case was.GetResource().GetEtag() == is.GetResource().GetEtag():
		return nil
	default:
		out.Action = lbdv1.ChangeAction_CHANGE_ACTION_UPDATE
	}
	out.Resource = answer(is)
	return out
}

// pick finds a resource if it is one of the owner's.
func (w *watch) pick(s *state.State, name string) *raftv1.StoredResource {
	stored, ok := s.Get(w.kind, name)
	if !ok || w.owner != "" && stored.GetResource().GetOwner() != w.owner {
		return nil
	}
	return stored
}
