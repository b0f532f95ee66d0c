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

	lbdv1 "lbd/proto/lbd/v1"
)

// contextsFile is where this test's contexts are.
func contextsFile() string {
	return filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "lbctl", "config.yaml")
}

func TestContexts(t *testing.T) {
	setting(t)
	pin := "sha256:" + strings.Repeat("ab", 32)
	lbctl("", "context", "list").wants(t, 0, "CURRENT  NAME  ENDPOINTS  CREDENTIAL  CA\n", "")
	lbctl("", "context", "list", "-o", "json").wants(t, 0, "[]\n", "")
	lbctl("", "context", "set", "prod").wants(t, 2, "", "context `prod` is new: say --endpoints")
	lbctl("", "context", "set", "prod", "--endpoints", "edge-1").wants(t, 2, "", "HOST:PORT or unix:PATH")
	lbctl("", "context", "set", "a/b", "--endpoints", "edge-1:7443").wants(t, 2, "", "NAME must be 1 to 63 letters")
	lbctl("", "context", "set", "prod", "--endpoints", "edge-1:7443", "--ca", "sha256:12").wants(t, 2, "", "--ca is no pin")
	lbctl("", "context", "set", "prod", "--endpoints", "edge-1:7443", "--ca", "").wants(t, 2, "", "--ca is empty")
	lbctl("hunter2\n", "context", "set", "prod", "--endpoints", "edge-1:7443", "--token-stdin").wants(t, 2, "", "what stdin has is no token")
	lbctl("", "context", "set", "prod", "--endpoints", "edge-1:7443", "--cert", "a.pem").wants(t, 2, "", "key")
	if _, err := os.Stat(contextsFile()); err == nil {
		t.Error("what was refused is written")
	}

	lbctl("lbt_k3v9_s3cret\n", "context", "set", "prod", "--endpoints", "edge-1:7443,edge-2:7443", "--ca", strings.ToUpper(pin[7:])).wants(t, 2, "", "read the certificate authority in --ca")
	lbctl("lbt_k3v9_s3cret\n", "context", "set", "prod", "--endpoints", "edge-1:7443,edge-2:7443", "--ca", pin, "--token-stdin").wants(t, 0, "", "`lbctl context use prod` makes it the current one\n")
	lbctl("", "context", "set", "lab", "--endpoints", "unix:control.sock", "--use").wants(t, 0, "", "")
	here, _ := os.Getwd()
	lbctl("", "context", "list").wants(t, 0, "\n*        lab   unix:"+here+"/control.sock  -           -\n", "")
	lbctl("", "context", "list").wants(t, 0, "  token k3v9  "+pin+"\n", "")
	o := lbctl("", "context", "list", "-o", "json")
	o.wants(t, 0, `"token_id": "k3v9"`, "")
	if strings.Contains(o.stdout, "s3cret") {
		t.Errorf("the secret is shown:\n%s", o.stdout)
	}
	lbctl("", "context", "list", "-o", `jsonpath={[1].endpoints[0]}`).wants(t, 0, "unix:"+here+"/control.sock\n", "")

	// What is not named stays, and a file takes the place of a token.
	lbctl("", "context", "set", "prod", "--token-file", "token", "-q").wants(t, 0, "", "")
	lbctl("", "context", "list", "-o", `jsonpath={[0].token_file}`).wants(t, 0, here+"/token\n", "")
	lbctl("", "context", "list", "-o", `jsonpath={[0].ca}`).wants(t, 0, pin+"\n", "")
	text, err := os.ReadFile(contextsFile())
	if err != nil || strings.Contains(string(text), "s3cret") {
		t.Errorf("%v\n%s", err, text)
	}

	lbctl("", "context", "use").wants(t, 2, "", "say which context")
	lbctl("", "context", "use", "nowhere").wants(t, 5, "", "there is no context `nowhere`")
	lbctl("", "context", "use", "prod").wants(t, 0, "", "")
	lbctl("", "context", "list", "-o", `jsonpath={[0].current}`).wants(t, 0, "true\n", "")
	lbctl("", "context", "use", "--none").wants(t, 0, "", "")
	lbctl("", "context", "list", "-o", `jsonpath={[0].current}`).wants(t, 0, "false\n", "")
	lbctl("", "context", "delete", "nowhere").wants(t, 5, "", "there is no context `nowhere`")
	lbctl("", "context", "use", "lab").wants(t, 0, "", "")
	lbctl("", "context", "delete", "lab").wants(t, 0, "", "it was the current one")
	lbctl("", "context", "list", "-o", "name").wants(t, 0, "prod\n", "")
}

// The file of contexts is its owner's alone, is replaced whole, and stays where a link has it.
func TestContextsFile(t *testing.T) {
	setting(t)
	set := func(name, token string) outcome {
		return lbctl(token, "context", "set", name, "--endpoints", "unix:/nowhere/x.sock", "--token-stdin", "-q")
	}
	set("a", "lbt_a_s3cret").wants(t, 0, "", "")
	info, err := os.Stat(contextsFile())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if dir, err := os.Stat(filepath.Dir(contextsFile())); err != nil || dir.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", dir, err)
	}
	if err := os.Chmod(contextsFile(), 0o644); err != nil {
		t.Fatal(err)
	}
	lbctl("", "context", "list").wants(t, 0, "token a", "config.yaml holds tokens and others may read it: chmod 600")
	set("b", "lbt_b_s3cret").wants(t, 0, "", "chmod 600")
	lbctl("", "context", "list").wants(t, 0, "token b", "")

	elsewhere := filepath.Join(t.TempDir(), "dotfile")
	if err := os.Rename(contextsFile(), elsewhere); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, contextsFile()); err != nil {
		t.Fatal(err)
	}
	set("c", "lbt_c_s3cret").wants(t, 0, "", "")
	if link, err := os.Lstat(contextsFile()); err != nil || link.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is gone: %v, %v", link, err)
	}
	if text, err := os.ReadFile(elsewhere); err != nil || !strings.Contains(string(text), "lbt_c_s3cret") {
		t.Errorf("%v\n%s", err, text)
	}
	if files, err := os.ReadDir(filepath.Dir(elsewhere)); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}

	if err := os.WriteFile(elsewhere, []byte("contexts:\n  - { name: a, endpoint: [x:1], token: lbt_a_s3cret }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"status"}, {"context", "list"}, {"context", "use", "a"}} {
		o := lbctl("", args...)
		o.wants(t, 2, "", "config.yaml:2:16: unknown field `endpoint` (did you mean `endpoints`?)")
		if strings.Contains(o.stderr, "s3cret") {
			t.Errorf("the secret is shown: %s", o.stderr)
		}
	}
	// Who needs no context is not in its way.
	t.Setenv("LBCTL_ENDPOINTS", "unix:/nowhere/x.sock")
	lbctl("", "status").wants(t, 7, "", "no lbd node answers")

	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	lbctl("", "context", "list").wants(t, 0, "NAME", "")
	set("d", "lbt_d_s3cret").wants(t, 2, "", "there is no place for contexts: set XDG_CONFIG_HOME or HOME")
}

func TestTokens(t *testing.T) {
	var answer *lbdv1.CreateTokenResponse
	var refused error
	node := &fakeNode{fakeIdentity: fakeIdentity{
		createToken: func(r *lbdv1.CreateTokenRequest) (*lbdv1.CreateTokenResponse, error) {
			answer.Token.Role, answer.Token.Owners, answer.Token.ExpireTime = r.GetRole(), r.GetOwners(), r.GetExpireTime()
			return answer, refused
		},
		listTokens: func() (*lbdv1.ListTokensResponse, error) {
			return &lbdv1.ListTokensResponse{Tokens: []*lbdv1.Token{
				{Id: "k3v9", Role: lbdv1.Role_ROLE_EDITOR, Owners: []string{"web", "api"}, ExpireTime: noon, Description: "ci\tof web", CreateTime: noon, Author: "node/n1 uid=0"},
				{Id: "z1", Role: lbdv1.Role_ROLE_ADMIN, PublicKey: "sha256:ff", LastUseTime: noon},
			}}, nil
		},
		revokeToken: func(r *lbdv1.RevokeTokenRequest) (*lbdv1.RevokeTokenResponse, error) {
			if r.GetId() == "none" {
				return nil, status.Error(codes.NotFound, "there is no token `none`")
			}
			return &lbdv1.RevokeTokenResponse{Token: &lbdv1.Token{Id: r.GetId()}}, nil
		},
	}}
	node.start(t)
	pin := "sha256:" + strings.Repeat("ab", 32)
	answer = &lbdv1.CreateTokenResponse{Token: &lbdv1.Token{Id: "k3v9"}, Secret: "lbt_k3v9_s3cret", CaPin: pin, Endpoint: "10.0.0.1:7443", Warnings: []string{"there is no owners/web"}}

	// The secret is alone on stdout.
	o := lbctl("", "token", "create", "--role", "Editor", "--owner", "web", "--expires", "90d", "--description", "ci")
	o.wants(t, 0, "lbt_k3v9_s3cret\n", "warning: there is no owners/web\n")
	if o.stdout != "lbt_k3v9_s3cret\n" || strings.Contains(o.stderr, "s3cret") {
		t.Errorf("%+v", o)
	}
	for _, says := range []string{"token k3v9: role editor, owners web, until ", "lbctl context set NAME --endpoints 10.0.0.1:7443 --ca " + pin, "export LBCTL_ENDPOINTS=10.0.0.1:7443 LBCTL_CA=" + pin} {
		o.wants(t, 0, "lbt_", says)
	}
	r := received[*lbdv1.CreateTokenRequest](node)[0]
	if left := time.Until(r.GetExpireTime().AsTime()); r.GetRole() != lbdv1.Role_ROLE_EDITOR || r.GetOwners()[0] != "web" || r.GetDescription() != "ci" || r.GetRequestId() == "" ||
		left < 89*day || left > 90*day {
		t.Errorf("asked %v", r)
	}
	lbctl("", "token", "create", "--role", "admin", "-o", "jsonpath={.secret}", "-q").wants(t, 0, "lbt_k3v9_s3cret\n", "warning: it never expires")
	lbctl("", "token", "create", "--role", "admin", "-o", "name", "-q").wants(t, 0, "k3v9\n", "warning")
	lbctl("", "token", "create", "--role", "viewer", "--expires", "2030-01-02T03:04:05Z").wants(t, 0, "lbt_", "until 2030-01-02T03:04:05Z")

	answer.CaPin, answer.Endpoint = "", ""
	lbctl("", "token", "create", "--role", "viewer").wants(t, 0, "lbt_", "this node has no control port")
	answer.Secret = ""
	lbctl("", "token", "create", "--role", "viewer").wants(t, 7, "", "token k3v9 was made, but the connection broke before its secret came: revoke it (`lbctl token revoke k3v9`)")
	answer.CaPin, answer.Endpoint = pin, "10.0.0.1:7443"
	lbctl("", "token", "create", "--role", "viewer", "--certificate", fileWith(t, "the certificate")).wants(t, 0, "k3v9\n", "--cert FILE --key FILE")
	if all := received[*lbdv1.CreateTokenRequest](node); all[len(all)-1].GetCertificatePem() != "the certificate" {
		t.Errorf("asked %v", all[len(all)-1])
	}

	asked := len(node.requests)
	lbctl("", "token", "create").wants(t, 2, "", "say --role ROLE")
	lbctl("", "token", "create", "--role", "root").wants(t, 2, "", `--role is one of viewer, operator, editor, admin, not "root"`)
	lbctl("", "token", "create", "--role", "admin", "--expires", "soon").wants(t, 2, "", "--expires takes a length of time such as 90d")
	lbctl("", "token", "create", "--role", "admin", "--certificate", "/nowhere").wants(t, 2, "", "--certificate: open /nowhere")
	lbctl("", "token", "create", "--role", "admin", "--certificate", fileWith(t, "-----BEGIN EC PRIVATE KEY-----")).wants(t, 2, "", "there is a private key in")
	if len(node.requests) != asked {
		t.Errorf("asked %v", node.requests[asked:])
	}
	refused = refusal(t, &errdetails.BadRequest_FieldViolation{Field: "owners[0]", Description: "`W` is no name"}, &errdetails.BadRequest_FieldViolation{Field: "certificate_pem", Description: "is no certificate in PEM"})
	lbctl("", "token", "create", "--role", "admin").wants(t, 2, "", "error: --owner: `W` is no name\nerror: --certificate: is no certificate in PEM\nerror: no token was made\n")

	lbctl("", "token", "list").wants(t, 0, ""+
		"TOKEN  ROLE    OWNERS   KIND         EXPIRES                       LAST USE              DESCRIPTION\n"+
		"k3v9   editor  web,api  token        expired 2026-01-02T12:00:00Z  -                     ci of web\n"+
		"z1     admin   all      certificate  never                         2026-01-02T12:00:00Z  -\n", "")
	lbctl("", "token", "list", "-o", "wide").wants(t, 0, "sha256:ff", "")
	lbctl("", "token", "list", "-o", "name").wants(t, 0, "k3v9\nz1\n", "")
	lbctl("", "token", "list", "-o", "jsonl").wants(t, 0, `{"id":"k3v9","description":"ci\tof web","role":"EDITOR","owners":["web","api"]`, "")

	lbctl("", "token", "revoke", "k3v9").wants(t, 0, "token k3v9 revoked\n", "")
	lbctl("", "token", "revoke", "lbt_k3v9_s3cret").wants(t, 0, "token k3v9 revoked\n", "its id is enough")
	lbctl("", "token", "revoke", "lbt_k3v9").wants(t, 0, "token k3v9 revoked\n", "")
	lbctl("", "token", "revoke", "none").wants(t, 5, "", "there is no token `none`")
	lbctl("", "token", "revoke").wants(t, 2, "", "accepts 1 arg")
}

// A secret that could not be written says which token has to be revoked.
func TestSecretThatIsLost(t *testing.T) {
	node := &fakeNode{fakeIdentity: fakeIdentity{createToken: func(*lbdv1.CreateTokenRequest) (*lbdv1.CreateTokenResponse, error) {
		return &lbdv1.CreateTokenResponse{Token: &lbdv1.Token{Id: "k3v9"}, Secret: "lbt_k3v9_s3cret"}, nil
	}}}
	node.start(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var stderr strings.Builder
	code := run([]string{"token", "create", "--role", "viewer"}, strings.NewReader(""), full, &stderr)
	if code == 0 || !strings.Contains(stderr.String(), "revoke it (`lbctl token revoke k3v9`)") || strings.Contains(stderr.String(), "s3cret") {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}

func TestWhoAmI(t *testing.T) {
	node := &fakeNode{fakeIdentity: fakeIdentity{whoAmI: func(in login) (*lbdv1.WhoAmIResponse, error) {
		if len(in.authorization) > 0 {
			t.Errorf("authorization %v", in.authorization)
		}
		return &lbdv1.WhoAmIResponse{Author: "token ci (k3v9)", Role: lbdv1.Role_ROLE_EDITOR, Owners: []string{"web"}, Kind: "token", TokenId: "k3v9", ExpireTime: noon,
			Source: "10.0.0.9:51234", Node: "n1", CaPin: "sha256:ab"}, nil
	}}}
	node.start(t)
	lbctl("", "whoami").wants(t, 0, "AUTHOR      token ci (k3v9)\nROLE        editor\nOWNERS      web\nKNOWN BY    token\nTOKEN       k3v9\nEXPIRES     2026-01-02T12:00:00Z\n"+
		"COMES FROM  10.0.0.9:51234\nNODE        n1\nCA PIN      sha256:ab\n", "")
	lbctl("", "whoami", "-o", "jsonpath={.ca_pin}").wants(t, 0, "sha256:ab\n", "")
	lbctl("", "whoami", "-o", "json").wants(t, 0, `"role": "EDITOR"`, "")
}

func TestAudit(t *testing.T) {
	node := &fakeNode{fakeIdentity: fakeIdentity{audit: func(r *lbdv1.ListAuditRequest, stream grpc.ServerStreamingServer[lbdv1.ListAuditResponse]) error {
		for _, e := range []*lbdv1.ListAuditResponse{
			{Time: noon, Author: "token ci (k3v9)", Source: "10.0.0.9", Method: "ConfigService/Apply", Result: "accepted", Message: "5 changes of owner `web`", Revision: 7, Count: 1},
			{Time: noon, Node: "n1", Source: "10.0.0.8", Method: "ConfigService/Apply", Result: "unauthenticated", Message: "not\nknown", Count: 17},
		} {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		if r.GetRefusedOnly() {
			return status.Error(codes.Unavailable, "stopping")
		}
		return nil
	}}}
	node.start(t)
	lbctl("", "audit").wants(t, 0, ""+
		"TIME                  RESULT           AUTHOR           SOURCE    METHOD               REVISION  MESSAGE\n"+
		"2026-01-02T12:00:00Z  accepted         token ci (k3v9)  10.0.0.9  ConfigService/Apply  7         5 changes of owner `web`\n"+
		"2026-01-02T12:00:00Z  unauthenticated  -                10.0.0.8  ConfigService/Apply  -         17 times: not known\n", "")
	lbctl("", "audit", "-o", "json").wants(t, 0, `"count": 17`, "")
	o := lbctl("", "audit", "-o", "jsonl", "--since", "2h")
	o.wants(t, 0, `"node":"n1"`, "")
	if n := strings.Count(o.stdout, "\n"); n != 2 {
		t.Errorf("%d lines:\n%s", n, o.stdout)
	}
	for since, want := range map[string]time.Time{
		"2026-01-31":           time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC),
		"2026-01-31T12:00:00Z": time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC),
	} {
		lbctl("", "audit", "--since", since).wants(t, 0, "accepted", "")
		all := received[*lbdv1.ListAuditRequest](node)
		if got := all[len(all)-1].GetSince().AsTime(); !got.Equal(want) {
			t.Errorf("--since %s is %v", since, got)
		}
	}
	if span, err := parseSince("--since", "7d", noon.AsTime()); err != nil || !span.AsTime().Equal(noon.AsTime().Add(-7*day)) {
		t.Errorf("7d before noon is %v, %v", span, err)
	}
	lbctl("", "audit", "--since", "lately").wants(t, 2, "", "--since takes a length of time such as 2h")
	// What came is shown, and that it is not all.
	lbctl("", "audit", "--refused", "-o", "jsonl").wants(t, 7, `"accepted"`, "stopping")
}
