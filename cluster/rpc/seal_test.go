package rpc

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"filippo.io/age"
	"google.golang.org/grpc/codes"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
	"lbd/tls/seal"
)

const testSealKeys = "the key"

// fakeSealing has one key under which everything is.
type fakeSealing struct{}

func (fakeSealing) SealKeys() ([]string, string)                              { return []string{"k1"}, "test" }
func (fakeSealing) SealKeyOf([]byte) (string, error)                          { return "k1", nil }
func (fakeSealing) Rewrap(_ string, s state.Secret, _ string) ([]byte, error) { return s.Sealed, nil }
func (fakeSealing) StageSealKey(context.Context) (string, error)              { return "k2", nil }
func (fakeSealing) AddSealKeys(context.Context, []byte) error                 { return nil }
func (fakeSealing) ActivateSealKey(string) error                              { return nil }
func (fakeSealing) RetireSealKey(string) error                                { return nil }
func (fakeSealing) SealKeyText([]string) []byte                               { return []byte(testSealKeys) }
func (fakeSealing) Resealer([]byte) (Reseal, error) {
	return func(_, _ string, s state.Secret) ([]byte, error) { return s.Sealed, nil }, nil
}

// realKeys seals as a node does.
type realKeys struct {
	*testKeys
	ring *seal.Ring
}

func newRealKeys(t *testing.T) *realKeys {
	t.Helper()
	source, err := seal.ParseSource("", filepath.Join(t.TempDir(), "seal.key"))
	if err != nil {
		t.Fatal(err)
	}
	ring, err := seal.OpenRing(t.Context(), source, true)
	if err != nil {
		t.Fatal(err)
	}
	return &realKeys{testKeys: &testKeys{}, ring: ring}
}

func bindingOf(clusterID string, s state.Secret) seal.Binding {
	return seal.Binding{ClusterID: clusterID, Kind: string(s.Kind), Name: s.Name, Version: s.Version}
}

func (k *realKeys) Seal(clusterID, certificate string, publicKeySHA256, key []byte) ([]byte, error) {
	s := state.SecretOf(&raftv1.StoredResource{
		Resource: &lbdv1.Resource{Spec: &lbdv1.Resource_Certificate{Certificate: &lbdv1.Certificate{Name: certificate}}},
		Material: &raftv1.CertificateMaterial{PublicKeySha256: publicKeySHA256},
	})
	return k.ring.Sealer().Seal(bindingOf(clusterID, s), key), nil
}

func (k *realKeys) SealKeys() ([]string, string) {
	return k.ring.Sealer().KeyIDs(), k.ring.Source().String()
}
func (k *realKeys) SealKeyOf(sealed []byte) (string, error) { return seal.KeyOf(sealed) }
func (k *realKeys) Rewrap(clusterID string, s state.Secret, key string) ([]byte, error) {
	sealer, err := k.ring.Sealer().Under(key)
	if err != nil {
		return nil, err
	}
	return sealer.Rewrap(bindingOf(clusterID, s), s.Sealed)
}
func (k *realKeys) StageSealKey(ctx context.Context) (string, error) {
	id, err := k.ring.Stage(ctx)
	if errors.Is(err, seal.ErrFull) {
		return "", &SealFullError{}
	}
	return id, err
}
func (k *realKeys) AddSealKeys(ctx context.Context, text []byte) error {
	others, err := seal.ParseKeys(text)
	if err != nil {
		return err
	}
	return k.ring.Add(ctx, others)
}
func (k *realKeys) ActivateSealKey(id string) error { return k.ring.Activate(id) }
func (k *realKeys) RetireSealKey(id string) error   { return k.ring.Retire(id) }
func (k *realKeys) SealKeyText(ids []string) []byte { return k.ring.Sealer().KeyText(ids...) }
func (k *realKeys) Resealer(text []byte) (Reseal, error) {
	openers := []*seal.Sealer{k.ring.Sealer()}
	if len(text) > 0 {
		other, err := seal.ParseKeys(text)
		if err != nil {
			return nil, err
		}
		openers = append(openers, other)
	}
	return func(from, to string, s state.Secret) ([]byte, error) {
		for _, opener := range openers {
			plain, err := opener.Open(bindingOf(from, s), s.Sealed)
			if err == nil {
				return k.ring.Sealer().Seal(bindingOf(to, s), plain), nil
			}
			if !errors.Is(err, seal.ErrUnknownKey) {
				return nil, err
			}
		}
		id, _ := seal.KeyOf(s.Sealed)
		return nil, &SealKeyError{ID: id}
	}, nil
}

// sealRig is a server with real sealing keys beside the rig's own, on the same state.
type sealRig struct {
	*rig
	keys    *realKeys
	store   *memoryStore
	cluster lbdv1.ClusterServiceClient
	backup  lbdv1.BackupServiceClient
}

func newSealRig(t *testing.T) *sealRig {
	t.Helper()
	r := newRig(t)
	if err := r.server.Close(); err != nil {
		t.Fatal(err)
	}
	cfg, keys := r.serverConfig(), newRealKeys(t)
	cfg.Keys = keys
	var err error
	if r.server, err = Serve(cfg); err != nil {
		t.Fatal(err)
	}
	return &sealRig{r, keys, r.store, lbdv1.NewClusterServiceClient(r.conn), lbdv1.NewBackupServiceClient(r.conn)}
}

// opens tells whether every secret opens as what it is.
func (r *sealRig) opens(t *testing.T) {
	t.Helper()
	st := r.store.State()
	for secret := range st.Secrets() {
		if _, err := r.keys.ring.Sealer().Open(bindingOf(st.ClusterID(), secret), secret.Sealed); err != nil {
			t.Error(err)
		}
	}
}

func (r *sealRig) status(t *testing.T) []*lbdv1.SealKey {
	t.Helper()
	answer, err := r.cluster.GetSealStatus(r.ctx(), &lbdv1.GetSealStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetKeys()
}

// withCertificates stores two, one of them twice.
func (r *sealRig) withCertificates(t *testing.T) {
	t.Helper()
	for _, host := range []string{"a.example", "b.example", "a.example"} {
		id := newIdentity(t, host)
		r.mustApply(owner("web"), pemCertificate(host[:1], id.chain, id.key))
	}
}

func TestRotateSeal(t *testing.T) {
	r := newSealRig(t)
	r.withCertificates(t)
	before, etag := r.store.State().Revision(), r.etag("a")
	first := r.status(t)[0].GetId()
	answer, err := r.cluster.RotateSeal(r.ctx(), &lbdv1.RotateSealRequest{RequestId: "r1"})
	if err != nil {
		t.Fatal(err)
	}
	keys := answer.GetKeys()
	if answer.GetResealed() != 3 || len(keys) != 2 || !keys[0].GetActive() || keys[0].GetSecrets() != 2 || keys[0].GetHistorySecrets() != 1 ||
		keys[1].GetId() != first || keys[1].GetSecrets()+keys[1].GetHistorySecrets() != 0 {
		t.Errorf("%v", answer)
	}
	r.opens(t)
	if r.store.State().Revision() != before || r.etag("a") != etag {
		t.Error("a rotation made a revision, or changed an etag")
	}
	// A retry of the call does not rotate again.
	if again, err := r.cluster.RotateSeal(r.ctx(), &lbdv1.RotateSealRequest{RequestId: "r1"}); err != nil || len(again.GetKeys()) != 2 || again.GetResealed() != 0 {
		t.Errorf("retry: %v, %v", again, err)
	}
	// Another call does, and the history's first key is retired only once nothing is under it.
	if _, err := r.cluster.RotateSeal(r.ctx(), &lbdv1.RotateSealRequest{RequestId: "r2"}); err != nil {
		t.Fatal(err)
	}
	active := r.status(t)[0].GetId()
	if _, err := r.cluster.RetireSeal(r.ctx(), &lbdv1.RetireSealRequest{Id: active}); failureOf(t, err).reason != reasonSealKey {
		t.Errorf("retire the active key: %v", err)
	}
	if _, err := r.cluster.RetireSeal(r.ctx(), &lbdv1.RetireSealRequest{Id: "0000"}); failureOf(t, err).code != codes.NotFound {
		t.Errorf("retire nothing: %v", err)
	}
	for range 2 { // a retry is answered as the first time
		left, err := r.cluster.RetireSeal(r.ctx(), &lbdv1.RetireSealRequest{Id: first, RequestId: "r3"})
		if err != nil || len(left.GetKeys()) != 2 {
			t.Errorf("retire: %v, %v", left, err)
		}
	}
	r.opens(t)
}

func (r *sealRig) etag(name string) string {
	stored, _ := r.store.State().Get(state.Certificates, name)
	return stored.GetResource().GetEtag()
}

// TestRotationThatWasCutOff: whatever was done before, the next call finishes it with the key that was staged.
// TestSealKeysAreFew: one too many is refused with what to do, which helps.
func TestSealKeysAreFew(t *testing.T) {
	r := newSealRig(t)
	var err error
	for range 100 {
		if _, err = r.cluster.RotateSeal(r.ctx(), &lbdv1.RotateSealRequest{}); err != nil {
			break
		}
	}
	f := failureOf(t, err)
	ids, _ := r.keys.SealKeys()
	last := ids[len(ids)-1]
	if f.code != codes.FailedPrecondition || f.reason != reasonSealKey || !strings.Contains(f.message, "--retire ID") || !strings.Contains(f.message, last) || strings.Contains(f.message, ids[0]) {
		t.Fatalf("after %d keys: %v", len(ids), f)
	}
	if _, err := r.cluster.RetireSeal(r.ctx(), &lbdv1.RetireSealRequest{Id: last}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.cluster.RotateSeal(r.ctx(), &lbdv1.RotateSealRequest{}); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestRotationThatWasCutOff(t *testing.T) {
	r := newSealRig(t)
	r.withCertificates(t)
	old := r.status(t)[0].GetId()
	id, err := r.keys.ring.Stage(t.Context())
	if err == nil {
		err = r.keys.ring.Activate(id)
	}
	if err != nil { // and no further
		t.Fatal(err)
	}
	staged := r.keys.ring.Sealer().KeyID()
	other := newIdentity(t, "c.example") // sealed meanwhile
	r.mustApply(owner("web"), pemCertificate("c", other.chain, other.key))
	if _, err := r.cluster.RetireSeal(r.ctx(), &lbdv1.RetireSealRequest{Id: old}); failureOf(t, err).reason != reasonSealKey || !strings.Contains(err.Error(), "rotate again to finish") {
		t.Errorf("retire: %v", err)
	}
	answer, err := r.cluster.RotateSeal(r.ctx(), &lbdv1.RotateSealRequest{})
	if err != nil || answer.GetKeys()[0].GetId() != staged || len(answer.GetKeys()) != 2 || answer.GetResealed() != 3 {
		t.Errorf("%v, %v", answer, err)
	}
	r.opens(t)
}

// TestWhatWasCutOffIsFinished: also without another call.
func TestWhatWasCutOffIsFinished(t *testing.T) {
	r := newSealRig(t)
	r.withCertificates(t)
	id, err := r.keys.ring.Stage(t.Context())
	if err == nil {
		err = r.keys.ring.Activate(id)
	}
	if err != nil { // and no further
		t.Fatal(err)
	}
	cfg := r.serverConfig()
	cfg.Keys, cfg.Store = r.keys, r.store
	s := newClusterService(cfg, nil, nil, newWriter(cfg, t.Context()))
	secrets := len(slices.Collect(r.store.State().Secrets()))
	for _, want := range []int64{int64(secrets), 0} {
		if n, err := s.finishSealing(t.Context()); n != want || err != nil {
			t.Errorf("%d sealed anew, want %d: %v", n, want, err)
		}
	}
	if keys := r.status(t); keys[0].GetId() != id || keys[1].GetSecrets()+keys[1].GetHistorySecrets() != 0 {
		t.Errorf("keys %v", keys)
	}
	if told := r.audits(); !strings.Contains(told[len(told)-1], "what was cut off is finished") {
		t.Errorf("audit %q", told)
	}
	r.opens(t)
}

// TestResealBatches: no command grows larger than an entry of the log, and none is lost.
func TestResealBatches(t *testing.T) {
	var all []*raftv1.Reseal
	for range 5000 {
		all = append(all, &raftv1.Reseal{BeforeSha256: make([]byte, 32), Sealed: make([]byte, 300)})
	}
	n := 0
	for batch := range resealBatches(all) {
		size := 0
		for _, s := range batch {
			size += len(s.GetSealed()) + len(s.GetBeforeSha256()) + 16
		}
		if size > state.PartBytesMax {
			t.Errorf("a batch of %d bytes", size)
		}
		n += len(batch)
	}
	if n != len(all) {
		t.Errorf("%d of %d", n, len(all))
	}
}

func TestExportSealKey(t *testing.T) {
	r := newSealRig(t)
	who, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	audit := r.audits()
	answer, err := r.cluster.ExportSealKey(r.ctx(), &lbdv1.ExportSealKeyRequest{Recipients: []string{who.Recipient().String()}})
	if err != nil || !strings.HasPrefix(answer.GetFile(), "-----BEGIN AGE ENCRYPTED FILE-----") {
		t.Fatalf("%v, %v", answer, err)
	}
	if told := r.audits(); len(told) != len(audit)+1 || !strings.HasPrefix(told[len(told)-1], "ClusterService/ExportSealKey") {
		t.Errorf("audit %q", told)
	}
	for _, recipients := range [][]string{nil, {"age1nope"}} {
		if _, err := r.cluster.ExportSealKey(r.ctx(), &lbdv1.ExportSealKeyRequest{Recipients: recipients}); failureOf(t, err).code != codes.InvalidArgument {
			t.Errorf("%q: %v", recipients, err)
		}
	}
}

func (r *sealRig) audits() (all []string) {
	for entry := range r.store.State().Audit(now.AddDate(-1, 0, 0)) {
		all = append(all, entry.GetMethod()+" "+entry.GetMessage())
	}
	return all
}

func TestDeleteAndPurge(t *testing.T) {
	r := newSealRig(t)
	r.withCertificates(t)
	remove := func(name string, purge bool) (*lbdv1.DeleteResponse, error) {
		return r.certs.Delete(r.ctx(), &lbdv1.DeleteRequest{Name: name, Purge: purge, RequestId: name, Message: "gone"})
	}
	if _, err := remove("z", false); failureOf(t, err).code != codes.NotFound {
		t.Errorf("delete nothing: %v", err)
	}
	if _, err := remove("z", true); failureOf(t, err).code != codes.NotFound {
		t.Errorf("purge nothing: %v", err)
	}
	if answer, err := remove("b", false); err != nil || answer.GetPurged() != 0 || answer.GetRevision() != 4 {
		t.Errorf("delete: %v, %v", answer, err)
	}
	for i, purged := range []int64{2, 0} { // and a retry
		if answer, err := remove("a", true); err != nil || answer.GetPurged() != purged || answer.GetRevision() != 5 {
			t.Errorf("purge %d: %v, %v", i, answer, err)
		}
	}
	if answer, err := remove("b", true); err != nil || answer.GetPurged() != 1 { // deleted before; its request replays that
		t.Errorf("purge of what is deleted: %v, %v", answer, err)
	}
	if n := len(slices.Collect(r.store.State().Secrets())); n != 0 {
		t.Errorf("%d secrets are left", n)
	}
	if _, err := r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web"}); failureOf(t, err).code != codes.NotFound || !strings.Contains(err.Error(), "was purged") {
		t.Errorf("rollback: %v", err)
	}
}
