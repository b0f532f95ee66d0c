package rpc

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

// No answer, error or log line of any call may hold a private key, in any form in which it could be read.
func TestSecretsStayInside(t *testing.T) {
	r := newRig(t)
	id, other := newIdentity(t, "a.example"), newIdentity(t, "b.example")
	var seen strings.Builder
	note := func(m proto.Message, err error) {
		text, marshalErr := protojson.Marshal(m)
		wire, wireErr := proto.Marshal(m)
		if marshalErr != nil || wireErr != nil {
			t.Fatal(marshalErr, wireErr)
		}
		fmt.Fprintf(&seen, "%s\n%s\n%+v\n", text, wire, err)
		if err != nil {
			for _, d := range failureOf(t, err).fields {
				seen.WriteString(d)
			}
		}
	}
	noteApply := func(a *lbdv1.ApplyResponse, err error) { note(a, err) }
	noteApply(r.apply(owner("web"), pemCertificate("a", id.chain+id.key, id.key)))
	noteApply(r.apply(owner("web"), pemCertificate("a", other.chain, id.key)))
	noteApply(r.apply(owner("web"), pemCertificate("a", id.key, id.key)))
	noteApply(r.apply(owner("web"), pemCertificate("a", id.chain, id.key[:len(id.key)/2])))
	noteApply(r.apply(owner("else"), pemCertificate("a", id.chain, id.key)))
	note(r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "a", ChainPem: id.chain, KeyPem: id.key}))
	note(r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "a", ChainPem: id.key, KeyPem: id.key}))
	note(r.certs.GetStatus(r.ctx(), &lbdv1.CertificateServiceGetStatusRequest{}))
	note(r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "certificates", Name: "a"}))
	note(r.config.List(r.ctx(), &lbdv1.ListRequest{Kind: "certificates"}))
	note(r.config.ListRevisions(r.ctx(), &lbdv1.ListRevisionsRequest{}))
	note(r.config.GetRevision(r.ctx(), &lbdv1.GetRevisionRequest{Number: 1}))
	note(r.diff(r.request(owner("web"), pemCertificate("a", other.chain, other.key), pemCertificate("z", id.chain, id.key))))
	note(r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web", ValidateOnly: true}))
	note(r.watch(&lbdv1.WatchRequest{Kind: "certificates"}).Recv())
	for _, resource := range r.export("") {
		note(resource, nil)
	}
	note(r.config.Validate(r.ctx(), &lbdv1.ValidateRequest{Document: &lbdv1.Document{
		ApiVersion: state.APIVersion, Owner: "web", Certificates: []*lbdv1.Certificate{pemCertificate("z", other.chain, id.key)},
	}}))
	cluster := lbdv1.NewClusterServiceClient(r.conn)
	note(cluster.RotateSeal(r.ctx(), &lbdv1.RotateSealRequest{}))
	note(cluster.GetSealStatus(r.ctx(), &lbdv1.GetSealStatusRequest{}))
	tickets := lbdv1.NewSessionTicketServiceClient(r.conn)
	note(tickets.ImportTicketKeys(r.ctx(), &lbdv1.ImportTicketKeysRequest{Keys: [][]byte{append([]byte("name of 16 bytes"), id.secret[36:68]...)}}))
	note(tickets.RotateTicketKeys(r.ctx(), &lbdv1.RotateTicketKeysRequest{Emergency: true}))
	note(tickets.GetStatus(r.ctx(), &lbdv1.SessionTicketServiceGetStatusRequest{}))
	note(r.certs.Delete(r.ctx(), &lbdv1.DeleteRequest{Name: "z", Purge: true}))
	backups, err := lbdv1.NewBackupServiceClient(r.conn).CreateBackup(r.ctx(), &lbdv1.CreateBackupRequest{})
	for err == nil {
		var piece *lbdv1.CreateBackupResponse
		if piece, err = backups.Recv(); err == nil {
			note(piece, nil)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if got := r.store.State().Revision(); got != 1 {
		t.Fatalf("revision %d: the certificate was not stored", got)
	}
	all := seen.String() + r.log.String()
	if !strings.Contains(all, id.fingerprint(t)) {
		t.Fatal("not even the fingerprint is in the answers: this test looks at nothing")
	}
	for form, secret := range formsOf(id) {
		if strings.Contains(all, secret) {
			t.Errorf("the key is in an answer or a log line, as %s", form)
		}
	}
}

// formsOf are spellings of a P-256 key's 32 secret bytes, which stand at a fixed place of its PKCS #8 form.
func formsOf(id identity) map[string]string {
	scalar := id.secret[36:68]
	forms := map[string]string{
		"raw":      string(scalar),
		"hex":      hex.EncodeToString(scalar),
		"PEM line": strings.Split(id.key, "\n")[1],
	}
	for shift := range 3 { // base64 looks different at each of three alignments
		text := base64.StdEncoding.EncodeToString(scalar[shift:])
		forms[fmt.Sprintf("base64+%d", shift)] = text[:len(text)-4]
	}
	return forms
}
