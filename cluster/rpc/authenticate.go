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
	"google.golang.org/grpc/status"

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
	// peers tell who is a node of the cluster; nil: nobody is.
	peers *Peers
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
		if chain := info.State.PeerCertificates; len(chain) > 0 && claimsNode(chain[0]) {
			return a.fromNode(source, chain[0], header)
		}
		return a.certificate(source, info.State.PeerCertificates)
	}
	return Caller{}, unauthenticated(reasonNoCredential, "the caller is not known")
}

// local is a caller of the control socket.
func (a *authenticator) local(u user) Caller {
	c := a.socket(a.node, u, int(u.uid) == os.Geteuid(), a.rescue)
	c.shown = shown{socket: true, uid: u.uid, role: u.role}
	return c
}

// socket is a caller of a node's control socket. Without local_admin the machine's own users operate, and change nothing. But where no
// admin's token is good any more, root (of a private socket, who lbd runs as, too) is an admin again: somebody has to be.
func (a *authenticator) socket(node string, u user, ours, rescue bool) Caller {
	role := u.role
	current := a.store.State()
	last := (u.uid == 0 || ours) && !current.Settings().LocalAdmin && !current.HasAdmin(a.now())
	if !current.Settings().LocalAdmin && !last && !rescue {
		role = min(role, lbdv1.Role_ROLE_OPERATOR)
	}
	return Caller{Author: fmt.Sprintf("node/%s uid=%d", node, u.uid), Kind: kindSocket, Role: role, Source: "unix"}
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
		err := unauthenticated(reasonBadCredential, "the token `lbt_%s_…` is not known: it was revoked, is of another cluster, or is misspelt", clip(id))
		if !known {
			err = &unknownCredential{err}
		}
		return Caller{}, err
	}
	c, err := a.holder(source, kindToken, stored)
	c.shown = shown{authorization: values[0]}
	return c, err
}

// unknownCredential is a credential that the state does not have; one that was made a moment ago may be on its way here.
type unknownCredential struct{ error }

// GRPCStatus is what the caller is answered.
func (e *unknownCredential) GRPCStatus() *status.Status { return status.Convert(e.error) }

// certificate is a caller who has proven to hold the key of a client certificate. Who signed it does not matter: the key was
// named when the credential was made.
func (a *authenticator) certificate(source string, chain []*x509.Certificate) (Caller, error) {
	if len(chain) == 0 {
		return Caller{}, unauthenticated(reasonNoCredential, "this takes a token or a client certificate")
	}
	leaf := chain[0]
	stored, known := a.store.State().TokenOfKey(publicKeyPin(leaf))
	if !known {
		return Caller{}, &unknownCredential{unauthenticated(reasonBadCredential, "the client certificate's key is not known here: %s", publicKeyPin(leaf))}
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
	c.shown = shown{certificate: leaf.Raw}
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
