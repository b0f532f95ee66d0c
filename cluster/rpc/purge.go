package rpc

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Delete removes a certificate, as one revision, and with purge every copy of its keys, too. A purge that was cut off is finished
// by the same call, also where the certificate is gone by then:
//
//  1. delete the certificate, if it is there
//  2. remove its keys from the history
//  3. make the disk forget them
func (s *certificateService) Delete(ctx context.Context, req *lbdv1.DeleteRequest) (*lbdv1.DeleteResponse, error) {
	if req.GetName() == "" {
		return nil, invalidField("name", "the certificate's name is missing")
	}
	key := state.Key{Kind: state.Certificates, Name: req.GetName()}
	current := s.store.State()
	out := &lbdv1.DeleteResponse{Revision: current.Revision()}
	if _, exists := current.Requested(req.GetRequestId()).Get(key.Kind, key.Name); exists {
		head := &lbdv1.ApplyHeader{RequestId: req.GetRequestId(), Message: req.GetMessage()}
		answer, err := s.writer.write(ctx, head, func(d *draft) error { return d.delete(key) })
		if err != nil {
			return nil, err
		}
		out.Revision, out.Warnings = answer.GetRevision(), answer.GetWarnings()
	} else if !req.GetPurge() {
		return nil, notFound(key.String(), "there is no certificate named `%s`", key.Name)
	}
	if !req.GetPurge() {
		return out, nil
	}
	var err error
	out.Purged, err = s.purge(ctx, key)
	return out, err
}

func (d *draft) delete(key state.Key) error {
	old, exists := d.base.Get(key.Kind, key.Name)
	if !exists {
		return notFound(key.String(), "there is no certificate named `%s`", key.Name)
	}
	d.change.Owner, d.change.Deletes = old.GetResource().GetOwner(), []string{key.String()}
	return nil
}

// purge removes the keys of a deleted certificate from history and disk. A caller that is bound to owners has to be bound to all
// that had it.
func (s *certificateService) purge(ctx context.Context, key state.Key) (int64, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return 0, err
	}
	defer s.writer.give()
	for _, owner := range s.store.State().PastOwners(key) {
		if err := requireOwner(ctx, owner); err != nil {
			return 0, err
		}
	}
	result, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Purge{Purge: &raftv1.PurgeCommand{
		Author: by.Author, Time: timestamppb.New(s.writer.now()), Certificate: key.Name, Origin: origin(ctx),
	}}})
	if err != nil {
		return 0, err
	}
	scrub, cancel := context.WithTimeout(s.writer.life, scrubTimeoutMax)
	defer cancel()
	if err := s.store.Scrub(scrub); err != nil {
		return 0, fmt.Errorf("the key is deleted and no more in the history, but the disk may still have it: repeat the call: %w", err)
	}
	return result.Count, nil
}
