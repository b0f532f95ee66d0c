package rpc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base32"
	"encoding/pem"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// authService answers lbd.v1.AuthService.
type authService struct {
	lbdv1.UnimplementedAuthServiceServer
	node     string
	endpoint string // empty: no control port
	store    Store
	journal  Journal
	writer   *writer
	fleet    *fleet
}

func newAuthService(cfg Config, f *fleet, w *writer) *authService {
	s := &authService{node: cfg.Node, store: cfg.Store, journal: cfg.Journal, writer: w, fleet: f}
	if cfg.Port != nil {
		s.endpoint = cfg.Port.Endpoint
	}
	return s
}

// CreateToken makes a credential: a bearer token, whose secret is in the answer and nowhere else, or a client certificate's key.
func (s *authService) CreateToken(ctx context.Context, req *lbdv1.CreateTokenRequest) (*lbdv1.CreateTokenResponse, error) {
	token := &lbdv1.Token{
		Description: req.GetDescription(), Role: req.GetRole(), Owners: req.GetOwners(), ExpireTime: req.GetExpireTime(),
	}
	violations := state.TokenFaults(token, s.writer.now())
	stored := &raftv1.StoredToken{Token: token}
	token.Id = randomText(tokenIDBytes)
	secret := ""
	if text := req.GetCertificatePem(); text != "" {
		leaf, err := leafOfPEM(text)
		if err != nil {
			violations = append(violations, violation("certificate_pem", "%v", err))
		} else {
			token.PublicKey = publicKeyPin(leaf)
		}
	} else {
		secret = randomText(tokenSecretBytes)
		sum := sha256.Sum256([]byte(secret))
		stored.SecretSha256 = sum[:]
		secret = tokenPrefix + token.GetId() + "_" + secret
	}
	if len(violations) > 0 {
		return nil, invalid(violations)
	}
	result, err := s.writer.token(ctx, &raftv1.TokenCommand{RequestId: req.GetRequestId(), Creates: []*raftv1.StoredToken{stored}})
	if err != nil {
		return nil, err
	}
	if result.Replayed {
		secret = ""
	}
	current := s.store.State()
	made, ok := current.Token(tokenOf(result))
	if !ok {
		return nil, notFound("tokens", "the token that this request made once was revoked since")
	}
	if s.endpoint != "" {
		awaitAuthority(ctx, s.store)
	}
	return &lbdv1.CreateTokenResponse{
		Token: made.GetToken(), Secret: secret, CaPin: s.caPin(), Endpoint: s.endpoint, Warnings: unboundedOwners(current, req.GetOwners()),
	}, nil
}

// ListTokens reads all credentials.
func (s *authService) ListTokens(context.Context, *lbdv1.ListTokensRequest) (*lbdv1.ListTokensResponse, error) {
	out := &lbdv1.ListTokensResponse{}
	for stored := range s.store.State().Tokens() {
		out.Tokens = append(out.Tokens, s.shown(stored.GetToken()))
	}
	return out, nil
}

// shown is a token with what this node knows of its use.
func (s *authService) shown(t *lbdv1.Token) *lbdv1.Token {
	used := s.journal.LastUse(t.GetId())
	if used.IsZero() {
		return t
	}
	t = proto.CloneOf(t)
	t.LastUseTime = timestamppb.New(used)
	return t
}

// RevokeToken ends a credential, and its calls in flight.
func (s *authService) RevokeToken(ctx context.Context, req *lbdv1.RevokeTokenRequest) (*lbdv1.RevokeTokenResponse, error) {
	if req.GetId() == "" {
		return nil, invalidField("id", "the token's id is missing: what is between the underscores of `lbt_<id>_<secret>`")
	}
	stored, ok := s.store.State().Token(req.GetId())
	if _, err := s.writer.token(ctx, &raftv1.TokenCommand{RequestId: req.GetRequestId(), Revokes: []string{req.GetId()}}); err != nil {
		return nil, err
	}
	if !ok { // a retry
		return &lbdv1.RevokeTokenResponse{Token: &lbdv1.Token{Id: req.GetId()}}, nil
	}
	return &lbdv1.RevokeTokenResponse{Token: s.shown(stored.GetToken())}, nil
}

// WhoAmI says how the cluster sees the caller.
func (s *authService) WhoAmI(ctx context.Context, _ *lbdv1.WhoAmIRequest) (*lbdv1.WhoAmIResponse, error) {
	c, err := callerOf(ctx)
	if err != nil {
		return nil, err
	}
	out := &lbdv1.WhoAmIResponse{
		Author: c.Author, Role: c.Role, Owners: c.Owners, Kind: c.Kind, TokenId: c.TokenID, Source: c.Source, Node: s.node, NodeId: s.nodeID(), CaPin: s.caPin(),
	}
	if !c.Expire.IsZero() {
		out.ExpireTime = timestamppb.New(c.Expire)
	}
	return out, nil
}

// nodeID is this node's in the membership; empty: it is alone.
func (s *authService) nodeID() string {
	if s.fleet.seat == nil {
		return ""
	}
	return s.fleet.id
}

// awaitAuthority waits for what the first start of a cluster makes in its first moments, so that whoever gets a token is told what to
// pin. It gives up soon: the answer has the token's only copy.
func awaitAuthority(ctx context.Context, store Store) {
	timer := time.NewTimer(authorityWait)
	defer timer.Stop()
	for {
		next := store.Next()
		if _, ok := store.State().Authority(); ok {
			return
		}
		select {
		case <-next:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// caPin is what a client pins; empty where the node has no control port, or the cluster no authority yet.
func (s *authService) caPin() string {
	a, ok := s.store.State().Authority()
	if s.endpoint == "" || !ok {
		return ""
	}
	return pin(a.GetCertificate())
}

// token takes a command about credentials into the log, in the caller's name.
func (w *writer) token(ctx context.Context, cmd *raftv1.TokenCommand) (state.Result, error) {
	by, err := callerOf(ctx)
	if err != nil {
		return state.Result{}, err
	}
	cmd.Author, cmd.Time, cmd.Origin = by.Author, timestamppb.New(w.now()), origin(ctx)
	life, cancel := context.WithTimeout(w.life, proposeTimeoutMax)
	defer cancel()
	result, err := w.store.ProposeCommand(life, &raftv1.Command{Kind: &raftv1.Command_Token{Token: cmd}})
	if err == nil {
		err = result.Err
	}
	return result, err
}

// tokenOf is the id that a command made, now or when it came first.
func tokenOf(result state.Result) string {
	if len(result.Changes) == 0 {
		return ""
	}
	return result.Changes[0].GetName()
}

// unboundedOwners warns of owners whose tokens may write any host and backend.
func unboundedOwners(current *state.State, owners []string) []string {
	var warnings []string
	for _, owner := range owners {
		if _, ok := current.Get(state.Owners, owner); !ok {
			warnings = append(warnings, fmt.Sprintf("there is no owners/%s: tokens of owner `%s` may use any host and backend", owner, owner))
		}
	}
	return warnings
}

// leafOfPEM reads a client certificate.
func leafOfPEM(text string) (*x509.Certificate, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("is no certificate in PEM: want a block that begins with `-----BEGIN CERTIFICATE-----`")
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if claimsNode(leaf) {
		return nil, fmt.Errorf("is a node's: people and pipelines have others")
	}
	return leaf, nil
}

// randomText has n random bytes, as lower-case letters and digits.
func randomText(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b))
}

const (
	tokenIDBytes     = 5 // eight characters
	tokenSecretBytes = 32
)
