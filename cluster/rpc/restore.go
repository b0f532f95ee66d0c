package rpc

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/backup"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

type restoreStream = grpc.ClientStreamingServer[lbdv1.RestoreBackupRequest, lbdv1.RestoreBackupResponse]

// RestoreBackup makes everything as it was in a backup, as one revision:
//
//  1. receive the whole file and find it undamaged
//  2. open its sealing keys
//  3. wait for the turn
//  4. seal every private key for this cluster, which proves each of them
//  5. try it on the immutable state; stop here if it was refused, is a retry, or only that was asked
//  6. propose
func (s *backupService) RestoreBackup(stream restoreStream) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	head := first.GetHeader()
	if head == nil {
		return invalidField("header", "the first message of a restore has to be its header")
	}
	if err := s.restoreSlot(ctx); err != nil {
		return err
	}
	defer func() { <-s.slot }()
	c, err := readContents(&received{recv: func() ([]byte, error) {
		piece, err := stream.Recv()
		return piece.GetData(), err
	}})
	if err != nil {
		return err
	}
	reseal, err := s.resealer(c, head)
	if err != nil {
		return err
	}
	answer, err := s.restore(ctx, c, head, reseal)
	if err != nil {
		return err
	}
	return stream.SendAndClose(answer)
}

// resealer opens with this node's keys and, where an identity or a passphrase came along, with those in the backup.
func (s *backupService) resealer(c *contents, head *lbdv1.RestoreBackupHeader) (Reseal, error) {
	if head.GetIdentity() == "" && head.GetPassphrase() == "" {
		return s.keys.Resealer(nil)
	}
	field := "identity"
	if head.GetIdentity() == "" {
		field = "passphrase"
	}
	if len(c.keys) == 0 {
		return nil, invalidField(field, "the backup has no sealing keys in it: leave this out, and have the cluster's seal.key at hand")
	}
	text, err := backup.DecryptKeys(c.keys, head.GetIdentity(), head.GetPassphrase())
	if errors.Is(err, backup.ErrDamaged) {
		return nil, backupError(err)
	}
	if err != nil {
		return nil, invalidField(field, "%v", err)
	}
	defer clear(text)
	return s.keys.Resealer(text)
}

func (s *backupService) restore(ctx context.Context, c *contents, head *lbdv1.RestoreBackupHeader, reseal Reseal) (*lbdv1.RestoreBackupResponse, error) {
	specs := make([]*lbdv1.Resource, len(c.resources))
	for i, stored := range c.resources {
		specs[i] = stored.GetResource()
	}
	answers := s.writer.lookUp(ctx, specs)
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	d := s.writer.draft(&lbdv1.ApplyHeader{RequestId: head.GetRequestId()}, by.Author)
	d.answers, d.replaces = answers, head.GetReplace()
	cmd := &raftv1.RestoreCommand{
		Author: by.Author, Time: d.change.GetTime(), RequestId: head.GetRequestId(), Replace: head.GetReplace(), Tokens: c.tokens,
		Message: cmp.Or(head.GetMessage(), restoreMessage(c.info)), Origin: origin(ctx),
	}
	if cmd.Resources, err = d.restored(c, reseal); err != nil {
		return nil, err
	}
	d.checkPlaces(ctx, s.writer, by)
	d.warnOfTokens(c, by)
	command := &raftv1.Command{Kind: &raftv1.Command_Restore{Restore: cmd}}
	next, result := d.current.Apply(command)
	if !result.Replayed {
		if err := cmp.Or(d.refusals(result), result.Err); err != nil {
			return nil, err
		}
	}
	switch {
	case head.GetValidateOnly():
		result.Changes = withFields(d.current, next, result.Changes)
	case !result.Replayed:
		if result, err = s.writer.command(command); err != nil {
			return nil, err
		}
	}
	_, warnings := split(append(d.violations, result.Warnings...))
	return &lbdv1.RestoreBackupResponse{Revision: result.Revision, Changes: result.Changes, Warnings: warnings, Tokens: result.Count}, nil
}

func restoreMessage(info *lbdv1.BackupInfo) string {
	return fmt.Sprintf("restore of a backup of revision %d of cluster %s, made %s", info.GetRevision(), info.GetClusterId(), utc(info.GetCreateTime().AsTime()))
}

// restored are the backup's resources as they are to be stored here. A certificate that is stored just so keeps its sealed key.
func (d *draft) restored(c *contents, reseal Reseal) ([]*raftv1.StoredResource, error) {
	for _, in := range c.resources {
		up := &raftv1.StoredResource{Resource: in.GetResource(), Material: in.GetMaterial(), Applied: in.GetApplied(), Created: state.Created(in)}
		d.change.Upserts = append(d.change.Upserts, up)
		if in.GetResource().GetCertificate() == nil {
			continue
		}
		key, _ := state.KeyOf(in.GetResource())
		if fault := d.stale(key, in); fault != "" {
			d.violations = append(d.violations, warning(key.Field(), "%s", fault))
		}
		up.Material = proto.CloneOf(in.GetMaterial())
		stored, _ := d.current.Get(key.Kind, key.Name)
		// Opened in any case: that the keys fit is not to be found out by the resource that differs.
		sealed, err := reseal(c.info.GetClusterId(), d.current.ClusterID(), state.SecretOf(in))
		var unknown *SealKeyError
		switch {
		case errors.As(err, &unknown):
			return nil, err
		case err != nil:
			return nil, invalidField("backup", "%s: %v", key, err)
		case sameContent(stored.GetMaterial(), in.GetMaterial()):
			sealed = stored.GetMaterial().GetSealedKey()
		}
		up.Material.SealedKey = sealed
	}
	return d.change.Upserts, nil
}

func sameContent(a, b *raftv1.CertificateMaterial) bool {
	return a != nil && bytes.Equal(a.GetPublicKeySha256(), b.GetPublicKeySha256()) && slices.EqualFunc(a.GetChain(), b.GetChain(), bytes.Equal)
}

// warnOfTokens names the credentials that come in: who can write backups can put one there, and one that comes back may have been
// revoked since. It also says that the caller's own goes.
func (d *draft) warnOfTokens(c *contents, by Caller) {
	verb := "comes in"
	if c.info.GetClusterId() == d.current.ClusterID() {
		verb = "comes back"
	}
	told, keeps := 0, by.TokenID == "" || !d.replaces
	for _, stored := range c.tokens {
		t := stored.GetToken()
		keeps = keeps || t.GetId() == by.TokenID
		if _, there := d.current.Token(t.GetId()); there || state.TokenExpired(t, d.materials.now) {
			continue
		}
		if told++; told <= tokensToldMax {
			d.violations = append(d.violations, warning("tokens", "token `%s` (%s) %s: revoke it unless that is meant", t.GetId(), tokenWords(t), verb))
		}
	}
	if told > tokensToldMax {
		d.violations = append(d.violations, warning("tokens", "and %d more tokens: see `lbctl token list`", told-tokensToldMax))
	}
	if !keeps {
		d.violations = append(d.violations, warning("tokens", "the token that you call with is not in the backup: it is no good afterwards"))
	}
}

// tokenWords are what a token may do, and what it was made for.
func tokenWords(t *lbdv1.Token) string {
	words := roleWord(t.GetRole())
	if len(t.GetOwners()) > 0 {
		words += " of " + ownersText(t.GetOwners())
	}
	if t.GetDescription() != "" {
		words += ", " + t.GetDescription()
	}
	return words
}

// sizeOf is what a message takes in a command.
func sizeOf(m proto.Message) int { return proto.Size(m) }
