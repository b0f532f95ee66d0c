package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// portRig is a rig with a control port and a journal.
type portRig struct {
	*rig
	address string
	auth    lbdv1.AuthServiceClient // by the socket
	journal *fakeJournal
}

func newPortRig(t *testing.T, change ...func(*Config)) *portRig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	shown := keyPair(t, "n1")
	p := &portRig{address: l.Addr().String(), journal: &fakeJournal{used: map[string]time.Time{}}}
	p.rig = newRig(t, append([]func(*Config){func(c *Config) {
		c.Port = &Port{Listener: l, Endpoint: "n1.example:7443", Certificate: func(context.Context) (*tls.Certificate, error) { return shown, nil }}
		c.Journal = p.journal
	}}, change...)...)
	p.auth = lbdv1.NewAuthServiceClient(p.conn)
	_, err = p.store.ProposeCommand(t.Context(), &raftv1.Command{Kind: &raftv1.Command_Authority{Authority: &raftv1.AuthorityCommand{
		Authority: &raftv1.Authority{Certificate: shown.Certificate[0], SealedKey: []byte("sealed")}, Time: timestamppb.New(now),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// keyPair is a self-signed certificate that is valid now, by the clock of the tests.
func keyPair(t *testing.T, host string) *tls.Certificate {
	t.Helper()
	pair, err := newPair([]string{host}, now.Add(-time.Hour), now.Add(1000*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return tlsPair(t, pair)
}

func tlsPair(t *testing.T, pair KeyPair) *tls.Certificate {
	t.Helper()
	key, err := x509.ParsePKCS8PrivateKey(pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: pair.Chain, PrivateKey: key}
}

// bearer is a token as a client sends it.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }

// dialPort connects to the port with what a caller has.
func (p *portRig) dialPort(certificate *tls.Certificate, options ...grpc.DialOption) *grpc.ClientConn {
	p.t.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true} // what the node shows is tested where it is made
	if certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	conn, err := grpc.NewClient(p.address, append(options, grpc.WithTransportCredentials(credentials.NewTLS(config)))...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (p *portRig) socket() string { return filepath.Join(p.dir, "control.sock") }

// dialSocket connects to the socket, with what a caller has beside its user.
func (p *portRig) dialSocket(options ...grpc.DialOption) *grpc.ClientConn {
	p.t.Helper()
	conn, err := grpc.NewClient("unix:"+p.socket(), append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func withToken(token string) grpc.DialOption { return grpc.WithPerRPCCredentials(bearer(token)) }

// makeToken makes one by the socket and returns it with its secret.
func (p *portRig) makeToken(role lbdv1.Role, owners ...string) (*lbdv1.Token, string) {
	p.t.Helper()
	answer, err := p.auth.CreateToken(p.ctx(), &lbdv1.CreateTokenRequest{Role: role, Owners: owners, Description: "ci"})
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.GetToken(), answer.GetSecret()
}

// register makes a client certificate a credential.
func (p *portRig) register(certificate *tls.Certificate, role lbdv1.Role, owners ...string) *lbdv1.Token {
	p.t.Helper()
	answer, err := p.auth.CreateToken(p.ctx(), &lbdv1.CreateTokenRequest{Role: role, Owners: owners, CertificatePem: pemOf(certificate)})
	if err != nil {
		p.t.Fatal(err)
	}
	return answer.GetToken()
}

func pemOf(certificate *tls.Certificate) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}))
}

// as is a rig whose changes are made over another connection.
func (p *portRig) as(conn *grpc.ClientConn) *rig {
	return &rig{t: p.t, dir: p.dir, store: p.store, keys: p.keys, observer: p.observer, log: p.log, server: p.server, conn: conn,
		config: lbdv1.NewConfigServiceClient(conn)}
}

// whoAmI asks over a connection.
func (p *portRig) whoAmI(conn *grpc.ClientConn) (*lbdv1.WhoAmIResponse, error) {
	return lbdv1.NewAuthServiceClient(conn).WhoAmI(p.ctx(), &lbdv1.WhoAmIRequest{})
}

// clock is the server's time.
func (p *portRig) clock() time.Time { return now.Add(time.Duration(p.later.Load())) }

// fakeJournal keeps everything.
type fakeJournal struct {
	mu      sync.Mutex
	refused []*lbdv1.ListAuditResponse
	used    map[string]time.Time
}

func (j *fakeJournal) Refuse(entry *lbdv1.ListAuditResponse) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.refused = append(j.refused, proto.CloneOf(entry))
}

func (j *fakeJournal) Note(entry *lbdv1.ListAuditResponse) { j.Refuse(entry) }

func (j *fakeJournal) Refusals(since time.Time) []*lbdv1.ListAuditResponse {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(j.refused), func(e *lbdv1.ListAuditResponse) bool { return !e.GetTime().AsTime().After(since) })
}

func (j *fakeJournal) Use(token string, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.used[token] = at
}

func (j *fakeJournal) LastUse(token string) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.used[token]
}

func (j *fakeJournal) last() *lbdv1.ListAuditResponse {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.refused) == 0 {
		return nil
	}
	return j.refused[len(j.refused)-1]
}
