package rpc

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/backup"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// Sealing is the cluster's sealing keys, as this node has them.
type Sealing interface {
	// SealKeys names the sealing keys, the active one first, and says where they are from.
	SealKeys() (ids []string, source string)
	// SealKeyOf names the sealing key under which a secret is.
	SealKeyOf(sealed []byte) (string, error)
	// Rewrap is a secret under one of the keys; one that is under it already comes back as it is.
	Rewrap(clusterID string, secret state.Secret, key string) ([]byte, error)
	// StageSealKey brings a new key in, durably, which is not the active one yet, and returns its id. Where lbd cannot make one, a
	// [*SealSourceError] says what to do; where there are too many it is a [*SealFullError], and a [*SealDiskError] where it cannot be
	// written down.
	StageSealKey(ctx context.Context) (id string, err error)
	// AddSealKeys takes in what a key file's content has and this node lacks, durably. Its errors are those of StageSealKey.
	AddSealKeys(ctx context.Context, text []byte) error
	// ActivateSealKey makes a key that is here the active one. A [*SealDiskError] says that this cannot be written down.
	ActivateSealKey(id string) error
	// RetireSealKey forgets a key that is not the active one. A [*SealDiskError] says that this cannot be written down.
	RetireSealKey(id string) error
	// SealKeyText is the content of a key file with these keys, as far as they are there. The caller clears it.
	SealKeyText(ids []string) []byte
	// Resealer opens with the node's keys and those of a key file's content, which may be empty.
	Resealer(text []byte) (Reseal, error)
}

// Reseal seals a secret of one cluster for another, under the node's active key. A [*SealKeyError] says that no key opens it.
type Reseal func(from, to string, secret state.Secret) ([]byte, error)

// SealSourceError: the sealing keys come from where an operator has to put a new one first.
type SealSourceError struct{ Text string }

func (e *SealSourceError) Error() string { return e.Text }

// SealFullError: there are as many sealing keys as there may be. Free are those under which nothing is.
type SealFullError struct{ Free []string }

func (e *SealFullError) Error() string {
	if len(e.Free) == 0 {
		return "there are as many sealing keys as there may be, and something is sealed under each"
	}
	return "there are as many sealing keys as there may be: forget one that no backup needs any more, `lbctl cluster rotate-seal --retire ID`, of " + strings.Join(e.Free, ", ")
}

// SealDiskError: the disk did not take the sealing keys, which are as they were.
type SealDiskError struct{ Err error }

func (e *SealDiskError) Error() string { return "the sealing keys are as they were: " + e.Err.Error() }
func (e *SealDiskError) Unwrap() error { return e.Err }

// SealKeyError: a secret is sealed under a key that is not at hand.
type SealKeyError struct{ ID string }

func (e *SealKeyError) Error() string {
	return "private keys are sealed under key " + e.ID + ", which this node does not have"
}

// GetSealStatus reads which sealing keys there are and what is sealed under each, as this node knows it, and who lacks which.
func (s *clusterService) GetSealStatus(ctx context.Context, _ *lbdv1.GetSealStatusRequest) (*lbdv1.GetSealStatusResponse, error) {
	_, source := s.keys.SealKeys()
	keys := s.status()
	if s.seat == nil || s.peers == nil || isNodeOnly(ctx) {
		return &lbdv1.GetSealStatusResponse{Keys: keys, Source: source}, nil
	}
	for _, t := range ask(ctx, s.fleet, func(context.Context) ([]*lbdv1.SealKey, error) { return nil, errHere }, func(ctx context.Context, conn grpc.ClientConnInterface) ([]*lbdv1.SealKey, error) {
		answer, err := lbdv1.NewClusterServiceClient(conn).GetSealStatus(ctx, &lbdv1.GetSealStatusRequest{})
		return answer.GetKeys(), err
	}) {
		if errors.Is(t.err, errHere) {
			continue
		}
		if t.err != nil { // it may lack them
			for _, key := range keys {
				key.MissingOn = append(key.MissingOn, t.node.GetName()+" (no answer)")
			}
			continue
		}
		for _, key := range keys {
			at := slices.IndexFunc(t.answer, func(k *lbdv1.SealKey) bool { return k.GetId() == key.GetId() })
			if at < 0 || len(t.answer[at].GetMissingOn()) > 0 {
				key.MissingOn = append(key.MissingOn, t.node.GetName())
			}
		}
	}
	return &lbdv1.GetSealStatusResponse{Keys: keys, Source: source}, nil
}

// errHere: the node that answers does not ask itself.
var errHere = errors.New("this node")

// status counts what is under each key. A key that is not here comes last, without being active.
func (s *clusterService) status() []*lbdv1.SealKey {
	ids, _ := s.keys.SealKeys()
	byID := map[string]*lbdv1.SealKey{}
	var all []*lbdv1.SealKey
	add := func(id string, here bool) *lbdv1.SealKey {
		if byID[id] == nil {
			byID[id] = &lbdv1.SealKey{Id: id, Active: id == ids[0]}
			if !here {
				byID[id].MissingOn = []string{s.node}
			}
			all = append(all, byID[id])
		}
		return byID[id]
	}
	for _, id := range ids {
		add(id, true)
	}
	for secret := range s.store.State().Secrets() {
		id, err := s.keys.SealKeyOf(secret.Sealed)
		if err != nil {
			id = "unknown"
		}
		if key := add(id, false); secret.History {
			key.HistorySecrets++
		} else {
			key.Secrets++
		}
	}
	return all
}

// RotateSeal stages a new sealing key on all nodes and seals everything under it, in small commands. It may be cut off anywhere: the next call
// goes on with the key that was staged.
//
//  1. wait for the turn, so that nothing is sealed meanwhile
//  2. stage a key on every node, unless a rotation before was cut off: then something is under another key than the active one
//  3. seal anew what is under another key, present and history
func (s *clusterService) RotateSeal(ctx context.Context, req *lbdv1.RotateSealRequest) (*lbdv1.RotateSealResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if s.replayed("rotate", req.GetRequestId()) {
		return &lbdv1.RotateSealResponse{Keys: s.status()}, nil
	}
	active, err := s.followAuthority()
	if err != nil {
		return nil, err
	}
	rest, err := s.toReseal(active)
	if err == nil && len(rest) == 0 {
		active, err = s.stageNext(ctx, req.GetForce())
	}
	if err != nil {
		return nil, err
	}
	out := &lbdv1.RotateSealResponse{}
	if out.Resealed, err = s.sealAnew(ctx, by, active, "sealing key "+active+" is the active one"); err != nil {
		return nil, err
	}
	if _, err := s.followAuthority(); err != nil {
		return nil, err
	}
	s.remember("rotate", req.GetRequestId())
	out.Keys = s.status()
	return out, nil
}

// stageNext stages a key that is to be the next active one. Without an authority, which the cluster's nodes go by, it is so at once.
func (s *clusterService) stageNext(ctx context.Context, force bool) (string, error) {
	id, _, err := s.stage(ctx, "", force)
	if err != nil {
		return "", err
	}
	if _, ok := s.store.State().Authority(); ok {
		return id, nil
	}
	return id, s.keys.ActivateSealKey(id)
}

// sealAnew seals everything under a key, in the caller's name. The audit has an entry that says what was done also where there was nothing to do.
func (s *clusterService) sealAnew(ctx context.Context, by Caller, key, what string) (resealed int64, err error) {
	rest, err := s.toReseal(key)
	if err != nil {
		return 0, err
	}
	for batch := range resealBatches(rest) {
		n, err := s.propose(ctx, by, batch, what)
		if err != nil {
			return resealed, err
		}
		resealed += n
	}
	if len(rest) == 0 {
		_, err = s.propose(ctx, by, nil, what)
	}
	return resealed, err
}

// sealAll seals everything under the key that the cluster's authority is under by now.
func (s *clusterService) sealAll(ctx context.Context, by Caller, what string) error {
	active, err := s.followAuthority()
	if err == nil {
		_, err = s.sealAnew(ctx, by, active, what)
	}
	return err
}

// followAuthority makes the sealing key the active one under which the cluster's authority is: that is what all nodes go by. Without an
// authority the active one stays.
func (s *clusterService) followAuthority() (active string, err error) {
	ids, _ := s.keys.SealKeys()
	authority, ok := s.store.State().Authority()
	if !ok {
		return ids[0], nil
	}
	id, err := s.keys.SealKeyOf(authority.GetSealedKey())
	switch {
	case err != nil:
		return "", err
	case !slices.Contains(ids, id):
		return "", unavailable(reasonSealKey, "sealing key "+id+" is not here yet: it is fetched from another node; try again")
	}
	return id, s.keys.ActivateSealKey(id)
}

// stage brings a new sealing key in, here and on every other node but one. Where some are out of contact that is refused, or they are named.
func (s *clusterService) stage(ctx context.Context, but string, force bool) (id string, unreached []string, err error) {
	if id, err = s.keys.StageSealKey(ctx); err != nil {
		return "", nil, s.withFree(err)
	}
	failed := s.askOthers(ctx, []string{but}, func(ctx context.Context, peer raftv1.PeerServiceClient) error {
		text := s.keys.SealKeyText([]string{id})
		defer clear(text)
		_, err := peer.StageSealKeys(ctx, &raftv1.StageSealKeysRequest{SealKeys: text})
		return err
	})
	if len(failed) > 0 && !force {
		s.unstage(ctx, append(idsOf(failed), but), id) // who has not answered would keep the caller from hearing which it is
		return "", nil, notAllowed(reasonUnreached, "the new sealing key has not come to %s: bring that back first, or use force: it fetches the key when it is back", silentText(failed))
	}
	for _, a := range failed {
		unreached = append(unreached, a.node.GetName())
	}
	return id, unreached, nil
}

// unstage forgets a key that nothing was sealed under, wherever that can be done but on some nodes.
func (s *clusterService) unstage(ctx context.Context, but []string, id string) {
	_ = s.keys.RetireSealKey(id)
	s.askOthers(ctx, but, func(ctx context.Context, peer raftv1.PeerServiceClient) error {
		_, err := peer.StageSealKeys(ctx, &raftv1.StageSealKeysRequest{Retires: []string{id}})
		return err
	})
}

// withFree names the keys that may go where there are too many.
func (s *clusterService) withFree(err error) error {
	var full *SealFullError
	if !errors.As(err, &full) {
		return err
	}
	out := &SealFullError{}
	for _, key := range s.status() {
		if !key.GetActive() && key.GetSecrets()+key.GetHistorySecrets() == 0 {
			out.Free = append(out.Free, key.GetId())
		}
	}
	return out
}

// toReseal is what is not under a key, each sealed anew under it; the authority first, by which all nodes know the active key.
func (s *clusterService) toReseal(key string) ([]*raftv1.Reseal, error) {
	current := s.store.State()
	var all []*raftv1.Reseal
	seen := map[[sha256.Size]byte]bool{}
	for secret := range current.Secrets() {
		if id, err := s.keys.SealKeyOf(secret.Sealed); err == nil && id == key {
			continue
		}
		digest := sha256.Sum256(secret.Sealed)
		if seen[digest] {
			continue
		}
		seen[digest] = true
		sealed, err := s.keys.Rewrap(current.ClusterID(), secret, key)
		if err != nil {
			return nil, notAllowed(reasonSealKey, "seal anew: %v: bring that key back, or delete and purge what is under it", err)
		}
		reseal := &raftv1.Reseal{BeforeSha256: digest[:], Sealed: sealed}
		if secret.Kind == state.KindAuthority {
			all = slices.Insert(all, 0, reseal)
		} else {
			all = append(all, reseal)
		}
	}
	return all, nil
}

// resealBatches are commands' worth of new seals.
func resealBatches(all []*raftv1.Reseal) func(func([]*raftv1.Reseal) bool) {
	return func(yield func([]*raftv1.Reseal) bool) {
		for len(all) > 0 {
			n, size := 0, 0
			for n < len(all) && (n == 0 || size < resealBytesMax) {
				size += len(all[n].GetSealed()) + sha256.Size + entryBytes
				n++
			}
			if !yield(all[:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// propose takes a command with new seals into the log, in the caller's name; without seals it only leaves its entry in the audit,
// which says what was done.
func (s *clusterService) propose(ctx context.Context, by Caller, seals []*raftv1.Reseal, what string) (int64, error) {
	result, err := s.writer.command(&raftv1.Command{Kind: &raftv1.Command_Reseal{Reseal: &raftv1.ResealCommand{
		Author: by.Author, Time: timestamppb.New(s.writer.now()), Seals: seals, Origin: origin(ctx), Message: what,
	}}})
	return result.Count, err
}

// RetireSeal forgets a sealing key under which nothing is.
func (s *clusterService) RetireSeal(ctx context.Context, req *lbdv1.RetireSealRequest) (*lbdv1.RetireSealResponse, error) {
	by, err := s.writer.take(ctx)
	if err != nil {
		return nil, err
	}
	defer s.writer.give()
	if s.replayed("retire", req.GetRequestId()) {
		return &lbdv1.RetireSealResponse{Keys: s.status()}, nil
	}
	at := slices.IndexFunc(s.status(), func(k *lbdv1.SealKey) bool { return k.GetId() == req.GetId() })
	ids, _ := s.keys.SealKeys()
	if at < 0 || !slices.Contains(ids, req.GetId()) {
		return nil, notFound("seal_keys/"+req.GetId(), "there is no sealing key %s on this node", clip(req.GetId()))
	}
	switch key := s.status()[at]; {
	case key.GetActive():
		return nil, notAllowed(reasonSealKey, "sealing key %s is the active one: rotate first", key.GetId())
	case key.GetSecrets()+key.GetHistorySecrets() > 0:
		return nil, notAllowed(reasonSealKey, "%d secrets and %d of the history are under sealing key %s: rotate again to finish",
			key.GetSecrets(), key.GetHistorySecrets(), key.GetId())
	}
	if _, err := s.propose(ctx, by, nil, "sealing key "+req.GetId()+" retired"); err != nil { // first, so that no key goes without its entry in the audit
		return nil, err
	}
	if err := s.retireElsewhere(ctx, req.GetId()); err != nil { // here last, so that the call can be repeated
		return nil, err
	}
	if err := s.keys.RetireSealKey(req.GetId()); err != nil {
		return nil, err
	}
	s.remember("retire", req.GetRequestId())
	return &lbdv1.RetireSealResponse{Keys: s.status()}, nil
}

// retireElsewhere makes the other nodes forget a key.
func (s *clusterService) retireElsewhere(ctx context.Context, id string) error {
	failed := s.askOthers(ctx, nil, func(ctx context.Context, peer raftv1.PeerServiceClient) error {
		_, err := peer.StageSealKeys(ctx, &raftv1.StageSealKeysRequest{Retires: []string{id}})
		return err
	})
	if len(failed) == 0 {
		return nil
	}
	return unavailable(reasonUnreached, "sealing key "+id+" cannot be forgotten on "+silentText(failed)+": bring it back first, or remove the node")
}

// ExportSealKey hands the sealing keys out, encrypted. The audit has it before anybody has the keys.
func (s *clusterService) ExportSealKey(ctx context.Context, req *lbdv1.ExportSealKeyRequest) (*lbdv1.ExportSealKeyResponse, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkRecipients("recipients", req.GetRecipients()); err != nil {
		return nil, err
	}
	if len(req.GetRecipients()) == 0 {
		return nil, invalidField("recipients", "a recipient (age1…) is missing: the keys leave the node encrypted only")
	}
	ids, _ := s.keys.SealKeys()
	if _, err := s.propose(ctx, by, nil, fmt.Sprintf("sealing keys %s handed out, encrypted for %s", strings.Join(ids, ", "), strings.Join(req.GetRecipients(), ", "))); err != nil {
		return nil, err
	}
	text := s.keys.SealKeyText(ids)
	defer clear(text)
	file, err := backup.ArmourKeys(text, req.GetRecipients())
	if err != nil {
		return nil, invalidField("recipients", "%v", err)
	}
	return &lbdv1.ExportSealKeyResponse{File: file}, nil
}

// checkRecipients refuses what age could not encrypt for.
func checkRecipients(field string, recipients []string) error {
	var bad []*lbdv1.Violation
	for i, r := range recipients {
		if err := backup.CheckRecipient(r); err != nil {
			bad = append(bad, violation(fmt.Sprintf("%s[%d]", field, i), "%v", err))
		}
	}
	if len(bad) > 0 {
		return invalid(bad)
	}
	return nil
}

func (s *clusterService) replayed(verb, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return id != "" && s.done[verb+" "+id]
}

func (s *clusterService) remember(verb, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil || len(s.done) >= requestsDoneMax {
		s.done = map[string]bool{}
	}
	s.done[verb+" "+id] = true
}

// sealError makes a status of what the sealing keys say; nil: it is another error.
func sealError(err error) error {
	var source *SealSourceError
	var key *SealKeyError
	var full *SealFullError
	var disk *SealDiskError
	switch {
	case errors.As(err, &full):
		return notAllowed(reasonSealKey, "%s", full.Error())
	case errors.As(err, &disk):
		return unavailable(reasonDisk, disk.Error())
	case errors.As(err, &source):
		return notAllowed(reasonSealSource, "%s", source.Text)
	case errors.As(err, &key):
		return notAllowed(reasonSealKey, "%s: give the identity or the passphrase for the keys in the backup, or put that key into the node's seal.key", key.Error())
	}
	return nil
}
