package rpc

import (
	"iter"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// ListAudit streams what the cluster has accepted and what this node has refused, by time.
func (s *authService) ListAudit(req *lbdv1.ListAuditRequest, stream grpc.ServerStreamingServer[lbdv1.ListAuditResponse]) error {
	var since time.Time
	if req.GetSince() != nil {
		since = req.GetSince().AsTime()
	}
	var accepted iter.Seq[*lbdv1.ListAuditResponse] = slices.Values[[]*lbdv1.ListAuditResponse](nil)
	if !req.GetRefusedOnly() {
		accepted = s.store.State().Audit(since)
	}
	refused := s.journal.Refusals(since)
	for entry := range accepted {
		for len(refused) > 0 && refused[0].GetTime().AsTime().Before(entry.GetTime().AsTime()) {
			if err := s.sendRefusal(stream, refused[0]); err != nil {
				return err
			}
			refused = refused[1:]
		}
		if err := stream.Send(entry); err != nil {
			return err
		}
	}
	for _, entry := range refused {
		if err := s.sendRefusal(stream, entry); err != nil {
			return err
		}
	}
	return nil
}

func (s *authService) sendRefusal(stream grpc.ServerStreamingServer[lbdv1.ListAuditResponse], entry *lbdv1.ListAuditResponse) error {
	entry = proto.CloneOf(entry)
	entry.Node = s.node
	return stream.Send(entry)
}
