package rpc

import (
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A node proves itself by a certificate over a key of its own. Its name there is a URI that nobody else's certificate has, under an
// extended key usage that nobody else's may have. Who signed it does not matter to other nodes: they let in who is in the membership,
// by id and key. People pin the authority.

// NodeKeyUsage is the extended key usage of nodes' certificates. Its arc is of UUIDs (ITU-T X.667), for which nobody has to be asked.
var NodeKeyUsage = asn1.ObjectIdentifier{2, 25, 1818391908, 1}

// NodeURI is a node's name in its certificate.
func NodeURI(clusterID, nodeID string) *url.URL {
	return &url.URL{Scheme: nodeScheme, Host: clusterID, Path: "/" + nodeID}
}

const nodeScheme = "lbd"

// PublicKeyPin is "sha256:<hex>" of a public key (SubjectPublicKeyInfo, DER), as the membership has it.
func PublicKeyPin(der []byte) string { return pin(der) }

// nodeIdentity is what a node's certificate says of it.
type nodeIdentity struct {
	cluster, id, key string
	notBefore        time.Time
	notAfter         time.Time
}

// claimsNode tells whether a certificate is meant to be a node's.
func claimsNode(leaf *x509.Certificate) bool {
	return slices.ContainsFunc(leaf.UnknownExtKeyUsage, NodeKeyUsage.Equal)
}

// readIdentity reads a node's certificate. It judges neither its time nor who is a member.
func readIdentity(leaf *x509.Certificate) (nodeIdentity, error) {
	if !claimsNode(leaf) {
		return nodeIdentity{}, fmt.Errorf("the certificate is no node's: it lacks the extended key usage %s", NodeKeyUsage)
	}
	for _, u := range leaf.URIs {
		if id, ok := strings.CutPrefix(u.Path, "/"); ok && u.Scheme == nodeScheme && u.Host != "" && id != "" && len(leaf.URIs) == 1 {
			return nodeIdentity{cluster: u.Host, id: id, key: publicKeyPin(leaf), notBefore: leaf.NotBefore, notAfter: leaf.NotAfter}, nil
		}
	}
	return nodeIdentity{}, fmt.Errorf("the certificate is no node's: it has no name %s://CLUSTER/NODE", nodeScheme)
}

// valid says why a certificate is not good at a time.
func (n nodeIdentity) valid(now time.Time) error {
	switch {
	case now.Before(n.notBefore):
		return fmt.Errorf("the certificate of node %s is not valid before %s", n.id, utc(n.notBefore))
	case now.After(n.notAfter):
		return fmt.Errorf("the certificate of node %s expired at %s", n.id, utc(n.notAfter))
	}
	return nil
}
