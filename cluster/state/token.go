package state

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// A token is a credential beside the revisions: it is made and revoked, never changed and never rolled back. Whether it has
// expired is judged by the clock of who uses it; what expired long ago goes with the next command about tokens.

// kindTokens is what a remembered request calls a token that it made or revoked.
const kindTokens = "tokens"

// Token finds a credential by its id, whether or not it has expired.
func (s *State) Token(id string) (*raftv1.StoredToken, bool) {
	m, ok := s.records.Get([]byte(tokenKey(id)))
	if !ok {
		return nil, false
	}
	return m.(*raftv1.StoredToken), true
}

// TokenOfKey finds the credential of a client certificate by its public key, "sha256:<hex>".
func (s *State) TokenOfKey(publicKey string) (*raftv1.StoredToken, bool) {
	id := ""
	s.indexed(pinIndex(publicKey), func(rest string) bool {
		id = rest
		return false
	})
	if id == "" {
		return nil, false
	}
	return s.Token(id)
}

// Tokens are all credentials by id, those that have expired too.
func (s *State) Tokens() iter.Seq[*raftv1.StoredToken] {
	return func(yield func(*raftv1.StoredToken) bool) {
		for _, m := range s.prefix(tokenPrefix) {
			if !yield(m.(*raftv1.StoredToken)) {
				return
			}
		}
	}
}

// TokenExpired tells whether a credential is of no use any more at a time.
func TokenExpired(t *lbdv1.Token, now time.Time) bool {
	return t.GetExpireTime() != nil && !t.GetExpireTime().AsTime().After(now)
}

// HasAdmin tells whether there is a bearer token that lets an admin in who is bound to no owner. A client certificate does not count: it
// is of no use where a node has no control port, and its own end is not known here.
func (s *State) HasAdmin(now time.Time) bool {
	for stored := range s.Tokens() {
		t := stored.GetToken()
		if t.GetRole() == lbdv1.Role_ROLE_ADMIN && len(t.GetOwners()) == 0 && t.GetPublicKey() == "" && !TokenExpired(t, now) {
			return true
		}
	}
	return false
}

// AdminUntil is when the last of the tokens that HasAdmin counts ends; zero: one never does. Without any it is the distant past.
func (s *State) AdminUntil() time.Time {
	last := time.Unix(0, 0)
	for stored := range s.Tokens() {
		t := stored.GetToken()
		switch {
		case t.GetRole() != lbdv1.Role_ROLE_ADMIN || len(t.GetOwners()) > 0 || t.GetPublicKey() != "":
		case t.GetExpireTime() == nil:
			return time.Time{}
		case t.GetExpireTime().AsTime().After(last):
			last = t.GetExpireTime().AsTime()
		}
	}
	return last
}

// token makes and revokes credentials, or changes nothing:
//
//  1. answer a repeated request: its result's changes name the tokens
//  2. drop what expired long ago, and what expired at all of the same public key
//  3. refuse what is invalid
//  4. revoke, make
//  5. refuse what would leave no admin
//  6. say so in the audit, remember the request
func (s *State) token(e *edit, cmd *raftv1.TokenCommand) (*State, Result) {
	digest := tokenCommandDigest(cmd)
	if id := cmd.GetRequestId(); id != "" {
		if known, ok := s.request(id); ok {
			return s, replay(known, digest)
		}
	}
	res := Result{Revision: s.revision}
	cmd = normalizeTokens(cmd)
	e.forgetTokens(s, cmd)
	if violations := checkTokenCommand(e.view(), cmd); hasError(violations) {
		res.Err = &InvalidError{violations}
		return s, res
	}
	for _, id := range cmd.GetRevokes() {
		stored, ok := s.Token(id)
		if !ok {
			res.Err = &MissingError{printable("there is no token `" + id + "`"), "tokens/" + id}
			return s, res
		}
		e.remove(tokenKey(id))
		res.Changes = append(res.Changes, &lbdv1.Change{Action: lbdv1.ChangeAction_CHANGE_ACTION_DELETE, Kind: kindTokens, Name: id})
		e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), "revoked "+tokenText(stored.GetToken()), 0)
	}
	for _, stored := range cmd.GetCreates() {
		id := stored.GetToken().GetId()
		e.put(tokenKey(id), stored)
		res.Changes = append(res.Changes, &lbdv1.Change{Action: lbdv1.ChangeAction_CHANGE_ACTION_CREATE, Kind: kindTokens, Name: id})
		e.audit(cmd.GetAuthor(), cmd.GetTime(), cmd.GetOrigin(), "made "+tokenText(stored.GetToken()), 0)
	}
	if now := cmd.GetTime().AsTime(); len(cmd.GetRevokes()) > 0 && !s.Settings().LocalAdmin && !e.view().HasAdmin(now) {
		return s, Result{Revision: s.revision, Err: ErrLastAdmin}
	}
	if id := cmd.GetRequestId(); id != "" {
		e.put(requestKey(s.revision, id), &raftv1.Request{Id: id, Revision: s.revision, Digest: digest, Changes: res.Changes})
		e.forgetRequests()
	}
	return e.state(), res
}

// forgetTokens drops what nobody will ask about any more.
func (e *edit) forgetTokens(s *State, cmd *raftv1.TokenCommand) {
	now := cmd.GetTime().AsTime()
	for stored := range s.Tokens() {
		t := stored.GetToken()
		if TokenExpired(t, now.Add(-tokenExpiredKeptFor)) {
			e.remove(tokenKey(t.GetId()))
		}
	}
	for _, create := range cmd.GetCreates() {
		e.forgetExpired(s, create.GetToken().GetPublicKey(), now)
	}
}

// forgetExpired drops what has expired of a client certificate's key, to make room for another credential of it.
func (e *edit) forgetExpired(s *State, publicKey string, now time.Time) {
	if old, ok := s.TokenOfKey(publicKey); ok && TokenExpired(old.GetToken(), now) {
		e.remove(tokenKey(old.GetToken().GetId()))
	}
}

// normalizeTokens dates and signs what is made.
func normalizeTokens(cmd *raftv1.TokenCommand) *raftv1.TokenCommand {
	n := proto.CloneOf(cmd)
	for _, stored := range n.GetCreates() {
		if t := stored.GetToken(); t != nil {
			t.Author, t.CreateTime, t.LastUseTime = n.GetAuthor(), n.GetTime(), nil
		}
	}
	return n
}

// tokenCommandDigest is a digest of what the caller asked for: neither id nor secret, which are made anew for a retry.
func tokenCommandDigest(cmd *raftv1.TokenCommand) []byte {
	asked := &raftv1.TokenCommand{Revokes: cmd.GetRevokes()}
	for _, stored := range cmd.GetCreates() {
		t := stored.GetToken()
		asked.Creates = append(asked.Creates, &raftv1.StoredToken{Token: &lbdv1.Token{
			Description: t.GetDescription(), Role: t.GetRole(), Owners: t.GetOwners(), ExpireTime: t.GetExpireTime(), PublicKey: t.GetPublicKey(),
		}})
	}
	sum := sha256.Sum256(bytes.Join([][]byte{[]byte("token"), encode(asked)}, []byte{0}))
	return sum[:]
}

// checkTokenCommand reports what is wrong with a normalised command.
func checkTokenCommand(s *State, cmd *raftv1.TokenCommand) []*lbdv1.Violation {
	c := &checker{base: s, next: s}
	c.checkText("author", cmd.GetAuthor(), authorBytesMax)
	c.checkRequestID(cmd.GetRequestId())
	if n := len(cmd.GetCreates()); n > 0 && s.counter(tokensIndex)+int64(n) > tokensMax {
		c.errorf("tokens", "are too many: at most %d are kept, revoke some", tokensMax)
	}
	made, pins := make(map[string]bool), make(map[string]string)
	for _, stored := range cmd.GetCreates() {
		c.checkToken(stored, cmd)
		c.checkPin(stored.GetToken(), pins)
		id := stored.GetToken().GetId()
		if made[id] {
			c.errorf("id", "`%s` is made twice", id)
		}
		made[id] = true
	}
	return c.violations
}

// TokenFaults reports what is wrong with the words of a credential that is to be made at a time.
func TokenFaults(t *lbdv1.Token, now time.Time) []*lbdv1.Violation {
	c := &checker{base: New(""), next: New("")}
	c.checkTokenWords(t, now)
	return c.violations
}

func (c *checker) checkToken(stored *raftv1.StoredToken, cmd *raftv1.TokenCommand) {
	t := stored.GetToken()
	c.checkTokenWords(t, cmd.GetTime().AsTime())
	if id := t.GetId(); id == "" || len(id) > tokenIDBytesMax || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		c.errorf("id", "`%s` is none: want 1 to %d lower-case letters and digits", id, tokenIDBytesMax)
	} else if _, exists := c.base.Token(id); exists {
		c.errorf("id", "`%s` is there already", id)
	}
	switch key := t.GetPublicKey(); {
	case key == "" && len(stored.GetSecretSha256()) != sha256.Size:
		c.errorf("secret_sha256", "has %d bytes: want %d", len(stored.GetSecretSha256()), sha256.Size)
	case key != "" && (len(stored.GetSecretSha256()) > 0 || !isPin(key)):
		c.errorf("public_key", "`%s` is no fingerprint: want `sha256:` and 64 hexadecimal digits, without a secret", key)
	case key != "":
		if other, exists := c.base.TokenOfKey(key); exists {
			c.errorf("certificate_pem", "is the credential of token `%s` already: revoke that one first", other.GetToken().GetId())
		}
	}
}

// checkPin refuses a second credential for one client certificate: revoking either would leave the other. It notes the first.
func (c *checker) checkPin(t *lbdv1.Token, pins map[string]string) {
	key := t.GetPublicKey()
	if key == "" {
		return
	}
	if other := pins[key]; other != "" && other != t.GetId() {
		c.errorf("certificate_pem", "is the credential of token `%s` already: revoke that one first", other)
		return
	}
	pins[key] = t.GetId()
}

func (c *checker) checkTokenWords(t *lbdv1.Token, now time.Time) {
	if _, known := lbdv1.Role_name[int32(t.GetRole())]; !known || t.GetRole() == lbdv1.Role_ROLE_UNSPECIFIED {
		c.errorf("role", "is none: want `viewer`, `operator`, `editor` or `admin`")
	}
	c.checkText("description", t.GetDescription(), authorBytesMax)
	if strings.ContainsFunc(t.GetDescription(), isControl) {
		c.errorf("description", "has a control character")
	}
	c.checkMost("owners", len(t.GetOwners()), tokenOwnersMax)
	c.checkDistinct("owners", t.GetOwners())
	for i, owner := range t.GetOwners() {
		if fault := ownerFault(owner); fault != "" {
			c.errorf(itemPath("owners", i), "%s", fault)
		}
	}
	if expires := t.GetExpireTime(); expires != nil && (!expires.IsValid() || !expires.AsTime().After(now)) {
		c.errorf("expire_time", "has passed: want a time to come, or none")
	}
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// isPin tells whether a text is "sha256:<hex>".
func isPin(text string) bool {
	digits, ok := strings.CutPrefix(text, "sha256:")
	raw, err := hex.DecodeString(digits)
	return ok && err == nil && len(raw) == sha256.Size && digits == strings.ToLower(digits)
}

// tokenText names a credential and what it may do.
func tokenText(t *lbdv1.Token) string {
	what := "token "
	if t.GetPublicKey() != "" {
		what = "client certificate "
	}
	text := what + t.GetId() + ": " + strings.ToLower(strings.TrimPrefix(t.GetRole().String(), "ROLE_"))
	if len(t.GetOwners()) > 0 {
		text += " of " + strings.Join(t.GetOwners(), ", ")
	}
	return text + ", " + cmp.Or(t.GetDescription(), "without a description")
}

func tokenKey(id string) string {
	if id == "" {
		return ""
	}
	return tokenPrefix + id
}

func pinIndex(publicKey string) string { return join("pin", publicKey, "") }
