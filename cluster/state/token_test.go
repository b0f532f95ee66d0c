package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

var tokenTime = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func newToken(id string, role lbdv1.Role, owners ...string) *raftv1.StoredToken {
	return &raftv1.StoredToken{Token: &lbdv1.Token{Id: id, Role: role, Owners: owners, Description: "ci"}, SecretSha256: bytes.Repeat([]byte{1}, 32)}
}

func newPin(id, digit string) *raftv1.StoredToken {
	return &raftv1.StoredToken{Token: &lbdv1.Token{Id: id, Role: lbdv1.Role_ROLE_VIEWER, PublicKey: "sha256:" + strings.Repeat(digit, 64)}}
}

func creates(at time.Time, requestID string, tokens ...*raftv1.StoredToken) *raftv1.TokenCommand {
	return &raftv1.TokenCommand{
		Author: "node/n1 uid=0", Time: timestamppb.New(at), RequestId: requestID, Creates: tokens,
		Origin: &raftv1.Origin{Source: "unix", Method: "AuthService/CreateToken"},
	}
}

func revokes(at time.Time, ids ...string) *raftv1.TokenCommand {
	return &raftv1.TokenCommand{
		Author: "node/n1 uid=0", Time: timestamppb.New(at), Revokes: ids, Origin: &raftv1.Origin{Source: "10.0.0.9", Method: "AuthService/RevokeToken"},
	}
}

func applyToken(s *state.State, cmd *raftv1.TokenCommand) (*state.State, state.Result) {
	return s.Apply(&raftv1.Command{Kind: &raftv1.Command_Token{Token: cmd}})
}

func mustToken(t *testing.T, s *state.State, cmd *raftv1.TokenCommand) *state.State {
	t.Helper()
	next, res := applyToken(s, cmd)
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	return next
}

func tokenIDs(s *state.State) (ids []string) {
	for stored := range s.Tokens() {
		ids = append(ids, stored.GetToken().GetId())
	}
	return ids
}

func audited(s *state.State) (lines []string) {
	for e := range s.Audit(time.Time{}) {
		lines = append(lines, fmt.Sprintf("%s|%s|%s|%s|%s|%d", e.GetAuthor(), e.GetSource(), e.GetMethod(), e.GetResult(), e.GetMessage(), e.GetRevision()))
	}
	return lines
}

func TestTokens(t *testing.T) {
	s := mustToken(t, state.New("c"), creates(tokenTime, "", newToken("b1", lbdv1.Role_ROLE_EDITOR, "shop"), newPin("a1", "0")))
	if got := tokenIDs(s); !slices.Equal(got, []string{"a1", "b1"}) {
		t.Errorf("tokens %v", got)
	}
	stored, ok := s.Token("b1")
	if !ok || stored.GetToken().GetAuthor() != "node/n1 uid=0" || !stored.GetToken().GetCreateTime().AsTime().Equal(tokenTime) || len(stored.GetSecretSha256()) != 32 {
		t.Errorf("stored %v", stored)
	}
	if byKey, ok := s.TokenOfKey("sha256:" + strings.Repeat("0", 64)); !ok || byKey.GetToken().GetId() != "a1" {
		t.Errorf("by key: %v", byKey)
	}
	if _, ok := s.TokenOfKey(""); ok {
		t.Error("a token without a key was found by none")
	}
	if s.Revision() != 0 {
		t.Errorf("a token made revision %d", s.Revision())
	}
	s = mustToken(t, s, revokes(tokenTime, "a1"))
	if _, ok := s.TokenOfKey("sha256:" + strings.Repeat("0", 64)); ok || !slices.Equal(tokenIDs(s), []string{"b1"}) {
		t.Errorf("after a1 is revoked: %v", tokenIDs(s))
	}
	var missing *state.MissingError
	if _, res := applyToken(s, revokes(tokenTime, "a1")); !errors.As(res.Err, &missing) {
		t.Errorf("revoked twice: %v", res.Err)
	}
	want := []string{
		"node/n1 uid=0|unix|AuthService/CreateToken|accepted|made token b1: editor of shop, ci|0",
		"node/n1 uid=0|unix|AuthService/CreateToken|accepted|made client certificate a1: viewer, without a description|0",
		"node/n1 uid=0|10.0.0.9|AuthService/RevokeToken|accepted|revoked client certificate a1: viewer, without a description|0",
	}
	if got := audited(s); !slices.Equal(got, want) {
		t.Errorf("audit:\n%s", strings.Join(got, "\n"))
	}
}

// One client certificate is one credential, also of one command.
func TestKeyIsOneCredential(t *testing.T) {
	_, res := applyToken(state.New("c"), creates(tokenTime, "", newPin("a1", "0"), newPin("b2", "0")))
	if res.Err == nil || !strings.Contains(res.Err.Error(), "is the credential of token `a1` already") {
		t.Errorf("made twice: %v", res.Err)
	}
}

// A repeated call is answered with the token that the first one made, though id and secret are made anew for each.
func TestTokenIsMadeOnce(t *testing.T) {
	s := mustToken(t, state.New("c"), creates(tokenTime, "r1", newToken("a1", lbdv1.Role_ROLE_VIEWER)))
	again := newToken("b2", lbdv1.Role_ROLE_VIEWER)
	again.SecretSha256 = bytes.Repeat([]byte{2}, 32)
	next, res := applyToken(s, creates(tokenTime.Add(time.Minute), "r1", again))
	if res.Err != nil || !res.Replayed || len(res.Changes) != 1 || res.Changes[0].GetName() != "a1" || !slices.Equal(tokenIDs(next), []string{"a1"}) {
		t.Errorf("%+v, tokens %v", res, tokenIDs(next))
	}
	var conflict *state.ConflictError
	if _, res := applyToken(s, creates(tokenTime, "r1", newToken("c3", lbdv1.Role_ROLE_ADMIN))); !errors.As(res.Err, &conflict) || conflict.Reason != state.RequestIDReused {
		t.Errorf("the same id for another token: %v", res.Err)
	}
}

func TestTokensRefused(t *testing.T) {
	s := mustToken(t, state.New("c"), creates(tokenTime, "", newToken("a1", lbdv1.Role_ROLE_VIEWER), newPin("p1", "0")))
	for what, c := range map[string]struct {
		change func(*raftv1.StoredToken)
		field  string
	}{
		"no role":          {func(t *raftv1.StoredToken) { t.Token.Role = 0 }, "role"},
		"unknown role":     {func(t *raftv1.StoredToken) { t.Token.Role = 9 }, "role"},
		"id that is taken": {func(t *raftv1.StoredToken) { t.Token.Id = "a1" }, "id"},
		"no id":            {func(t *raftv1.StoredToken) { t.Token.Id = "" }, "id"},
		"id with a slash":  {func(t *raftv1.StoredToken) { t.Token.Id = "a/b" }, "id"},
		"upper-case id":    {func(t *raftv1.StoredToken) { t.Token.Id = "AB" }, "id"},
		"long id":          {func(t *raftv1.StoredToken) { t.Token.Id = strings.Repeat("a", 17) }, "id"},
		"no secret":        {func(t *raftv1.StoredToken) { t.SecretSha256 = nil }, "secret_sha256"},
		"secret and key":   {func(t *raftv1.StoredToken) { t.Token.PublicKey = "sha256:" + strings.Repeat("1", 64) }, "public_key"},
		"no key":           {func(t *raftv1.StoredToken) { t.Token.PublicKey, t.SecretSha256 = "sha256:12", nil }, "public_key"},
		"key that is taken": {func(t *raftv1.StoredToken) {
			t.Token.PublicKey, t.SecretSha256 = "sha256:"+strings.Repeat("0", 64), nil
		}, "certificate_pem"},
		"has expired":        {func(t *raftv1.StoredToken) { t.Token.ExpireTime = timestamppb.New(tokenTime) }, "expire_time"},
		"no time":            {func(t *raftv1.StoredToken) { t.Token.ExpireTime = &timestamppb.Timestamp{Nanos: -1} }, "expire_time"},
		"owner twice":        {func(t *raftv1.StoredToken) { t.Token.Owners = []string{"a", "a"} }, "owners[1]"},
		"no owner's name":    {func(t *raftv1.StoredToken) { t.Token.Owners = []string{"a", "B b"} }, "owners[1]"},
		"a name, no owner's": {func(t *raftv1.StoredToken) { t.Token.Owners = []string{"a", "a.b_c"} }, "owners[1]"},
		"too many owners":    {func(t *raftv1.StoredToken) { t.Token.Owners = manyOwners(101) }, "owners"},
		"long description":   {func(t *raftv1.StoredToken) { t.Token.Description = strings.Repeat("x", 257) }, "description"},
		"line in the middle": {func(t *raftv1.StoredToken) { t.Token.Description = "a\nb" }, "description"},
	} {
		t.Run(what, func(t *testing.T) {
			token := newToken("z9", lbdv1.Role_ROLE_VIEWER)
			c.change(token)
			next, res := applyToken(s, creates(tokenTime, "", token))
			var invalid *state.InvalidError
			if !errors.As(res.Err, &invalid) || next != s {
				t.Fatalf("%v", res.Err)
			}
			if !slices.ContainsFunc(invalid.Violations, func(v *lbdv1.Violation) bool { return v.GetField() == c.field }) {
				t.Errorf("violations %v, want one of %s", invalid.Violations, c.field)
			}
		})
	}
}

func manyOwners(n int) (owners []string) {
	for i := range n {
		owners = append(owners, fmt.Sprintf("o%d", i))
	}
	return owners
}

// What expired is remembered for a while, so that its user is told, but neither holds a key nor counts for ever.
func TestExpiredTokensGo(t *testing.T) {
	short := newPin("p1", "0")
	short.Token.ExpireTime = timestamppb.New(tokenTime.Add(time.Hour))
	s := mustToken(t, state.New("c"), creates(tokenTime, "", short))
	later := tokenTime.Add(2 * time.Hour)
	s = mustToken(t, s, creates(later, "", newToken("a1", lbdv1.Role_ROLE_VIEWER)))
	if got := tokenIDs(s); !slices.Equal(got, []string{"a1", "p1"}) || !state.TokenExpired(short.GetToken(), later) {
		t.Errorf("an hour later: %v", got)
	}
	s = mustToken(t, s, creates(later, "", newPin("p2", "0"))) // the key is free again
	if got := tokenIDs(s); !slices.Equal(got, []string{"a1", "p2"}) {
		t.Errorf("with the key used anew: %v", got)
	}
	brief := newToken("b1", lbdv1.Role_ROLE_VIEWER)
	brief.Token.ExpireTime = timestamppb.New(later.Add(time.Second))
	s = mustToken(t, s, creates(later, "", brief))
	s = mustToken(t, s, creates(later.Add(60*24*time.Hour), "", newToken("c1", lbdv1.Role_ROLE_VIEWER)))
	if got := tokenIDs(s); !slices.Equal(got, []string{"a1", "c1", "p2"}) {
		t.Errorf("two months later: %v", got)
	}
}

func TestTokensAreBounded(t *testing.T) {
	s := state.New("c")
	for i := range state.TokensMax {
		s = mustToken(t, s, creates(tokenTime, "", newToken(fmt.Sprintf("t%d", i), lbdv1.Role_ROLE_VIEWER)))
	}
	var invalid *state.InvalidError
	if _, res := applyToken(s, creates(tokenTime, "", newToken("more", lbdv1.Role_ROLE_VIEWER))); !errors.As(res.Err, &invalid) {
		t.Errorf("one more than the limit: %v", res.Err)
	}
	if _, res := applyToken(s, revokes(tokenTime, "t0")); res.Err != nil {
		t.Errorf("revoking at the limit: %v", res.Err)
	}
}

func settings(localAdmin bool, at time.Time) *raftv1.Command {
	return &raftv1.Command{Kind: &raftv1.Command_Change{Change: &raftv1.ChangeCommand{
		Owner: "ops", Author: "a", Time: timestamppb.New(at),
		Upserts: []*raftv1.StoredResource{{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_ClusterSettings{
			ClusterSettings: &lbdv1.ClusterSettings{LocalAdmin: proto.Bool(localAdmin)},
		}}}},
	}}}
}

// Somebody can always administer the cluster: local_admin goes only while another admin is there, and that one stays then.
func TestSomebodyStaysAdmin(t *testing.T) {
	refused := func(s *state.State) bool {
		_, res := s.Apply(settings(false, tokenTime))
		var invalid *state.InvalidError
		return errors.As(res.Err, &invalid) && invalid.Violations[0].GetField() == "cluster_settings.local_admin"
	}
	expired := newToken("e1", lbdv1.Role_ROLE_ADMIN)
	expired.Token.ExpireTime = timestamppb.New(tokenTime)
	s := mustToken(t, state.New("c"), creates(tokenTime.Add(-time.Hour), "", expired, newToken("b1", lbdv1.Role_ROLE_ADMIN, "shop"), newToken("d1", lbdv1.Role_ROLE_EDITOR)))
	pinned := newPin("p1", "0")
	pinned.Token.Role = lbdv1.Role_ROLE_ADMIN
	s = mustToken(t, s, creates(tokenTime.Add(-time.Hour), "", pinned))
	if !refused(state.New("c")) || !refused(s) {
		t.Error("local_admin went while nobody else administers")
	}
	if _, res := s.Apply(settings(true, tokenTime)); res.Err != nil {
		t.Errorf("saying what holds anyway: %v", res.Err)
	}
	s = mustToken(t, s, creates(tokenTime, "", newToken("a1", lbdv1.Role_ROLE_ADMIN), newToken("a2", lbdv1.Role_ROLE_ADMIN)))
	s, res := s.Apply(settings(false, tokenTime))
	if res.Err != nil || s.Settings().LocalAdmin {
		t.Fatalf("with two admins: %v", res.Err)
	}
	s = mustToken(t, s, revokes(tokenTime, "a1"))
	if next, res := applyToken(s, revokes(tokenTime, "a2")); !errors.Is(res.Err, state.ErrLastAdmin) || next != s {
		t.Errorf("the last admin was revoked: %v", res.Err)
	}
	s = mustToken(t, s, revokes(tokenTime, "d1"))
	if s, res = s.Apply(settings(true, tokenTime)); res.Err != nil {
		t.Fatal(res.Err)
	}
	mustToken(t, s, revokes(tokenTime, "a2"))
	if !state.New("c").Settings().LocalAdmin {
		t.Error("local_admin is false by default")
	}
}

// Whatever is in the state survives a snapshot and the durable form.
func TestIdentityIsStored(t *testing.T) {
	s := mustToken(t, state.New("c"), creates(tokenTime, "r1", newToken("a1", lbdv1.Role_ROLE_ADMIN), newPin("p1", "0")))
	s, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Authority{Authority: &raftv1.AuthorityCommand{
		Authority: &raftv1.Authority{Certificate: []byte("der"), SealedKey: []byte("sealed")}, Time: timestamppb.New(tokenTime),
	}}})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	loaded, err := state.Load(s.Header(), s.Records())
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Index() != s.Index() || !slices.Equal(audited(loaded), audited(s)) || !slices.Equal(tokenIDs(loaded), tokenIDs(s)) {
		t.Errorf("loaded %v %v", tokenIDs(loaded), audited(loaded))
	}
	if a, ok := loaded.Authority(); !ok || string(a.GetSealedKey()) != "sealed" {
		t.Errorf("authority %v", a)
	}
	other, res := loaded.Apply(&raftv1.Command{Kind: &raftv1.Command_Authority{Authority: &raftv1.AuthorityCommand{
		Authority: &raftv1.Authority{Certificate: []byte("other"), SealedKey: []byte("other")}, Time: timestamppb.New(tokenTime),
	}}})
	if a, _ := other.Authority(); res.Err != nil || !res.Replayed || string(a.GetCertificate()) != "der" {
		t.Errorf("a second authority: %v, %+v", a, res)
	}
	if _, res := state.New("c").Apply(&raftv1.Command{Kind: &raftv1.Command_Authority{Authority: &raftv1.AuthorityCommand{}}}); res.Err == nil {
		t.Error("an empty authority was stored")
	}
}

func TestAuditIsBounded(t *testing.T) {
	s := state.New("c")
	at := tokenTime
	for i := range state.AuditKeptMin + 10 {
		s = mustToken(t, s, creates(at, "", newToken("a1", lbdv1.Role_ROLE_VIEWER)))
		s = mustToken(t, s, revokes(at, "a1"))
		if i == state.AuditKeptMin/2 {
			at = at.Add(state.AuditKeptFor + time.Hour)
		}
	}
	n := 0
	for e := range s.Audit(time.Time{}) {
		if n++; e.GetTime().AsTime().Before(at) {
			t.Fatalf("an entry of %v is kept", e.GetTime().AsTime())
		}
	}
	if n < state.AuditKeptMin {
		t.Errorf("%d entries are kept, at least %d of these times", n, state.AuditKeptMin)
	}
	if got := len(slices.Collect(s.Audit(at))); got != 0 {
		t.Errorf("%d entries later than the last", got)
	}
	// A change that finds everything so leaves no entry.
	s, _ = s.Apply(settings(true, at))
	before := len(audited(s))
	if s, _ = s.Apply(settings(true, at)); len(audited(s)) != before {
		t.Error("a change of nothing is in the audit")
	}
	if last := audited(s)[before-1]; !strings.HasSuffix(last, "|owner ops: 1 created, 0 updated, 0 deleted: cluster_settings|1") {
		t.Errorf("the change's entry: %s", last)
	}
}
