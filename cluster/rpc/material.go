package rpc

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// fingerprint writes a digest as documents and answers have it.
func fingerprint(sha256 []byte) string { return "sha256:" + hex.EncodeToString(sha256) }

// content is what a certificate will serve, as far as it is known before anything secret is made.
type content struct {
	// material lacks the sealed key where key is set, and is nil where selfSigned is.
	material *raftv1.CertificateMaterial
	// key waits to be sealed (PKCS #8).
	key []byte
	// selfSigned asks for a pair that is still to be made.
	selfSigned *lbdv1.CertificateSelfSigned
}

// pemSource is a certificate's content as it came in.
type pemSource struct {
	chain string
	// key is empty where the stored one is to stay.
	key string
	// fingerprint is what a document says in the key's place; empty if it says nothing.
	fingerprint string
	// chainField and keyField are what violations call them.
	chainField, keyField string
	// document is whether it stands in a document, which will be applied again and again.
	document bool
}

// materials finds out certificates' content.
type materials struct {
	keys Keys
	now  time.Time
}

// fromSelfSigned keeps what is stored if it was made from the same specification, also after it expired: apply makes a
// document so, rotate renews.
func (m materials) fromSelfSigned(spec *lbdv1.CertificateSelfSigned, field string, old *raftv1.StoredResource) (content, []*lbdv1.Violation) {
	before := old.GetResource().GetCertificate().GetSelfSigned()
	if before == nil || !slices.Equal(before.GetHosts(), spec.GetHosts()) || keyTypeOf(before) != keyTypeOf(spec) {
		return content{selfSigned: spec}, nil
	}
	kept := content{material: old.GetMaterial()}
	leaf, err := x509.ParseCertificate(kept.material.GetChain()[0])
	if err == nil && m.now.After(leaf.NotAfter) {
		return kept, []*lbdv1.Violation{warning(field, "the stored certificate expired at %s: rotate it", utc(leaf.NotAfter))}
	}
	return kept, nil
}

// keyTypeOf fills the default in.
func keyTypeOf(spec *lbdv1.CertificateSelfSigned) lbdv1.KeyType {
	if spec.GetKeyType() == lbdv1.KeyType_KEY_TYPE_UNSPECIFIED {
		return lbdv1.KeyType_KEY_TYPE_ECDSA_P256
	}
	return spec.GetKeyType()
}

// fromPEM checks new content against itself and against what is stored. The numbered steps are those of the checks;
// each that fails ends them, as the later ones would only repeat it.
//
//  1. the PEM is well-formed, the chain in order, the key that of the leaf
//  2. a key that was left out is the stored one
//  3. the dates are good, if the content is new
//  4. it is odd: older than what is stored, with fewer names, of a kind that clients refuse
func (m materials) fromPEM(src pemSource, stored *raftv1.StoredResource) (content, []*lbdv1.Violation) {
	old := stored.GetMaterial()
	pair, err := m.keys.ParsePEM([]byte(src.chain), []byte(src.key))
	if err != nil {
		return content{}, []*lbdv1.Violation{pemViolation(src, err)}
	}
	leaf, err := x509.ParseCertificate(pair.Chain[0])
	if err != nil {
		return content{}, []*lbdv1.Violation{violation(src.chainField, "%v", err)}
	}
	public := publicKeySHA256(leaf)
	if v := m.checkKey(src, public, old); v != nil {
		return content{}, []*lbdv1.Violation{v}
	}
	violations := m.checkDates(src, leaf, old)
	if !slices.EqualFunc(pair.Chain, old.GetChain(), bytes.Equal) {
		violations = append(violations, olderLeaf(src, leaf, stored)...)
		violations = append(violations, droppedNames(src, leaf, old)...)
		violations = append(violations, unwelcome(src, leaf, len(pair.Chain))...)
	}
	out := content{material: &raftv1.CertificateMaterial{Chain: pair.Chain, PublicKeySha256: public}, key: pair.Key}
	if slices.Equal(public, old.GetPublicKeySha256()) {
		out.material.SealedKey, out.key = old.GetSealedKey(), nil // sealing the same key anew would only look like a change
	}
	return out, violations
}

// checkKey decides whether a key that did not come along is one that is stored.
func (m materials) checkKey(src pemSource, public []byte, old *raftv1.CertificateMaterial) *lbdv1.Violation {
	leafKey := fingerprint(public)
	switch {
	case src.fingerprint != "" && len(src.fingerprint) != len(leafKey): // not repeated: it may be the key itself
		return violation(src.keyField, "is no fingerprint: want `sha256:` and 64 hex digits")
	case src.fingerprint != "" && !strings.EqualFold(src.fingerprint, leafKey):
		return violation(src.keyField, "the fingerprint %s is not that of the leaf's key, %s", src.fingerprint, leafKey)
	case src.key != "":
		return nil
	case old == nil:
		return violation(src.keyField, "no key is stored for this certificate yet: give it")
	case !slices.Equal(public, old.GetPublicKeySha256()):
		return violation(src.keyField, "the stored key (%s) does not belong to the new leaf (%s): give its key",
			fingerprint(old.GetPublicKeySha256()), leafKey)
	}
	return nil
}

// checkDates refuses new content that no client would accept now, where it would replace other content; what is stored
// already is only warned of, as refusing it would mend nothing and block every other change of the document.
func (m materials) checkDates(src pemSource, leaf *x509.Certificate, old *raftv1.CertificateMaterial) []*lbdv1.Violation {
	fresh := old == nil || !slices.Equal(old.GetChain()[0], leaf.Raw)
	switch {
	case m.now.After(leaf.NotAfter) && fresh:
		return []*lbdv1.Violation{violation(src.chainField, "the leaf expired at %s", utc(leaf.NotAfter))}
	case m.now.After(leaf.NotAfter):
		return []*lbdv1.Violation{warning(src.chainField, "the leaf, which is stored already, expired at %s", utc(leaf.NotAfter))}
	case m.now.Before(leaf.NotBefore) && fresh:
		return []*lbdv1.Violation{violation(src.chainField, "the leaf is not valid before %s: store it then (or set this node's clock, if that is wrong)", utc(leaf.NotBefore))}
	case m.now.Before(leaf.NotBefore):
		return []*lbdv1.Violation{warning(src.chainField, "the leaf is not valid before %s", utc(leaf.NotBefore))}
	}
	return nil
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// olderLeaf warns of a leaf that takes the place of a newer one: mostly a document that was not told of a rotation.
func olderLeaf(src pemSource, leaf *x509.Certificate, stored *raftv1.StoredResource) []*lbdv1.Violation {
	before := storedLeaf(stored.GetMaterial())
	if before == nil || !leaf.NotBefore.Before(before.NotBefore) {
		return nil
	}
	remedy := ""
	if src.document {
		remedy = ": name the new file, or set `managed_externally`"
	}
	return []*lbdv1.Violation{warning(src.chainField, "the leaf is older than the stored one (not before %s, stored in revision %d: not before %s)%s",
		utc(leaf.NotBefore), stored.GetResource().GetRevision(), utc(before.NotBefore), remedy)}
}

// storedLeaf is nil if nothing is stored that can be parsed.
func storedLeaf(m *raftv1.CertificateMaterial) *x509.Certificate {
	if len(m.GetChain()) == 0 {
		return nil
	}
	leaf, err := x509.ParseCertificate(m.GetChain()[0])
	if err != nil {
		return nil
	}
	return leaf
}

// unwelcome warns of what can be served and is refused by many clients. A leaf for clients alone is shown to backends: those know
// its authority, and browsers never see it. An authority as a leaf, or one that signs itself, is trusted as it is or not at all.
func unwelcome(src pemSource, leaf *x509.Certificate, chain int) (out []*lbdv1.Violation) {
	if slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		return nil
	}
	if chain == 1 && !leaf.IsCA && !bytes.Equal(leaf.RawIssuer, leaf.RawSubject) {
		out = append(out, warning(src.chainField, "the issuer `%s` is missing: clients that do not know it cannot verify the leaf; append its certificate, unless it is a root that they have",
			leaf.Issuer))
	}
	if leaf.PublicKeyAlgorithm == x509.Ed25519 {
		out = append(out, warning(src.chainField, "the leaf has an Ed25519 key, which browsers refuse: take ECDSA on P-256"))
	}
	return out
}

// droppedNames warns of names that the stored leaf has and the new one has not: their clients will be refused.
func droppedNames(src pemSource, leaf *x509.Certificate, old *raftv1.CertificateMaterial) []*lbdv1.Violation {
	before := storedLeaf(old)
	if before == nil {
		return nil
	}
	var dropped []string
	now := leafHosts(leaf)
	for _, host := range leafHosts(before) {
		if !slices.Contains(now, host) {
			dropped = append(dropped, host)
		}
	}
	if len(dropped) == 0 {
		return nil
	}
	return []*lbdv1.Violation{warning(src.chainField, "the leaf no longer names %s", strings.Join(dropped, ", "))}
}

// pemViolation puts an error of ParsePEM at the part that is at fault.
func pemViolation(src pemSource, err error) *lbdv1.Violation {
	field := src.chainField
	var at *PEMError
	if errors.As(err, &at) {
		err = at.Err
		if at.Field == "key" {
			field = src.keyField
		}
	}
	return violation(field, "%v", err)
}

// finish makes and seals what is still missing.
func (m materials) finish(clusterID, name string, c content) (*raftv1.CertificateMaterial, error) {
	material, key := c.material, c.key
	if c.selfSigned != nil {
		pair, err := m.keys.SelfSigned(c.selfSigned.GetHosts(), keyTypeOf(c.selfSigned))
		if err != nil {
			return nil, fmt.Errorf("certificate %s: make a self-signed certificate: %w", name, err)
		}
		leaf, err := x509.ParseCertificate(pair.Chain[0])
		if err != nil {
			return nil, fmt.Errorf("certificate %s: parse leaf: %w", name, err)
		}
		material, key = &raftv1.CertificateMaterial{Chain: pair.Chain, PublicKeySha256: publicKeySHA256(leaf)}, pair.Key
	}
	if key == nil {
		return material, nil
	}
	var err error
	if material.SealedKey, err = m.keys.Seal(clusterID, name, material.GetPublicKeySha256(), key); err != nil {
		return nil, fmt.Errorf("certificate %s: seal the private key: %w", name, err)
	}
	return material, nil
}

func publicKeySHA256(leaf *x509.Certificate) []byte {
	sum := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	return sum[:]
}

// chainPEM writes a chain as it is answered and stored: certificates alone, without what else stood in the file.
func chainPEM(chain [][]byte) string {
	var b strings.Builder
	for _, der := range chain {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Builder does not fail
	}
	return b.String()
}

// leafHosts lists the leaf's DNS names, lower case, then its IP addresses.
func leafHosts(leaf *x509.Certificate) []string {
	hosts := make([]string, 0, len(leaf.DNSNames)+len(leaf.IPAddresses))
	for _, name := range leaf.DNSNames {
		hosts = append(hosts, strings.ToLower(name))
	}
	for _, ip := range leaf.IPAddresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}
