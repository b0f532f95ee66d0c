package rpc

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Rollback undoes an owner's newest revisions, or one alone, by a new one.
func (s *configService) Rollback(ctx context.Context, req *lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error) {
	switch {
	case req.GetOwner() == "":
		return nil, invalidField("owner", "an owner is missing: whose revisions are to be rolled back")
	case req.GetTo() < 0:
		return nil, invalidField("to", "%d is no revision", req.GetTo())
	case req.Only != nil && req.To != nil:
		return nil, invalidField("only", "undoes one revision, `to` all after one: say one of them")
	case req.Only != nil && req.GetOnly() < 1:
		return nil, invalidField("only", "%d is no revision", req.GetOnly())
	}
	head := &lbdv1.ApplyHeader{Owner: req.GetOwner(), RequestId: req.GetRequestId(), Message: req.GetMessage(), ValidateOnly: req.GetValidateOnly()}
	var expected []*lbdv1.Resource // the names in them are looked up before the turn; what has changed by then, in it
	if inverse, err := inverseOf(s.store.State(), req); err == nil {
		for _, up := range inverse.GetUpserts() {
			expected = append(expected, up.GetResource())
		}
	}
	answers := s.writer.lookUp(ctx, expected)
	answer, err := s.writer.write(ctx, head, func(d *draft) error {
		d.answers = answers
		return d.rollback(req)
	})
	if err != nil {
		return nil, err
	}
	return &lbdv1.RollbackResponse{Revision: answer.GetRevision(), Changes: answer.GetChanges(), Warnings: answer.GetWarnings()}, nil
}

// rollback takes the inverse of the owner's revisions into the change. Certificates come back with the key that was sealed
// then, which holds as long as the cluster does.
func (d *draft) rollback(req *lbdv1.RollbackRequest) error {
	inverse, err := inverseOf(d.base, req)
	if err != nil {
		return err
	}
	d.change.Upserts, d.change.Deletes, d.change.IfEtags = inverse.GetUpserts(), inverse.GetDeletes(), inverse.GetIfEtags()
	var stale []string
	for _, up := range inverse.GetUpserts() {
		key, _ := state.KeyOf(up.GetResource())
		if owner := up.GetResource().GetOwner(); !key.Kind.Single() && owner != req.GetOwner() {
			d.violations = append(d.violations, warning(key.Field(), "belonged to owner `%s` then: it stays with `%s`", owner, req.GetOwner()))
		}
		if fault := d.stale(key, up); fault != "" {
			stale = append(stale, key.String()+" "+fault)
		}
	}
	if len(stale) > 0 && !req.GetAllowOlderCertificates() {
		d.refusal = notAllowed(reasonOlderCertificate, "roll back: %s: allow older certificates if that is meant, or rotate them after an apply",
			strings.Join(stale, ", "))
	}
	return nil
}

// inverseOf is the change that a rollback asks for.
func inverseOf(base *state.State, req *lbdv1.RollbackRequest) (*raftv1.ChangeCommand, error) {
	switch {
	case req.Only != nil:
		return base.RollbackOnly(req.GetOwner(), req.GetOnly())
	case req.To != nil:
		return base.Rollback(req.GetOwner(), req.GetTo())
	}
	return base.Rollback(req.GetOwner(), -1)
}

// stale says why a certificate's former content is not to come back unasked; empty: it may.
func (d *draft) stale(key state.Key, former *raftv1.StoredResource) string {
	if key.Kind != state.Certificates {
		return ""
	}
	leaf, err := leafOf(former)
	if err != nil {
		return err.Error()
	}
	if d.materials.now.After(leaf.NotAfter) {
		return "had a leaf that expired at " + utc(leaf.NotAfter)
	}
	stored, exists := d.base.Get(key.Kind, key.Name)
	if !exists {
		return ""
	}
	if now, err := leafOf(stored); err == nil && leaf.NotBefore.Before(now.NotBefore) {
		return fmt.Sprintf("had a leaf valid from %s, older than the stored one of %s", utc(leaf.NotBefore), utc(now.NotBefore))
	}
	return ""
}

func leafOf(stored *raftv1.StoredResource) (*x509.Certificate, error) {
	chain := stored.GetMaterial().GetChain()
	if len(chain) == 0 {
		return nil, fmt.Errorf("has no content")
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fmt.Errorf("has a leaf that cannot be parsed: %w", err)
	}
	return leaf, nil
}
