package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

// why is a node's refusal with the word that tells it from others.
func why(t *testing.T, code codes.Code, reason, message string, more ...protoadapt.MessageV1) error {
	s, err := status.New(code, message).WithDetails(append(more, &errdetails.ErrorInfo{Reason: reason})...)
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}

// threeChanges are one of each kind, with fields.
func threeChanges() []*lbdv1.Change {
	return []*lbdv1.Change{
		{Action: actionUpdate, Kind: "pools", Name: "shop", Fields: []*lbdv1.FieldChange{
			{Path: "connect_timeout", Before: "3s", After: "5s"},
			{Path: `backends["b:1"].weight`, Before: "2"},
			{Path: "balance", After: "MAGLEV"},
		}},
		{Action: actionCreate, Kind: "routes", Name: "new"},
		{Action: actionDelete, Kind: "pools", Name: "old", Fields: []*lbdv1.FieldChange{{Path: "labels[\"a|`\"]", Before: "x\x1b[31m"}}},
	}
}

func TestDiff(t *testing.T) {
	answer := &lbdv1.DiffResponse{OwnerRevision: 7, Changes: threeChanges(),
		Warnings: []*lbdv1.Violation{{Severity: lbdv1.Severity_SEVERITY_WARNING, Field: `pools["shop"]`, Description: "is used by no route"}},
		Overrides: []*lbdv1.Override{
			{Pool: "shop", Address: "b:1", What: &lbdv1.Override_State{State: lbdv1.BackendState_BACKEND_STATE_DRAIN}, Author: "ann", Reason: "disk"},
			{Pool: "shop", Address: "b:2", What: &lbdv1.Override_Weight{}, Author: "bob", ExpireTime: noon},
		}}
	node := &fakeNode{}
	node.diff = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.DiffResponse, error) { return answer, nil }
	node.start(t)
	o := lbctl(shop, "diff", "-f", "-", "--prune", "--take-over")
	o.wants(t, 1, "~ pools/shop\n", "stdin:4:5: warning: pool `shop` is used by no route\n")
	want := "~ pools/shop\n" +
		"    ~ connect_timeout: 3s → 5s\n" +
		"    - backends[\"b:1\"].weight: 2\n" +
		"    + balance: MAGLEV\n" +
		"+ routes/new\n" +
		"- pools/old\n" +
		"    - labels[\"a|`\"]: x [31m\n" +
		"  override of shop/b:1: DRAIN, by ann: disk\n" +
		"  override of shop/b:2: weight 0, by bob, until 2026-01-02T12:00:00Z\n"
	if o.stdout != want {
		t.Errorf("diff is\n%s\nwant\n%s", o.stdout, want)
	}
	if h := node.requests[0].(*lbdv1.DiffRequest).GetPart().GetHeader(); h.GetOwner() != "web" || !h.GetPrune() || !h.GetTakeOver() {
		t.Errorf("header is %v", h)
	}
	lbctl(shop, "diff", "-f", "-", "-o", "name").wants(t, 1, "pools/shop\nroutes/new\npools/old\n", "warning")
	lbctl(shop, "diff", "-f", "-", "-o", "json").wants(t, 1, `"before": "3s"`, "warning")

	o = lbctl(shop, "diff", "-f", "-", "-o", "markdown")
	want = "**lbctl diff** of owner `web`, against its revision 7: 1 created, 1 updated, 1 deleted.\n\n" +
		"| | Resource | Field | Before | After |\n|---|---|---|---|---|\n" +
		"| ~ | `pools/shop` | `connect_timeout` | `3s` | `5s` |\n" +
		"| ~ | `pools/shop` | `backends[\"b:1\"].weight` | `2` |  |\n" +
		"| ~ | `pools/shop` | `balance` |  | `MAGLEV` |\n" +
		"| + | `routes/new` |  |  |  |\n" +
		"| - | `pools/old` | `` labels[\"a\\|`\"] `` | `x [31m` |  |\n" +
		"\nWarnings:\n\n- stdin:4:5: warning: pool `shop` is used by no route\n" +
		"\nOverrides that stay in force:\n\n- override of shop/b:1: DRAIN, by ann: disk\n- override of shop/b:2: weight 0, by bob, until 2026-01-02T12:00:00Z\n"
	if o.code != 1 || o.stdout != want || o.stderr != "" {
		t.Errorf("exit %d\n%s%s\nwant\n%s", o.code, o.stdout, o.stderr, want)
	}

	answer = &lbdv1.DiffResponse{OwnerRevision: 7}
	lbctl(shop, "diff", "-f", "-").wants(t, 0, "", "no differences\n")
	lbctl(shop, "diff", "-f", "-", "-o", "markdown").wants(t, 0, "no changes", "")
	node.diff = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.DiffResponse, error) {
		return nil, why(t, codes.Aborted, "OWNED_BY_OTHER", "pools/shop belongs to api")
	}
	lbctl(shop, "diff", "-f", "-").wants(t, 6, "", "pools/shop belongs to api (--take-over)")
	lbctl("pool: 1", "diff", "-f", "-").wants(t, 3, "", "stdin:1:1: error: unknown field `pool`")
}

// A comment on a merge request stays below what forges take.
func TestMarkdownIsBounded(t *testing.T) {
	var changes []*lbdv1.Change
	for i := range markdownRowsMax + 20 {
		changes = append(changes, &lbdv1.Change{Action: actionCreate, Kind: "pools", Name: fmt.Sprint(i)})
	}
	text := markdown("web", &lbdv1.DiffResponse{Changes: changes}, nil)
	if rows := strings.Count(text, "| + |"); rows != markdownRowsMax || !strings.Contains(text, "… and 20 rows more.") {
		t.Errorf("%d rows, and at the end %q", rows, text[len(text)-40:])
	}
}

func TestApplyPrune(t *testing.T) {
	node := &fakeNode{apply: func(h *lbdv1.ApplyHeader, _ []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		if h.GetValidateOnly() {
			return &lbdv1.ApplyResponse{Revision: 8, Changes: threeChanges()}, nil
		}
		return &lbdv1.ApplyResponse{Revision: 8, Changes: threeChanges()[2:]}, nil
	}}
	node.diff = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.DiffResponse, error) {
		return &lbdv1.DiffResponse{OwnerRevision: 7, Changes: threeChanges()}, nil
	}
	node.start(t)
	header := func() *lbdv1.ApplyHeader {
		for _, r := range node.requests {
			if h := r.(interface{ GetHeader() *lbdv1.ApplyHeader }); h.GetHeader() != nil {
				node.requests = nil
				return h.GetHeader()
			}
		}
		return nil
	}
	// What goes is shown before, and nothing else can go: the apply holds for the revision that was seen.
	o := lbctl(shop, "apply", "-f", "-", "--prune", "--allow-mass-delete")
	o.wants(t, 0, "pools/old  deleted\n", "deletes pools/old\n")
	node.requests = node.requests[2:]
	if h := header(); !h.GetPrune() || !h.GetAllowMassDelete() || h.IfRevision == nil || h.GetIfRevision() != 7 {
		t.Errorf("header is %v", h)
	}
	lbctl(shop, "apply", "-f", "-", "--prune", "--dry-run").wants(t, 0, "pools/shop  would be updated\n    ~ connect_timeout: 3s → 5s\n", "")
	if h := header(); !h.GetPrune() || h.IfRevision != nil {
		t.Errorf("header of the dry run is %v", h)
	}
	lbctl(shop, "apply", "-f", "-", "--if-revision", "0").wants(t, 0, "revision 8", "")
	if h := header(); h.IfRevision == nil || h.GetIfRevision() != 0 || h.GetPrune() {
		t.Errorf("header with --if-revision 0 is %v", h)
	}
	node.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return nil, why(t, codes.FailedPrecondition, "MASS_DELETE", "prune would delete 2 of 3")
	}
	lbctl(shop, "apply", "-f", "-", "--prune").wants(t, 6, "", "deletes pools/old\nerror: prune would delete 2 of 3 (--allow-mass-delete)\n")
}

func TestDelete(t *testing.T) {
	owners := map[string]string{"shop": "web", "old": "web", "api": "api"}
	node := &fakeNode{
		get: func(r *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			if owners[r.GetName()] == "" {
				return nil, status.Error(codes.NotFound, "there is no pool named none")
			}
			return &lbdv1.GetResponse{Resource: &lbdv1.Resource{Owner: owners[r.GetName()]}}, nil
		},
		apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
			return &lbdv1.ApplyResponse{Revision: 9, Changes: threeChanges()[2:]}, nil
		},
	}
	node.start(t)
	lbctl("", "delete", "pool/shop", "pools/old", "-m", "why").wants(t, 0, "revision 9: 1 change\n", "")
	header, sent := node.requests[2].(*lbdv1.ApplyRequest).GetHeader(), node.requests[3].(*lbdv1.ApplyRequest).GetResources()
	if header.GetOwner() != "web" || header.GetMessage() != "why" || header.GetRequestId() == "" || strings.Join(sent.GetDeletes(), " ") != "pools/shop pools/old" {
		t.Errorf("sent %v, %v", header, sent)
	}
	lbctl("", "delete", "pool/shop", "pool/api").wants(t, 2, "", "pools/shop belongs to owner web, pools/api to api")
	lbctl("", "delete", "pool/none").wants(t, 5, "", "there is no pool named none")
	lbctl("", "delete", "cluster_settings").wants(t, 2, "", "cannot be deleted")
	lbctl("", "delete", "pools").wants(t, 2, "", "want kind/name")
	node.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return nil, refusal(t, &errdetails.BadRequest_FieldViolation{Field: `pools["shop"]`, Description: "is used by route `r`"})
	}
	lbctl("", "delete", "pool/shop").wants(t, 3, "", "error: pools/shop is used by route `r`\nerror: nothing was deleted\n")
}

func TestRollback(t *testing.T) {
	node := &fakeNode{wait: func(_ *lbdv1.WaitForRevisionRequest, s grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error {
		return s.Send(progress("n1", lbdv1.NodeProgress_NODE_PROGRESS_SERVED, 9, ""))
	}}
	node.rollback = func(*lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error) {
		return &lbdv1.RollbackResponse{Revision: 9, Changes: threeChanges()}, nil
	}
	node.start(t)
	lbctl("", "rollback", "--owner", "web", "--wait", "-m", "why").wants(t, 0, "revision 9: 3 changes\n", "node n1: serves revision 9\n")
	if r := node.requests[0].(*lbdv1.RollbackRequest); r.GetOwner() != "web" || r.To != nil || r.GetMessage() != "why" || r.GetRequestId() == "" {
		t.Errorf("asked %v", r)
	}
	lbctl("", "rollback", "--owner", "web", "--to", "0", "--dry-run", "--allow-older-certificates").wants(t, 0, "dry run: 3 changes", "")
	if r := node.requests[2].(*lbdv1.RollbackRequest); r.To == nil || r.GetTo() != 0 || !r.GetValidateOnly() || !r.GetAllowOlderCertificates() {
		t.Errorf("asked %v", r)
	}
	node.rollback = func(*lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error) {
		return nil, why(t, codes.Aborted, "CHANGED_SINCE", "pools/shop was changed by owner api since")
	}
	lbctl("", "rollback", "--owner", "web").wants(t, 6, "", "pools/shop was changed by owner api since")
	node.rollback = func(*lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error) {
		return nil, why(t, codes.FailedPrecondition, "OLDER_CERTIFICATE", "certificates/shop had a leaf that has expired")
	}
	lbctl("", "rollback", "--owner", "web").wants(t, 6, "", "certificates/shop had a leaf that has expired (--allow-older-certificates)\n")
	node.rollback = func(*lbdv1.RollbackRequest) (*lbdv1.RollbackResponse, error) {
		return nil, refusal(t, &errdetails.BadRequest_FieldViolation{Field: "to", Description: "-1 is no revision"})
	}
	lbctl("", "rollback", "--owner", "web", "--to", "-1").wants(t, 2, "", "error: --to: -1 is no revision\n")
	lbctl("", "rollback").wants(t, 2, "", "error: say --owner OWNER (whose revisions)\n")
}

func TestShow(t *testing.T) {
	node := &fakeNode{}
	node.revision = func(r *lbdv1.GetRevisionRequest) (*lbdv1.GetRevisionResponse, error) {
		return &lbdv1.GetRevisionResponse{Revision: &lbdv1.Revision{
			Number: r.GetNumber(), Owner: "web", Author: "ann", Time: noon, Message: "why", ContentHash: "ff", Changes: threeChanges(),
		}}, nil
	}
	node.start(t)
	lbctl("", "show", "revision/42").wants(t, 0, "REVISION      42\nOWNER         web\nAUTHOR        ann\nTIME          2026-01-02T12:00:00Z\n"+
		"MESSAGE       why\nCONTENT HASH  ff\n\n~ pools/shop\n    ~ connect_timeout: 3s → 5s\n", "to undo it alone: lbctl rollback --owner web --only 42\n")
	lbctl("", "show", "revision/42", "-o", "jsonpath={.changes[0].fields[0].after}").wants(t, 0, "5s\n", "")
	for _, arg := range []string{"42", "revision/", "revision/0", "revision/x"} {
		lbctl("", "show", arg).wants(t, 2, "", "want revision/N")
	}
}

func TestWatch(t *testing.T) {
	var end atomic.Pointer[func() error]
	ends := func(f func() error) { end.Store(&f) }
	ends(func() error { return nil })
	node := &fakeNode{}
	node.watch = func(r *lbdv1.WatchRequest, s grpc.ServerStreamingServer[lbdv1.WatchResponse]) error {
		pool := &lbdv1.Resource{Owner: "web", Revision: 3, Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{Name: "shop"}}}
		for _, m := range []*lbdv1.WatchResponse{
			{Action: actionCreate, Name: "shop", Resource: pool, Revision: 7}, {Action: actionDelete, Name: "shop", Revision: 8},
		} {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		if err := (*end.Load())(); err != nil {
			return err
		}
		<-s.Context().Done()
		return s.Context().Err()
	}
	node.start(t)
	lbctl("", "watch", "pools", "--owner", "web", "--timeout", "300ms").wants(t, 0,
		"+  created  pools/shop  revision 3 of web\n-  deleted  pools/shop  revision 8\n", "")
	if r := node.requests[0].(*lbdv1.WatchRequest); r.GetKind() != "pools" || r.GetOwner() != "web" || r.GetName() != "" {
		t.Errorf("asked %v", r)
	}
	lbctl("", "watch", "pool/shop", "-o", "jsonl", "--timeout", "300ms").wants(t, 0,
		`{"action":"CREATE","resource":{"owner":"web","revision":3,"pool":{"name":"shop"}},"name":"shop","revision":7}`+"\n", "")
	lbctl("", "watch", "pools", "-o", "yaml").wants(t, 2, "", "a line for each change")
	lbctl("", "watch", "pool/shop", "--owner", "web").wants(t, 2, "", "--owner")
	ends(func() error { return status.Error(codes.Unavailable, "this node is stopping") })
	lbctl("", "watch", "pools").wants(t, 7, "deleted", "this node is stopping")
	ends(func() error { return syscall.Kill(syscall.Getpid(), syscall.SIGINT) })
	if o := lbctl("", "watch", "pools"); o.code != 130 || o.stderr != "error: interrupted\n" { // it may have shown nothing yet
		t.Errorf("interrupted: exit %d, %s", o.code, o.stderr)
	}
}

func TestWaitFor(t *testing.T) {
	asked := 0
	healthy := func() []*lbdv1.Condition { return nil }
	node := &fakeNode{
		get: func(*lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			if asked++; asked == 1 {
				return nil, status.Error(codes.NotFound, "none")
			}
			return &lbdv1.GetResponse{Resource: &lbdv1.Resource{}, Conditions: healthy()}, nil
		},
		wait: func(r *lbdv1.WaitForRevisionRequest, s grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error {
			return s.Send(progress("n1", lbdv1.NodeProgress_NODE_PROGRESS_SERVED, r.GetRevision(), ""))
		},
	}
	node.start(t)
	condition := func(node string, holds bool, why string) *lbdv1.Condition {
		return &lbdv1.Condition{Node: node, Type: "Healthy", Status: holds, Reason: why}
	}
	healthy = func() []*lbdv1.Condition {
		return []*lbdv1.Condition{condition("n1", true, ""), condition("n2", asked > 3, "NO_BACKENDS_UP")}
	}
	lbctl("", "wait", "pool/shop", "--for", "healthy").wants(t, 0, "",
		"pools/shop does not exist yet\npools/shop is not Healthy: node n2: NO_BACKENDS_UP\n")
	lbctl("", "wait", "pool/shop", "--for=deleted", "--timeout", "300ms").wants(t, 8, "", "timed out after 300ms: pools/shop is still there")
	lbctl("", "wait", "pool/shop", "--for=Programmed", "--timeout", "300ms").wants(t, 8, "", "no node says whether it is Programmed")
	asked = 0
	lbctl("", "wait", "pool/shop", "--for=deleted").wants(t, 0, "", "")
	lbctl("", "wait", "revision/5", "--for=Served").wants(t, 0, "", "node n1: serves revision 5\n")
	lbctl("", "wait", "revisions/5").wants(t, 0, "", "node n1: serves revision 5\n")
	lbctl("", "wait", "revision/5").wants(t, 0, "", "node n1: serves revision 5\n")
	node.revision = func(*lbdv1.GetRevisionRequest) (*lbdv1.GetRevisionResponse, error) {
		return &lbdv1.GetRevisionResponse{Revision: &lbdv1.Revision{Changes: []*lbdv1.Change{{Kind: "pools", Name: "shop"}, {Kind: "listeners", Name: "http"}}}}, nil
	}
	node.get = func(r *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
		shop := &lbdv1.Resource{Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{Name: r.GetName()}}}
		if !r.GetAllNodes() {
			return &lbdv1.GetResponse{Resource: shop}, nil
		}
		// Nobody waits for drained nodes, whether they answer or not.
		answer := &lbdv1.GetResponse{Resource: shop, Conditions: []*lbdv1.Condition{condition("n1", true, ""), condition("n2", false, "")}, Drained: []string{"n2", "n3"},
			Unreached: []*lbdv1.UnreachedNode{{Node: "n3", Reason: "connection refused"}}}
		if asked++; asked < 3 {
			answer.Unreached = append(answer.Unreached, &lbdv1.UnreachedNode{Node: "n4", Reason: "no answer within 5s"})
		}
		return answer, nil
	}
	asked = 0
	lbctl("", "wait", "revision/5", "--for=Healthy").wants(t, 0, "",
		"node n1: serves revision 5\npools/shop is not Healthy: node n4 does not answer: no answer within 5s\n")
	lbctl("", "wait", "revision/5", "--for=Accepted").wants(t, 2, "", "--for=served, healthy or reachable")
	lbctl("", "wait", "pool/shop").wants(t, 2, "", "--for takes")
	lbctl("", "wait", "pools").wants(t, 2, "", "or revision/N")
}

func TestDescribe(t *testing.T) {
	all := stored(t)
	node := &fakeNode{
		get: func(r *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			i := map[string]int{"listeners": 0, "certificates": 1, "pools": 2}[r.GetKind()]
			return &lbdv1.GetResponse{Resource: all[i], UsedBy: []string{"routes/shop"},
				Conditions: []*lbdv1.Condition{{Node: "n1", Type: "Healthy", Reason: "NO_BACKENDS_UP", Message: "all are down"}},
				Overrides:  []*lbdv1.Override{{Pool: "api", Address: "10.0.0.1:80", What: &lbdv1.Override_Weight{Weight: 3}, Author: "ann"}},
			}, nil
		},
		backends: func(*lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
			return &lbdv1.BackendServiceGetStatusResponse{Backends: []*lbdv1.BackendStatus{{Pool: "api", Address: "10.0.0.1:80", LastError: "connect: refused"}}}, nil
		},
		certs: func(*lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
			return &lbdv1.CertificateServiceGetStatusResponse{Certificates: []*lbdv1.CertificateStatus{{Serial: "0a", NotAfter: noon, Listeners: []string{"https"}}}}, nil
		},
	}
	node.revision = func(r *lbdv1.GetRevisionRequest) (*lbdv1.GetRevisionResponse, error) {
		return &lbdv1.GetRevisionResponse{Revision: &lbdv1.Revision{Author: "ann", Message: fmt.Sprint("why ", r.GetNumber())}}, nil
	}
	node.start(t)
	has := func(o outcome, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if o.code != 0 || !strings.Contains(o.stdout, text) {
				t.Errorf("exit %d, %q is not in\n%s%s", o.code, text, o.stdout, o.stderr)
			}
		}
	}
	has(lbctl("", "describe", "pool/api"), "RESOURCE  pools/api\nOWNER     api\n", "AUTHOR    ann\nMESSAGE   why 4\nUSED BY   routes/shop\n",
		"interval: 1m30s", "connect_timeout", "health_check.rise", `backends["10.0.0.1:80"].weight`, "n1    Healthy    false  NO_BACKENDS_UP  all are down",
		"override of api/10.0.0.1:80: weight 3, by ann", "connect: refused")
	if o := lbctl("", "describe", "pool/api"); strings.Contains(o.stdout, `backends["10.0.0.2:80"].weight`) {
		t.Errorf("a weight that is given has a default in\n%s", o.stdout)
	}
	has(lbctl("", "describe", "certificate/shop"), "SERIAL         0a", "NOT AFTER      2026-01-02T12:00:00Z", "LISTENERS      https")
	has(lbctl("", "describe", "pool/api", "-o", "json"), `"connect_timeout": "3s"`, `"last_revision"`, `"backends"`)
	// A revision that is forgotten hides nothing else.
	node.revision = func(*lbdv1.GetRevisionRequest) (*lbdv1.GetRevisionResponse, error) {
		return nil, status.Error(codes.NotFound, "not kept")
	}
	has(lbctl("", "describe", "listener/https"), "AUTHOR    -\n", "tls.min_version", "timeouts.handshake")
	lbctl("", "describe", "pools").wants(t, 2, "", "want kind/name")
}

func TestEdit(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	t.Setenv("VISUAL", "")
	editor := func(script string) { t.Setenv("EDITOR", "edit() { "+script+"\n}; edit") }
	left := func() int {
		files, err := filepath.Glob(filepath.Join(dir, "lbctl-edit-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.Remove(f); err != nil {
				t.Fatal(err)
			}
		}
		return len(files)
	}
	node := &fakeNode{
		get: func(*lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			return &lbdv1.GetResponse{Resource: stored(t)[2]}, nil
		},
		apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) { return created(9), nil },
	}
	node.start(t)

	editor("true")
	lbctl("", "edit", "pool/api").wants(t, 0, "", "nothing was changed\n")
	if n := left(); n != 0 || len(node.requests) != 1 {
		t.Errorf("%d files are left after %v", n, node.requests)
	}
	node.requests = nil
	editor(`sed -i 's/interval: .*/interval: 2s }/' "$1"`)
	lbctl("", "edit", "pool/api", "-m", "why").wants(t, 0, "revision 9: 1 change", "")
	header, sent := node.requests[1].(*lbdv1.ApplyRequest).GetHeader(), node.requests[2].(*lbdv1.ApplyRequest).GetResources().GetResources()
	if header.GetOwner() != "api" || header.GetMessage() != "why" || len(sent) != 1 || sent[0].GetEtag() != "e1" ||
		sent[0].GetPool().GetHealthCheck().GetInterval().AsDuration() != 2*time.Second {
		t.Errorf("sent %v, %v", header, sent)
	}
	if n := left(); n != 0 {
		t.Errorf("%d files are left", n)
	}

	// What is wrong comes up again, at the line where the editor shows it.
	for script, says := range map[string]string{
		`echo 'poolz: []' >>"$1"`:                                                       `unknown field .poolz.*(line`,
		`sed -i 's/owner: api/owner: x/' "$1"`:                                          `the owner is api`,
		`sed -i 's/name: api/name: x/' "$1"`:                                            `cannot rename`,
		`echo 'routes: [{ name: r, listeners: [a], respond: { status: 200 } }]' >>"$1"`: `pools/api alone`,
	} {
		editor(`if grep -q 'Not stored' "$1"; then grep -q '^#: .*` + says + `' "$1" || echo unsaid >&2; else ` + script + `; fi`)
		o := lbctl("", "edit", "pool/api")
		if o.code != 3 || !strings.Contains(o.stderr, "given up: nothing was changed; your text is kept at "+dir) || strings.Contains(o.stderr, "unsaid") || left() != 1 {
			t.Errorf("%s: exit %d\n%s", script, o.code, o.stderr)
		}
	}
	editor(`if grep -q 'Not stored' "$1"; then
		sed -n "$(sed -n 's/.*poolz.*(line \([0-9]*\)).*/\1/p' "$1")p" "$1" | grep -q '^poolz' || echo misplaced >&2; sed -i '/poolz/d' "$1"
	else echo 'poolz: []' >>"$1"; fi`)
	lbctl("", "edit", "pool/api").wants(t, 0, "", "nothing was changed\n")

	// A node's refusal comes up again, too; a conflict ends it.
	editor(`sed -i 's/interval: 1m30s/interval: 2s/; s/Not stored/&/' "$1"`)
	node.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return nil, refusal(t, &errdetails.BadRequest_FieldViolation{Field: `pools["api"].health_check.interval`, Description: "is refused here"})
	}
	lbctl("", "edit", "pool/api").wants(t, 3, "", "given up")
	node.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return nil, why(t, codes.Aborted, "ETAG_MISMATCH", "pools/api has changed")
	}
	left()
	lbctl("", "edit", "pool/api").wants(t, 6, "", "pools/api has changed; your text is kept at "+dir)
	if left() != 1 {
		t.Error("the text is lost")
	}
	editor("exit 3")
	lbctl("", "edit", "pool/api").wants(t, 1, "", "ended with an error: exit status 3; your text is kept at")
	lbctl("", "edit", "pools").wants(t, 2, "", "want kind/name")
}

func TestValidateAgainst(t *testing.T) {
	node := &fakeNode{}
	node.validate = func(r *lbdv1.ValidateRequest) (*lbdv1.ValidateResponse, error) {
		field := fmt.Sprintf("pools[%q].backends[0].address", r.GetDocument().GetPools()[0].GetName())
		return &lbdv1.ValidateResponse{Violations: []*lbdv1.Violation{
			{Severity: lbdv1.Severity_SEVERITY_ERROR, Field: field, Description: "is this node itself"},
		}}, nil
	}
	socket := node.start(t)
	lbctl(shop, "validate", "-f", "-", "--against", "cluster").wants(t, 3, "", "stdin:5:27: error: `address` is this node itself\n")
	t.Setenv("LBCTL_ENDPOINTS", "")
	lbctl(shop, "validate", "-f", "-", "--against", "unix:"+socket).wants(t, 3, "", "is this node itself\n")

	export := filepath.Join(t.TempDir(), "all.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(export, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("api_version: lbd/v1\nowner: a\nlisteners: [{ name: http, addresses: [\":80\"], protocol: HTTP }]\n---\n# nothing\n---\n" + shop)
	route := "api_version: lbd/v1\nowner: a\nroutes: [{ name: r, listeners: [http], forward: { pools: [{ pool: shpo }] } }]\n"
	lbctl(route, "validate", "-f", "-", "--against", export).wants(t, 3, "", "error: no pool named `shpo` (did you mean `shop`)")
	lbctl(strings.ReplaceAll(route, "shpo", "shop"), "validate", "-f", "-", "--against", export).wants(t, 0, "", "valid: 1 resource\n")
	write("api_version: lbd/v1\nowner: a\nlistener: []\n")
	lbctl(route, "validate", "-f", "-", "--against", export).wants(t, 3, "", "--against: "+export+":3:1: error: unknown field `listener`")
	write(shop + "---\n" + shop)
	lbctl(route, "validate", "-f", "-", "--against", export).wants(t, 3, "", "it is no export")
	lbctl(route, "validate", "-f", "-", "--against", export+".none").wants(t, 2, "", "no such file")
}

func TestFmt(t *testing.T) {
	const ugly, neat = "owner: web # whose\npools:\n- {backends: [{address: \"b:1\"}], name: a}\napi_version: lbd/v1\n",
		"api_version: lbd/v1\nowner: web # whose\npools:\n  - { name: a, backends: [{ address: \"b:1\" }] }\n"
	lbctl(ugly, "fmt", "-f", "-").wants(t, 0, neat, "")
	lbctl(ugly, "fmt", "-f", "-", "--check").wants(t, 1, "stdin\n", "")
	lbctl(neat, "fmt", "-f", "-", "--check").wants(t, 0, "", "")
	lbctl("a: [", "fmt", "-f", "-").wants(t, 3, "", "not YAML")

	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": ugly, "b.yaml": neat, "c.json": "{ }", "d.yaml": "a: [", "real": ugly} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("real", filepath.Join(dir, "e.yaml")); err != nil {
		t.Fatal(err)
	}
	a, e := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "e.yaml")
	lbctl("", "fmt", "-f", dir, "--check").wants(t, 3, a+"\n"+e+"\n", "d.yaml")
	lbctl("", "fmt", "-f", dir).wants(t, 3, a+"\n"+e+"\n", "1 file not laid out")
	for _, name := range []string{"a.yaml", "real"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if info, statErr := os.Stat(filepath.Join(dir, name)); err != nil || statErr != nil || string(text) != neat || info.Mode() != 0o640 {
			t.Errorf("%s has mode %v and is %q: %v", name, info.Mode(), text, err)
		}
	}
	if info, err := os.Lstat(e); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %v: %v", info.Mode(), err)
	}
}

func TestExplain(t *testing.T) {
	for args, wants := range map[string][]string{
		"":                                    {"document\n", "listeners", "list of mapping", "cluster_settings"},
		"pools":                               {"pools\n  Pool is a set of backends", "name                 text", "required", "connect_timeout      length of time", "3s"},
		"pool.health_check.interval":          {"Between two checks of one backend", "TYPE     length of time\n", "DEFAULT  5s\n"},
		"pool.health_check.http":              {"ONE OF  http, tcp, tls", "expect_status", "list of text", `["2xx", "3xx"]`},
		"pool.balance":                        {"one of ROUND_ROBIN, LEAST_CONNECTIONS, P2C_EWMA, MAGLEV", "P2C_EWMA           Of two chosen at random"},
		"pool.backends[0].weight":             {"pools.backends.weight\n  0 (no new requests) to 256; default 1.\n"},
		"route.forward.timeouts.body_idle":    {"length of time, or disabled", "DEFAULT  30s"},
		"route.matches.headers":               {"FieldMatch is a condition", "invert", "one of exact, prefix, regex, present"},
		"listener.labels":                     {"mapping of text to text"},
		"cluster_settings":                    {"allow_loopback_backends", "true or false", "false"},
		"pool.backends.address -o json":       {`"type": "text"`, `"required": false`, `"description": "\"host:port\".`},
		"pools -o jsonpath={.fields[0].name}": {"name\n"},
	} {
		o := lbctl("", append([]string{"explain"}, strings.Fields(args)...)...)
		for _, want := range wants {
			if o.code != 0 || !strings.Contains(o.stdout, want) {
				t.Errorf("explain %s: exit %d, %q is not in\n%s%s", args, o.code, want, o.stdout, o.stderr)
			}
		}
	}
	lbctl("", "explain", "pols").wants(t, 2, "", "no kind named `pols` (did you mean `pools`)")
	lbctl("", "explain", "pools.backend").wants(t, 2, "", "there is no field `backend` in pools (did you mean `backends`?)")
	lbctl("", "explain", "pools.name.x").wants(t, 2, "", "there are no fields in pools.name")
	lbctl("", "explain", "pools.zzzzzz").wants(t, 2, "", "there is no field `zzzzzz` in pools: name, labels")
}

// Every new kind has its columns.
func TestCells(t *testing.T) {
	for want, r := range map[string]*lbdv1.Resource{
		"a | 10.0.0.0/8": {Spec: &lbdv1.Resource_AddressList{AddressList: &lbdv1.AddressList{Name: "a", Addresses: []string{"10.0.0.0/8"}}}},
		"a | 2": {Spec: &lbdv1.Resource_TrustBundle{TrustBundle: &lbdv1.TrustBundle{Name: "a",
			Ca: &lbdv1.Content{Source: &lbdv1.Content_Inline{Inline: strings.Repeat("-----BEGIN CERTIFICATE-----\n", 2)}}}}},
		"a | addresses allow x,y deny z": {Spec: &lbdv1.Resource_Policy{Policy: &lbdv1.Policy{Name: "a", Rule: &lbdv1.Policy_Addresses{
			Addresses: &lbdv1.Addresses{Allow: []string{"x"}, AllowLists: []string{"y"}, Deny: []string{"z"}}}}}},
		"a | concurrency 5": {Spec: &lbdv1.Resource_Policy{Policy: &lbdv1.Policy{Name: "a", Rule: &lbdv1.Policy_Concurrency{
			Concurrency: &lbdv1.Concurrency{MaxRequests: 5}}}}},
		"a | pem, managed externally | ": {Spec: &lbdv1.Resource_Certificate{Certificate: &lbdv1.Certificate{Name: "a", ManagedExternally: true}}},
		"a | ROUND_ROBIN | DNS b:80 | tls": {Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{Name: "a", Discovery: &lbdv1.Discovery{Host: "b", Port: 80},
			HealthCheck: &lbdv1.HealthCheck{Check: &lbdv1.HealthCheck_Tls{}}}}},
		"a | MAGLEV | SRV _b | ": {Spec: &lbdv1.Resource_Pool{Pool: &lbdv1.Pool{Name: "a", Balance: lbdv1.Balance_BALANCE_MAGLEV,
			Discovery: &lbdv1.Discovery{Srv: "_b"}}}},
		"a |  |  | GET ~/x X: ?q | maintenance (redirect)": {Spec: &lbdv1.Resource_Route{Route: &lbdv1.Route{Name: "a",
			Matches: []*lbdv1.RouteMatch{{Path: &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Regex{Regex: "/x"}}, Methods: []string{"GET"},
				Headers: []*lbdv1.FieldMatch{{Name: "X"}}, Query: []*lbdv1.FieldMatch{{Name: "q"}}}},
			Action: &lbdv1.Route_Redirect{Redirect: &lbdv1.Redirect{}}, Maintenance: &lbdv1.Maintenance{RetryAfter: durationpb.New(time.Second)}}}},
	} {
		if got := strings.Join(cells(r), " | "); got != want {
			t.Errorf("cells are %q, want %q", got, want)
		}
	}
}

// Every verb says what it does and shows how it is called.
func TestEveryVerbHasAnExample(t *testing.T) {
	c := &cli{getenv: os.LookupEnv}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.HasSubCommands() || cmd.RunE == nil {
			return
		}
		if cmd.Short == "" || !strings.HasPrefix(cmd.Example, "  ") || !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: short %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
	}
	walk(c.root())
}
