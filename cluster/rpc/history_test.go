package rpc

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

// fieldsOf writes changes with their fields, one a line.
func fieldsOf(changes []*lbdv1.Change) string {
	var b strings.Builder
	for _, c := range changes {
		b.WriteString(changesOf([]*lbdv1.Change{c}) + "\n")
		for _, f := range c.GetFields() {
			fmt.Fprintf(&b, "  %s: %q to %q\n", f.GetPath(), f.GetBefore(), f.GetAfter())
		}
	}
	return b.String()
}

func TestApplyDeletes(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	r.mustApply(owner("api"), pool("api", "192.0.2.2:80"))

	for what, test := range map[string]struct {
		key  string
		code codes.Code
	}{
		"in use":    {"pools/shop", codes.InvalidArgument},
		"missing":   {"pools/shoq", codes.InvalidArgument},
		"no kind":   {"pots/shop", codes.InvalidArgument},
		"another's": {"pools/api", codes.Aborted},
	} {
		_, err := r.send(append(r.request(owner("web")), deletes(test.key)))
		if f := failureOf(t, err); f.code != test.code {
			t.Errorf("delete what is %s: %v, want %v", what, f, test.code)
		}
	}
	answer, err := r.send(append(r.request(owner("web")), deletes("route/shop"), deletes("pools/shop")))
	if err != nil {
		t.Fatal(err)
	}
	if got := changesOf(answer.GetChanges()); got != "delete pools/shop, delete routes/shop" {
		t.Errorf("changes %q", got)
	}
}

func TestPrune(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example")
	r.mustApply(owner("web"), append(web(), pool("spare", "192.0.2.3:80"))...)
	if _, err := r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "a", ChainPem: id.chain, KeyPem: id.key, Create: true, Owner: "web"}); err != nil {
		t.Fatal(err)
	}
	r.mustApply(owner("api"), pool("api", "192.0.2.2:80"))
	prune := func(id string) *lbdv1.ApplyHeader {
		return &lbdv1.ApplyHeader{Owner: "web", Prune: true, RequestId: id}
	}

	// A difference shows what prune would delete.
	shown, err := r.diff(r.request(prune(""), web()...))
	if err != nil {
		t.Fatal(err)
	}
	if got := changesOf(shown.GetChanges()); got != "delete pools/spare" || len(shown.GetWarnings()) != 0 {
		t.Errorf("difference %q, warnings %v", got, shown.GetWarnings())
	}

	// Neither what no apply made nor what is another's goes; a retry is answered as the first call was.
	var first *lbdv1.ApplyResponse
	for range 2 {
		answer, err := r.apply(prune("p"), web()...)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = answer
		}
		if got := changesOf(answer.GetChanges()); got != "delete pools/spare" || answer.GetRevision() != first.GetRevision() {
			t.Errorf("prune: revision %d, %q", answer.GetRevision(), got)
		}
	}
	// What somebody still refers to is refused.
	r.mustApply(owner("api"), &lbdv1.Route{Name: "api", Listeners: []string{"own"}, Hosts: []string{"api.example"},
		Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "shop"}}}}}, listener("own", ":8081"))
	_, err = r.apply(prune(""), listener("http", ":8080"), pool("other", "192.0.2.1:80"), route("shop", "http", "other"))
	if f := failureOf(t, err); f.code != codes.InvalidArgument || !strings.Contains(f.fields[`pools["shop"]`], "is used by route `api`") {
		t.Errorf("prune what is in use: %v", f)
	}
}

func TestPruneMuch(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("a", "192.0.2.1:80"), pool("b", "192.0.2.2:80"), pool("c", "192.0.2.3:80"))
	head := &lbdv1.ApplyHeader{Owner: "web", Prune: true}
	_, err := r.apply(head, pool("a", "192.0.2.1:80"))
	if f := failureOf(t, err); f.code != codes.FailedPrecondition || f.reason != "MASS_DELETE" || !strings.Contains(f.message, "2 of the 3") {
		t.Errorf("prune two of three: %v", f)
	}
	shown, err := r.diff(r.request(head, pool("a", "192.0.2.1:80")))
	if err != nil {
		t.Fatal(err)
	}
	if got := changesOf(shown.GetChanges()); got != "delete pools/b, delete pools/c" || len(shown.GetWarnings()) != 1 {
		t.Errorf("difference %q, warnings %v", got, shown.GetWarnings())
	}
	head.AllowMassDelete = true
	if answer := r.mustApply(head, pool("a", "192.0.2.1:80")); changesOf(answer.GetChanges()) != "delete pools/b, delete pools/c" {
		t.Errorf("changes %q", changesOf(answer.GetChanges()))
	}
}

func TestPreconditions(t *testing.T) {
	r := newRig(t)
	head := owner("web")
	head.IfRevision = proto.Int64(0)
	r.mustApply(head, web()...)
	_, err := r.apply(head, pool("shop", "192.0.2.9:80"))
	if f := failureOf(t, err); f.code != codes.Aborted || f.reason != "REVISION_MISMATCH" || !strings.Contains(f.message, "is 1, not 0") {
		t.Errorf("for an older revision: %v", f)
	}
	got, err := r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	edited := got.GetResource()
	edited.GetPool().Backends[0].Weight = proto.Int32(7)
	requests := append(r.request(owner("web")), &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{
		Resources: &lbdv1.ApplyResources{Resources: []*lbdv1.Resource{edited}}}})
	if _, err := r.send(requests); err != nil {
		t.Fatal(err)
	}
	edited.GetPool().Backends[0].Weight = proto.Int32(8)
	_, err = r.send(requests)
	if f := failureOf(t, err); f.code != codes.Aborted || f.reason != "ETAG_MISMATCH" || !strings.Contains(f.message, "pools/shop is as revision 2") {
		t.Errorf("with the etag of before: %v", f)
	}
}

// A dry run, a difference and the revision that comes of it tell of the same fields.
func TestFields(t *testing.T) {
	r := newRig(t)
	id, next := newIdentity(t, "a.example"), newIdentity(t, "a.example")
	r.mustApply(owner("web"), append(web(), pemCertificate("a", id.chain, id.key))...)
	if _, err := r.backends.SetWeight(r.ctx(), &lbdv1.SetWeightRequest{Pool: "shop", Address: "192.0.2.1:80", Weight: 3}); err != nil {
		t.Fatal(err)
	}
	changed := []proto.Message{pool("shop", "192.0.2.1:80", "192.0.2.2:80"), pemCertificate("a", next.chain, next.key)}

	dry := owner("web")
	dry.ValidateOnly = true
	rehearsed := r.mustApply(dry, changed...)
	shown, err := r.diff(r.request(owner("web"), changed...))
	if err != nil {
		t.Fatal(err)
	}
	if len(shown.GetOverrides()) != 1 || shown.GetOverrides()[0].GetWeight() != 3 || shown.GetOwnerRevision() != 1 {
		t.Errorf("difference %v", shown)
	}
	made := r.mustApply(owner("web"), changed...)
	r.mustApply(owner("web"), pool("shop", "192.0.2.7:80"))
	got, err := r.config.GetRevision(r.ctx(), &lbdv1.GetRevisionRequest{Number: made.GetRevision()})
	if err != nil {
		t.Fatal(err)
	}
	want := fieldsOf(got.GetRevision().GetChanges())
	if !strings.Contains(want, "update certificates/a\n  pem.chain: \"sha256:") ||
		!strings.Contains(want, fmt.Sprintf("pem.key: %q to %q", id.fingerprint(t), next.fingerprint(t))) ||
		!strings.Contains(want, `backends["192.0.2.2:80"]: "" to "{address: 192.0.2.2:80}"`) {
		t.Errorf("revision %d:\n%s", made.GetRevision(), want)
	}
	if dry, shown := fieldsOf(rehearsed.GetChanges()), fieldsOf(shown.GetChanges()); dry != want || shown != want {
		t.Errorf("dry run:\n%sdifference:\n%srevision:\n%s", dry, shown, want)
	}
	if len(made.GetChanges()[0].GetFields()) != 0 {
		t.Error("an apply that is no dry run tells of fields")
	}
	r.mustApply(owner("web"), selfSigned("s", "s.example"))
	rotated, err := r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err = r.config.GetRevision(r.ctx(), &lbdv1.GetRevisionRequest{Number: rotated.GetRevision()}); err != nil {
		t.Fatal(err)
	}
	if got := fieldsOf(got.GetRevision().GetChanges()); !strings.Contains(got, "self_signed: \"sha256:") ||
		!strings.Contains(got, fmt.Sprintf("to %q", rotated.GetCertificate().GetFingerprint())) {
		t.Errorf("a self-signed certificate made anew:\n%s", got)
	}
	if _, err := r.config.GetRevision(r.ctx(), &lbdv1.GetRevisionRequest{Number: 9}); failureOf(t, err).code != codes.NotFound {
		t.Errorf("a revision that is not there: %v", err)
	}
}

func TestRollback(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	r.mustApply(owner("web"), pool("shop", "192.0.2.9:80"), pool("new", "192.0.2.8:80"))

	req := &lbdv1.RollbackRequest{Owner: "web", ValidateOnly: true}
	rehearsed, err := r.config.Rollback(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	want := "delete pools/new\n  backends[\"192.0.2.8:80\"]: \"{address: 192.0.2.8:80}\" to \"\"\n" +
		"update pools/shop\n  backends[\"192.0.2.9:80\"]: \"{address: 192.0.2.9:80}\" to \"\"\n  backends[\"192.0.2.1:80\"]: \"\" to \"{address: 192.0.2.1:80}\"\n"
	if got := fieldsOf(rehearsed.GetChanges()); got != want {
		t.Errorf("dry run:\n%swant:\n%s", got, want)
	}
	// A retry is answered as the first call: it does not roll back what that made, also when more has happened since.
	req = &lbdv1.RollbackRequest{Owner: "web", RequestId: "r", Message: "too slow"}
	for i := range 2 {
		answer, err := r.config.Rollback(r.ctx(), req)
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetRevision() != 3 || changesOf(answer.GetChanges()) != "delete pools/new, update pools/shop" {
			t.Errorf("rolled back: %v", answer)
		}
		if i == 0 {
			r.mustApply(owner("api"), pool("api", "192.0.2.2:80"))
		}
	}
	revision, _ := r.store.State().RevisionAt(3)
	if revision.GetMessage() != "too slow" || !strings.HasPrefix(revision.GetAuthor(), "node/n1 uid=") {
		t.Errorf("revision %v", revision)
	}

	over := owner("api")
	over.TakeOver = true
	r.mustApply(over, pool("shop", "192.0.2.7:80"))
	for what, test := range map[string]struct {
		req  *lbdv1.RollbackRequest
		code codes.Code
	}{
		"no owner":            {&lbdv1.RollbackRequest{}, codes.InvalidArgument},
		"a negative revision": {&lbdv1.RollbackRequest{Owner: "web", To: proto.Int64(-1)}, codes.InvalidArgument},
		"an unknown owner":    {&lbdv1.RollbackRequest{Owner: "wep"}, codes.NotFound},
		"no revision":         {&lbdv1.RollbackRequest{Owner: "web", To: proto.Int64(99)}, codes.NotFound},
		"another's change":    {&lbdv1.RollbackRequest{Owner: "web"}, codes.Aborted},
	} {
		if _, err := r.config.Rollback(r.ctx(), test.req); failureOf(t, err).code != test.code {
			t.Errorf("roll back with %s: %v, want %v", what, err, test.code)
		}
	}
	// Another owner's revision is a moment; nothing of this owner's is newer.
	answer, err := r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web", To: proto.Int64(4)})
	if err != nil || len(answer.GetChanges()) > 0 {
		t.Errorf("rolled back: %v, %v", answer, err)
	}
	// What was taken over stays with who took it.
	answer, err = r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "api"})
	if err != nil {
		t.Fatal(err)
	}
	if w := answer.GetWarnings(); len(w) != 1 || !strings.Contains(w[0].GetDescription(), "belonged to owner `web` then: it stays with `api`") {
		t.Errorf("warnings %v", w)
	}
}

// One revision in the middle is undone, and what came after it stays.
func TestRollbackOnly(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	r.mustApply(owner("web"), pool("shop", "192.0.2.9:80"), pool("new", "192.0.2.8:80"))
	r.mustApply(owner("web"), pool("after", "192.0.2.7:80"))

	req := &lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(2), ValidateOnly: true}
	rehearsed, err := r.config.Rollback(r.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	if got := changesOf(rehearsed.GetChanges()); got != "delete pools/new, update pools/shop" || r.store.State().Revision() != 3 || len(rehearsed.GetChanges()[1].GetFields()) == 0 {
		t.Errorf("dry run: %q at revision %d", got, r.store.State().Revision())
	}
	// A retry is answered as the first call, also when what it undid has been changed since.
	req = &lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(2), RequestId: "r", Message: "too slow"}
	for range 2 {
		answer, err := r.config.Rollback(r.ctx(), req)
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetRevision() != 4 || changesOf(answer.GetChanges()) != "delete pools/new, update pools/shop" {
			t.Errorf("undone: %v", answer)
		}
		r.mustApply(owner("web"), pool("shop", "192.0.2.6:80"))
	}
	if _, kept := r.store.State().Get(state.Pools, "after"); !kept {
		t.Error("what came after is gone")
	}
	_, err = r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(4)})
	if f := failureOf(t, err); f.code != codes.Aborted || f.reason != "CHANGED_LATER" || !strings.Contains(f.message, "pools/shop was changed by revision 5 of owner `web`") {
		t.Errorf("undo what was changed later: %v", f)
	}
	for what, test := range map[string]struct {
		req  *lbdv1.RollbackRequest
		code codes.Code
	}{
		"both":              {&lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(2), To: proto.Int64(2)}, codes.InvalidArgument},
		"no revision":       {&lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(0)}, codes.InvalidArgument},
		"none that is kept": {&lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(99)}, codes.NotFound},
		"another's":         {&lbdv1.RollbackRequest{Owner: "api", Only: proto.Int64(2)}, codes.NotFound},
	} {
		if _, err := r.config.Rollback(r.ctx(), test.req); failureOf(t, err).code != test.code {
			t.Errorf("undo with %s: %v, want %v", what, err, test.code)
		}
	}
}

// From whom a resource was taken over is in the answer, in a difference and in the history.
func TestTakenFrom(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("shop", "192.0.2.1:80"), pool("gone", "192.0.2.1:80"))
	over := owner("api")
	over.TakeOver = true
	taken := func(what string, changes []*lbdv1.Change, want string) {
		t.Helper()
		var got []string
		for _, c := range changes {
			got = append(got, changesOf([]*lbdv1.Change{c})+" "+c.GetTakenFrom())
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %q, want %q", what, strings.Join(got, ", "), want)
		}
	}
	requests := append(r.request(over, pool("shop", "192.0.2.1:80"), pool("mine", "192.0.2.2:80")), deletes("pools/gone"))
	want := "delete pools/gone web, create pools/mine , update pools/shop web"
	shown, err := r.diff(requests)
	if err != nil {
		t.Fatal(err)
	}
	taken("difference", shown.GetChanges(), want)
	made, err := r.send(requests)
	if err != nil {
		t.Fatal(err)
	}
	taken("answer", made.GetChanges(), want)
	got, err := r.config.GetRevision(r.ctx(), &lbdv1.GetRevisionRequest{Number: made.GetRevision()})
	if err != nil {
		t.Fatal(err)
	}
	taken("revision", got.GetRevision().GetChanges(), want)
	taken("later", r.mustApply(owner("api"), pool("shop", "192.0.2.3:80")).GetChanges(), "update pools/shop ")
}

// A rollback that was made of another state than it meets changes nothing.
func TestRollbackLosesARace(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	r.mustApply(owner("web"), pool("shop", "192.0.2.9:80"))
	r.store.instead(func(_ context.Context, change *raftv1.ChangeCommand) (state.Result, error) {
		res, _ := state.Wrap("", pool("shop", "192.0.2.5:80"))
		between := &raftv1.ChangeCommand{Owner: "web", Upserts: []*raftv1.StoredResource{{Resource: res}}}
		if _, err := r.store.applyNow(between); err != nil {
			return state.Result{}, err
		}
		return r.store.applyNow(change)
	})
	_, err := r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web"})
	if f := failureOf(t, err); f.code != codes.Aborted || f.reason != "ETAG_MISMATCH" {
		t.Errorf("a rollback that came too late: %v", f)
	}
}

func TestRollbackCertificates(t *testing.T) {
	r := newRig(t)
	old := identityFor(t, now.Add(-48*time.Hour), now.Add(time.Hour), "a.example")
	fresh := identityFor(t, now.Add(-time.Hour), now.Add(72*time.Hour), "a.example")
	r.mustApply(owner("web"), pemCertificate("a", old.chain, old.key))
	before, _ := r.store.State().Get(state.Certificates, "a")
	r.mustApply(owner("web"), pemCertificate("a", fresh.chain, fresh.key))

	_, err := r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web"})
	if f := failureOf(t, err); f.code != codes.FailedPrecondition || f.reason != "OLDER_CERTIFICATE" || !strings.Contains(f.message, "certificates/a had a leaf valid from") {
		t.Errorf("roll back to an older leaf: %v", f)
	}
	r.advance(2 * time.Hour)
	_, err = r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web"})
	if f := failureOf(t, err); f.code != codes.FailedPrecondition || !strings.Contains(f.message, "expired at") {
		t.Errorf("roll back to an expired leaf: %v", f)
	}
	if _, err = r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web", AllowOlderCertificates: true}); err != nil {
		t.Fatal(err)
	}
	after, _ := r.store.State().Get(state.Certificates, "a")
	if !proto.Equal(before.GetMaterial(), after.GetMaterial()) {
		t.Error("the certificate came back with other content")
	}
	r.mustApply(owner("web"), pool("between", "192.0.2.1:80"))
	if _, err = r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(3)}); err != nil {
		t.Errorf("undo alone, to a newer leaf: %v", err)
	}
	_, err = r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(5)})
	if f := failureOf(t, err); f.code != codes.FailedPrecondition || f.reason != "OLDER_CERTIFICATE" {
		t.Errorf("undo alone, to an expired leaf: %v", f)
	}
	if _, err = r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web", Only: proto.Int64(5), AllowOlderCertificates: true}); err != nil {
		t.Fatal(err)
	}
	// To the newer one there is nothing to ask.
	if _, err = r.config.Rollback(r.ctx(), &lbdv1.RollbackRequest{Owner: "web"}); err != nil {
		t.Errorf("roll back to a newer leaf: %v", err)
	}
}

func TestManagedExternally(t *testing.T) {
	r := newRig(t)
	first, second, third := newIdentity(t, "a.example"), newIdentity(t, "a.example"), newIdentity(t, "a.example")
	managed := func(id identity) *lbdv1.Certificate {
		c := pemCertificate("a", id.chain, id.key)
		c.ManagedExternally = true
		return c
	}
	serves := func(id identity) {
		t.Helper()
		got, err := r.certs.GetStatus(r.ctx(), &lbdv1.CertificateServiceGetStatusRequest{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if c := got.GetCertificates()[0]; c.GetSerial() != id.serial || !c.GetManagedExternally() {
			t.Errorf("stored: %v", c)
		}
	}
	r.mustApply(owner("web"), managed(first)) // without content yet: taken
	serves(first)
	answer := r.mustApply(owner("web"), managed(second))
	if w := answer.GetWarnings(); len(answer.GetChanges()) != 0 || len(w) != 1 || !strings.Contains(w[0].GetDescription(), "managed externally") {
		t.Errorf("other content in an apply: %v", answer)
	}
	serves(first)
	if _, err := r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "a", ChainPem: third.chain, KeyPem: third.key}); err != nil {
		t.Fatal(err)
	}
	labelled := managed(second)
	labelled.Labels = map[string]string{"team": "shop"}
	if answer := r.mustApply(owner("web"), labelled); changesOf(answer.GetChanges()) != "update certificates/a" {
		t.Errorf("new labels: %v", answer)
	}
	serves(third)
	if answer := r.mustApply(owner("web"), r.export("web")[0].GetCertificate()); len(answer.GetChanges()) != 0 || len(answer.GetWarnings()) != 0 {
		t.Errorf("an export applied: %v", answer)
	}
}
