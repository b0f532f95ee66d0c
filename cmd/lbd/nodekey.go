package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"lbd/cluster/rpc"
)

// nodeKeyFile is the key by which other nodes know this one. It is made here, at the first start, and never leaves the machine.
const nodeKeyFile = "node.key"

// openNodeKey reads the node's key, or makes it: whole or not at all, and once, whoever else makes one at the same moment.
func openNodeKey(dir string) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(dir, nodeKeyFile)
	key, err := readNodeKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := makeNodeKey(dir, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the node's key %s: %w: check that the data directory is there, writable and not full", path, err)
	}
	return readNodeKey(path)
}

func readNodeKey(path string) (*ecdsa.PrivateKey, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the node's key: %w", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("read the node's key %s: mode %04o lets others use it: chmod 600 it; where somebody may have read it, remove the node from the cluster and join anew", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the node's key: %w", err)
	}
	defer clear(text)
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("read the node's key %s: it is no PEM: put it back from a copy; a node of a larger cluster can be removed from it and joined anew on an empty directory", path)
	}
	defer clear(block.Bytes)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the node's key %s: %w", path, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read the node's key %s: it is a %T, not one that lbd has made", path, key)
	}
	return ec, nil
}

// makeNodeKey leaves a key that is there alone.
func makeNodeKey(dir, path string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	defer clear(der)
	temp, err := os.CreateTemp(dir, nodeKeyFile+".*") // 0600
	if err != nil {
		return err
	}
	err = errors.Join(pem.Encode(temp, &pem.Block{Type: "PRIVATE KEY", Bytes: der}), temp.Sync(), temp.Close())
	if err == nil {
		err = os.Link(temp.Name(), path) // unlike a rename it replaces nothing
	}
	if err = errors.Join(err, os.Remove(temp.Name())); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// nodeKeyPin is "sha256:…" of the key, as the membership has it.
func nodeKeyPin(key *ecdsa.PrivateKey) string {
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		panic("marshal the public key of a P-256 key: " + err.Error())
	}
	return rpc.PublicKeyPin(der)
}

// nodeSlack is how far the clock of another node may be behind: nodes whose clocks differ must go on talking to each other.
const nodeSlack = 24 * time.Hour

// nodeTemplate is a node's certificate before it is signed: good for both sides of a connection, under a name and a usage that no
// other certificate has.
func nodeTemplate(clusterID, nodeID string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:            pkix.Name{CommonName: "lbd node " + nodeID},
		NotBefore:          now.Add(-nodeSlack),
		NotAfter:           now.Add(nodeLife),
		KeyUsage:           x509.KeyUsageDigitalSignature,
		ExtKeyUsage:        []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{rpc.NodeKeyUsage},
		URIs:               []*url.URL{rpc.NodeURI(clusterID, nodeID)},
	}
}

// selfIssued is a node's certificate that it has signed itself. Other nodes know it by its key and take it for as good; people, who pin the
// cluster's authority, do not.
func selfIssued(key *ecdsa.PrivateKey, clusterID, nodeID string, now time.Time) (*tls.Certificate, error) {
	template := nodeTemplate(clusterID, nodeID, now)
	der, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("sign the node's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
