package rpc

import (
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// ListAudit streams what the cluster has accepted, and what each node has noted by itself, by time. Of another node that asks it is
// this one's notes alone, and so it is where the request names a node.
func (s *authService) ListAudit(req *lbdv1.ListAuditRequest, stream grpc.ServerStreamingServer[lbdv1.ListAuditResponse]) error {
	if there, err := passed(s.fleet, lbdv1.AuthService_ListAudit_FullMethodName, req, stream); there || err != nil {
		return err
	}
	var since time.Time
	if req.GetSince() != nil {
		since = req.GetSince().AsTime()
	}
	var accepted iter.Seq[*lbdv1.ListAuditResponse] = slices.Values[[]*lbdv1.ListAuditResponse](nil)
	if !req.GetRefusedOnly() && !isNodeOnly(stream.Context()) && req.GetNode() == "" {
		accepted = s.store.State().Audit(since)
	}
	noted, err := s.noted(stream.Context(), req, since)
	if err != nil {
		return err
	}
	send := func(entry *lbdv1.ListAuditResponse) error {
		if req.GetUntil() != nil && !entry.GetTime().AsTime().Before(req.GetUntil().AsTime()) {
			return nil
		}
		return stream.Send(entry)
	}
	for entry := range accepted {
		for len(noted) > 0 && noted[0].GetTime().AsTime().Before(entry.GetTime().AsTime()) {
			if err := send(noted[0]); err != nil {
				return err
			}
			noted = noted[1:]
		}
		if err := send(entry); err != nil {
			return err
		}
	}
	for _, entry := range noted {
		if err := send(entry); err != nil {
			return err
		}
	}
	return nil
}

// noted is what the nodes have noted by themselves, by time. A node that does not answer is an entry of its own, before the others.
func (s *authService) noted(ctx context.Context, req *lbdv1.ListAuditRequest, since time.Time) ([]*lbdv1.ListAuditResponse, error) {
	if req.GetNode() != "" {
		return s.notedHere(req, since), nil
	}
	here := func(context.Context) ([]*lbdv1.ListAuditResponse, error) { return s.notedHere(req, since), nil }
	answers, unreached, err := answered(s.fleet, ask(ctx, s.fleet, here,
		func(ctx context.Context, conn grpc.ClientConnInterface) ([]*lbdv1.ListAuditResponse, error) {
			return auditOf(ctx, conn, req)
		}))
	if err != nil {
		return nil, err
	}
	var all []*lbdv1.ListAuditResponse
	for _, a := range answers {
		all = append(all, a.answer...)
	}
	slices.SortStableFunc(all, func(a, b *lbdv1.ListAuditResponse) int { return a.GetTime().AsTime().Compare(b.GetTime().AsTime()) })
	for _, n := range unreached {
		missing := &lbdv1.ListAuditResponse{Node: n.GetNode(), Result: "unreached", Message: "what it has noted is missing: " + n.GetReason(), Count: 1}
		all = slices.Insert(all, 0, missing)
	}
	return all, nil
}

// notedHere is what this node has noted: refusals, and what it has accepted that is in no log.
func (s *authService) notedHere(req *lbdv1.ListAuditRequest, since time.Time) []*lbdv1.ListAuditResponse {
	var all []*lbdv1.ListAuditResponse
	for _, entry := range s.journal.Refusals(since) {
		if req.GetRefusedOnly() && entry.GetResult() == "accepted" {
			continue
		}
		entry = proto.CloneOf(entry)
		entry.Node = s.node
		all = append(all, entry)
	}
	return all
}

// auditOf reads what another node has noted.
func auditOf(ctx context.Context, conn grpc.ClientConnInterface, req *lbdv1.ListAuditRequest) (all []*lbdv1.ListAuditResponse, err error) {
	stream, err := lbdv1.NewAuthServiceClient(conn).ListAudit(ctx, req)
	for err == nil {
		var entry *lbdv1.ListAuditResponse
		if entry, err = stream.Recv(); err == nil {
			all = append(all, entry)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return all, err
}
