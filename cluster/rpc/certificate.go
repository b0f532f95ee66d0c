package rpc

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// certificateService answers lbd.v1.CertificateService.
type certificateService struct {
	lbdv1.UnimplementedCertificateServiceServer
	seat     Seat   // nil: this node is alone
	peers    *Peers // nil: likewise
	store    Store
	observer Observer
	writer   *writer
	fleet    *fleet
}

// Rotate stores new content for a certificate, as one revision.
func (s *certificateService) Rotate(ctx context.Context, req *lbdv1.RotateRequest) (*lbdv1.RotateResponse, error) {
	if req.GetName() == "" {
		return nil, invalidField("name", "the certificate's name is missing")
	}
	head := &lbdv1.ApplyHeader{RequestId: req.GetRequestId(), Message: req.GetMessage(), ValidateOnly: req.GetValidateOnly()}
	var drafted *raftv1.StoredResource
	answer, err := s.writer.write(ctx, head, func(d *draft) (err error) {
		drafted, err = d.rotate(req)
		return err
	})
	if err != nil {
		return nil, err
	}
	rotated, ok := s.store.State().Get(state.Certificates, req.GetName())
	if !ok || req.GetValidateOnly() {
		rotated = drafted
	}
	status, err := s.status(rotated)
	return &lbdv1.RotateResponse{Revision: answer.GetRevision(), Certificate: status, Warnings: answer.GetWarnings()}, err
}

// chainField is where a rotation says the new chain.
const chainField = "chain_pem"

// rotate takes new content for one certificate into the change.
func (d *draft) rotate(req *lbdv1.RotateRequest) (*raftv1.StoredResource, error) {
	old, exists := d.base.Get(state.Certificates, req.GetName())
	cert := &lbdv1.Certificate{Name: req.GetName()}
	switch {
	case req.GetCreate() && req.GetOwner() == "":
		return nil, invalidField("owner", "an owner is missing: whose the new certificate is to be")
	case req.GetCreate():
		if exists { // a retry of the call that made it is answered all the same
			d.refusal = alreadyExists("certificates/"+req.GetName(), "there is a certificate named `%s` already: rotate it", req.GetName())
		}
		d.change.Owner, old = req.GetOwner(), nil
	case !exists:
		return nil, notFound("certificates/"+req.GetName(), "there is no certificate named `%s`", req.GetName())
	default:
		d.change.Owner = old.GetResource().GetOwner()
		cert = proto.CloneOf(old.GetResource().GetCertificate())
	}
	c, err := d.rotated(req, old)
	if err != nil {
		return nil, err
	}
	if c.selfSigned == nil {
		cert.Source = &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{}}
	}
	stored := &raftv1.StoredResource{Resource: &lbdv1.Resource{
		Owner: d.change.GetOwner(), Spec: &lbdv1.Resource_Certificate{Certificate: cert},
	}}
	d.change.Upserts, d.chainField = append(d.change.Upserts, stored), chainField
	d.setContent(stored, c)
	return stored, nil
}

// rotated is the new content: what came in, or for a self-signed certificate a new pair.
func (d *draft) rotated(req *lbdv1.RotateRequest, old *raftv1.StoredResource) (content, error) {
	selfSigned := old.GetResource().GetCertificate().GetSelfSigned()
	switch {
	case req.GetChainPem() == "" && req.GetKeyPem() != "":
		return content{}, invalidField("chain_pem", "a chain is missing: a key alone cannot be served")
	case req.GetChainPem() == "" && selfSigned == nil:
		return content{}, invalidField("chain_pem", "a chain is missing: lbd renews by itself only what it has signed itself")
	case req.GetChainPem() == "":
		return content{selfSigned: selfSigned}, nil
	}
	src := pemSource{chain: req.GetChainPem(), key: req.GetKeyPem(), chainField: chainField, keyField: "key_pem"}
	c, violations := d.materials.fromPEM(src, old)
	d.violations = append(d.violations, violations...)
	if selfSigned != nil {
		d.violations = append(d.violations, warning("chain_pem",
			"the certificate was self-signed and now comes from outside: change its documents too, or their next apply signs it here again"))
	}
	return c, nil
}

// GetStatus reads what is stored and what this node serves, or each.
func (s *certificateService) GetStatus(ctx context.Context, req *lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
	if req.GetNode() != everyNode {
		return s.statusHere(req)
	}
	here := func(context.Context) (*lbdv1.CertificateServiceGetStatusResponse, error) { return s.statusHere(req) }
	answers, unreached, err := answered(s.fleet, ask(ctx, s.fleet, here,
		func(ctx context.Context, conn grpc.ClientConnInterface) (*lbdv1.CertificateServiceGetStatusResponse, error) {
			return lbdv1.NewCertificateServiceClient(conn).GetStatus(ctx, &lbdv1.CertificateServiceGetStatusRequest{Name: req.GetName()})
		}))
	if err != nil {
		return nil, err
	}
	out := &lbdv1.CertificateServiceGetStatusResponse{Unreached: unreached}
	for _, a := range answers {
		if a.node.GetId() == s.fleet.id {
			out.Certificates = a.answer.GetCertificates()
		}
	}
	byName := map[string]*lbdv1.CertificateStatus{}
	for _, c := range out.GetCertificates() {
		byName[c.GetName()] = c
	}
	for _, a := range answers {
		for _, c := range a.answer.GetCertificates() {
			if one := byName[c.GetName()]; one != nil {
				one.Nodes = append(one.Nodes, &lbdv1.CertificateOnNode{Node: a.node.GetName(), ServedSerial: c.GetServedSerial()})
			}
		}
	}
	return out, nil
}

// statusHere reads what is stored and what this node serves.
func (s *certificateService) statusHere(req *lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
	current := s.store.State()
	out := &lbdv1.CertificateServiceGetStatusResponse{}
	if name := req.GetName(); name != "" {
		stored, ok := current.Get(state.Certificates, name)
		if !ok {
			return nil, notFound("certificates/"+name, "there is no certificate named `%s`", name)
		}
		one, err := s.status(stored)
		out.Certificates = append(out.Certificates, one)
		return out, err
	}
	for stored := range current.All(state.Certificates) {
		one, err := s.status(stored)
		if err != nil {
			return nil, err
		}
		out.Certificates = append(out.Certificates, one)
	}
	return out, nil
}

// status describes a certificate by its leaf.
func (s *certificateService) status(stored *raftv1.StoredResource) (*lbdv1.CertificateStatus, error) {
	r := stored.GetResource()
	out := &lbdv1.CertificateStatus{
		Name:         r.GetCertificate().GetName(),
		Owner:        r.GetOwner(),
		ServedSerial: s.observer.ServedSerial(r.GetCertificate().GetName()),
		Revision:     r.GetRevision(),

		ManagedExternally: r.GetCertificate().GetManagedExternally(),
	}
	out.Listeners, out.ShadowedBy = s.observer.CertificateUse(out.GetName())
	chain := stored.GetMaterial().GetChain()
	if len(chain) == 0 {
		return out, nil // a dry run of what would be signed here
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fmt.Errorf("certificate %s: parse the stored leaf: %w", out.GetName(), err)
	}
	digest := sha256.Sum256(leaf.Raw)
	out.Hosts = leafHosts(leaf)
	out.KeyType = keyType(leaf.PublicKey)
	out.Serial = fmt.Sprintf("%x", leaf.SerialNumber)
	out.Issuer = leaf.Issuer.String()
	out.NotBefore = timestamppb.New(leaf.NotBefore)
	out.NotAfter = timestamppb.New(leaf.NotAfter)
	out.Fingerprint = fingerprint(digest[:])
	return out, nil
}

// keyType is the word for a public key's kind: "ECDSA_P256", "RSA_2048", "ED25519".
func keyType(public any) string {
	switch public := public.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA_" + strings.ReplaceAll(public.Curve.Params().Name, "-", "")
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA_%d", public.N.BitLen())
	case ed25519.PublicKey:
		return "ED25519"
	}
	return fmt.Sprintf("%T", public)
}
