package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	"lbd/tls/seal"
)

const (
	// authorityLife is how long the cluster's certificate authority is valid: clients pin it, and nobody renews a pin.
	authorityLife = 30 * 365 * 24 * time.Hour
	// nodeLife is how long a node's certificate is valid. It is made anew at half of it, in the running process.
	nodeLife = 30 * 24 * time.Hour
	// clockSlack is how far clients' clocks may be behind.
	clockSlack = time.Hour
	// authorityLook is how often it is looked whether it is time: a timer over days would not count the time that a machine sleeps.
	authorityLook = 10 * time.Minute
	// authorityRetry is the pause after a failed attempt.
	authorityRetry = time.Second
)

// proposer is the part of the replicated state that an authority needs.
type proposer interface {
	State() *state.State
	ProposeCommand(ctx context.Context, cmd *raftv1.Command) (state.Result, error)
}

// authority keeps the certificate that this node shows on its control port, and with its metrics where these are not on loopback. Its
// key is made in this process and never leaves it.
type authority struct {
	store proposer
	keys  keys
	now   func() time.Time
	log   *slog.Logger
	names []string // what the certificate is for: DNS names and IP addresses

	current atomic.Pointer[tls.Certificate]
	first   chan struct{} // closed when there is one
}

func newAuthority(store proposer, k keys, log *slog.Logger, names []string) *authority {
	return &authority{store: store, keys: k, now: k.now, log: log, names: names, first: make(chan struct{})}
}

// run makes the node's certificate and renews it, until ctx ends:
//
//  1. the cluster's authority: the first node that finds none proposes one
//  2. a certificate of this node's, signed by it
//  3. the same again at half of its life
func (a *authority) run(ctx context.Context) {
	failing := false
	for {
		pause := authorityLook
		var err error
		if a.due() {
			err = a.renew(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = authorityRetry
			if !failing {
				a.log.Warn("the control port has no new certificate; it is tried again", "err", err)
			}
		case failing:
			a.log.Info("the control port has a certificate")
		}
		failing = err != nil
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// due tells whether half of the certificate's life is over, or the clock has gone back to before it.
func (a *authority) due() bool {
	current, now := a.current.Load(), a.now()
	return current == nil || now.After(current.Leaf.NotAfter.Add(-nodeLife/2)) || now.Before(current.Leaf.NotBefore)
}

// certificate waits for the first one until ctx ends.
func (a *authority) certificate(ctx context.Context) (*tls.Certificate, error) {
	select {
	case <-a.first:
		return a.current.Load(), nil
	case <-ctx.Done():
		return nil, errors.New("this node has no certificate yet: the cluster has no leader, or the sealing key does not fit")
	}
}

func (a *authority) renew(ctx context.Context) error {
	stored, ok := a.store.State().Authority()
	if !ok {
		cmd, err := a.make()
		if err != nil {
			return err
		}
		if _, err := a.store.ProposeCommand(ctx, &raftv1.Command{Kind: &raftv1.Command_Authority{Authority: cmd}}); err != nil {
			return fmt.Errorf("make the cluster's certificate authority: %w", err)
		}
		if stored, ok = a.store.State().Authority(); !ok {
			return errors.New("make the cluster's certificate authority: it is not there")
		}
	}
	next, err := a.issue(stored)
	if err != nil {
		return err
	}
	if a.current.Swap(next) == nil {
		close(a.first)
	}
	return nil
}

// make is a new authority, its key sealed.
func (a *authority) make() (*raftv1.AuthorityCommand, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now, clusterID := a.now(), a.store.State().ClusterID()
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "lbd cluster " + clusterID},
		NotBefore:             now.Add(-clockSlack),
		NotAfter:              now.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	plain, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	binding, err := authorityBinding(clusterID, der)
	if err != nil {
		return nil, err
	}
	sealed := a.keys.ring.Sealer().Seal(binding, plain)
	return &raftv1.AuthorityCommand{Authority: &raftv1.Authority{Certificate: der, SealedKey: sealed}, Time: timestamppb.New(now)}, nil
}

// issue is a new certificate of this node, with the authority's behind it.
func (a *authority) issue(stored *raftv1.Authority) (*tls.Certificate, error) {
	ca, err := x509.ParseCertificate(stored.GetCertificate())
	if err != nil {
		return nil, fmt.Errorf("read the cluster's certificate authority: %w", err)
	}
	caKey, err := a.openKey(stored)
	if err != nil {
		return nil, fmt.Errorf("open the key of the cluster's certificate authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := a.now()
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "lbd node"},
		NotBefore:   now.Add(-clockSlack),
		NotAfter:    now.Add(nodeLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range a.names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := sign(template, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, fmt.Errorf("sign the node's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, ca.Raw}, PrivateKey: key, Leaf: leaf}, nil
}

func (a *authority) openKey(stored *raftv1.Authority) (*ecdsa.PrivateKey, error) {
	binding, err := authorityBinding(a.store.State().ClusterID(), stored.GetCertificate())
	if err != nil {
		return nil, err
	}
	plain, err := a.keys.ring.Sealer().Open(binding, stored.GetSealedKey())
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	key, err := x509.ParsePKCS8PrivateKey(plain)
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is a %T", key)
	}
	return ec, nil
}

// authorityBinding is what the authority's key is sealed for.
func authorityBinding(clusterID string, certificate []byte) (seal.Binding, error) {
	c, err := x509.ParseCertificate(certificate)
	if err != nil {
		return seal.Binding{}, err
	}
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	kind := string(state.KindAuthority)
	return seal.Binding{ClusterID: clusterID, Kind: kind, Name: kind, Version: hex.EncodeToString(sum[:])}, nil
}

// sign makes a certificate with a serial of its own.
func sign(template, parent *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}
