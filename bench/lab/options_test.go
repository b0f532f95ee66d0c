//go:build linux

package main

import (
	"bytes"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	o, err := parseOptions([]string{"-scenario", "tls, single,rate-1234", "-proxy", "lbd,nginx=/opt/nginx", "-cpu", "3,1", "-rate", "500"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.proxyCore != 3 || o.loadCore != 1 || o.measure != measureDefault || !slices.Equal(o.proxies, []string{"lbd", "nginx=/opt/nginx"}) {
		t.Errorf("%+v", o)
	}
	picked, err := pickScenarios(o)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, sc := range picked {
		names = append(names, sc.name)
	}
	if !slices.Equal(names, []string{"single", "tls", "rate-1234"}) {
		t.Errorf("scenarios %v", names)
	}
}

func TestWrongOptions(t *testing.T) {
	for _, arguments := range [][]string{
		{"-scenario", "sinlge"}, {"-scenario", "rate-x"}, {"-cpu", "1"}, {"-cpu", "1,1"}, {"-repeat", "0"}, {"-proxy", ""}, {"extra"}, {"-report"},
	} {
		if _, err := parseOptions(arguments, io.Discard); err == nil {
			t.Errorf("%v was accepted", arguments)
		}
	}
}

func TestShortModeIsShort(t *testing.T) {
	o, err := parseOptions([]string{"-short"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	picked, err := pickScenarios(o)
	if err != nil || len(picked) < 5 || len(picked) == len(scenarios) {
		t.Fatalf("%d scenarios, %v", len(picked), err)
	}
	total := time.Duration(0)
	for _, sc := range picked {
		total += time.Duration(o.repeats) * (o.warm + sc.warm + o.measure)
	}
	if total *= 3; total > 2*time.Minute {
		t.Errorf("three proxies take %v", total)
	}
}

func TestScenariosAreWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, sc := range scenarios {
		if seen[sc.name] || sc.about == "" || sc.unit == "" || views[sc.view] == nil {
			t.Errorf("%s: double, or incomplete", sc.name)
		}
		seen[sc.name] = true
		s := setup{HTTP: "127.0.0.1:1", HTTPS: "127.0.0.1:2", Hosts: sc.site.hostNames(), leaf: []byte("x")}
		flows := sc.flows(target{setup: s, options: options{idleClients: 10, inFlight: 20}, peak: 1000})
		if len(flows) == 0 {
			t.Errorf("%s: no flow", sc.name)
		}
		for _, f := range flows {
			encrypted := f.TLS != nil
			if f.Clients < 1 || encrypted != (f.Address == s.HTTPS) || encrypted && f.TLS.Version != sc.site.version() {
				t.Errorf("%s: flow %+v does not fit its site", sc.name, f)
			}
		}
	}
}

func TestReadmeListsEveryScenario(t *testing.T) {
	content, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, sc := range scenarios {
		if row := "| `" + sc.name + "` | " + sc.about + " |"; !strings.Contains(string(content), row) {
			t.Errorf("bench/README.md lacks the row %s", row)
		}
	}
}

func TestPeersAreConfigured(t *testing.T) {
	peers := filepath.Join("..", "peers")
	for i, accessLog := range []string{"", "/var/log/access.log", ""} {
		s, err := site{hosts: 3, tlsVersion: "1.2", encrypted: i == 2}.prepare(t.TempDir(), "127.0.0.1", 20_000, []string{"127.0.0.1:7001", "127.0.0.1:7002"})
		if err != nil {
			t.Fatal(err)
		}
		s.AccessLog = accessLog
		for _, k := range kinds {
			all := ""
			for from, to := range k.files {
				to = filepath.Join(s.Dir, to)
				if err := s.write(filepath.Join(peers, from), to); err != nil {
					t.Fatal(err)
				}
				content, err := os.ReadFile(to)
				if err != nil {
					t.Fatal(err)
				}
				all += string(content)
			}
			for _, only := range []string{backendName, backendCA(s.Dir)} {
				if strings.Contains(all, only) != (s.BackendCA != "") {
					t.Errorf("%s: %q, where backends are encrypted: %v", k.name, only, s.BackendCA != "")
				}
			}
			hostMap, _ := os.ReadFile(s.HostMap)
			for _, want := range []string{"127.0.0.1:7002", s.HTTPPort(), s.HTTPSPort(), "host2.bench.test"} {
				if !strings.Contains(all, want) && !(want == "host2.bench.test" && strings.Contains(all, s.HostMap) && strings.Contains(string(hostMap), want)) {
					t.Errorf("%s: %q is not configured", k.name, want)
				}
			}
		}
	}
}

func TestTLSLibrary(t *testing.T) {
	for _, c := range []struct{ kind, text, want string }{
		{"nginx", "nginx version: nginx/1.22.1\nbuilt with OpenSSL 3.0.22 25 Aug 2026 (running with OpenSSL 3.0.19 27 Jan 2026)\n", "OpenSSL 3.0.19 27 Jan 2026"},
		{"nginx", "nginx version: nginx/1.31.4\nbuilt with AWS-LC 5.2.0\nTLS SNI support enabled\n", "AWS-LC 5.2.0"},
		{"haproxy", "Built with OpenSSL version : OpenSSL 3.0.22\nRunning on OpenSSL version : OpenSSL 3.0.19\n", "OpenSSL 3.0.19"},
		{"haproxy", "nothing of the kind", "unknown"},
		{"caddy", "v2.11.0", "crypto/tls"},
	} {
		i := slices.IndexFunc(kinds, func(k *kind) bool { return k.name == c.kind })
		if got := kinds[i].libraryIn(c.text); got != c.want {
			t.Errorf("%s: %q, want %q", c.kind, got, c.want)
		}
	}
}

func TestSpinIsInserted(t *testing.T) {
	source := []byte("// Package lb serves.\npackage lb\n\nimport \"io\"\n\nfunc other() {}\n\nfunc (x *exchange) sendResponse(w io.Writer) error {\n\treturn nil\n}\n")
	wasteful, ok := spin(5 * time.Microsecond).insert(source)
	if !ok {
		t.Fatal("sendResponse was not found")
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "", wasteful, 0); err != nil {
		t.Fatalf("%v\n%s", err, wasteful)
	}
	if bytes.Count(wasteful, []byte("\n")) != bytes.Count(source, []byte("\n")) {
		t.Error("line numbers have moved")
	}
	if !bytes.Contains(wasteful, []byte("sendResponse(w io.Writer) error { for spinFrom := spinclock.Now(); spinclock.Since(spinFrom) < 5000; {}; ")) {
		t.Errorf("got\n%s", wasteful)
	}
	if _, ok := spin(time.Second).insert([]byte("package lb\n\nfunc serve() {}\n")); ok {
		t.Error("something was inserted into a file without sendResponse")
	}
}
