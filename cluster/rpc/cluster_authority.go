package rpc

import (
	"context"
	"crypto/sha256"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// RotateAuthority makes a new certificate authority. What people have pinned stays good, until RetireAuthority.
func (s *clusterService) RotateAuthority(ctx context.Context, req *lbdv1.RotateAuthorityRequest) (*lbdv1.RotateAuthorityResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	current := s.store.State()
	present, ok := current.Authority()
	switch {
	case !ok:
		return nil, errNoPort
	case current.HasRequest(req.GetRequestId()):
	case len(present.GetFormer()) >= state.FormerAuthoritiesMax:
		return nil, notAllowed(reasonPrecondition, "the pins of %d authorities before are still good: give everybody the present one, %s, then `lbctl cluster rotate-ca --retire`",
			len(present.GetFormer()), pin(present.GetCertificate()))
	default:
		active, err := s.followAuthority()
		if err != nil {
			return nil, err
		}
		next, err := s.nextAuthority(present, true, active)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(present.GetCertificate())
		cmd := &raftv1.AuthorityCommand{Authority: next, ReplacesSha256: sum[:]}
		if err := s.proposeAuthority(ctx, by, req.GetRequestId(), cmd); err != nil {
			return nil, err
		}
	}
	present, _ = s.store.State().Authority()
	out := &lbdv1.RotateAuthorityResponse{}
	out.Authority, out.PreviousAuthority = pins(present)
	return out, nil
}

// RetireAuthority ends the trust in the pins of all authorities before. There may be none.
func (s *clusterService) RetireAuthority(ctx context.Context, req *lbdv1.RetireAuthorityRequest) (*lbdv1.RetireAuthorityResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if _, ok := s.store.State().Authority(); !ok {
		return nil, errNoPort
	}
	if err := s.proposeAuthority(ctx, by, req.GetRequestId(), &raftv1.AuthorityCommand{Retire: true}); err != nil {
		return nil, err
	}
	present, _ := s.store.State().Authority()
	return &lbdv1.RetireAuthorityResponse{Authority: pin(present.GetCertificate())}, nil
}

func (s *clusterService) proposeAuthority(ctx context.Context, by Caller, request string, cmd *raftv1.AuthorityCommand) error {
	cmd.Author, cmd.Time, cmd.Origin, cmd.RequestId = by.Author, timestamppb.New(s.writer.now()), origin(ctx), request
	_, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Authority{Authority: cmd}})
	return err
}

// pins are what people pin: of the present authority, and of the newest one before as long as it is good, and older ones with it.
func pins(a *raftv1.Authority) (present, previous string) {
	if len(a.GetCertificate()) > 0 {
		present = pin(a.GetCertificate())
	}
	if former := a.GetFormer(); len(former) > 0 {
		previous = pin(former[0].GetCertificate())
	}
	return present, previous
}
