package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lbd/cluster/rpc"
	lbdv1 "lbd/proto/lbd/v1"
)

// startControl serves a rig's control plane, as serve does, until the test ends.
func (r *rig) startControl(change func(*config)) (*control, *rpc.Server) {
	r.t.Helper()
	r.cfg.socket = filepath.Join(r.cfg.dataDir, "control.sock")
	change(&r.cfg)
	c, err := openControl(nil, &r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := c.prepare(r.cfg, nil, r.log); err != nil {
		r.t.Fatal(err)
	}
	c.begin(r.t.Context(), r.cfg, r.node, r.keys, r.log)
	server, err := c.serve(r.cfg, r.node, r.keys, r.appliance, r.log)
	if err != nil {
		r.t.Fatal(errors.Join(err, c.close()))
	}
	r.t.Cleanup(func() {
		if err := errors.Join(server.Close(), c.close()); err != nil {
			r.t.Error(err)
		}
		if c.peers != nil { // the rig's node has another network, or none, and does not close this one
			_ = c.peers.Close()
		}
	})
	return c, server
}

// bySocket calls as the user who started the node.
func (r *rig) bySocket() lbdv1.AuthServiceClient {
	r.t.Helper()
	conn, err := grpc.NewClient("unix:"+r.cfg.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return lbdv1.NewAuthServiceClient(conn)
}

// pinned trusts the one authority that has a pin, and what it signed.
func pinned(pin string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, VerifyConnection: func(s tls.ConnectionState) error {
		roots := x509.NewCertPool()
		for _, c := range s.PeerCertificates {
			if sum := sha256.Sum256(c.Raw); "sha256:"+hex.EncodeToString(sum[:]) == pin {
				roots.AddCert(c)
			}
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		return err
	}}
}

func TestControlPort(t *testing.T) {
	r := newRig(t)
	c, _ := r.startControl(func(cfg *config) { cfg.control = "127.0.0.1:0" })
	if c.endpoint == "127.0.0.1:0" || c.endpoint != r.cfg.control {
		t.Errorf("endpoint %s, control %s", c.endpoint, r.cfg.control)
	}
	conn, err := grpc.NewClient(c.endpoint, grpc.WithTransportCredentials(credentials.NewTLS(pinned("")))) // of no pin: refused
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lbdv1.NewAuthServiceClient(conn).WhoAmI(t.Context(), &lbdv1.WhoAmIRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a pin: %v", err)
	}
	_ = conn.Close()

	made, err := r.bySocket().CreateToken(t.Context(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_VIEWER, Description: "ci"})
	if err != nil || made.GetEndpoint() != c.endpoint || !strings.HasPrefix(made.GetCaPin(), "sha256:") {
		t.Fatalf("%v, %v", made, err)
	}
	if conn, err = grpc.NewClient(c.endpoint, grpc.WithTransportCredentials(credentials.NewTLS(pinned(made.GetCaPin())))); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+made.GetSecret())
	me, err := lbdv1.NewAuthServiceClient(conn).WhoAmI(ctx, &lbdv1.WhoAmIRequest{})
	if err != nil || me.GetTokenId() != made.GetToken().GetId() || me.GetNode() != "n1" || me.GetCaPin() != made.GetCaPin() {
		t.Errorf("who am I: %v, %v", me, err)
	}
	if _, err := lbdv1.NewAuthServiceClient(conn).WhoAmI(t.Context(), &lbdv1.WhoAmIRequest{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	refusals := c.journal.Refusals(time.Time{})
	if len(refusals) != 1 || refusals[0].GetSource() != "127.0.0.1" || refusals[0].GetMethod() != "AuthService/WhoAmI" {
		t.Errorf("journal: %v", refusals)
	}
	if c.journal.LastUse(me.GetTokenId()).IsZero() {
		t.Error("the token's use is not known")
	}
}

// A second node on the machine ends plainly, before it has taken anything.
func TestControlPortInUse(t *testing.T) {
	_, address := held(t)
	cfg := config{control: address}
	if _, err := openControl(nil, &cfg); err == nil || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "give --control HOST:PORT, or off") {
		t.Errorf("error %v", err)
	}
	cfg.control = "off"
	off, err := openControl(nil, &cfg)
	if err != nil || off.listener != nil {
		t.Fatalf("%v", err)
	}
	if err := off.close(); err != nil {
		t.Error(err)
	}
}

// The authority is the cluster's for good; each node's certificate is its own, and renewed while the process runs.
func TestAuthority(t *testing.T) {
	r := newRig(t)
	key, err := openNodeKey(r.cfg.dataDir)
	if err != nil {
		t.Fatal(err)
	}
	a := newAuthority(r.node, r.keys, key, r.log, []string{"edge-1", "10.0.0.1", "::1"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.certificate(ctx); err == nil {
		t.Error("there was a certificate before the first")
	}
	if !a.due() {
		t.Error("the first certificate is not due")
	}
	if err := a.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	for at, due := range map[time.Duration]bool{
		0: false, nodeLife/2 - time.Hour: false, nodeLife/2 + time.Hour: true, 2 * nodeLife: true, -2 * nodeSlack: true,
	} {
		if a.now = func() time.Time { return time.Now().Add(at) }; a.due() != due {
			t.Errorf("after %v: due %t", at, a.due())
		}
	}
	a.now = time.Now
	first, err := a.certificate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leaf := first.Leaf
	if life := leaf.NotAfter.Sub(leaf.NotBefore); life > nodeLife+nodeSlack || !slices.Equal(leaf.DNSNames, []string{"edge-1"}) || len(leaf.IPAddresses) != 2 {
		t.Errorf("life %v, names %v %v", life, leaf.DNSNames, leaf.IPAddresses)
	}
	if err := a.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second, _ := a.certificate(t.Context()); bytes.Equal(second.Certificate[0], first.Certificate[0]) || !bytes.Equal(second.Certificate[1], first.Certificate[1]) {
		t.Error("a renewed certificate is the same, or of another authority")
	}
	other := newAuthority(r.node, r.keys, key, r.log, nil)
	if err := other.renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if theirs, _ := other.certificate(t.Context()); !bytes.Equal(theirs.Certificate[1], first.Certificate[1]) {
		t.Error("another node has an authority of its own")
	}
	stored, _ := r.node.State().Authority()
	roots := x509.NewCertPool()
	ca, err := x509.ParseCertificate(stored.GetCertificate())
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(ca)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "edge-1"}); err != nil {
		t.Error(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("among nodes it is a client's as well: %v", err)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].Scheme != "lbd" {
		t.Errorf("it does not say which node's it is: %v", leaf.URIs)
	}
	caKey, err := a.openKey(stored)
	if err != nil {
		t.Fatal(err)
	}
	if secret, err := caKey.Bytes(); err != nil || bytes.Contains(stored.GetSealedKey(), secret) {
		t.Errorf("the authority's key is stored as it is, or: %v", err)
	}
}

func TestNamesOfANode(t *testing.T) {
	cfg := config{node: "Edge-1", control: "0.0.0.0:7443", metrics: "10.0.0.1:9090"}
	want := []string{"10.0.0.1", "127.0.0.1", "::1", "edge-1", "edge-1.example.com", "localhost"}
	if got := cfg.certificateNames("edge-1.example.com:7443"); !slices.Equal(got, want) {
		t.Errorf("names %v", got)
	}
	cfg.node = "rack 1"
	if got := cfg.certificateNames("10.0.0.1:7443"); slices.Contains(got, "rack 1") {
		t.Errorf("names %v", got)
	}
}

// Metrics that others can reach are for viewers, and encrypted.
func TestMetricsBeyondLoopback(t *testing.T) {
	r := newRig(t)
	m, err := openMetrics(nil, "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	c, server := r.startControl(func(cfg *config) { cfg.control, cfg.metrics = "off", "0.0.0.0:0" })
	m.serve(r.appliance, server, c.authority)
	made, err := r.bySocket().CreateToken(t.Context(), &lbdv1.CreateTokenRequest{Role: lbdv1.Role_ROLE_VIEWER})
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(m.listener.Addr().String())
	if _, err := c.authority.certificate(t.Context()); err != nil {
		t.Fatal(err)
	}
	stored, _ := r.node.State().Authority()
	sum := sha256.Sum256(stored.GetCertificate())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: pinned("sha256:" + hex.EncodeToString(sum[:])), DisableKeepAlives: true}}
	scrape := func(token string) (int, string, http.Header) {
		ask, err := http.NewRequest(http.MethodGet, "https://127.0.0.1:"+port+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			ask.Header.Set("Authorization", "Bearer "+token)
		}
		answer, err := client.Do(ask)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body), answer.Header
	}
	if code, body, _ := scrape(made.GetSecret()); code != http.StatusOK || !strings.Contains(body, "\nlbd_build_info{") {
		t.Errorf("a viewer: %d %.100s", code, body)
	}
	if code, body, header := scrape(""); code != http.StatusUnauthorized || header.Get("WWW-Authenticate") == "" || strings.Contains(body, "lbd_build_info") {
		t.Errorf("nobody: %d %.100s", code, body)
	}
	limited := 0
	for range 40 {
		if code, _, header := scrape("lbt_none_none"); code == http.StatusTooManyRequests && header.Get("Retry-After") != "" {
			limited++
		} else if code != http.StatusUnauthorized {
			t.Fatalf("a wrong token: %d", code)
		}
	}
	if limited == 0 {
		t.Error("nobody was told to wait")
	}
	plain, err := http.Get("http://127.0.0.1:" + port + "/metrics")
	if err == nil {
		plain.Body.Close()
		if plain.StatusCode == http.StatusOK {
			t.Error("metrics in the clear")
		}
	}
}
