package rpc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestValidate(t *testing.T) {
	r := newRig(t)
	id, other := newIdentity(t, "a.example"), newIdentity(t, "b.example")
	r.mustApply(owner("web"), web()...)
	validate := func(doc *lbdv1.Document) string {
		t.Helper()
		answer, err := r.config.Validate(r.ctx(), &lbdv1.ValidateRequest{Document: doc})
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, v := range answer.GetViolations() {
			lines = append(lines, fmt.Sprintf("%s %s", strings.TrimPrefix(v.GetSeverity().String(), "SEVERITY_"), v.GetField()))
		}
		return strings.Join(lines, "\n")
	}
	valid := &lbdv1.Document{
		ApiVersion: "lbd/v1", Owner: "web",
		Routes:       []*lbdv1.Route{route("other", "http", "shop")}, // both are in the cluster, not in the document
		Certificates: []*lbdv1.Certificate{pemCertificate("a", id.chain, id.key), selfSigned("b", "b.example")},
	}
	if got := validate(valid); got != "" {
		t.Errorf("a valid document:\n%s", got)
	}
	invalid := &lbdv1.Document{
		ApiVersion: "lbd/v2",
		Pools:      []*lbdv1.Pool{pool("shop")},
		Certificates: []*lbdv1.Certificate{
			pemCertificate("a", id.chain, other.key), pemCertificate("b", id.chain, ""), {Name: "c"},
		},
	}
	want := `ERROR api_version
ERROR certificates["a"].pem.key
ERROR certificates["b"].pem.key
ERROR owner
ERROR certificates["c"]
ERROR pools["shop"].backends`
	if got := validate(invalid); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if r.store.proposals() != 1 {
		t.Error("Validate proposed something")
	}
	if made, sealed := r.keys.counts(); made+sealed > 0 {
		t.Errorf("Validate made %d pairs and sealed %d keys", made, sealed)
	}
	_, err := r.config.Validate(r.ctx(), &lbdv1.ValidateRequest{})
	if f := failureOf(t, err); f.code != codes.InvalidArgument || f.fields["document"] == "" {
		t.Errorf("no document: %v", f)
	}
}

func TestGet(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example")
	r.mustApply(owner("web"), append(web(), pemCertificate("a", "# a comment\n"+id.chain, id.key))...)
	got, err := r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "pools", Name: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	res := got.GetResource()
	if !proto.Equal(res.GetPool(), pool("shop", "192.0.2.1:80")) || res.GetOwner() != "web" || res.GetRevision() != 1 ||
		!res.GetUpdateTime().AsTime().Equal(now) || res.GetEtag() == "" {
		t.Errorf("got %v", res)
	}
	got, err = r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "certificates", Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	if want := pemCertificate("a", id.chain, id.fingerprint(t)); !proto.Equal(got.GetResource().GetCertificate(), want) {
		t.Errorf("got %v\nwant %v", got.GetResource().GetCertificate(), want)
	}
	got, err = r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: "cluster_settings"})
	if err != nil || got.GetResource().GetClusterSettings() == nil {
		t.Errorf("settings that nobody has set: %v, %v", got, err)
	}
	for _, test := range []struct {
		kind, name, field string
		code              codes.Code
	}{
		{"pools", "shpo", "", codes.NotFound},
		{"pools", "", "", codes.NotFound},
		{"servers", "x", "kind", codes.InvalidArgument},
		{"", "", "kind", codes.InvalidArgument},
		{"cluster_settings", "x", "name", codes.InvalidArgument},
	} {
		_, err := r.config.Get(r.ctx(), &lbdv1.GetRequest{Kind: test.kind, Name: test.name})
		f := failureOf(t, err)
		if _, ok := f.fields[test.field]; f.code != test.code || test.field != "" && !ok {
			t.Errorf("%s/%s: %v", test.kind, test.name, f)
		}
	}
}

func TestListPages(t *testing.T) {
	r := newRig(t)
	for i := range 25 {
		r.mustApply(owner([]string{"even", "odd"}[i%2]), pool(fmt.Sprintf("p%02d", i), "192.0.2.1:80"))
	}
	pages := func(owner string, size int32) (names []string, count int) {
		t.Helper()
		req := &lbdv1.ListRequest{Kind: "pools", Owner: owner, PageSize: size}
		for {
			answer, err := r.config.List(r.ctx(), req)
			if err != nil {
				t.Fatal(err)
			}
			count++
			for _, res := range answer.GetResources() {
				names = append(names, res.GetPool().GetName())
			}
			if req.PageToken = answer.GetNextPageToken(); req.PageToken == "" {
				return names, count
			}
		}
	}
	for _, test := range []struct {
		owner        string
		size         int32
		names, pages int
	}{
		{"", 0, 25, 1}, {"", 10, 25, 3}, {"", 25, 25, 1}, {"", 1, 25, 25}, {"even", 5, 13, 3}, {"odd", 4, 12, 3}, {"nobody", 5, 0, 1},
	} {
		names, count := pages(test.owner, test.size)
		seen := strings.Join(names, " ")
		for i := 1; i < len(names); i++ {
			if names[i-1] >= names[i] {
				t.Errorf("owner %q, size %d: out of order: %s", test.owner, test.size, seen)
			}
		}
		if len(names) != test.names || count != test.pages {
			t.Errorf("owner %q, size %d: %d names on %d pages, want %d on %d", test.owner, test.size, len(names), count, test.names, test.pages)
		}
	}
}

func TestListRefuses(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		r.mustApply(owner("web"), pool(fmt.Sprintf("p%d", i), "192.0.2.1:80"))
	}
	first, err := r.config.List(r.ctx(), &lbdv1.ListRequest{Kind: "pools", PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	for field, req := range map[string]*lbdv1.ListRequest{
		"kind":       {Kind: "servers"},
		"page_size":  {Kind: "pools", PageSize: pageSizeMax + 1},
		"page_token": {Kind: "routes", PageToken: first.GetNextPageToken()},
	} {
		_, err := r.config.List(r.ctx(), req)
		if f := failureOf(t, err); f.code != codes.InvalidArgument || f.fields[field] == "" {
			t.Errorf("%v: %v, want a violation of %s", req, f, field)
		}
	}
	for _, req := range []*lbdv1.ListRequest{
		{Kind: "pools", PageSize: -1},
		{Kind: "pools", PageToken: "garbage"},
		{Kind: "pools", Owner: "web", PageToken: first.GetNextPageToken()},
	} {
		_, err := r.config.List(r.ctx(), req)
		if f := failureOf(t, err); f.code != codes.InvalidArgument {
			t.Errorf("%v: %v", req, f)
		}
	}
	for _, req := range []*lbdv1.ListRevisionsRequest{{PageSize: -1}, {PageToken: first.GetNextPageToken()}, {PageToken: pageToken("revisions", "", "x")}} {
		_, err := r.config.ListRevisions(r.ctx(), req)
		if f := failureOf(t, err); f.code != codes.InvalidArgument {
			t.Errorf("%v: %v", req, f)
		}
	}
}

func TestListRevisions(t *testing.T) {
	r := newRig(t)
	for i := range 7 {
		r.mustApply(&lbdv1.ApplyHeader{Owner: []string{"even", "odd"}[i%2], Message: fmt.Sprint(i)}, pool(fmt.Sprintf("p%d", i), "192.0.2.1:80"))
	}
	for owner, want := range map[string]string{"": "7 6 5|4 3 2|1", "even": "7 5 3|1", "odd": "6 4 2", "nobody": ""} {
		var pages []string
		req := &lbdv1.ListRevisionsRequest{Owner: owner, PageSize: 3}
		for {
			answer, err := r.config.ListRevisions(r.ctx(), req)
			if err != nil {
				t.Fatal(err)
			}
			var numbers []string
			for _, revision := range answer.GetRevisions() {
				numbers = append(numbers, fmt.Sprint(revision.GetNumber()))
				if revision.GetMessage() != fmt.Sprint(revision.GetNumber()-1) || revision.GetContentHash() == "" || len(revision.GetChanges()) != 1 {
					t.Errorf("revision %v", revision)
				}
			}
			pages = append(pages, strings.Join(numbers, " "))
			if req.PageToken = answer.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if got := strings.Join(pages, "|"); got != want {
			t.Errorf("owner %q: %s, want %s", owner, got, want)
		}
	}
}

func TestExportThenApplyChangesNothing(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example")
	loopback := true
	r.mustApply(owner("web"), append(web(), pemCertificate("a", id.chain, id.key), selfSigned("b", "b.example"),
		&lbdv1.ClusterSettings{AllowLoopbackBackends: &loopback})...)
	r.mustApply(owner("other"), pool("other", "192.0.2.1:80"))
	var kinds []string
	var specs []proto.Message
	for _, res := range r.export("web") {
		key, _ := state.KeyOf(res)
		kinds = append(kinds, key.String())
		specs = append(specs, state.Spec(res))
	}
	if got := strings.Join(kinds, " "); got != "listeners/http certificates/a certificates/b pools/shop routes/shop" {
		t.Errorf("exported %s", got)
	}
	answer := r.mustApply(owner("web"), specs...)
	if answer.GetRevision() != 2 || len(answer.GetChanges()) != 0 {
		t.Errorf("applying the export made revision %d: %s", answer.GetRevision(), changesOf(answer.GetChanges()))
	}
	if all := r.export(""); len(all) != len(kinds)+2 {
		t.Errorf("%d resources exported of all owners, want %d", len(all), len(kinds)+2)
	}
}

// An export of many messages' size comes in parts that fit, with nothing lost; so does a page.
func TestExportInParts(t *testing.T) {
	r := newRig(t)
	body := strings.Repeat("x", 60<<10)
	var specs []proto.Message
	for i := range 100 {
		specs = append(specs, &lbdv1.Route{
			Name: fmt.Sprintf("r%03d", i), Listeners: []string{"http"}, Hosts: []string{fmt.Sprintf("h%d.example", i)},
			Action: &lbdv1.Route_Respond{Respond: &lbdv1.Respond{Status: 200, Body: body}},
		})
	}
	r.mustApply(owner("web"), append(specs, listener("http", ":8080"))...)
	stream, err := r.config.Export(r.ctx(), &lbdv1.ExportRequest{})
	if err != nil {
		t.Fatal(err)
	}
	count, parts := 0, 0
	for {
		part, err := stream.Recv()
		if err != nil {
			break
		}
		parts++
		count += len(part.GetResources())
		if size := proto.Size(part); size > messageBytesMax {
			t.Errorf("a part of %d bytes", size)
		}
	}
	if count != 101 || parts < 6 {
		t.Errorf("%d resources in %d parts", count, parts)
	}
	first, err := r.config.List(r.ctx(), &lbdv1.ListRequest{Kind: "routes", PageSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(first.GetResources()); n == 0 || n == 100 || first.GetNextPageToken() == "" {
		t.Errorf("a page of %d large entries, next %q", n, first.GetNextPageToken())
	}
}
