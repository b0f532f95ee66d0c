package main

import (
	"bytes"
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
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster"
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
	// authorityLook is how often it is looked whether it is time, besides after every change: a timer over days would not count the time that a machine sleeps.
	authorityLook = 10 * time.Minute
	// authorityRetry is the pause after a failed attempt.
	authorityRetry = time.Second
)

// proposer is the part of the replicated state that an authority needs.
type proposer interface {
	ID() string
	Next() <-chan struct{}
	State() *state.State
	ProposeCommand(ctx context.Context, cmd *raftv1.Command) (state.Result, error)
}

// authority keeps the certificate that this node shows on its control port, and with its metrics where these are not on loopback. Its
// key is the node's own, which never leaves the machine.
type authority struct {
	store proposer
	keys  keys
	key   *ecdsa.PrivateKey
	now   func() time.Time
	log   *slog.Logger
	names []string // what the certificate is for: DNS names and IP addresses

	current atomic.Pointer[tls.Certificate]
	first   chan struct{}                   // closed when there is one
	own     atomic.Pointer[tls.Certificate] // signed by itself, for other nodes, as long as there is no current one
}

func newAuthority(store proposer, k keys, key *ecdsa.PrivateKey, log *slog.Logger, names []string) *authority {
	return &authority{store: store, keys: k, key: key, now: k.now, log: log, names: names, first: make(chan struct{})}
}

// run makes the node's certificate and renews it, until ctx ends:
//
//  1. the cluster's authority: the first node that finds none proposes one
//  2. a certificate of this node's, signed by it
//  3. the same again at half of its life, and when another authority is in place
func (a *authority) run(ctx context.Context) {
	failing := false
	for {
		pause := authorityLook
		next := a.store.Next() // before the state, so that none is missed
		var err error
		if a.due() {
			err = a.renew(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = authorityRetry
			if !failing && !errors.Is(err, cluster.ErrNoLeader) && !errors.Is(err, cluster.ErrClosed) {
				a.log.Warn("the control port has no new certificate; it is tried again", "err", err)
			}
		case failing:
			a.log.Info("the control port has a certificate")
		}
		failing = err != nil
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-next:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// due tells whether half of the certificate's life is over, or the clock has gone back to before it, or what stands behind it is another
// authority than the cluster's.
func (a *authority) due() bool {
	current, now := a.current.Load(), a.now()
	if current == nil || now.After(current.Leaf.NotAfter.Add(-nodeLife/2)) || now.Before(current.Leaf.NotBefore) {
		return true
	}
	stored, ok := a.store.State().Authority()
	return ok && !slices.EqualFunc(current.Certificate[1:], chainOf(stored), bytes.Equal)
}

// identity is what this node shows to other nodes, which know it by its key: the certificate that people see, or, as long as there is
// none that holds, one that it has signed itself.
func (a *authority) identity() *tls.Certificate {
	now := a.now()
	for _, c := range [...]*tls.Certificate{a.current.Load(), a.own.Load()} {
		if c != nil && now.Before(c.Leaf.NotAfter) && !now.Before(c.Leaf.NotBefore) {
			return c
		}
	}
	c, err := selfIssued(a.key, a.store.State().ClusterID(), a.store.ID(), now)
	if err != nil {
		a.log.Error("the node has nothing to show to others", "err", err)
		return &tls.Certificate{}
	}
	a.own.Store(c)
	return c
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

// make is the first authority, its key sealed.
func (a *authority) make() (*raftv1.AuthorityCommand, error) {
	first, _, err := a.generate(nil, a.keys.ring.Sealer().KeyID())
	if err != nil {
		return nil, err
	}
	return &raftv1.AuthorityCommand{Authority: first, Time: timestamppb.New(a.now())}, nil
}

// Next is an authority that can take the present one's place, its key sealed under the sealing key with that id. With keep the present one
// vouches for it, so that its pin stays good, and with it those for which it is vouched; a warning says why it does not.
func (a *authority) Next(present *raftv1.Authority, keep bool, sealKey string) (*raftv1.Authority, string, error) {
	if !keep {
		present = nil
	}
	return a.generate(present, sealKey)
}

// generate makes an authority. The present one, if there is one, vouches for it.
func (a *authority) generate(present *raftv1.Authority, sealKey string) (next *raftv1.Authority, warning string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", err
	}
	now, public := a.now(), elliptic.MarshalCompressed(elliptic.P256(), key.X, key.Y)
	sum := sha256.Sum256(public)
	template := &x509.Certificate{
		// Each has a name of its own: x509 tries all of one name as each other's signers, and gives up after a hundred.
		Subject:               pkix.Name{CommonName: "lbd cluster " + a.store.State().ClusterID() + " authority " + hex.EncodeToString(sum[:4])},
		NotBefore:             now.Add(-clockSlack),
		NotAfter:              now.Add(authorityLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLen:            state.FormerAuthoritiesMax + 1, // those that come after it
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := sign(template, template, &key.PublicKey, key)
	if err != nil {
		return nil, "", err
	}
	next = &raftv1.Authority{Certificate: der}
	if next.SealedKey, err = a.sealKey(der, key, sealKey); err != nil {
		return nil, "", err
	}
	if present != nil {
		warning, err = a.vouch(template, present, next, &key.PublicKey)
	}
	return next, warning, err
}

// vouch makes the present authority the newest of those before the next one.
func (a *authority) vouch(template *x509.Certificate, present, next *raftv1.Authority, key *ecdsa.PublicKey) (warning string, err error) {
	old, err := x509.ParseCertificate(present.GetCertificate())
	if err != nil {
		return "", fmt.Errorf("read the cluster's certificate authority: %w", err)
	}
	if old.MaxPathLenZero {
		return "the certificate authority was made by an older lbd, and cannot vouch for another one: its pin is good no more, everybody needs the new one", nil
	}
	oldKey, err := a.openKey(present)
	if err != nil {
		return "", fmt.Errorf("open the key of the cluster's certificate authority: %w", err)
	}
	template.NotAfter = old.NotAfter
	cross, err := sign(template, old, key, oldKey)
	if err != nil {
		return "", fmt.Errorf("vouch for the new certificate authority: %w", err)
	}
	next.Former = append(next.Former, &raftv1.FormerAuthority{CrossCertificate: cross, Certificate: present.GetCertificate()})
	next.Former = append(next.Former, present.GetFormer()[:min(len(present.GetFormer()), state.FormerAuthoritiesMax-1)]...)
	return "", nil
}

// sealKey seals an authority's key under the sealing key with that id.
func (a *authority) sealKey(certificate []byte, key *ecdsa.PrivateKey, under string) ([]byte, error) {
	plain, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	defer clear(plain)
	binding, err := authorityBinding(a.store.State().ClusterID(), certificate)
	if err != nil {
		return nil, err
	}
	sealer, err := a.keys.ring.Sealer().Under(under)
	if err != nil {
		return nil, err
	}
	return sealer.Seal(binding, plain), nil
}

// chainOf is what is shown behind a node's certificate: the authority, and of each one before that is still good what it says of the one after it, and
// itself, which is what people have pinned.
func chainOf(stored *raftv1.Authority) [][]byte {
	chain := [][]byte{stored.GetCertificate()}
	for _, f := range stored.GetFormer() {
		chain = append(chain, f.GetCrossCertificate(), f.GetCertificate())
	}
	return chain
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
	template := nodeTemplate(a.store.State().ClusterID(), a.store.ID(), a.now())
	for _, name := range a.names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := sign(template, ca, &a.key.PublicKey, caKey)
	if err != nil {
		return nil, fmt.Errorf("sign the node's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: append([][]byte{der}, chainOf(stored)...), PrivateKey: a.key, Leaf: leaf}, nil
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
