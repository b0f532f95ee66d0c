package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/backup"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func (r *sealRig) create(t *testing.T, req *lbdv1.CreateBackupRequest) ([]byte, error) {
	t.Helper()
	stream, err := r.backup.CreateBackup(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	var file []byte
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return file, nil
		}
		if err != nil {
			return nil, err
		}
		file = append(file, piece.GetData()...)
	}
}

func (r *sealRig) inspect(t *testing.T, file []byte) (*lbdv1.BackupInfo, error) {
	t.Helper()
	stream, err := r.backup.InspectBackup(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for piece := range slices.Chunk(file, 1000) {
		if stream.Send(&lbdv1.InspectBackupRequest{Data: piece}) != nil {
			break
		}
	}
	answer, err := stream.CloseAndRecv()
	return answer.GetBackup(), err
}

func (r *sealRig) restore(t *testing.T, head *lbdv1.RestoreBackupHeader, file []byte) (*lbdv1.RestoreBackupResponse, error) {
	t.Helper()
	stream, err := r.backup.RestoreBackup(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&lbdv1.RestoreBackupRequest{Part: &lbdv1.RestoreBackupRequest_Header{Header: head}})
	for piece := range slices.Chunk(file, 1000) {
		if err == nil {
			err = stream.Send(&lbdv1.RestoreBackupRequest{Part: &lbdv1.RestoreBackupRequest_Data{Data: piece}})
		}
	}
	return stream.CloseAndRecv()
}

// source is a cluster with resources of two owners, two certificates and a token.
func source(t *testing.T) *sealRig {
	t.Helper()
	r := newSealRig(t)
	r.withCertificates(t)
	r.mustApply(owner("api"), &lbdv1.Pool{Name: "cart", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}}})
	return r
}

// elsewhere is another cluster with keys of its own.
func elsewhere(t *testing.T) *sealRig {
	t.Helper()
	r := newSealRig(t)
	r.store.mu.Lock()
	r.store.state = state.New("cluster-2")
	r.store.mu.Unlock()
	return r
}

func TestBackupToAnotherCluster(t *testing.T) {
	who, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	from := source(t)
	audit := len(from.audits())
	for name, plan := range map[string]struct {
		create *lbdv1.CreateBackupRequest
		head   *lbdv1.RestoreBackupHeader
		says   string
	}{
		"recipient":  {&lbdv1.CreateBackupRequest{Recipients: []string{who.Recipient().String()}}, &lbdv1.RestoreBackupHeader{Identity: who.String()}, "age recipients"},
		"passphrase": {&lbdv1.CreateBackupRequest{Passphrase: "correct horse battery"}, &lbdv1.RestoreBackupHeader{Passphrase: "correct horse battery"}, "passphrase"},
	} {
		file, err := from.create(t, plan.create)
		if err != nil {
			t.Fatal(err)
		}
		audit++
		if told := from.audits(); len(told) != audit || !strings.HasPrefix(told[audit-1], "BackupService/CreateBackup") {
			t.Errorf("%s: audit %q", name, told)
		}
		to := elsewhere(t)
		info, err := to.inspect(t, file)
		if err != nil || info.GetSealingKeys() != plan.says || info.GetKeysKnown() || info.GetClusterId() != "cluster-1" || info.GetRevision() != 4 ||
			info.GetCounts()["certificates"] != 2 || info.GetCounts()["pools"] != 1 || info.GetBytes() != int64(len(file)) || info.GetVersion() != "1.2.3" {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if _, err := to.restore(t, &lbdv1.RestoreBackupHeader{}, file); failureOf(t, err).reason != reasonSealKey {
			t.Errorf("%s: without a key: %v", name, err)
		}
		dry := proto.CloneOf(plan.head)
		dry.ValidateOnly = true
		if answer, err := to.restore(t, dry, file); err != nil || len(answer.GetChanges()) != 3 || to.store.State().Revision() != 0 {
			t.Errorf("%s: dry run: %v, %v", name, answer, err)
		}
		answer, err := to.restore(t, plan.head, file)
		if err != nil || answer.GetRevision() != 5 || len(answer.GetChanges()) != 3 {
			t.Fatalf("%s: %v, %v", name, answer, err)
		}
		to.opens(t)
		ids, _ := to.keys.SealKeys()
		if status := to.status(t); len(status) != 1 || status[0].GetId() != ids[0] || status[0].GetSecrets() != 2 {
			t.Errorf("%s: sealed under %v", name, status)
		}
		r, _ := to.store.State().RevisionAt(5)
		if !strings.HasPrefix(r.GetMessage(), "restore of a backup of revision 4 of cluster cluster-1") {
			t.Errorf("%s: revision %v", name, r)
		}
		pool, ok := to.store.State().Get(state.Pools, "cart")
		if !ok || pool.GetResource().GetOwner() != "api" {
			t.Errorf("%s: pool %v", name, pool)
		}
	}
}

func TestBackupWithoutKeys(t *testing.T) {
	r := source(t)
	audit := len(r.audits())
	file, err := r.create(t, &lbdv1.CreateBackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.audits()) != audit {
		t.Error("it is in the audit, though no key left the node")
	}
	info, err := r.inspect(t, file)
	if err != nil || info.GetSealingKeys() != "none" || !info.GetKeysKnown() {
		t.Errorf("%v, %v", info, err)
	}
	if answer, err := r.restore(t, &lbdv1.RestoreBackupHeader{}, file); err != nil || len(answer.GetChanges()) != 0 {
		t.Errorf("restore of what is so: %v, %v", answer, err)
	}
	if _, err := r.restore(t, &lbdv1.RestoreBackupHeader{Passphrase: "correct horse battery"}, file); failureOf(t, err).fields["passphrase"] == "" {
		t.Errorf("a passphrase for nothing: %v", err)
	}
	// The keys of today open it, though it was made before a rotation.
	if _, err := r.cluster.RotateSeal(r.ctx(), &lbdv1.RotateSealRequest{}); err != nil {
		t.Fatal(err)
	}
	sealedBefore := r.sealed("a")
	if answer, err := r.restore(t, &lbdv1.RestoreBackupHeader{}, file); err != nil || len(answer.GetChanges()) != 0 || !bytes.Equal(r.sealed("a"), sealedBefore) {
		t.Errorf("after a rotation: %v, %v", answer, err)
	}
	id := newIdentity(t, "a.example")
	r.mustApply(owner("web"), pemCertificate("a", id.chain, id.key))
	if answer, err := r.restore(t, &lbdv1.RestoreBackupHeader{RequestId: "r1"}, file); err != nil || len(answer.GetChanges()) != 1 {
		t.Errorf("after a change: %v, %v", answer, err)
	}
	r.opens(t)
	proposed := r.store.State().Revision()
	if answer, err := r.restore(t, &lbdv1.RestoreBackupHeader{RequestId: "r1"}, file); err != nil || answer.GetRevision() != proposed || r.store.State().Revision() != proposed {
		t.Errorf("retry: %v, %v", answer, err)
	}
}

func (r *sealRig) sealed(name string) []byte {
	stored, _ := r.store.State().Get(state.Certificates, name)
	return stored.GetMaterial().GetSealedKey()
}

// TestDamagedBackupChangesNothing: one byte anywhere, or a piece less.
func TestDamagedBackupChangesNothing(t *testing.T) {
	from, to := source(t), elsewhere(t)
	file, err := from.create(t, &lbdv1.CreateBackupRequest{Passphrase: "correct horse battery"})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, bad []byte) {
		t.Helper()
		_, err := to.restore(t, &lbdv1.RestoreBackupHeader{}, bad)
		if f := failureOf(t, err); f.code != codes.InvalidArgument || f.fields["backup"] == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := 0; i < len(file); i += 1 + len(file)/60 {
		bad := bytes.Clone(file)
		bad[i] ^= 1
		refused(fmt.Sprint("byte ", i), bad)
		refused(fmt.Sprint("up to byte ", i), file[:i])
	}
	refused("nothing", nil)
	for want, head := range map[string]*lbdv1.RestoreBackupHeader{
		"passphrase": {Passphrase: "correct horse batterx"},
		"identity":   {Identity: "AGE-SECRET-KEY-1NOPE"},
	} {
		if _, err := to.restore(t, head, file); failureOf(t, err).fields[want] == "" {
			t.Errorf("wrong %s: %v", want, err)
		}
	}
	stream, err := to.backup.RestoreBackup(to.ctx())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&lbdv1.RestoreBackupRequest{Part: &lbdv1.RestoreBackupRequest_Data{Data: file}})
	if _, err := stream.CloseAndRecv(); failureOf(t, err).fields["header"] == "" {
		t.Errorf("no header: %v", err)
	}
	if to.store.State().Revision() != 0 || len(to.audits()) != 0 {
		t.Error("something changed")
	}
}

// TestForgedBackup: a file with a right checksum whose content cannot be.
func TestForgedBackup(t *testing.T) {
	from, to := source(t), elsewhere(t)
	good := slices.Collect(func(yield func(*raftv1.SnapshotRecord) bool) {
		for record := range recordsOf(from.store.State()) {
			if !yield(proto.CloneOf(record.SnapshotRecord)) {
				return
			}
		}
	})
	text := from.keys.SealKeyText(from.keys.ring.Sealer().KeyIDs())
	block, err := backup.EncryptKeys(text, nil, "correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	forge := func(spoil func([]*raftv1.SnapshotRecord) []*raftv1.SnapshotRecord) error {
		var file bytes.Buffer
		records := make([]*raftv1.SnapshotRecord, len(good))
		for i, r := range good {
			records[i] = proto.CloneOf(r)
		}
		if err := backup.Write(&file, &lbdv1.BackupInfo{ClusterId: "cluster-1"}, block, slices.Values(spoil(records))); err != nil {
			t.Fatal(err)
		}
		_, err := to.restore(t, &lbdv1.RestoreBackupHeader{Passphrase: "correct horse battery"}, file.Bytes())
		return err
	}
	certificates := func(records []*raftv1.SnapshotRecord) (all []*raftv1.StoredResource) {
		for _, r := range records {
			if r.GetResource().GetMaterial() != nil {
				all = append(all, r.GetResource())
			}
		}
		return all
	}
	for name, test := range map[string]struct {
		spoil func([]*raftv1.SnapshotRecord) []*raftv1.SnapshotRecord
		want  string
	}{
		"keys swapped": {func(r []*raftv1.SnapshotRecord) []*raftv1.SnapshotRecord {
			c := certificates(r)
			c[0].Material.SealedKey, c[1].Material.SealedKey = c[1].Material.SealedKey, c[0].Material.SealedKey
			return r
		}, "damaged, or sealed as something else"},
		"a key of no form": {func(r []*raftv1.SnapshotRecord) []*raftv1.SnapshotRecord {
			certificates(r)[0].Material.SealedKey = []byte("key")
			return r
		}, "not a sealed secret"},
		"a record of the history": {func(r []*raftv1.SnapshotRecord) []*raftv1.SnapshotRecord {
			return append(r, &raftv1.SnapshotRecord{Record: &raftv1.SnapshotRecord_Revision{Revision: &lbdv1.Revision{}}})
		}, "no resource and no token"},
		"a later field": {func(r []*raftv1.SnapshotRecord) []*raftv1.SnapshotRecord {
			r[0].ProtoReflect().SetUnknown([]byte{0xf8, 0x7f, 1})
			return r
		}, "a newer lbd wrote"},
		"twice": {func(r []*raftv1.SnapshotRecord) []*raftv1.SnapshotRecord { return append(r, r[0]) }, "is there twice"},
	} {
		if err := forge(test.spoil); err == nil || !strings.Contains(err.Error(), test.want) || failureOf(t, err).code != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := forge(func(r []*raftv1.SnapshotRecord) []*raftv1.SnapshotRecord { return r }); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

func TestRestoreWarns(t *testing.T) {
	r := source(t)
	file, err := r.create(t, &lbdv1.CreateBackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	r.mustApply(owner("web"), &lbdv1.Pool{Name: "extra", Backends: []*lbdv1.Backend{{Address: "10.0.0.1:80"}}})
	if _, err := r.restore(t, &lbdv1.RestoreBackupHeader{}, file); failureOf(t, err).reason != string(state.WouldDelete) || failureOf(t, err).code != codes.Aborted {
		t.Errorf("without replace: %v", err)
	}
	r.advance(100 * 24 * time.Hour)
	answer, err := r.restore(t, &lbdv1.RestoreBackupHeader{Replace: true}, file)
	if err != nil {
		t.Fatal(err)
	}
	expired := 0
	for _, w := range answer.GetWarnings() {
		if strings.Contains(w.GetDescription(), "expired at") {
			expired++
		}
	}
	if expired != 2 {
		t.Errorf("warnings %v", answer.GetWarnings())
	}
}

// TestPieces: no message is larger than a piece, and nothing is lost between them.
func TestPieces(t *testing.T) {
	var sent [][]byte
	out := &pieces{send: func(b []byte) error { sent = append(sent, bytes.Clone(b)); return nil }}
	all := bytes.Repeat([]byte("0123456789"), 100_000)
	for chunk := range slices.Chunk(all, 777) {
		if _, err := out.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.flush(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.Join(sent, nil), all) {
		t.Error("what was sent differs")
	}
	for _, piece := range sent {
		if len(piece) > pieceBytes {
			t.Errorf("a piece of %d bytes", len(piece))
		}
	}
}

// TestRestoreNamesTokens: whoever restores is told whose credentials come in, and whether he has one afterwards.
func TestRestoreNamesTokens(t *testing.T) {
	told := func(cluster string, by Caller, replace bool, tokens ...*lbdv1.Token) (lines []string) {
		d := &draft{current: state.New("here"), materials: materials{now: now}, replaces: replace}
		c := &contents{info: &lbdv1.BackupInfo{ClusterId: cluster}}
		for _, token := range tokens {
			c.tokens = append(c.tokens, &raftv1.StoredToken{Token: token})
		}
		d.warnOfTokens(c, by)
		for _, v := range d.violations {
			lines = append(lines, v.GetDescription())
		}
		return lines
	}
	planted := &lbdv1.Token{Id: "p1", Role: lbdv1.Role_ROLE_ADMIN, Description: "innocent"}
	shop := &lbdv1.Token{Id: "s1", Role: lbdv1.Role_ROLE_EDITOR, Owners: []string{"shop"}}
	expired := &lbdv1.Token{Id: "e1", Role: lbdv1.Role_ROLE_ADMIN, ExpireTime: timestamppb.New(now.Add(-time.Hour))}
	mine := Caller{TokenID: "mine", Role: lbdv1.Role_ROLE_ADMIN}
	for _, c := range []struct{ got, want []string }{
		{told("elsewhere", mine, false, planted, shop, expired), []string{"token `p1` (admin, innocent) comes in", "token `s1` (editor of owner `shop`) comes in"}},
		{told("here", Caller{}, true, planted), []string{"token `p1` (admin, innocent) comes back"}},
		{told("here", mine, true, expired), []string{"the token that you call with is not in the backup"}},
		{told("here", mine, true, &lbdv1.Token{Id: "mine", ExpireTime: expired.GetExpireTime()}), nil},
	} {
		if len(c.got) != len(c.want) {
			t.Errorf("told %q, want %q", c.got, c.want)
			continue
		}
		for i, want := range c.want {
			if !strings.HasPrefix(c.got[i], want) {
				t.Errorf("told %q, want %q", c.got[i], want)
			}
		}
	}
	var many []*lbdv1.Token
	for i := range tokensToldMax + 2 {
		many = append(many, &lbdv1.Token{Id: fmt.Sprint("t", i)})
	}
	if got := told("elsewhere", mine, false, many...); len(got) != tokensToldMax+1 || !strings.HasPrefix(got[tokensToldMax], "and 2 more tokens") {
		t.Errorf("of many: %q", got)
	}
}
