package state_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// certificate is stored content whose sealed key is a text.
func certificate(name, sealed string) *raftv1.StoredResource {
	return &raftv1.StoredResource{
		Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{Certificate: &lbdv1.Certificate{
			Name: name, Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{}},
		}}},
		Material: &raftv1.CertificateMaterial{Chain: [][]byte{[]byte(name)}, SealedKey: []byte(sealed), PublicKeySha256: []byte("of " + sealed)},
	}
}

func certificateChange(owner string, day int64, upserts ...*raftv1.StoredResource) *raftv1.ChangeCommand {
	return &raftv1.ChangeCommand{Owner: owner, Time: &timestamppb.Timestamp{Seconds: day * 86400}, Upserts: upserts}
}

// sealedIn is what is sealed, as "certificates/a k1" or "certificates/a k1 (history)".
func sealedIn(s *state.State) []string {
	var all []string
	for secret := range s.Secrets() {
		text := string(secret.Kind) + "/" + secret.Name + " " + string(secret.Sealed)
		if secret.History {
			text += " (history)"
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

func wantSealed(t *testing.T, s *state.State, want ...string) {
	t.Helper()
	if got := sealedIn(s); !slices.Equal(got, want) {
		t.Errorf("sealed is %q, want %q", got, want)
	}
}

func resealCommand(pairs ...string) *raftv1.Command {
	cmd := &raftv1.ResealCommand{Author: "admin", Time: &timestamppb.Timestamp{Seconds: 9}, Origin: &raftv1.Origin{Source: "unix", Method: "ClusterService/RotateSeal"}}
	for i := 0; i < len(pairs); i += 2 {
		digest := sha256.Sum256([]byte(pairs[i]))
		cmd.Seals = append(cmd.Seals, &raftv1.Reseal{BeforeSha256: digest[:], Sealed: []byte(pairs[i+1])})
	}
	return &raftv1.Command{Kind: &raftv1.Command_Reseal{Reseal: cmd}}
}

func audits(s *state.State) []string {
	var all []string
	for entry := range s.Audit(time.Time{}) {
		all = append(all, entry.GetAuthor()+": "+entry.GetMessage())
	}
	return all
}

// withHistory has two certificates and what they were before.
func withHistory(t *testing.T) *state.State {
	t.Helper()
	s := mustApply(t, state.New("c"), certificateChange("web", 1, certificate("a", "a1"), certificate("b", "b1")))
	s = mustApply(t, s, certificateChange("web", 2, certificate("a", "a2")))
	wantSealed(t, s, "certificates/a a1 (history)", "certificates/a a2", "certificates/b b1")
	return s
}

// TestReseal: present and history get their new seals, and nothing else changes: no revision, no etag.
func TestReseal(t *testing.T) {
	s := withHistory(t)
	next, res := s.Apply(resealCommand("a1", "A1", "b1", "B1", "gone", "GONE"))
	if res.Err != nil || res.Count != 2 || res.Revision != 2 || next.Revision() != 2 {
		t.Fatalf("%+v", res)
	}
	wantSealed(t, next, "certificates/a A1 (history)", "certificates/a a2", "certificates/b B1")
	wantSealed(t, s, "certificates/a a1 (history)", "certificates/a a2", "certificates/b b1")
	before, _ := s.Get(state.Certificates, "b")
	after, _ := next.Get(state.Certificates, "b")
	if !proto.Equal(before.GetResource(), after.GetResource()) {
		t.Error("the resource differs: what has its etag would be a conflict")
	}
	if told := audits(next); told[len(told)-1] != "admin: 2 secrets sealed anew" {
		t.Errorf("audit %q", told)
	}
	// The same again finds nothing to do, and leaves nothing in the audit.
	again, res := next.Apply(resealCommand("a1", "A1", "b1", "B1"))
	if res.Err != nil || res.Count != 0 || len(audits(again)) != len(audits(next)) {
		t.Errorf("again: %+v", res)
	}
	// An apply of what is there is no change, though its seal is another.
	if _, res := next.Apply(command(certificateChange("web", 3, certificateOf("b", "b1", "new seal")))); res.Err != nil || len(res.Changes) != 0 {
		t.Errorf("apply: %+v", res)
	}
	// A rollback brings back what was sealed anew.
	inverse, err := next.Rollback("web", 1)
	if err != nil || string(inverse.GetUpserts()[0].GetMaterial().GetSealedKey()) != "A1" {
		t.Errorf("rollback %v, %v", inverse, err)
	}
	if got := reencode(t, next); hash(t, got) != hash(t, next) || got.Index() != next.Index() {
		t.Error("a restored state differs")
	}
}

// certificateOf has the public key of one seal, and the bytes of another.
func certificateOf(name, key, sealed string) *raftv1.StoredResource {
	c := certificate(name, key)
	c.Material.SealedKey = []byte(sealed)
	return c
}

func TestResealRefusesWhatIsNoSeal(t *testing.T) {
	s := withHistory(t)
	for _, seal := range []*raftv1.Reseal{
		{Sealed: []byte("x")},
		{BeforeSha256: make([]byte, 31), Sealed: []byte("x")},
		{BeforeSha256: make([]byte, 32)},
	} {
		next, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Reseal{Reseal: &raftv1.ResealCommand{Seals: []*raftv1.Reseal{seal}}}})
		var invalid *state.InvalidError
		if !errors.As(res.Err, &invalid) || next != s {
			t.Errorf("%v: %v", seal, res.Err)
		}
	}
}

// TestResealWithoutSeals is there for the audit: sealing keys were handed out.
func TestResealWithoutSeals(t *testing.T) {
	s := withHistory(t)
	next, res := s.Apply(resealCommand())
	if res.Err != nil || len(audits(next)) != len(audits(s))+1 || hash(t, next) == hash(t, s) {
		t.Errorf("%+v, audit %q", res, audits(next))
	}
	wantSealed(t, next, sealedIn(s)...)
}

func purgeCommand(name string) *raftv1.Command {
	return &raftv1.Command{Kind: &raftv1.Command_Purge{Purge: &raftv1.PurgeCommand{Author: "admin", Time: &timestamppb.Timestamp{Seconds: 9}, Certificate: name}}}
}

func TestPurge(t *testing.T) {
	s := withHistory(t)
	if _, res := s.Apply(purgeCommand("a")); res.Err == nil || !strings.Contains(res.Err.Error(), "is stored: delete it first") {
		t.Errorf("purge of what is stored: %v", res.Err)
	}
	var missing *state.MissingError
	if _, res := s.Apply(purgeCommand("z")); !errors.As(res.Err, &missing) {
		t.Errorf("purge of nothing: %v", res.Err)
	}
	s = mustApply(t, s, &raftv1.ChangeCommand{Owner: "web", Time: &timestamppb.Timestamp{Seconds: 3 * 86400}, Deletes: []string{"certificates/a"}})
	s, _ = s.Apply(part("half a change", 0, 10))
	if s.Uploads() != 1 {
		t.Fatal("no change is under way")
	}
	wantSealed(t, s, "certificates/a a1 (history)", "certificates/a a2 (history)", "certificates/b b1")
	next, res := s.Apply(purgeCommand("a"))
	if res.Err != nil || res.Count != 2 || next.Revision() != s.Revision() {
		t.Fatalf("%+v", res)
	}
	wantSealed(t, next, "certificates/b b1")
	if next.Uploads() != 0 {
		t.Error("a change under way may still have the key")
	}
	if told := audits(next); told[len(told)-1] != "admin: certificates/a purged: 2 keys removed from the history" {
		t.Errorf("audit %q", told)
	}
	for _, to := range []int64{2, 1} {
		if _, err := next.Rollback("web", to); !errors.Is(err, state.ErrNotKept) || !strings.Contains(err.Error(), "the key of certificates/a was purged") {
			t.Errorf("rollback to %d: %v", to, err)
		}
	}
	if _, err := next.RollbackOnly("web", 3); !errors.Is(err, state.ErrNotKept) || !strings.Contains(err.Error(), "was purged") {
		t.Errorf("rollback of its deletion: %v", err)
	}
	if _, err := next.Rollback("web", 0); err != nil { // before it was made
		t.Errorf("rollback to 0: %v", err)
	}
	if past, err := next.At(2); err != nil {
		t.Errorf("the past is gone: %v", err)
	} else if a, ok := past.Get(state.Certificates, "a"); !ok || len(a.GetMaterial().GetChain()) != 1 {
		t.Error("what it was cannot be looked at any more")
	}
	again, res := next.Apply(purgeCommand("a"))
	if res.Err != nil || res.Count != 0 {
		t.Errorf("a repeated purge: %+v", res)
	}
	if got := again.PastOwners(state.Key{Kind: state.Certificates, Name: "a"}); !slices.Equal(got, []string{"web"}) {
		t.Errorf("past owners %q", got)
	}
}

// TestPurgeOfThePast: a certificate that is stored keeps the key that it has, in the history, too; all it had before go.
func TestPurgeOfThePast(t *testing.T) {
	past := func(name string) *raftv1.Command {
		cmd := purgeCommand(name)
		cmd.GetPurge().KeepPresent = true
		return cmd
	}
	s := withHistory(t)
	renewed := certificate("a", "a3") // a new chain for the key of a2
	second, _ := s.Get(state.Certificates, "a")
	renewed.Material.Chain = [][]byte{[]byte("renewed")}
	renewed.Material.PublicKeySha256 = second.GetMaterial().GetPublicKeySha256()
	s = mustApply(t, s, certificateChange("web", 3, renewed))
	wantSealed(t, s, "certificates/a a1 (history)", "certificates/a a2 (history)", "certificates/a a3", "certificates/b b1")
	next, res := s.Apply(past("a"))
	if res.Err != nil || res.Count != 1 || next.Revision() != s.Revision() {
		t.Fatalf("%+v", res)
	}
	wantSealed(t, next, "certificates/a a2 (history)", "certificates/a a3", "certificates/b b1")
	if told := audits(next); told[len(told)-1] != "admin: certificates/a purged of the keys it had before: 1 keys removed from the history" {
		t.Errorf("audit %q", told)
	}
	if _, err := next.Rollback("web", 2); err != nil {
		t.Errorf("rollback to what has the present key: %v", err)
	}
	if _, err := next.Rollback("web", 1); !errors.Is(err, state.ErrNotKept) {
		t.Errorf("rollback to a purged key: %v", err)
	}
	var missing *state.MissingError
	if _, res := next.Apply(past("z")); !errors.As(res.Err, &missing) {
		t.Errorf("purge of nothing: %v", res.Err)
	}
	if _, res := next.Apply(past("b")); res.Err != nil || res.Count != 0 {
		t.Errorf("purge of one without a past: %+v", res)
	}
}

// restoreOf is a restore of all that a state has.
func restoreOf(s *state.State, replace bool) *raftv1.RestoreCommand {
	cmd := &raftv1.RestoreCommand{Author: "admin", Time: &timestamppb.Timestamp{Seconds: 50 * 86400}, Message: "back", Replace: replace}
	for _, kind := range state.Kinds() {
		for stored := range s.All(kind) {
			cmd.Resources = append(cmd.Resources, proto.CloneOf(stored))
		}
	}
	for stored := range s.Tokens() {
		cmd.Tokens = append(cmd.Tokens, proto.CloneOf(stored))
	}
	return cmd
}

func restore(cmd *raftv1.RestoreCommand) *raftv1.Command {
	return &raftv1.Command{Kind: &raftv1.Command_Restore{Restore: cmd}}
}

// twoOwners has resources of two, and settings.
func twoOwners(t *testing.T) *state.State {
	t.Helper()
	s := mustApply(t, state.New("source"), poolChange("web", "shop", "10.0.0.1:80", 1))
	s = mustApply(t, s, poolChange("api", "cart", "10.0.0.2:80", 2))
	s = mustApply(t, s, certificateChange("api", 3, certificate("a", "a1")))
	settings := &raftv1.StoredResource{Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: &lbdv1.ClusterSettings{AllowLinkLocalBackends: proto.Bool(true)}}}}
	s = mustApply(t, s, certificateChange("api", 4, settings))
	s = mustApply(t, s, poolChange("web", "shop", "10.0.0.3:80", 5))
	return s
}

func resourcesText(s *state.State) string {
	var b strings.Builder
	for _, kind := range state.Kinds() {
		for stored := range s.All(kind) {
			r := state.Normalize(stored.GetResource())
			fmt.Fprintf(&b, "%s %d %v %v %s\n", r.GetOwner(), state.Created(stored), r, stored.GetApplied(), stored.GetMaterial().GetSealedKey())
		}
	}
	return b.String()
}

// TestRestoreIntoANewCluster: everything is as it was, of whom it was and as old as it was, in one revision after the backup's newest.
func TestRestoreIntoANewCluster(t *testing.T) {
	source := twoOwners(t)
	next, res := state.New("other").Apply(restore(restoreOf(source, false)))
	if res.Err != nil || res.Revision != 6 || next.Revision() != 6 || len(res.Changes) != 4 {
		t.Fatalf("%+v", res)
	}
	if got, want := resourcesText(next), resourcesText(source); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	r, _ := next.RevisionAt(6)
	if r.GetOwner() != "" || r.GetAuthor() != "admin" || r.GetMessage() != "back" {
		t.Errorf("revision %v", r)
	}
	if told := audits(next); len(told) != 1 {
		t.Errorf("audit %q", told)
	}
	if _, ok := next.ChangedSince(0); ok {
		t.Error("what changed since 0 is known, though revisions were left out")
	}
	if got := reencode(t, next); hash(t, got) != hash(t, next) || got.Index() != next.Index() {
		t.Error("a restored state differs")
	}
	if again, res := next.Apply(restore(restoreOf(source, false))); res.Err != nil || len(res.Changes) != 0 || again.Revision() != 6 {
		t.Errorf("again: %+v", res)
	}
}

// TestRestoreIntoARunningCluster: what the backup does not have goes only where that is allowed, and the history before stays.
func TestRestoreIntoARunningCluster(t *testing.T) {
	source := twoOwners(t)
	cmd := restoreOf(source, false)
	s := mustApply(t, source, poolChange("web", "extra", "10.0.0.9:80", 6))
	s = mustApply(t, s, poolChange("web", "shop", "10.0.0.8:80", 7))
	var conflict *state.ConflictError
	if next, res := s.Apply(restore(cmd)); !errors.As(res.Err, &conflict) || conflict.Reason != state.WouldDelete || len(conflict.Conflicts) != 1 || next != s {
		t.Fatalf("without replace: %+v", res)
	}
	cmd.Replace, cmd.RequestId = true, "r1"
	next, res := s.Apply(restore(cmd))
	if res.Err != nil || res.Revision != 8 || len(res.Changes) != 2 {
		t.Fatalf("%+v", res)
	}
	if got, want := resourcesText(next), resourcesText(source); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	// A rollback over it would undo what is not the owner's.
	if _, err := next.Rollback("web", -1); !errors.As(err, &conflict) || conflict.Reason != state.ChangedSince {
		t.Errorf("rollback: %v", err)
	}
	// One of who is not concerned, and one after it, go on.
	later := mustApply(t, next, poolChange("web", "shop", "10.0.0.7:80", 60))
	if change, err := later.Rollback("web", -1); err != nil || change.GetUpserts()[0].GetResource().GetPool().GetBackends()[0].GetAddress() != "10.0.0.3:80" {
		t.Errorf("rollback of what came after: %v, %v", change, err)
	}
	if past, err := next.At(7); err != nil || resourcesText(past) != resourcesText(s) {
		t.Errorf("the past: %v", err)
	}
	// A retry is answered as the first time, with other bytes of the sealed key, too.
	for _, stored := range cmd.Resources {
		if stored.Material != nil {
			stored.Material.SealedKey = []byte("sealed again")
		}
	}
	if again, res := next.Apply(restore(cmd)); !res.Replayed || res.Revision != 8 || again != next {
		t.Errorf("retry: %+v", res)
	}
}

func storedToken(id string, role lbdv1.Role, expires time.Duration) *raftv1.StoredToken {
	t := &lbdv1.Token{Id: id, Role: role}
	if expires > 0 {
		t.ExpireTime = timestamppb.New(time.Unix(0, 0).Add(expires))
	}
	digest := sha256.Sum256([]byte(id))
	return &raftv1.StoredToken{Token: t, SecretSha256: digest[:]}
}

func TestRestoreOfTokens(t *testing.T) {
	const day = 24 * time.Hour
	s := twoOwners(t)
	s, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Token{Token: &raftv1.TokenCommand{
		Author: "admin", Time: &timestamppb.Timestamp{Seconds: 86400}, Creates: []*raftv1.StoredToken{storedToken("now", lbdv1.Role_ROLE_ADMIN, 0)},
	}}})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	cmd := restoreOf(s, false)
	cmd.Tokens = []*raftv1.StoredToken{storedToken("then", lbdv1.Role_ROLE_VIEWER, 0), storedToken("old", lbdv1.Role_ROLE_ADMIN, 49*day)}
	ids := func(s *state.State) (all []string) {
		for stored := range s.Tokens() {
			all = append(all, stored.GetToken().GetId())
		}
		return all
	}
	next, res := s.Apply(restore(cmd))
	if got := ids(next); res.Err != nil || res.Count != 1 || !slices.Equal(got, []string{"now", "then"}) {
		t.Errorf("tokens %q, %+v", got, res)
	}
	cmd.Replace = true
	next, res = s.Apply(restore(cmd))
	if got := ids(next); res.Err != nil || !slices.Equal(got, []string{"then"}) {
		t.Errorf("with replace: tokens %q, %+v", got, res)
	}
	cmd.Tokens = append(cmd.Tokens, storedToken("then", lbdv1.Role_ROLE_VIEWER, 0))
	if _, res := s.Apply(restore(cmd)); res.Err == nil || !strings.Contains(res.Err.Error(), "is there twice") {
		t.Errorf("a token twice: %v", res.Err)
	}
}

// TestRestoreOfClientCertificates: a key is one credential's, so that revoking that one is enough; what has expired makes room.
func TestRestoreOfClientCertificates(t *testing.T) {
	key := "sha256:" + strings.Repeat("0", 64)
	expired := newPin("gone", "1")
	expired.Token.ExpireTime = &timestamppb.Timestamp{Seconds: 10 * 86400}
	s := mustToken(t, twoOwners(t), creates(time.Unix(86400, 0), "", newPin("here", "0"), expired))
	cmd := restoreOf(s, false)
	want := func(what string, replace bool, refusal, holder string, tokens ...*raftv1.StoredToken) {
		t.Helper()
		cmd.Replace, cmd.Tokens = replace, tokens
		next, res := s.Apply(restore(cmd))
		if refusal != "" {
			if res.Err == nil || !strings.Contains(res.Err.Error(), refusal) || next != s {
				t.Errorf("%s: %v", what, res.Err)
			}
			return
		}
		if stored, _ := next.TokenOfKey(key); res.Err != nil || stored.GetToken().GetId() != holder {
			t.Errorf("%s: %v, the key is that of %v", what, res.Err, stored)
		}
		if got := reencode(t, next); got.Index() != next.Index() {
			t.Errorf("%s: a restored state differs", what)
		}
	}
	want("of another id", false, "is the credential of token `here` already", "", newPin("back", "0"))
	want("of another id, in its place", true, "", "back", newPin("back", "0"))
	want("of the same id", false, "", "here", newPin("here", "0"))
	want("twice in the backup", true, "is the credential of token `back` already", "", newPin("back", "0"), newPin("both", "0"))
	key = expired.GetToken().GetPublicKey()
	want("of one that has expired", false, "", "new", newPin("new", "1"))
}

// TestRestoreKeepsTokensBounded: those that stay count, too.
func TestRestoreKeepsTokensBounded(t *testing.T) {
	tokens := func(letter string) (all []*raftv1.StoredToken) {
		for i := range 600 {
			all = append(all, newToken(fmt.Sprint(letter, i), lbdv1.Role_ROLE_VIEWER))
		}
		return all
	}
	s := mustToken(t, twoOwners(t), creates(time.Unix(86400, 0), "", tokens("a")...))
	cmd := restoreOf(s, false)
	cmd.Tokens = tokens("b")
	if _, res := s.Apply(restore(cmd)); res.Err == nil || !strings.Contains(res.Err.Error(), "at most 1000") {
		t.Errorf("1200 tokens: %v", res.Err)
	}
	cmd.Replace = true
	if next, res := s.Apply(restore(cmd)); res.Err != nil || len(tokenIDs(next)) != 600 {
		t.Errorf("600 in place of 600: %v", res.Err)
	}
}

func TestRestoreRefuses(t *testing.T) {
	source := twoOwners(t)
	for _, test := range []struct {
		name   string
		spoil  func(*raftv1.RestoreCommand)
		reason string
	}{
		{"no owner", func(c *raftv1.RestoreCommand) { c.Resources[0].Resource.Owner = "" }, "has an owner that"},
		{"a revision that cannot be", func(c *raftv1.RestoreCommand) { c.Resources[0].Resource.Revision = 1 << 60 }, "of no revision that there can be"},
		{"twice", func(c *raftv1.RestoreCommand) { c.Resources = append(c.Resources, c.Resources[0]) }, "is there twice"},
		{"no key", func(c *raftv1.RestoreCommand) {
			for _, r := range c.Resources {
				if r.Material != nil {
					r.Material.SealedKey = nil
				}
			}
		}, "has no content to serve"},
		{"invalid", func(c *raftv1.RestoreCommand) {
			for _, r := range c.Resources {
				if p := r.GetResource().GetPool(); p != nil {
					p.ConnectTimeout = durationpb.New(-time.Second)
				}
			}
		}, "connect_timeout"},
	} {
		cmd := restoreOf(source, false)
		test.spoil(cmd)
		s := state.New("other")
		if next, res := s.Apply(restore(cmd)); res.Err == nil || !strings.Contains(res.Err.Error(), test.reason) || next != s {
			t.Errorf("%s: %v", test.name, res.Err)
		}
	}
}

// TestRestoreInParts is one larger than an entry of the log.
func TestRestoreInParts(t *testing.T) {
	cmd := restoreOf(twoOwners(t), false)
	whole, err := proto.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(whole)
	s, parts := state.New("other"), int32(0)
	for piece := range slices.Chunk(whole, 100) {
		var res state.Result
		s, res = s.Apply(&raftv1.Command{Kind: &raftv1.Command_Part{Part: &raftv1.PartCommand{Digest: digest[:], Index: parts, Data: bytes.Clone(piece)}}})
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		parts++
	}
	s, res := s.Apply(&raftv1.Command{Kind: &raftv1.Command_Commit{Commit: &raftv1.CommitCommand{Digest: digest[:], Parts: parts, Restore: true}}})
	if res.Err != nil || res.Revision != 6 || s.Uploads() != 0 {
		t.Errorf("%+v, %d uploads", res, s.Uploads())
	}
}

func TestBackupSettings(t *testing.T) {
	good := "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
	for _, test := range []struct {
		backup *lbdv1.BackupSettings
		want   string // empty: none
	}{
		{&lbdv1.BackupSettings{Schedule: "6h", Directory: "/srv/backup", Recipients: []string{good}}, ""},
		{&lbdv1.BackupSettings{Schedule: "00:00", Directory: "/srv/backup", Keep: 3, Recipients: []string{good}}, ""},
		{&lbdv1.BackupSettings{Schedule: "6h", Directory: "/srv/backup"}, "cluster_settings.backup.recipients: are missing"},
		{&lbdv1.BackupSettings{Directory: "/srv/backup", Recipients: []string{good}}, "cluster_settings.backup.schedule: is required"},
		{&lbdv1.BackupSettings{Schedule: "59m", Directory: "/srv/backup", Recipients: []string{good}}, "must be 1h to 8760h"},
		{&lbdv1.BackupSettings{Schedule: "24:00", Directory: "/srv/backup", Recipients: []string{good}}, "is no time of day"},
		{&lbdv1.BackupSettings{Schedule: "daily", Directory: "/srv/backup", Recipients: []string{good}}, "is no schedule"},
		{&lbdv1.BackupSettings{Schedule: "6h", Recipients: []string{good}}, "cluster_settings.backup.directory: is required"},
		{&lbdv1.BackupSettings{Schedule: "6h", Directory: "srv", Recipients: []string{good}}, "is no absolute path"},
		{&lbdv1.BackupSettings{Schedule: "6h", Directory: "/srv/../etc", Recipients: []string{good}}, "is no absolute path"},
		{&lbdv1.BackupSettings{Schedule: "6h", Directory: "/srv", Keep: -1, Recipients: []string{good}}, "backup.keep"},
		{&lbdv1.BackupSettings{Schedule: "6h", Directory: "/srv", Recipients: []string{"age1x"}}, "is no recipient of age"},
	} {
		settings := &lbdv1.ClusterSettings{Backup: test.backup}
		found := state.Validate(state.New("c"), certificateChange("web", 1, &raftv1.StoredResource{Resource: &lbdv1.Resource{
			Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: settings},
		}}))
		var texts []string
		for _, v := range found {
			texts = append(texts, v.GetField()+": "+v.GetDescription())
		}
		if got := strings.Join(texts, "\n"); test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("%v: %q, want %q", test.backup, got, test.want)
		}
	}
}

// genSealed draws a command about sealed keys or a backup.
func genSealed(t *rapid.T) *raftv1.Command {
	names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	at := &timestamppb.Timestamp{Seconds: rapid.Int64Range(0, 100).Draw(t, "day") * 86400}
	switch rapid.IntRange(0, 2).Draw(t, "what") {
	case 0:
		seals := rapid.SampledFrom([]string{"sealedx", "sealedy"})
		return resealCommand(seals.Draw(t, "before"), seals.Draw(t, "after"))
	case 1:
		return purgeCommand(names.Draw(t, "certificate"))
	}
	cmd := &raftv1.RestoreCommand{Author: "node/a uid=0", Time: at, Replace: rapid.Bool().Draw(t, "replace")}
	for range rapid.IntRange(0, 4).Draw(t, "resources") {
		r := genResource(t, names)
		r.Owner = rapid.SampledFrom([]string{"web", "api"}).Draw(t, "owner")
		cmd.Resources = append(cmd.Resources, &raftv1.StoredResource{Resource: r})
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "tokens") {
		cmd.Tokens = append(cmd.Tokens, storedToken(fmt.Sprint("t", i), lbdv1.Role_ROLE_VIEWER, time.Duration(rapid.IntRange(0, 100).Draw(t, "expires"))*24*time.Hour))
	}
	seal(&raftv1.ChangeCommand{Upserts: cmd.Resources}, rapid.StringMatching(`[xy]`).Draw(t, "seal"))
	if rapid.Bool().Draw(t, "has id") {
		cmd.RequestId = rapid.StringMatching(`[a-d]`).Draw(t, "id")
	}
	return restore(cmd)
}

// TestRestoreGivesBack: what somebody has taken over since is its former owner's again, and the change says from whom it came. What is
// not in the backup is deleted, and taken from nobody.
func TestRestoreGivesBack(t *testing.T) {
	source := twoOwners(t)
	take := poolChange("api", "shop", "10.0.0.6:80", 6)
	take.TakeOver = true
	s := mustApply(t, source, take)
	s = mustApply(t, s, poolChange("api", "extra", "10.0.0.9:80", 7))
	next, res := s.Apply(restore(restoreOf(source, true)))
	if res.Err != nil || len(res.Changes) != 2 {
		t.Fatalf("%+v", res)
	}
	for _, c := range res.Changes {
		if want := map[string]string{"shop": "api"}[c.GetName()]; c.GetTakenFrom() != want {
			t.Errorf("%s: taken from %q, want %q", c.GetName(), c.GetTakenFrom(), want)
		}
	}
	if pool, _ := next.Get(state.Pools, "shop"); pool.GetResource().GetOwner() != "web" || state.Created(pool) != 1 {
		t.Errorf("pool %v", pool)
	}
}

// TestRestoredRoutesKeepTheirOrder: of two that cannot be told apart the older one wins there, too, whatever the new cluster had by
// that name.
func TestRestoredRoutesKeepTheirOrder(t *testing.T) {
	source := mustApply(t, state.New("source"), poolChange("web", "b", "10.0.0.1:80", 1))
	source = mustApply(t, source, poolChange("web", "a", "10.0.0.2:80", 2))
	other := mustApply(t, state.New("other"), poolChange("web", "a", "10.0.0.3:80", 1))
	next, res := other.Apply(restore(restoreOf(source, false)))
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	a, _ := next.Get(state.Pools, "a")
	b, _ := next.Get(state.Pools, "b")
	if state.Created(a) != 2 || state.Created(b) != 1 || next.Revision() != 3 {
		t.Errorf("created %d and %d, revision %d", state.Created(a), state.Created(b), next.Revision())
	}
}
