package rpc

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// authenticator finds out who makes a call: by the bearer token that comes with it, whichever way it came, else by what the
// connection shows. It neither waits nor writes.
type authenticator struct {
	node  string
	store Store
	now   func() time.Time
	// rescue is Config.LocalAdmin.
	rescue bool
}

// caller identifies who calls, or says why not.
func (a *authenticator) caller(ctx context.Context, header metadata.MD) (Caller, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Caller{}, unauthenticated(reasonNoCredential, "the caller is not known")
	}
	source := sourceOf(p)
	if values := header.Get("authorization"); len(values) > 0 {
		return a.bearer(source, values)
	}
	switch info := p.AuthInfo.(type) {
	case user:
		return a.local(info), nil
	case portPeer:
		return a.certificate(source, info.State.PeerCertificates)
	}
	return Caller{}, unauthenticated(reasonNoCredential, "the caller is not known")
}

// local is a caller of the control socket. Without local_admin the machine's own users operate, and change nothing. But where no
// admin's token is good any more, root (of a private socket, who lbd runs as, too) is an admin again: somebody has to be.
func (a *authenticator) local(u user) Caller {
	role := u.role
	current := a.store.State()
	last := (u.uid == 0 || int(u.uid) == os.Geteuid()) && !current.Settings().LocalAdmin && !current.HasAdmin(a.now())
	if !current.Settings().LocalAdmin && !last && !a.rescue {
		role = min(role, lbdv1.Role_ROLE_OPERATOR)
	}
	return Caller{Author: fmt.Sprintf("node/%s uid=%d", a.node, u.uid), Kind: kindSocket, Role: role, Source: "unix"}
}

// bearer is a caller with a token: "Bearer lbt_<id>_<secret>" (RFC 6750, section 2.1).
func (a *authenticator) bearer(source string, values []string) (Caller, error) {
	scheme, token, _ := strings.Cut(values[0], " ")
	id, secret, ok := splitToken(strings.TrimSpace(token))
	if len(values) > 1 || !strings.EqualFold(scheme, "bearer") || !ok {
		return Caller{}, unauthenticated(reasonBadCredential, "what came as authorization is no token: want `Bearer lbt_…`")
	}
	stored, known := a.store.State().Token(id)
	sum := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(sum[:], stored.GetSecretSha256()) == 0 || !known {
		return Caller{}, unauthenticated(reasonBadCredential, "the token `lbt_%s_…` is not known: it was revoked, is of another cluster, or is misspelt", clip(id))
	}
	return a.holder(source, kindToken, stored)
}

// certificate is a caller who has proven to hold the key of a client certificate. Who signed it does not matter: the key was
// named when the credential was made.
func (a *authenticator) certificate(source string, chain []*x509.Certificate) (Caller, error) {
	if len(chain) == 0 {
		return Caller{}, unauthenticated(reasonNoCredential, "this takes a token or a client certificate")
	}
	leaf := chain[0]
	stored, known := a.store.State().TokenOfKey(publicKeyPin(leaf))
	if !known {
		return Caller{}, unauthenticated(reasonBadCredential, "the client certificate's key is not known here: %s", publicKeyPin(leaf))
	}
	switch now := a.now(); {
	case now.Before(leaf.NotBefore):
		return Caller{}, unauthenticated(reasonExpired, "the client certificate is not valid before %s", utc(leaf.NotBefore))
	case now.After(leaf.NotAfter):
		return Caller{}, unauthenticated(reasonExpired, "the client certificate expired at %s", utc(leaf.NotAfter))
	}
	c, err := a.holder(source, kindCertificate, stored)
	if end := leaf.NotAfter; err == nil && (c.Expire.IsZero() || end.Before(c.Expire)) {
		c.Expire = end
	}
	return c, err
}

// holder is whoever has proven to hold a credential, while it lasts.
func (a *authenticator) holder(source, kind string, stored *raftv1.StoredToken) (Caller, error) {
	t := stored.GetToken()
	if state.TokenExpired(t, a.now()) {
		return Caller{}, unauthenticated(reasonExpired, "%s expired at %s: ask for another one", tokenAuthor(kind, t), utc(t.GetExpireTime().AsTime()))
	}
	c := Caller{Author: tokenAuthor(kind, t), Kind: kind, Role: t.GetRole(), Owners: t.GetOwners(), Source: source, TokenID: t.GetId()}
	if t.GetExpireTime() != nil {
		c.Expire = t.GetExpireTime().AsTime()
	}
	return c, nil
}

// tokenAuthor is who a token's revisions are recorded for: "token ci-shop (k3v9)".
func tokenAuthor(kind string, t *lbdv1.Token) string {
	if t.GetDescription() == "" {
		return kind + " " + t.GetId()
	}
	description := []rune(t.GetDescription())
	if len(description) > authorRunesMax {
		description = append(description[:authorRunesMax-1], '…')
	}
	return fmt.Sprintf("%s %s (%s)", kind, string(description), t.GetId())
}

const tokenPrefix = "lbt_"

// splitToken reads "lbt_<id>_<secret>".
func splitToken(token string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(token, tokenPrefix)
	if !ok {
		return "", "", false
	}
	id, secret, ok = strings.Cut(rest, "_")
	return id, secret, ok && id != "" && secret != ""
}

// publicKeyPin is "sha256:<hex>" of a certificate's public key (SubjectPublicKeyInfo).
func publicKeyPin(c *x509.Certificate) string { return pin(c.RawSubjectPublicKeyInfo) }

func pin(der []byte) string {
	sum := sha256.Sum256(der)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func unauthenticated(reason, format string, args ...any) error {
	return withDetails(codes.Unauthenticated, reason, fmt.Sprintf(format, args...))
}

func permissionDenied(reason, format string, args ...any) error {
	return withDetails(codes.PermissionDenied, reason, fmt.Sprintf(format, args...))
}
