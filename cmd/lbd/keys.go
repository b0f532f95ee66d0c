package main

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"time"

	"lbd/cluster/rpc"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	tlsterm "lbd/tls"
	"lbd/tls/seal"
)

// keys makes, checks, seals and opens key pairs: the control plane's rpc.Keys over tlsterm and seal.
type keys struct {
	ring *seal.Ring
	now  func() time.Time
}

func (k keys) ParsePEM(chain, key []byte) (rpc.KeyPair, error) {
	m, err := tlsterm.ParsePEM(chain, key)
	var content *tlsterm.ContentError
	if errors.As(err, &content) {
		return rpc.KeyPair{}, &rpc.PEMError{Field: string(content.Part), Err: errors.New(content.Reason)}
	}
	if err != nil {
		return rpc.KeyPair{}, err
	}
	return rpc.KeyPair{Chain: m.Chain, Key: m.Key}, nil
}

func (k keys) SelfSigned(hosts []string, keyType lbdv1.KeyType) (rpc.KeyPair, error) {
	kind := tlsterm.ECDSAP256
	if keyType == lbdv1.KeyType_KEY_TYPE_RSA_2048 {
		kind = tlsterm.RSA2048
	}
	chain, key, err := tlsterm.SelfSigned(hosts, kind, k.now())
	return rpc.KeyPair{Chain: chain, Key: key}, err
}

func (k keys) Seal(clusterID, certificate string, publicKeySHA256, key []byte) ([]byte, error) {
	return k.ring.Sealer().Seal(binding(clusterID, certificate, publicKeySHA256), key), nil
}

func publicKeySHA256(pair rpc.KeyPair) ([]byte, error) {
	if len(pair.Chain) == 0 {
		return nil, errors.New("the chain is empty")
	}
	leaf, err := x509.ParseCertificate(pair.Chain[0])
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	return sum[:], nil
}

// open makes a stored certificate servable.
func (k keys) open(clusterID, name string, m *raftv1.CertificateMaterial) (*tlsterm.Certificate, error) {
	if len(m.GetSealedKey()) == 0 {
		return nil, errors.New("its key was purged")
	}
	key, err := k.ring.Sealer().Open(binding(clusterID, name, m.GetPublicKeySha256()), m.GetSealedKey())
	if err != nil {
		return nil, err
	}
	defer clear(key)
	return tlsterm.NewCertificate(name, m.GetChain(), key)
}

func binding(clusterID, certificate string, publicKey []byte) seal.Binding {
	return seal.Binding{ClusterID: clusterID, Kind: string(state.Certificates), Name: certificate, Version: hex.EncodeToString(publicKey)}
}
