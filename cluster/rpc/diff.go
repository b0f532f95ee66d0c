package rpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc/status"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// Diff reports what Apply would change. It is refused as Apply would be, but for a prune of more than half, which it shows
// with a warning.
func (s *configService) Diff(stream diffStream) error {
	p, err := s.inbox.receive(partsOfDiff{stream})
	if err != nil {
		return err
	}
	defer p.release()
	d := s.writer.draft(&lbdv1.ApplyHeader{
		Owner: p.head.GetOwner(), Message: p.head.GetMessage(), TakeOver: p.head.GetTakeOver(), IfRevision: p.head.IfRevision,
	}, "")
	if refusal := d.apply(p); refusal != nil {
		d.violations = append(d.violations, warning("", "%s", status.Convert(refusal).Message()))
	}
	by, err := callerOf(stream.Context())
	if err != nil {
		return err
	}
	d.judge(stream.Context(), s.writer, by, false)
	next, result, err := d.try()
	if err != nil {
		return err
	}
	_, warnings := split(append(d.violations, result.Warnings...))
	answer := &lbdv1.DiffResponse{
		OwnerRevision: d.current.Newest(p.head.GetOwner()),
		Changes:       withFields(d.current, next, result.Changes),
		Warnings:      warnings,
	}
	for _, stored := range d.change.GetUpserts() { // changed or not: what operators have said holds for these, too
		if pool := stored.GetResource().GetPool(); pool != nil {
			answer.Overrides = append(answer.Overrides, inForce(next, s.writer.overlay, pool.GetName(), s.writer.now())...)
		}
	}
	return stream.SendAndClose(answer)
}

// GetRevision reads one revision with what it changed; without the fields where too little of the history since is kept.
func (s *configService) GetRevision(_ context.Context, req *lbdv1.GetRevisionRequest) (*lbdv1.GetRevisionResponse, error) {
	current := s.store.State()
	kept, ok := current.RevisionAt(req.GetNumber())
	if !ok {
		return nil, notFound(fmt.Sprintf("revisions/%d", req.GetNumber()), "there is no revision %d in the history that is kept: the newest is %d", req.GetNumber(), current.Revision())
	}
	out := &lbdv1.Revision{
		Number: kept.GetNumber(), Owner: kept.GetOwner(), Author: kept.GetAuthor(), Time: kept.GetTime(),
		Message: kept.GetMessage(), Changes: kept.GetChanges(), ContentHash: kept.GetContentHash(),
	}
	after, err := current.At(req.GetNumber())
	if err == nil {
		var before *state.State
		if before, err = after.At(req.GetNumber() - 1); err == nil {
			out.Changes = withFields(before, after, kept.GetChanges())
		}
	}
	return &lbdv1.GetRevisionResponse{Revision: out}, nil
}
