package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func listener(name, address string) *lbdv1.Listener {
	return &lbdv1.Listener{Name: name, Addresses: []string{address}, Protocol: lbdv1.Protocol_PROTOCOL_HTTP}
}

func pool(name string, addresses ...string) *lbdv1.Pool {
	p := &lbdv1.Pool{Name: name}
	for _, a := range addresses {
		p.Backends = append(p.Backends, &lbdv1.Backend{Address: a})
	}
	return p
}

func route(name, listener, pool string) *lbdv1.Route {
	return &lbdv1.Route{
		Name: name, Listeners: []string{listener}, Hosts: []string{name + ".example"},
		Action: &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: pool}}}},
	}
}

func inline(text string) *lbdv1.Content {
	return &lbdv1.Content{Source: &lbdv1.Content_Inline{Inline: text}}
}

// pemCertificate is a certificate as a document holds it; an empty key is left out, "sha256:…" is a fingerprint.
func pemCertificate(name, chain, key string) *lbdv1.Certificate {
	source := &lbdv1.CertificatePem{Chain: inline(chain)}
	switch {
	case strings.HasPrefix(key, "sha256:"):
		source.Key = &lbdv1.Content{Source: &lbdv1.Content_Sha256{Sha256: key}}
	case key != "":
		source.Key = inline(key)
	}
	return &lbdv1.Certificate{Name: name, Source: &lbdv1.Certificate_Pem{Pem: source}}
}

func selfSigned(name string, hosts ...string) *lbdv1.Certificate {
	return &lbdv1.Certificate{Name: name, Source: &lbdv1.Certificate_SelfSigned{
		SelfSigned: &lbdv1.CertificateSelfSigned{Hosts: hosts},
	}}
}

// web is a small document whose parts refer to each other.
func web() []proto.Message {
	return []proto.Message{listener("http", ":8080"), pool("shop", "192.0.2.1:80"), route("shop", "http", "shop")}
}

func changesOf(changes []*lbdv1.Change) string {
	var words []string
	for _, c := range changes {
		action := strings.TrimPrefix(c.GetAction().String(), "CHANGE_ACTION_")
		words = append(words, fmt.Sprintf("%s %s/%s", strings.ToLower(action), c.GetKind(), c.GetName()))
	}
	return strings.Join(words, ", ")
}

func TestApplyMakesOneRevision(t *testing.T) {
	r := newRig(t)
	answer := r.mustApply(&lbdv1.ApplyHeader{Owner: "web", Message: "first"}, web()...)
	if got := changesOf(answer.GetChanges()); answer.GetRevision() != 1 ||
		got != "create listeners/http, create pools/shop, create routes/shop" {
		t.Errorf("revision %d: %s", answer.GetRevision(), got)
	}
	revision, ok := r.store.State().RevisionAt(1)
	if !ok {
		t.Fatal("no revision 1")
	}
	wantAuthor := fmt.Sprintf("node/n1 uid=%d", os.Getuid())
	if revision.GetAuthor() != wantAuthor || revision.GetOwner() != "web" || revision.GetMessage() != "first" ||
		!revision.GetTime().AsTime().Equal(now) {
		t.Errorf("revision %v, want author %q", revision, wantAuthor)
	}

	again := r.mustApply(owner("web"), web()...)
	if again.GetRevision() != 1 || len(again.GetChanges()) != 0 {
		t.Errorf("the same again: revision %d, %s; want 1 and no change", again.GetRevision(), changesOf(again.GetChanges()))
	}
	second := r.mustApply(owner("web"), pool("shop", "192.0.2.2:80"))
	if got := changesOf(second.GetChanges()); second.GetRevision() != 2 || got != "update pools/shop" {
		t.Errorf("revision %d: %s", second.GetRevision(), got)
	}
}

func TestApplyValidateOnly(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	id := newIdentity(t, "a.example")
	head := &lbdv1.ApplyHeader{Owner: "web", ValidateOnly: true}
	answer := r.mustApply(head, pool("shop", "192.0.2.9:80"), pemCertificate("a", id.chain, id.key), selfSigned("b", "b.example"))
	if got := changesOf(answer.GetChanges()); got != "create certificates/a, create certificates/b, update pools/shop" {
		t.Errorf("would change: %s", got)
	}
	if r.store.State().Revision() != 1 || r.store.proposals() != 1 {
		t.Errorf("a dry run left revision %d after %d proposals", r.store.State().Revision(), r.store.proposals())
	}
	if made, sealed := r.keys.counts(); made+sealed > 0 {
		t.Errorf("a dry run made %d keys and sealed %d", made, sealed)
	}
	_, err := r.apply(head, pool("shop", "nowhere"))
	if f := failureOf(t, err); f.code != codes.InvalidArgument {
		t.Errorf("a dry run of an invalid change: %v", f)
	}
	_, err = r.apply(&lbdv1.ApplyHeader{Owner: "other", ValidateOnly: true}, pool("shop", "192.0.2.9:80"))
	if f := failureOf(t, err); f.code != codes.Aborted || f.reason != "OWNED_BY_OTHER" {
		t.Errorf("a dry run of a conflict: %v", f)
	}
}

func TestApplyReportsEveryError(t *testing.T) {
	r := newRig(t)
	id, other := newIdentity(t, "a.example"), newIdentity(t, "b.example")
	_, err := r.apply(owner("web"),
		pool("shop", "nowhere"),
		route("shop", "http", "shpo"),
		pemCertificate("a", id.chain, other.key),
		pemCertificate("b", "no PEM", id.key),
		pemCertificate("c", id.chain, ""),
		&lbdv1.Certificate{Name: "d", Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{
			Chain: &lbdv1.Content{Source: &lbdv1.Content_File{File: "d.pem"}},
			Key:   &lbdv1.Content{Source: &lbdv1.Content_Env{Env: "D"}},
		}}},
		&lbdv1.Certificate{Name: "e", Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{}}},
	)
	f := failureOf(t, err)
	if f.code != codes.InvalidArgument || f.reason != "INVALID" {
		t.Fatalf("%v", f)
	}
	want := map[string]string{
		`pools["shop"].backends[0].address`:    "",
		`routes["shop"].listeners[0]`:          "no listener named `http`",
		`routes["shop"].forward.pools[0].pool`: "did you mean `shop`",
		`certificates["a"].pem.key`:            "does not belong",
		`certificates["b"].pem.chain`:          "no certificate found",
		`certificates["c"].pem.key`:            "no key is stored",
		`certificates["d"].pem.chain`:          "lbctl reads",
		`certificates["d"].pem.key`:            "lbctl reads",
		`certificates["e"].pem.chain`:          "a chain is missing",
	}
	for field, text := range want {
		if got, ok := f.fields[field]; !ok || !strings.Contains(got, text) {
			t.Errorf("%s: %q, want %q in it", field, got, text)
		}
	}
	if len(f.fields) != len(want) {
		t.Errorf("%d causes reported, want %d: %v", len(f.fields), len(want), f.fields)
	}
	if !strings.Contains(f.message, fmt.Sprintf("(and %d more)", len(want)-1)) {
		t.Errorf("message %q does not count them", f.message)
	}
	if r.store.proposals() != 0 {
		t.Error("an invalid change was proposed")
	}
}

func TestApplyConflicts(t *testing.T) {
	r := newRig(t)
	r.mustApply(&lbdv1.ApplyHeader{Owner: "web", RequestId: "id-1"}, web()...)

	_, err := r.apply(owner("intruder"), pool("shop", "192.0.2.9:80"))
	f := failureOf(t, err)
	if f.code != codes.Aborted || f.reason != "OWNED_BY_OTHER" || !strings.Contains(f.message, "pools/shop belongs to owner `web`") {
		t.Errorf("another owner's pool: %v", f)
	}
	taken := r.mustApply(&lbdv1.ApplyHeader{Owner: "intruder", TakeOver: true}, pool("shop", "192.0.2.9:80"))
	if taken.GetRevision() != 2 {
		t.Errorf("taken over as revision %d", taken.GetRevision())
	}
	_, err = r.apply(&lbdv1.ApplyHeader{Owner: "web", RequestId: "id-1"}, listener("other", ":9090"))
	if f := failureOf(t, err); f.code != codes.Aborted || f.reason != "REQUEST_ID_REUSED" {
		t.Errorf("a request id used again: %v", f)
	}
}

func TestApplyReplaysARequest(t *testing.T) {
	r := newRig(t)
	head := &lbdv1.ApplyHeader{Owner: "web", RequestId: "id-1"}
	id := newIdentity(t, "a.example")
	specs := append(web(), pemCertificate("a", id.chain, id.key), selfSigned("b", "b.example"))
	first := r.mustApply(head, specs...)
	r.mustApply(owner("web"), pool("shop", "192.0.2.7:80")) // someone else, in between
	again := r.mustApply(head, specs...)
	if again.GetRevision() != first.GetRevision() || changesOf(again.GetChanges()) != changesOf(first.GetChanges()) {
		t.Errorf("the retry was answered %v, the first %v", again, first)
	}
	if got := r.store.State().Revision(); got != 2 {
		t.Errorf("the retry left revision %d", got)
	}
	stored, _ := r.store.State().Get(state.Pools, "shop")
	if got := stored.GetResource().GetPool().GetBackends()[0].GetAddress(); got != "192.0.2.7:80" {
		t.Errorf("the retry undid a later change: %s", got)
	}
}

func TestApplyKeepsKeys(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example")
	r.mustApply(owner("web"), pemCertificate("a", id.chain, id.key), selfSigned("b", "b.example"))
	before := r.store.State()
	for what, specs := range map[string][]proto.Message{
		"key absent":        {pemCertificate("a", id.chain, "")},
		"fingerprint":       {pemCertificate("a", id.chain, id.fingerprint(t))},
		"key again":         {pemCertificate("a", id.chain, id.key)},
		"self-signed again": {selfSigned("b", "B.example")},
		"default spelt out": {&lbdv1.Certificate{Name: "b", Labels: nil, Source: selfSigned("b", "b.example").Source}},
	} {
		answer := r.mustApply(owner("web"), specs...)
		if answer.GetRevision() != 1 || len(answer.GetChanges()) != 0 {
			t.Errorf("%s: revision %d, %s; want no change", what, answer.GetRevision(), changesOf(answer.GetChanges()))
		}
	}
	labelled := pemCertificate("a", id.chain, "")
	labelled.Labels = map[string]string{"team": "shop"}
	relabelled := selfSigned("b", "b.example")
	relabelled.Labels = map[string]string{"team": "shop"}
	r.mustApply(owner("web"), labelled, relabelled)
	for _, name := range []string{"a", "b"} {
		old, _ := before.Get(state.Certificates, name)
		kept, _ := r.store.State().Get(state.Certificates, name)
		if kept.GetResource().GetRevision() != 2 || !proto.Equal(old.GetMaterial(), kept.GetMaterial()) {
			t.Errorf("certificate %s: a new label made new content", name)
		}
	}
	if made, sealed := r.keys.counts(); made != 1 || sealed != 2 {
		t.Errorf("%d pairs made and %d keys sealed, want 1 and 2", made, sealed)
	}
	r.mustApply(owner("web"), selfSigned("b", "b.example", "c.example"))
	if made, _ := r.keys.counts(); made != 2 {
		t.Errorf("%d pairs made after the hosts changed, want 2", made)
	}
}

func TestApplyChecksCertificates(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example", "www.a.example")
	r.mustApply(owner("web"), pemCertificate("a", id.chain, id.key))
	expired := identityFor(t, now.AddDate(0, -2, 0), now.AddDate(0, -1, 0), "a.example")
	early := identityFor(t, now.AddDate(0, 1, 0), now.AddDate(0, 2, 0), "a.example")
	other := newIdentity(t, "a.example")
	refused := []struct {
		what, field, text string
		cert              *lbdv1.Certificate
	}{
		{"expired", `certificates["a"].pem.chain`, "expired at 2026-10-30", pemCertificate("a", expired.chain, expired.key)},
		{"new and expired", `certificates["n"].pem.chain`, "expired at 2026-10-30", pemCertificate("n", expired.chain, expired.key)},
		{"not yet valid", `certificates["a"].pem.chain`, "not valid before 2026-12-30", pemCertificate("a", early.chain, early.key)},
		{"new and not yet valid", `certificates["n"].pem.chain`, "not valid before 2026-12-30", pemCertificate("n", early.chain, early.key)},
		{"other key stored", `certificates["a"].pem.key`, "give its key", pemCertificate("a", other.chain, "")},
		{"no fingerprint", `certificates["a"].pem.key`, "is no fingerprint: want `sha256:` and 64 hex digits", pemCertificate("a", id.chain, "sha256:MIGHAgEAMBMGByqGSM49")},
		{"other fingerprint", `certificates["a"].pem.key`, "is not that of the leaf's key", pemCertificate("a", id.chain, other.fingerprint(t))},
		{"unknown key", `certificates["n"].pem.key`, "no key is stored", pemCertificate("n", id.chain, id.fingerprint(t))},
	}
	for _, test := range refused {
		_, err := r.apply(owner("web"), test.cert)
		f := failureOf(t, err)
		if got := f.fields[test.field]; f.code != codes.InvalidArgument || len(f.fields) != 1 || !strings.Contains(got, test.text) {
			t.Errorf("%s: %v, want %s: %q", test.what, f, test.field, test.text)
		}
	}
	later := newIdentity(t, "a.example")
	answer := r.mustApply(owner("web"), pemCertificate("n", later.chain, later.key), pemCertificate("a", other.chain, other.key))
	var warnings []string
	for _, w := range answer.GetWarnings() {
		warnings = append(warnings, w.GetField()+": "+w.GetDescription())
	}
	want := `certificates["a"].pem.chain: the leaf no longer names www.a.example
certificates["a"]: is for ` + "`a.example` with a key of type ECDSA, as certificate `n` is: of those that are valid the newest is served: this one, the first by name of two that begin at 2026-11-30T11:00:00Z"
	if got := strings.Join(warnings, "\n"); got != want {
		t.Errorf("warnings:\n%s\nwant:\n%s", got, want)
	}
}

func TestApplyExpiredLater(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example")
	r.mustApply(owner("web"), pemCertificate("a", id.chain, id.key), selfSigned("b", "b.example"))
	r.advance(365 * 24 * time.Hour)
	answer := r.mustApply(owner("web"), pemCertificate("a", id.chain, ""), selfSigned("b", "b.example"), pool("shop", "192.0.2.1:80"))
	if got := changesOf(answer.GetChanges()); got != "create pools/shop" || len(answer.GetWarnings()) != 2 {
		t.Errorf("%s with warnings %v: an expired certificate that is stored already must be warned of and block nothing",
			got, answer.GetWarnings())
	}
}

func TestApplyProtocol(t *testing.T) {
	r := newRig(t)
	part := func(resources ...*lbdv1.Resource) *lbdv1.ApplyRequest {
		return &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: &lbdv1.ApplyResources{Resources: resources}}}
	}
	head := &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Header{Header: owner("web")}}
	large := &lbdv1.Resource{Spec: &lbdv1.Resource_Route{Route: &lbdv1.Route{Name: strings.Repeat("x", resourceBytesMax)}}}
	for what, test := range map[string]struct {
		requests []*lbdv1.ApplyRequest
		field    string
	}{
		"nothing":             {nil, "header"},
		"no header":           {[]*lbdv1.ApplyRequest{part()}, "header"},
		"two headers":         {[]*lbdv1.ApplyRequest{head, head}, "resources"},
		"empty part":          {[]*lbdv1.ApplyRequest{head, {}}, "resources"},
		"resource too large":  {[]*lbdv1.ApplyRequest{head, part(large)}, "resources"},
		"resource of no kind": {[]*lbdv1.ApplyRequest{head, part(&lbdv1.Resource{})}, "resources[0]"},
		"no owner":            {[]*lbdv1.ApplyRequest{{Part: &lbdv1.ApplyRequest_Header{Header: &lbdv1.ApplyHeader{}}}}, "owner"},
		"long request id": {[]*lbdv1.ApplyRequest{{Part: &lbdv1.ApplyRequest_Header{
			Header: &lbdv1.ApplyHeader{Owner: "web", RequestId: strings.Repeat("x", 65)}}}}, "request_id"},
	} {
		stream, err := r.config.Apply(r.ctx())
		if err != nil {
			t.Fatal(err)
		}
		for _, request := range test.requests {
			if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		_, err = stream.CloseAndRecv()
		f := failureOf(t, err)
		if _, ok := f.fields[test.field]; f.code != codes.InvalidArgument || !ok {
			t.Errorf("%s: %v, want a violation of %s", what, f, test.field)
		}
	}
}

func TestApplyIgnoresOutputOnlyFields(t *testing.T) {
	r := newRig(t)
	stream, err := r.config.Apply(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	sent := &lbdv1.Resource{Owner: "somebody", Revision: 77, Spec: &lbdv1.Resource_Pool{Pool: pool("shop", "192.0.2.1:80")}}
	for _, request := range []*lbdv1.ApplyRequest{
		{Part: &lbdv1.ApplyRequest_Header{Header: owner("web")}},
		{Part: &lbdv1.ApplyRequest_Resources{Resources: &lbdv1.ApplyResources{Resources: []*lbdv1.Resource{sent}}}},
	} {
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.CloseAndRecv(); err != nil {
		t.Fatal(err)
	}
	got, err := r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	if res := got.GetResource(); res.GetOwner() != "web" || res.GetRevision() != 1 || res.GetEtag() == "" {
		t.Errorf("stored as %v", res)
	}
}

func TestApplyBoundsMemory(t *testing.T) {
	in := newInbox()
	other := Caller{Author: "other"}
	in.held.take(other, applyBytesMax)
	in.held.take(Caller{Author: "third"}, receivedBytesMax-receivedBytesReserved-applyBytesMax)
	held := in.held.used
	p := &parcel{inbox: &in}
	err := p.add(&lbdv1.ApplyResources{Resources: []*lbdv1.Resource{{Spec: &lbdv1.Resource_Pool{Pool: pool("shop", "192.0.2.1:80")}}}})
	if f := failureOf(t, err); f.code != codes.Unavailable || !f.retry || f.reason != "BUSY" {
		t.Errorf("with no room left: %v", f)
	}
	p.release()
	if got := in.held.used; got != held {
		t.Errorf("%d bytes held after release, want %d", got, held)
	}
	in.held.give(other, applyBytesMax)
	p = &parcel{inbox: &in, bytes: applyBytesMax}
	err = p.add(&lbdv1.ApplyResources{Resources: []*lbdv1.Resource{{Spec: &lbdv1.Resource_Pool{Pool: pool("shop", "192.0.2.1:80")}}}})
	if f := failureOf(t, err); f.code != codes.InvalidArgument {
		t.Errorf("an apply that is too large: %v", f)
	}
}

// What a failing store says reaches the client as what it is.
func TestApplyStoreFails(t *testing.T) {
	r := newRig(t)
	for what, test := range map[string]struct {
		err  error
		want failure
	}{
		"disk":     {errors.New("write state.db: no space left on device"), failure{code: codes.Internal, reason: "INTERNAL"}},
		"invalid":  {&state.InvalidError{Violations: []*lbdv1.Violation{violation("owner", "is gone")}}, failure{code: codes.InvalidArgument, reason: "INVALID"}},
		"conflict": {&state.ConflictError{Reason: state.OwnedByOther}, failure{code: codes.Aborted, reason: "OWNED_BY_OTHER"}},
		"panic":    {&state.PanicError{Value: "boom"}, failure{code: codes.Internal, reason: "INTERNAL"}},
		"deadline": {fmt.Errorf("propose: %w", context.DeadlineExceeded), failure{code: codes.DeadlineExceeded, reason: "DEADLINE_EXCEEDED"}},
	} {
		r.store.instead(func(context.Context, *raftv1.ChangeCommand) (state.Result, error) { return state.Result{}, test.err })
		_, err := r.apply(owner("web"), pool("shop", "192.0.2.1:80"))
		if f := failureOf(t, err); f.code != test.want.code || f.reason != test.want.reason || f.retry != test.want.retry {
			t.Errorf("%s: %v, want %v", what, f, test.want)
		}
	}
	if !strings.Contains(r.log.String(), "no space left on device") {
		t.Errorf("our own failure is not in the log:\n%s", r.log)
	}
}

// A change that was proposed is waited for even if its client has gone: the next one must see what it left.
func TestApplyOutlivesItsClient(t *testing.T) {
	r := newRig(t)
	proposing, release := make(chan struct{}), make(chan struct{})
	r.store.instead(func(ctx context.Context, change *raftv1.ChangeCommand) (state.Result, error) {
		close(proposing)
		<-release
		if ctx.Err() != nil {
			return state.Result{}, ctx.Err()
		}
		return r.store.applyNow(change)
	})
	id := newIdentity(t, "a.example")
	ctx, cancel := context.WithCancel(r.ctx())
	first := make(chan error, 1)
	go func() {
		_, err := r.certs.Rotate(ctx, &lbdv1.RotateRequest{Name: "a", Create: true, Owner: "web", ChainPem: id.chain, KeyPem: id.key})
		first <- err
	}()
	<-proposing
	cancel()
	if f := failureOf(t, <-first); f.code != codes.Canceled {
		t.Errorf("the client that left: %v", f)
	}
	r.store.instead(nil)
	second := make(chan error, 1)
	go func() {
		_, err := r.apply(owner("web"), pemCertificate("a", id.chain, ""))
		second <- err
	}()
	close(release)
	if err := <-second; err != nil {
		t.Errorf("the next change did not see the one before: %v", err)
	}
	if got := r.store.State().Revision(); got != 1 {
		t.Errorf("revision %d, want 1", got)
	}
}
