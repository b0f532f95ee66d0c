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
	out.Purged, err = s.purge(ctx, key, false)
	return out, err
}

// Purge removes every key that a certificate had before, and keeps the certificate with the one it has. One that was cut off is
// finished by the same call.
func (s *certificateService) Purge(ctx context.Context, req *lbdv1.PurgeRequest) (*lbdv1.PurgeResponse, error) {
	if req.GetName() == "" {
		return nil, invalidField("name", "the certificate's name is missing")
	}
	key := state.Key{Kind: state.Certificates, Name: req.GetName()}
	purged, err := s.purge(ctx, key, true)
	if err != nil {
		return nil, err
	}
	out := &lbdv1.PurgeResponse{Purged: purged}
	for secret := range s.store.State().Secrets() {
		if secret.History && secret.Kind == key.Kind && secret.Name == key.Name {
			out.Kept++
		}
	}
	return out, nil
}

func (d *draft) delete(key state.Key) error {
	old, exists := d.base.Get(key.Kind, key.Name)
	if !exists {
		return notFound(key.String(), "there is no certificate named `%s`", key.Name)
	}
	d.change.Owner, d.change.Deletes = old.GetResource().GetOwner(), []string{key.String()}
	return nil
}

// purge removes keys of a certificate from history and disk: all of one that is deleted, or all but the present one. A caller that
// is bound to owners has to be bound to all that had it.
func (s *certificateService) purge(ctx context.Context, key state.Key, keepPresent bool) (int64, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return 0, err
	}
	defer s.writer.give()
	current := s.store.State()
	owners := current.PastOwners(key)
	if stored, exists := current.Get(key.Kind, key.Name); exists {
		owners = append(owners, stored.GetResource().GetOwner())
	}
	for _, owner := range owners {
		if err := requireOwner(ctx, owner); err != nil {
			return 0, err
		}
	}
	result, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Purge{Purge: &raftv1.PurgeCommand{
		Author: by.Author, Time: timestamppb.New(s.writer.now()), Certificate: key.Name, Origin: origin(ctx), KeepPresent: keepPresent,
	}}})
	if err != nil {
		return 0, err
	}
	scrub, cancel := context.WithTimeout(s.writer.life, scrubTimeoutMax)
	defer cancel()
	if err := s.store.Scrub(scrub); err != nil {
		return 0, fmt.Errorf("the key is no more in the history, but the disk may still have it: repeat the call: %w", err)
	}
	return result.Count, s.scrubElsewhere(ctx)
}

// scrubElsewhere makes the disks of all other nodes forget, once they have applied what this one has.
func (s *certificateService) scrubElsewhere(ctx context.Context) error {
	if s.seat == nil {
		return nil
	}
	index := s.seat.Applied()
	failed := askOthers(ctx, s.seat, s.peers, nil, scrubTimeoutMax, func(ctx context.Context, peer raftv1.PeerServiceClient) error {
		_, err := peer.Scrub(ctx, &raftv1.ScrubRequest{Index: index})
		return err
	})
	if len(failed) > 0 {
		return unavailable(reasonUnreached, "the key is no more in the history, but the disk of "+silentText(failed)+" may still have it: repeat the call when that is back")
	}
	return nil
}
