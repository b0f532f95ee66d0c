package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

var badExample = filepath.Join("..", "..", "examples", "bad.yaml")

// TestGitHubAnnotations: the runner reads workflow commands from the log, whichever stream they come by.
func TestGitHubAnnotations(t *testing.T) {
	o := lbctl("", "validate", "-f", badExample, "--error-format", "github")
	if o.code != exitInvalid || o.stdout != "" {
		t.Errorf("exit %d, stdout %q", o.code, o.stdout)
	}
	lines := strings.Split(strings.TrimSpace(o.stderr), "\n")
	form := regexp.MustCompile(`^::(error|warning) file=\.\./\.\./examples/bad\.yaml,line=(\d+),col=(\d+)::\S.*$`)
	for _, line := range lines[:len(lines)-1] {
		if !form.MatchString(line) {
			t.Errorf("no annotation: %s", line)
		}
	}
	if len(lines) != 9 || lines[8] != "error: 7 errors" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
	// What the runner takes for an end of something is escaped.
	name := filepath.Join(t.TempDir(), "a,b:c%.yaml")
	if err := os.WriteFile(name, []byte("api_version: lbd/v1\nowner: web\nlisteners: [{ name: \"100%\", addresses: [\":80\"], protocol: HTTP }]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o = lbctl("", "validate", "-f", name, "--error-format", "github")
	if !strings.Contains(o.stderr, "a%2Cb%3Ac%25.yaml,line=3,col=21::`100%25` is no name") {
		t.Errorf("%s", o.stderr)
	}
}

// quality is an entry of GitLab's report, as its documentation has it.
type quality struct {
	Description string
	CheckName   string `json:"check_name"`
	Fingerprint string
	Severity    string
	Location    struct {
		Path  string
		Lines struct{ Begin int }
	}
}

func qualityOf(t *testing.T, text string) []quality {
	t.Helper()
	var all []quality
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&all); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return all
}

func TestGitLabReport(t *testing.T) {
	o := lbctl("", "validate", "-f", badExample, "--error-format", "gitlab")
	all := qualityOf(t, o.stdout)
	if o.code != exitInvalid || o.stderr != "" || len(all) != 8 {
		t.Fatalf("exit %d, %d entries, stderr %q", o.code, len(all), o.stderr)
	}
	seen, severities := map[string]bool{}, map[string]int{}
	for _, q := range all {
		if q.Description == "" || q.CheckName != "lbctl" || q.Location.Path != "../../examples/bad.yaml" || q.Location.Lines.Begin < 1 || seen[q.Fingerprint] || len(q.Fingerprint) != 32 {
			t.Errorf("%+v", q)
		}
		seen[q.Fingerprint] = true
		severities[q.Severity]++
	}
	if severities["major"] != 7 || severities["minor"] != 1 {
		t.Errorf("severities %v", severities)
	}
	// Lines before a problem do not make it another one; the same problem twice is two.
	const doc = "api_version: lbd/v1\nowner: web\npools:\n  - { name: a, backends: [{ address: x }, { address: x }] }\n"
	first := qualityOf(t, lbctl(doc, "validate", "-f", "-", "--error-format", "gitlab").stdout)
	moved := qualityOf(t, lbctl("# more\n"+doc, "validate", "-f", "-", "--error-format", "gitlab").stdout)
	if len(first) < 2 || len(first) != len(moved) {
		t.Fatalf("%v and %v", first, moved)
	}
	for i := range first {
		if first[i].Fingerprint != moved[i].Fingerprint || first[i].Location.Lines.Begin == moved[i].Location.Lines.Begin {
			t.Errorf("%+v became %+v", first[i], moved[i])
		}
	}
	// What is good, and what cannot be judged at all, leaves a report that holds nothing.
	lbctl("api_version: lbd/v1\nowner: web\n", "validate", "-f", "-", "--error-format", "gitlab").wants(t, exitOK, "[]\n", "")
	if o := lbctl("", "validate", "-f", "missing.yaml", "--error-format", "gitlab"); o.code != exitUsage || o.stdout != "[]\n" || !strings.Contains(o.stderr, "missing.yaml") {
		t.Errorf("exit %d, stdout %q, stderr %q", o.code, o.stdout, o.stderr)
	}
	lbctl("", "validate", "-f", badExample, "--error-format", "xml").wants(t, exitUsage, "", "unknown error format \"xml\" (text, json, github, gitlab)")
	lbctl("", "diff", "-f", badExample, "--error-format", "json", "-o", "json").wants(t, exitUsage, "", "both want stdout")
}

// TestReportsOfAnApply: stdout is the report alone, whatever the node says; what was changed is talk then.
func TestReportsOfAnApply(t *testing.T) {
	const doc = "api_version: lbd/v1\nowner: web\nroutes:\n  - { name: shop, listeners: [http], hosts: [a.example.com, evil.example], respond: { status: 204 } }\n"
	outside := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
		{Field: `routes["shop"].hosts[1]`, Description: "`evil.example` is outside of allowed_hosts of owners/web"},
	}}
	fake := &fakeNode{apply: func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return nil, why(t, codes.PermissionDenied, "OUT_OF_BOUNDS", "no", outside)
	}}
	fake.start(t)
	lbctl(doc, "apply", "-f", "-").wants(t, exitForbidden, "", "stdin:4:61: error: `evil.example` is outside of allowed_hosts of owners/web\nerror: 1 error: what the caller is bound to")
	o := lbctl(doc, "apply", "-f", "-", "--error-format", "gitlab")
	if all := qualityOf(t, o.stdout); o.code != exitForbidden || len(all) != 1 || all[0].Location.Lines.Begin != 4 || o.stderr != "" {
		t.Errorf("exit %d, stdout %s, stderr %q", o.code, o.stdout, o.stderr)
	}
	fake.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return nil, why(t, codes.Aborted, "OWNED_BY_OTHER", "conflict: routes/shop belongs to owner `api`", &errdetails.PreconditionFailure{
			Violations: []*errdetails.PreconditionFailure_Violation{{Type: "OWNED_BY_OTHER", Subject: "routes/shop", Description: "routes/shop belongs to owner `api`"}},
		})
	}
	o = lbctl(doc, "apply", "-f", "-", "--error-format", "json")
	if o.code != exitConflict || !strings.Contains(o.stdout, "\"line\": 4") || !strings.Contains(o.stdout, "belongs to owner `api`") || !strings.Contains(o.stderr, "(--take-over)") {
		t.Errorf("exit %d, stdout %s, stderr %q", o.code, o.stdout, o.stderr)
	}
	fake.apply = func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
		return &lbdv1.ApplyResponse{Revision: 3, Changes: []*lbdv1.Change{{Action: actionCreate, Kind: "routes", Name: "shop"}},
			Warnings: []*lbdv1.Violation{{Severity: lbdv1.Severity_SEVERITY_WARNING, Field: `routes["shop"]`, Description: "can never win"}}}, nil
	}
	o = lbctl(doc, "apply", "-f", "-", "--error-format", "gitlab")
	if all := qualityOf(t, o.stdout); o.code != exitOK || len(all) != 1 || all[0].Severity != "minor" || !strings.Contains(o.stderr, "revision 3: 1 change") {
		t.Errorf("exit %d, stdout %s, stderr %q", o.code, o.stdout, o.stderr)
	}
	o = lbctl(doc, "apply", "-f", "-", "--error-format", "github")
	if o.code != exitOK || !strings.Contains(o.stderr, "::warning file=stdin,line=4,col=5::can never win") || !strings.Contains(o.stdout, "revision 3: 1 change") {
		t.Errorf("exit %d, stdout %s, stderr %q", o.code, o.stdout, o.stderr)
	}
}

// TestReportsOfALayout: a file that is laid out differently is a problem at the first such line.
func TestReportsOfALayout(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(name, []byte("api_version: lbd/v1\nowner: web\npools:\n    - name: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := lbctl("", "fmt", "-f", name, "--check", "--error-format", "gitlab")
	if all := qualityOf(t, o.stdout); o.code != exitNo || len(all) != 1 || all[0].Location.Lines.Begin != 4 || o.stderr != "" {
		t.Errorf("exit %d, stdout %s, stderr %q", o.code, o.stdout, o.stderr)
	}
	lbctl("", "fmt", "-f", name, "--check").wants(t, exitNo, name+"\n", "")
	o = lbctl("a: [\n", "fmt", "-f", "-", "--check", "--error-format", "json")
	if o.code != exitInvalid || !strings.Contains(o.stdout, `"severity": "ERROR"`) {
		t.Errorf("exit %d, stdout %s, stderr %q", o.code, o.stdout, o.stderr)
	}
}

func TestSettings(t *testing.T) {
	loopback := true
	stored := &lbdv1.ClusterSettings{AllowLoopbackBackends: &loopback, Backup: &lbdv1.BackupSettings{Schedule: "6h", Directory: "/var/backups/lbd", Recipients: []string{"age1a", "age1b"}}}
	fake := &fakeNode{
		get: func(*lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
			return &lbdv1.GetResponse{Resource: &lbdv1.Resource{Etag: "e7", Spec: &lbdv1.Resource_ClusterSettings{ClusterSettings: stored}}}, nil
		},
		apply: func(header *lbdv1.ApplyHeader, resources []*lbdv1.Resource) (*lbdv1.ApplyResponse, error) {
			return &lbdv1.ApplyResponse{Revision: 4}, nil
		},
	}
	fake.start(t)
	lbctl("", "cluster", "settings", "get").wants(t, exitOK, "SETTING                    VALUE\nallow_loopback_backends    true\nallow_link_local_backends  false\nlocal_admin                true\n", "")
	lbctl("", "cluster", "settings", "get", "-o", "jsonpath=.cluster_settings.backup.schedule").wants(t, exitOK, "6h\n", "")
	lbctl("", "cluster", "settings", "set", "allow_link_local_backends=true", "state_bytes=33554432", "backup.keep=3", "backup.recipients=[age1c]",
		"allow_loopback_backends=", "-m", "as agreed").wants(t, exitOK, "revision 4", "")
	sent := received[*lbdv1.ApplyRequest](fake)
	var header *lbdv1.ApplyHeader
	var resource *lbdv1.Resource
	for _, r := range sent {
		if h := r.GetHeader(); h != nil {
			header = h
		}
		for _, one := range r.GetResources().GetResources() {
			resource = one
		}
	}
	yes := true
	want := &lbdv1.ClusterSettings{AllowLinkLocalBackends: &yes, StateBytes: 33554432,
		Backup: &lbdv1.BackupSettings{Schedule: "6h", Directory: "/var/backups/lbd", Keep: 3, Recipients: []string{"age1c"}}}
	if header.GetOwner() != settingsOwner || header.GetMessage() != "as agreed" || header.GetRequestId() == "" || resource.GetEtag() != "e7" ||
		!proto.Equal(resource.GetClusterSettings(), want) {
		t.Errorf("sent %v, %v", header, resource)
	}
	for _, wrong := range []string{"nothing=1", "state_bytes=much", "local_admin", "state_bytes.x=1", "backup.keeep=3", "=1", "local_admin=maybe"} {
		if o := lbctl("", "cluster", "settings", "set", wrong); o.code != exitUsage || o.stdout != "" || o.stderr == "" {
			t.Errorf("%s: exit %d, stderr %q", wrong, o.code, o.stderr)
		}
	}
}

// TestGitHubFailures: what is of no file is an annotation, too, and a sum of annotations is none.
func TestGitHubFailures(t *testing.T) {
	t.Setenv("LBCTL_ENDPOINTS", "unix:"+filepath.Join(t.TempDir(), "nobody.sock"))
	lbctl(shop, "validate", "-f", "-", "--against", "cluster", "--error-format", "github").wants(t, exitUnavailable, "", "::error::no lbd node answers at ")
	lbctl("", "validate", "-f", "nowhere.yaml", "--error-format", "github").wants(t, exitUsage, "", "::error::")
	lbctl("", "diff", "--error-format", "github", "a.yaml").wants(t, exitUsage, "", "::error::")
	lbctl(shop, "validate", "-f", "-", "--against", "cluster").wants(t, exitUnavailable, "", "error: no lbd node answers at ")
	t.Setenv("LBCTL_ENDPOINTS", "10.0.0.1")
	lbctl(shop, "diff", "-f", "-", "--error-format", "github").wants(t, exitUsage, "", "::error::an endpoint is HOST:PORT")
}

// TestSettingsLost: only what somebody had set and the documents do not name is told.
func TestSettingsLost(t *testing.T) {
	no := false
	doc := &lbdv1.Document{ClusterSettings: &lbdv1.ClusterSettings{AllowLoopbackBackends: &no,
		Backup: &lbdv1.BackupSettings{Schedule: "6h", Recipients: []string{"age1a"}}}}
	changes := []*lbdv1.Change{
		{Kind: "pools", Name: "a", Fields: []*lbdv1.FieldChange{{Path: "mode", Before: "x"}}},
		{Kind: "cluster_settings", Fields: []*lbdv1.FieldChange{
			{Path: "allow_loopback_backends", Before: "true"},
			{Path: "local_admin", Before: "false"},
			{Path: "state_bytes", After: "33554432"},
			{Path: "backup.schedule", Before: "12h", After: "6h"},
			{Path: "backup.keep", Before: "3"},
			{Path: "backup.recipients[\"age1b\"]", Before: "age1b"},
		}},
	}
	told := settingsLost(doc, changes)
	if len(told) != 1 || told[0].GetSeverity() != lbdv1.Severity_SEVERITY_WARNING || told[0].GetField() != "cluster_settings" ||
		!strings.Contains(told[0].GetDescription(), ": `local_admin` (false), `backup.keep` (3); ") {
		t.Errorf("%v", told)
	}
	if told := settingsLost(&lbdv1.Document{}, changes); told != nil {
		t.Errorf("without settings: %v", told)
	}
}
