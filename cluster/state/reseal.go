package state

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"iter"
	"strconv"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
)

// KindAuthority is the kind that the key of the cluster's certificate authority is sealed as: no kind of resource.
const KindAuthority Kind = "authority"

// Secret is a sealed secret as it is kept, with what it is bound to.
type Secret struct {
	Kind Kind
	// Name is the certificate's; "authority" for the authority's; the epoch of a ticket key, 0 of one from outside.
	Name string
	// Version is the SHA-256 of its public key, in hex; of a ticket key its name.
	Version string
	Sealed  []byte
	// History: of a resource as it was before a revision.
	History bool
}

// Secrets are all sealed secrets: of the present, of the history, of the certificate authority and of ticket keys. One that is kept in
// several places comes once for each.
func (s *State) Secrets() iter.Seq[Secret] {
	return func(yield func(Secret) bool) {
		for _, m := range s.sealedRecords() {
			if secret := secretIn(m); len(secret.Sealed) > 0 && !yield(secret) {
				return
			}
		}
	}
}

// SecretOf is the secret of a certificate.
func SecretOf(stored *raftv1.StoredResource) Secret { return secretIn(stored) }

// sealedRecords are the records that may hold a secret.
func (s *State) sealedRecords() iter.Seq2[string, proto.Message] {
	return func(yield func(string, proto.Message) bool) {
		for _, prefix := range []string{authorityPrefix, ticketKeyPrefix, resourceKey(Key{Kind: Certificates}), beforePrefix} {
			for key, m := range s.prefix(prefix) {
				if !yield(key, m) {
					return
				}
			}
		}
	}
}

func secretIn(m proto.Message) Secret {
	var stored *raftv1.StoredResource
	history := false
	switch m := m.(type) {
	case *raftv1.Authority:
		return Secret{Kind: KindAuthority, Name: string(KindAuthority), Version: publicKeyOf(m.GetCertificate()), Sealed: m.GetSealedKey()}
	case *raftv1.TicketKey:
		return SecretOfTicketKey(m)
	case *raftv1.StoredResource:
		stored = m
	case *raftv1.Before:
		stored, history = m.GetResource(), true
	}
	material := stored.GetMaterial()
	return Secret{
		Kind: Certificates, Name: stored.GetResource().GetCertificate().GetName(), Version: hex.EncodeToString(material.GetPublicKeySha256()),
		Sealed: material.GetSealedKey(), History: history,
	}
}

// SecretOfTicketKey is the secret of a ticket key.
func SecretOfTicketKey(k *raftv1.TicketKey) Secret {
	return Secret{Kind: KindTicketKeys, Name: strconv.FormatInt(k.GetEpoch(), 10), Version: hex.EncodeToString(k.GetName()), Sealed: k.GetSealedKey()}
}

// publicKeyOf is the SHA-256 of a certificate's public key, in hex; empty where it is none.
func publicKeyOf(der []byte) string {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// withSealed is a copy of a record with other sealed bytes.
func withSealed(m proto.Message, sealed []byte) proto.Message {
	m = proto.Clone(m)
	switch m := m.(type) {
	case *raftv1.Authority:
		m.SealedKey = sealed
	case *raftv1.TicketKey:
		m.SealedKey = sealed
	case *raftv1.StoredResource:
		m.Material.SealedKey = sealed
	case *raftv1.Before:
		m.Resource.Material.SealedKey = sealed
	}
	return m
}

// reseal puts new seals in place of old ones, wherever they are kept. What a resource is does not change by it: no revision is
// made, and revision, time and etag stay, so that nothing is compiled anew and no precondition fails. A command without seals
// changes nothing; it is there for its entry in the audit, where sealing keys were handed out or retired.
func (s *State) reseal(e *edit, cmd *raftv1.ResealCommand) (*State, Result) {
	res := Result{Revision: s.revision}
	seals := make(map[string][]byte, len(cmd.GetSeals()))
	for i, seal := range cmd.GetSeals() {
		if len(seal.GetBeforeSha256()) != sha256.Size || len(seal.GetSealed()) == 0 {
			res.Err = invalid(itemPath("seals", i), "a new seal needs the digest of %d bytes of the old one, and its own bytes", sha256.Size)
			return s, res
		}
		seals[string(seal.GetBeforeSha256())] = seal.GetSealed()
	}
	if len(seals) > 0 {
		for key, m := range s.sealedRecords() {
			before := secretIn(m).Sealed
			digest := sha256.Sum256(before)
			if sealed, ok := seals[string(digest[:])]; ok && len(before) > 0 {
				e.put(key, withSealed(m, sealed))
				res.Count++
			}
		}
	}
	if res.Count > 0 || len(seals) == 0 {
		e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), resealText(cmd, res.Count), 0)
	}
	return e.state(), res
}

func resealText(cmd *raftv1.ResealCommand, count int64) string {
	text := fmt.Sprintf("%d secrets sealed anew", count)
	switch {
	case cmd.GetMessage() == "":
		return text
	case count == 0:
		return cmd.GetMessage()
	}
	return text + ": " + cmd.GetMessage()
}
