package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"lbd/cluster/state"
	lbdv1 "lbd/proto/lbd/v1"
)

var noon = timestamppb.New(time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC))

// stored are resources of two owners as a node has them.
func stored(t *testing.T) []*lbdv1.Resource {
	t.Helper()
	sha := "sha256:" + strings.Repeat("ab", 32)
	var all []*lbdv1.Resource
	add := func(owner string, revision int64, spec proto.Message) {
		r, ok := state.Wrap(owner, spec)
		if !ok {
			t.Fatalf("no kind for %T", spec)
		}
		r.Revision, r.UpdateTime, r.Etag = revision, noon, "e1"
		all = append(all, r)
	}
	add("web", 3, &lbdv1.Listener{Name: "https", Addresses: []string{":443"}, Protocol: lbdv1.Protocol_PROTOCOL_HTTPS})
	add("web", 3, &lbdv1.Certificate{Name: "shop", Source: &lbdv1.Certificate_Pem{Pem: &lbdv1.CertificatePem{
		Chain: &lbdv1.Content{Source: &lbdv1.Content_Inline{Inline: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}},
		Key:   &lbdv1.Content{Source: &lbdv1.Content_Sha256{Sha256: sha}},
	}}})
	add("api", 4, &lbdv1.Pool{
		Name:        "api",
		Labels:      map[string]string{"tier": "1", "zone": "a"},
		Backends:    []*lbdv1.Backend{{Address: "10.0.0.1:80"}, {Address: "10.0.0.2:80", Weight: proto.Int32(0)}},
		HealthCheck: &lbdv1.HealthCheck{Check: &lbdv1.HealthCheck_Tcp{Tcp: &lbdv1.TcpCheck{}}, Interval: durationpb.New(90 * time.Second)},
	})
	add("web", 3, &lbdv1.Route{
		Name: "shop", Listeners: []string{"https"}, Hosts: []string{"shop.example.com"},
		Matches: []*lbdv1.RouteMatch{{Path: &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Exact{Exact: "/a"}}}, {Path: &lbdv1.PathMatch{Match: &lbdv1.PathMatch_Prefix{Prefix: "/b"}}}},
		Action:  &lbdv1.Route_Forward{Forward: &lbdv1.Forward{Pools: []*lbdv1.ForwardPool{{Pool: "api"}}}},
	})
	add("", 1, &lbdv1.ClusterSettings{AllowLoopbackBackends: proto.Bool(true)})
	return all
}

// TestGet holds every output format.
func TestGet(t *testing.T) {
	node := &fakeNode{
		list: func(r *lbdv1.ListRequest) (*lbdv1.ListResponse, error) {
			// One resource a page.
			var all []*lbdv1.Resource
			for _, res := range stored(t) {
				key, _ := state.KeyOf(res)
				if string(key.Kind) == r.GetKind() && (r.GetOwner() == "" || r.GetOwner() == res.GetOwner()) {
					all = append(all, res, res)
				}
			}
			switch {
			case len(all) == 0:
				return &lbdv1.ListResponse{}, nil
			case r.GetPageToken() == "":
				return &lbdv1.ListResponse{Resources: all[:1], NextPageToken: "2"}, nil
			default:
				return &lbdv1.ListResponse{Resources: all[1:]}, nil
			}
		},
		get: func(r *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			for _, res := range stored(t) {
				if key, _ := state.KeyOf(res); string(key.Kind) == r.GetKind() && key.Name == r.GetName() {
					return &lbdv1.GetResponse{Resource: res}, nil
				}
			}
			return nil, status.Error(codes.NotFound, "no such resource")
		},
	}
	node.start(t)
	const poolJSON = `{"owner":"api","revision":4,"update_time":"2026-01-02T12:00:00Z","etag":"e1","pool":{"name":"api",` +
		`"labels":{"tier":"1","zone":"a"},"backends":[{"address":"10.0.0.1:80"},{"address":"10.0.0.2:80","weight":0}],` +
		`"health_check":{"tcp":{},"interval":"1m30s"}}}` + "\n"
	for args, want := range map[string]string{
		"listeners":                 "NAME   ADDRESSES  PROTOCOL  OWNER  REVISION\nhttps  :443       HTTPS     web    3\nhttps  :443       HTTPS     web    3\n",
		"listener/https":            "NAME   ADDRESSES  PROTOCOL  OWNER  REVISION\nhttps  :443       HTTPS     web    3\n",
		"certificates/shop":         "NAME  SOURCE  HOSTS  OWNER  REVISION\nshop  pem     -      web    3\n",
		"pool/api":                  "NAME  BALANCE      BACKENDS                 CHECK  OWNER  REVISION\napi   ROUND_ROBIN  10.0.0.1:80,10.0.0.2:80  tcp    api    4\n",
		"route/shop":                "NAME  LISTENERS  HOSTS             MATCHES  ACTION       OWNER  REVISION\nshop  https      shop.example.com  =/a,/b   forward api  web    3\n",
		"cluster_settings":          "LOOPBACK BACKENDS  LINK-LOCAL BACKENDS  OWNER  REVISION\ntrue               false                -      1\n",
		"pools --owner web":         "NAME  BALANCE  BACKENDS  CHECK  OWNER  REVISION\n",
		"pools --owner web -o json": "[]\n",
		"pools --owner web -o yaml": "[]\n",
		"pools --owner web -o name": "",
		"pool/api -o wide": "NAME  BALANCE      BACKENDS                 CHECK  OWNER  REVISION  LABELS         UPDATED               ETAG\n" +
			"api   ROUND_ROBIN  10.0.0.1:80,10.0.0.2:80  tcp    api    4         tier=1,zone=a  2026-01-02T12:00:00Z  e1\n",
		"pools -o name":     "pools/api\npools/api\n",
		"pool/api -o jsonl": poolJSON,
		"pools -o jsonl":    poolJSON + poolJSON,
		"pool/api -o jsonpath={.pool.backends[*].address}": "10.0.0.1:80\n10.0.0.2:80\n",
		"pools -o jsonpath={[*].pool.name}":                "api\napi\n",
		"listener/https -o json": "{\n  \"owner\": \"web\",\n  \"revision\": 3,\n  \"update_time\": \"2026-01-02T12:00:00Z\",\n  \"etag\": \"e1\",\n" +
			"  \"listener\": {\n    \"name\": \"https\",\n    \"addresses\": [\n      \":443\"\n    ],\n    \"protocol\": \"HTTPS\"\n  }\n}\n",
		"listeners -o yaml": strings.Repeat("- owner: web\n  revision: 3\n  update_time: \"2026-01-02T12:00:00Z\"\n  etag: e1\n  listener: { name: https, addresses: [\":443\"], protocol: HTTPS }\n", 2),
	} {
		o := lbctl("", append([]string{"get"}, strings.Fields(args)...)...)
		if o.code != 0 || o.stdout != want || o.stderr != "" {
			t.Errorf("get %s: exit %d\n%s%s\nwant\n%s", args, o.code, o.stdout, o.stderr, want)
		}
	}
	lbctl("", "get", "pool/none").wants(t, 5, "", "no such resource")
}

// An export can be applied again: what it says is valid and the same.
func TestExport(t *testing.T) {
	all := stored(t)
	node := &fakeNode{export: func(r *lbdv1.ExportRequest) ([]*lbdv1.Resource, error) {
		var some []*lbdv1.Resource
		for _, res := range all {
			if r.GetOwner() == "" || r.GetOwner() == res.GetOwner() {
				some = append(some, res)
			}
		}
		return some, nil
	}}
	node.start(t)
	o := lbctl("", "export")
	o.wants(t, 0, "key: { sha256: \"sha256:abab", "")
	docs := strings.Split(o.stdout, "---\napi")
	if len(docs) != 2 || !strings.HasPrefix(docs[0], "api_version: lbd/v1\nowner: web\n") || !strings.Contains(docs[0], "cluster_settings: { allow_loopback_backends: true }\n") {
		t.Fatalf("exported\n%s", o.stdout)
	}
	lbctl(docs[0], "validate", "-f", "-").wants(t, 0, "", "no pool named `api`")
	lbctl("api"+docs[1], "validate", "-f", "-").wants(t, 0, "", "valid: 1 resource\n")
	lbctl(o.stdout, "validate", "-f", "-").wants(t, 3, "", "belong to one owner")

	o = lbctl("", "export", "--owner", "api", "-o", "json")
	o.wants(t, 0, `"owner": "api"`, "")
	node.apply = func(_ *lbdv1.ApplyHeader, resources []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		if len(resources) != 1 || !proto.Equal(resources[0].GetPool(), all[2].GetPool()) {
			t.Errorf("applied %v", resources)
		}
		return &lbdv1.ApplyResponse{Revision: 4}, nil
	}
	lbctl(o.stdout, "apply", "-f", "-").wants(t, 0, "revision 4: nothing to change", "")
	lbctl("", "export", "--owner", "nobody").wants(t, 5, "", `owner "nobody" has no resources`)

	node.export = func(*lbdv1.ExportRequest) ([]*lbdv1.Resource, error) {
		return all, status.Error(codes.Internal, "broke off")
	}
	lbctl("", "export").wants(t, 9, "", "broke off")
	all = all[4:]
	node.export = func(*lbdv1.ExportRequest) ([]*lbdv1.Resource, error) { return all, nil }
	lbctl("", "export").wants(t, 0, "owner: dev\ncluster_settings: { allow_loopback_backends: true }\n", "")
}

func TestHistory(t *testing.T) {
	node := &fakeNode{revisions: func(r *lbdv1.ListRevisionsRequest) (*lbdv1.ListRevisionsResponse, error) {
		page := &lbdv1.ListRevisionsResponse{NextPageToken: r.GetPageToken() + "x"}
		for i := range min(2, int(r.GetPageSize())) {
			page.Revisions = append(page.Revisions, &lbdv1.Revision{
				Number: int64(9 - 2*len(r.GetPageToken()) - i), Owner: "web", Author: "node/n1 uid=0", Time: noon, Message: "a\tb\nc",
				Changes: created(1).GetChanges(), ContentHash: "ff",
			})
		}
		return page, nil
	}}
	node.start(t)
	lbctl("", "history", "--limit", "1", "--owner", "web").wants(t, 0,
		"REVISION  TIME                  OWNER  AUTHOR         CHANGES     MESSAGE\n9         2026-01-02T12:00:00Z  web    node/n1 uid=0  pools/shop  a b c\n", "")
	if r := node.requests[0].(*lbdv1.ListRevisionsRequest); r.GetOwner() != "web" || r.GetPageSize() != 1 {
		t.Errorf("asked %v", r)
	}
	lbctl("", "history", "--limit", "5", "-o", "name").wants(t, 0, "revision/9\nrevision/8\nrevision/7\nrevision/6\nrevision/5\n", "")
	lbctl("", "history", "--limit", "1", "-o", "json").wants(t, 0, `"content_hash": "ff"`, "")
}

func TestCert(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"chain.pem": "the chain", "key.pem": "the key"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	chain, key := filepath.Join(dir, "chain.pem"), filepath.Join(dir, "key.pem")
	shop := &lbdv1.CertificateStatus{
		Name: "shop", Owner: "web", Hosts: []string{"a", "b", "c", "d"}, KeyType: "ECDSA_P256", Serial: "0a", ServedSerial: "0a", NotAfter: noon, Revision: 5,
		Listeners: []string{"https"},
	}
	node := &fakeNode{
		rotate: func(*lbdv1.RotateRequest) (*lbdv1.RotateResponse, error) {
			return &lbdv1.RotateResponse{Revision: 5, Certificate: shop, Warnings: []*lbdv1.Violation{
				{Severity: lbdv1.Severity_SEVERITY_WARNING, Field: "chain_pem", Description: "it no longer names e"},
			}}, nil
		},
		wait: func(_ *lbdv1.WaitForRevisionRequest, s grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error {
			return s.Send(progress("n1", lbdv1.NodeProgress_NODE_PROGRESS_SERVED, 5, ""))
		},
		certs: func(r *lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
			if r.GetName() == "none" {
				return nil, status.Error(codes.NotFound, "no certificate named none")
			}
			old := proto.Clone(shop).(*lbdv1.CertificateStatus)
			old.ServedSerial = "09"
			return &lbdv1.CertificateServiceGetStatusResponse{Certificates: []*lbdv1.CertificateStatus{shop, old, {Name: "new", Serial: "01"}}}, nil
		},
	}
	node.start(t)
	lbctl("", "cert", "add", "shop", "--chain", chain, "--key", key, "--owner", "web", "-m", "why").wants(t, 0,
		"revision 5: certificates/shop has serial 0a, valid until 2026-01-02T12:00:00Z\n", "warning: --chain: it no longer names e\n")
	r := node.requests[0].(*lbdv1.RotateRequest)
	if r.GetName() != "shop" || r.GetChainPem() != "the chain" || r.GetKeyPem() != "the key" || !r.GetCreate() || r.GetOwner() != "web" || r.GetMessage() != "why" || r.GetRequestId() == "" {
		t.Errorf("asked %v", r)
	}
	lbctl("", "cert", "rotate", "shop", "--wait").wants(t, 0, "serial 0a", "node n1: serves revision 5\n")
	if r := node.requests[1].(*lbdv1.RotateRequest); r.GetChainPem() != "" || r.GetKeyPem() != "" || r.GetCreate() {
		t.Errorf("asked %v", r)
	}
	lbctl("", "cert", "status").wants(t, 0, ""+
		"NAME  HOSTS        KEY         NOT AFTER             SERIAL  SERVED  LISTENERS  REVISION\n"+
		"shop  a,b,c,… (4)  ECDSA_P256  2026-01-02T12:00:00Z  0a      yes     https      5\n"+
		"shop  a,b,c,… (4)  ECDSA_P256  2026-01-02T12:00:00Z  0a      09      https      5\n"+
		"new   -            -           -                     01      no      -          0\n", "")
	lbctl("", "cert", "status", "none").wants(t, 5, "", "no certificate named none")

	node.rotate = func(*lbdv1.RotateRequest) (*lbdv1.RotateResponse, error) {
		return nil, refusal(t, &errdetails.BadRequest_FieldViolation{Field: "key_pem", Description: "the key does not fit the chain"})
	}
	lbctl("", "cert", "rotate", "shop", "--chain", chain, "--key", key).wants(t, 3, "", "error: --key: the key does not fit the chain\nerror: 1 error\n")
}

func TestHistoryOfNobody(t *testing.T) {
	node := &fakeNode{revisions: func(*lbdv1.ListRevisionsRequest) (*lbdv1.ListRevisionsResponse, error) {
		return &lbdv1.ListRevisionsResponse{}, nil
	}}
	node.start(t)
	lbctl("", "history", "--owner", "nosuch").wants(t, 0, "REVISION", "owner `nosuch` has no revisions\n")
	lbctl("", "history").wants(t, 0, "REVISION", "")
}

func TestStatus(t *testing.T) {
	answer := &lbdv1.SystemServiceGetStatusResponse{
		Node: "n1", RaftRole: "leader", Engine: "epoll", StoredRevision: 7, ServedRevision: 6, StartTime: noon, BackendsUp: 1, BackendsTotal: 2,
		StateBytes: 1<<20 + 1, StateBytesMax: 1 << 30,
		Listeners: []*lbdv1.ListenerStatus{{Name: "https", Addresses: []string{"127.0.0.1:8443"}, Reason: "ADDRESS_IN_USE", Message: "used by nginx"}},
	}
	node := &fakeNode{
		status: func() (*lbdv1.SystemServiceGetStatusResponse, error) { return answer, nil },
		backends: func(r *lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
			return &lbdv1.BackendServiceGetStatusResponse{Backends: []*lbdv1.BackendStatus{
				{Node: "n1", Pool: r.GetPool(), Address: "10.0.0.1:80", Health: lbdv1.BackendHealth_BACKEND_HEALTH_DOWN, Since: noon, LastError: "connect: refused", IneligibleReason: "connect: refused", Weight: 1},
			}}, nil
		},
	}
	node.start(t)
	table := "NODE  ROLE    STORED  SERVED  BACKENDS UP  CONNECTIONS  REQUESTS  ENGINE  STATE       STARTED\n" +
		"n1    leader  7       6       1/2          0            0         epoll   2/1024 MiB  2026-01-02T12:00:00Z\n" +
		"\nLISTENER  ADDRESSES       PROGRAMMED  REASON          MESSAGE\nhttps     127.0.0.1:8443  false       ADDRESS_IN_USE  used by nginx\n"
	lbctl("", "status").wants(t, 0, table, "")
	// A count of nothing is a number, not a hole.
	lbctl("", "status", "-o", "jsonpath={.connections}").wants(t, 0, "0\n", "")
	answer.Problems = []string{"no leader"}
	lbctl("", "status").wants(t, 1, table+"\nproblem: no leader\n", "")

	lbctl("", "backend", "status", "shop").wants(t, 0, ""+
		"POOL  BACKEND      STATE  HEALTH  TAKES                 WEIGHT  SHARE  IN FLIGHT  CONNECTIONS  QUEUED  REQUESTS  FAILURES  LAST ERROR\n"+
		"shop  10.0.0.1:80  READY  DOWN    no: connect: refused  1       -      0          0            0       0         0         -\n", "")
	lbctl("", "backend", "status", "pools/shop", "-o", "wide").wants(t, 0, "  connect: refused  n1  ", "")
}

func TestInit(t *testing.T) {
	o := lbctl("", "init", "--backend", "127.0.0.1:3000")
	o.wants(t, 0, "owner: web\n", "")
	for _, name := range []string{"name: http,", "name: https,", "name: default"} {
		if !strings.Contains(o.stdout, name) {
			t.Errorf("%q is not in\n%s", name, o.stdout)
		}
	}
	lbctl(o.stdout, "validate", "-f", "-").wants(t, 0, "", "valid: 5 resources\n")

	o = lbctl("", "init", "--name", "shop", "--backend", "10.0.0.1:80", "--backend", "10.0.0.2:80")
	o.wants(t, 0, `backends: [{ address: "10.0.0.1:80" }, { address: "10.0.0.2:80" }]`, "")
	if strings.Contains(o.stdout, "name: default") || !strings.Contains(o.stdout, "name: shop-https") {
		t.Errorf("init --name shop writes\n%s", o.stdout)
	}
	lbctl(o.stdout, "validate", "-f", "-").wants(t, 0, "", "valid: 5 resources\n")
}

func TestValidateJSON(t *testing.T) {
	o := lbctl(shop+"    slow_stop: 5s\n", "validate", "-f", "-", "--error-format", "json")
	o.wants(t, 3, `"line": 6,
    "column": 5,
    "severity": "ERROR",`, "")
	lbctl(shop, "validate", "-f", "-", "--error-format", "json").wants(t, 0, "[]\n", "")
}

// A document that is wrong all over is shown in part; a program gets all of it.
func TestManyProblems(t *testing.T) {
	var doc strings.Builder
	doc.WriteString("api_version: lbd/v1\nowner: web\nlisteners:\n")
	for range problemsShownMax + 50 {
		doc.WriteString("  - [1]\n")
	}
	o := lbctl(doc.String(), "validate", "-f", "-")
	o.wants(t, 3, "", "… and 50 more\nerror: 250 errors\n")
	if n := strings.Count(o.stderr, "stdin:"); n != problemsShownMax {
		t.Errorf("%d problems are shown", n)
	}
	o = lbctl(doc.String(), "validate", "-f", "-", "--error-format", "json")
	if n := strings.Count(o.stdout, `"file"`); n != problemsShownMax+50 {
		t.Errorf("%d problems are listed", n)
	}
}
