package rpc

import (
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// add takes resources into the change, each in the form in which it is stored.
func (d *draft) add(resources []*lbdv1.Resource) {
	for _, r := range resources {
		d.upsert(&lbdv1.Resource{Owner: d.change.GetOwner(), Spec: r.GetSpec()})
	}
}

// upsert takes one resource into the change. A certificate's content is looked up or checked on the way.
func (d *draft) upsert(r *lbdv1.Resource) {
	r = state.Normalize(r)
	stored := &raftv1.StoredResource{Resource: r}
	d.change.Upserts = append(d.change.Upserts, stored)
	cert := r.GetCertificate()
	if cert == nil {
		return
	}
	old, _ := d.base.Get(state.Certificates, cert.GetName())
	field := state.Key{Kind: state.Certificates, Name: cert.GetName()}.Field()
	var c content
	var violations []*lbdv1.Violation
	switch source := cert.GetSource().(type) {
	case *lbdv1.Certificate_SelfSigned:
		c, violations = d.materials.fromSelfSigned(source.SelfSigned, field+".self_signed", old)
	case *lbdv1.Certificate_Pem:
		var src pemSource
		if src, violations = readPEM(source.Pem, field+".pem"); len(violations) == 0 {
			c, violations = d.materials.fromPEM(src, old.GetMaterial())
		}
	default:
		return // validation says what is missing
	}
	d.violations = append(d.violations, violations...)
	d.setContent(stored, c)
}

// setContent gives a certificate its content, as far as it is known. The PEM is dropped from its source: content is kept
// once, as material.
func (d *draft) setContent(stored *raftv1.StoredResource, c content) {
	d.contents[stored] = c
	stored.Material = c.material
	if cert := stored.GetResource().GetCertificate(); cert.GetPem() != nil {
		cert.Source = &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{}}
	}
}

// readPEM reads what a document says: of the chain its text, of the key its text, its fingerprint or nothing.
func readPEM(in *lbdv1.CertificatePem, field string) (pemSource, []*lbdv1.Violation) {
	src := pemSource{chainField: field + ".chain", keyField: field + ".key"}
	var bad []*lbdv1.Violation
	switch chain := in.GetChain().GetSource().(type) {
	case *lbdv1.Content_Inline:
		src.chain = chain.Inline
	case nil:
		bad = append(bad, violation(src.chainField, "a chain is missing: its PEM, leaf first"))
	default:
		bad = append(bad, violation(src.chainField, "the API takes a chain `inline` alone: lbctl reads `file` and `env`"))
	}
	switch key := in.GetKey().GetSource().(type) {
	case *lbdv1.Content_Inline:
		src.key = key.Inline
	case *lbdv1.Content_Sha256:
		src.fingerprint = key.Sha256
	case nil:
	default:
		bad = append(bad, violation(src.keyField, "the API takes a key `inline` or as `sha256`: lbctl reads `file` and `env`"))
	}
	return src, bad
}

// answer is a resource as it leaves the node: of a PEM certificate the chain, and of its key the fingerprint. What is
// shared with the state is not changed.
func answer(stored *raftv1.StoredResource) *lbdv1.Resource {
	if stored.GetResource().GetCertificate().GetPem() == nil {
		return stored.GetResource()
	}
	m := stored.GetMaterial()
	out := proto.CloneOf(stored.GetResource())
	out.GetCertificate().Source = &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{
		Chain: &lbdv1.Content{Source: &lbdv1.Content_Inline{Inline: chainPEM(m.GetChain())}},
		Key:   &lbdv1.Content{Source: &lbdv1.Content_Sha256{Sha256: fingerprint(m.GetPublicKeySha256())}},
	}}
	return out
}
