package rpc

import (
	"bytes"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"lbd/cluster/backup"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// apply takes in what an apply asks for. Its refusal, if any, is not about what the resources say.
func (d *draft) apply(p *parcel) error {
	d.change.Applied = true
	d.add(p.resources)
	d.change.Deletes = append(d.change.Deletes, p.deletes...)
	if p.head.GetPrune() {
		return d.prune(p.head.GetAllowMassDelete())
	}
	return nil
}

// add takes resources into the change, each in the form in which it is stored.
func (d *draft) add(resources []*lbdv1.Resource) {
	for _, r := range resources {
		if key, ok := state.KeyOf(r); ok && r.GetEtag() != "" {
			d.change.IfEtags = append(d.change.IfEtags, &raftv1.Precondition{Key: key.String(), Etag: r.GetEtag()})
		}
		d.upsert(&lbdv1.Resource{Owner: d.change.GetOwner(), Spec: r.GetSpec()})
	}
}

// upsert takes one resource into the change. A certificate's content is looked up or checked on the way.
func (d *draft) upsert(r *lbdv1.Resource) {
	r = state.Normalize(r)
	stored := &raftv1.StoredResource{Resource: r}
	d.change.Upserts = append(d.change.Upserts, stored)
	if ca, ok := r.GetTrustBundle().GetCa().GetSource().(*lbdv1.Content_Inline); ok {
		if err := state.CheckBundleCertificates(ca.Inline); err != nil {
			key, _ := state.KeyOf(r)
			d.violations = append(d.violations, violation(key.Field()+".ca.inline", "%v", err))
		}
	}
	for i, recipient := range r.GetClusterSettings().GetBackup().GetRecipients() {
		if err := backup.CheckRecipient(recipient); err != nil {
			d.violations = append(d.violations, violation(fmt.Sprintf("cluster_settings.backup.recipients[%d]", i), "%v", err))
		}
	}
	cert := r.GetCertificate()
	if cert == nil {
		return
	}
	old, _ := d.base.Get(state.Certificates, cert.GetName())
	field := state.Key{Kind: state.Certificates, Name: cert.GetName()}.Field()
	if cert.GetManagedExternally() && len(old.GetMaterial().GetChain()) > 0 {
		d.keepManaged(stored, old, field)
		return
	}
	var c content
	var violations []*lbdv1.Violation
	switch source := cert.GetSource().(type) {
	case *lbdv1.Certificate_SelfSigned:
		c, violations = d.materials.fromSelfSigned(source.SelfSigned, field+".self_signed", old)
	case *lbdv1.Certificate_Pem:
		var src pemSource
		if src, violations = readPEM(source.Pem, field+".pem"); len(violations) == 0 {
			c, violations = d.materials.fromPEM(src, old)
		}
	default:
		return // validation says what is missing
	}
	d.violations = append(d.violations, violations...)
	d.setContent(stored, c)
}

// keepManaged leaves the content of a certificate that only the cert verbs change, with a note where the document has other
// content.
func (d *draft) keepManaged(stored, old *raftv1.StoredResource, field string) {
	cert := stored.GetResource().GetCertificate()
	pair, err := d.materials.keys.ParsePEM([]byte(cert.GetPem().GetChain().GetInline()), nil)
	if cert.GetPem().GetChain() != nil && (err != nil || !slices.EqualFunc(pair.Chain, old.GetMaterial().GetChain(), bytes.Equal)) {
		d.violations = append(d.violations, warning(field+".pem",
			"is ignored: the certificate is managed externally and has content already, which only rotate changes"))
	}
	if before := old.GetResource().GetCertificate().GetSelfSigned(); before != nil {
		cert.Source = &lbdv1.Certificate_SelfSigned{SelfSigned: before}
	} else {
		cert.Source = &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{}}
	}
	d.setContent(stored, content{material: old.GetMaterial()})
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
	src := pemSource{chainField: field + ".chain", keyField: field + ".key", document: true}
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
		if src.key = key.Inline; src.key == "" {
			bad = append(bad, violation(src.keyField, "is empty: leave it out, or give its fingerprint, to keep the stored key"))
		}
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
