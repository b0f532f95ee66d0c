package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// policy says which packages of this module, and which modules from outside, a package may import. A package that is not
// here may not exist. A change here changes the table in ARCHITECTURE.md in the same commit.
var policy = map[string]struct {
	inside  []string // packages of this module
	outside []string // import path prefixes that are neither the standard library nor this module
}{
	"proto/lbd/v1":      {nil, protobuf},
	"proto/lbd/raft/v1": {protos, protobuf},

	"cluster/state":       {protos, append([]string{"github.com/hashicorp/go-immutable-radix/v2"}, protobuf...)},
	"cluster":             {append([]string{"cluster/state"}, protos...), append([]string{"github.com/hashicorp/raft", "github.com/hashicorp/go-hclog", "go.etcd.io/bbolt", "github.com/klauspost/compress/zstd"}, protobuf...)},
	"cluster/journal":     {protos, protobuf},
	"cluster/backup":      {protos, append([]string{"filippo.io/age", "github.com/klauspost/compress/zstd"}, protobuf...)},
	"cluster/rpc":         {append([]string{"cluster", "cluster/backup", "cluster/state"}, protos...), protobuf},
	"cluster/clustertest": {append([]string{"cluster", "cluster/state"}, protos...), protobuf},
	"cluster/netnstest":   {nil, []string{"golang.org/x/sys/unix"}},

	"lb/loop":     {nil, []string{"golang.org/x/sys/unix"}},
	"lb/http1":    {nil, nil},
	"lb/balance":  {nil, nil},
	"lb":          {[]string{"lb/loop", "lb/http1", "lb/balance"}, nil},
	"lb/lbtest":   {nil, nil},
	"lb/vectest":  {nil, nil},
	"tls":         {nil, nil},
	"tls/seal":    {nil, nil},
	"tls/tlstest": {nil, nil},
	"health":      {nil, nil},

	"cmd/lbd":            {append([]string{"cluster", "cluster/backup", "cluster/journal", "cluster/rpc", "cluster/state", "lb", "lb/loop", "tls", "tls/seal", "health"}, protos...), append([]string{"github.com/spf13/cobra", "github.com/prometheus/client_golang"}, protobuf...)},
	"cmd/lbctl":          {append([]string{"cluster/backup", "cluster/state", "cmd/lbctl/document", "tls/seal"}, protos...), append([]string{"github.com/spf13/cobra"}, protobuf...)},
	"cmd/lbctl/document": {append([]string{"cluster/state"}, protos...), append([]string{"go.yaml.in/yaml/v3"}, protobuf...)},

	"bench/stats":   {nil, nil},
	"bench/plot":    {nil, nil},
	"bench/backend": {nil, []string{"golang.org/x/sys/unix"}},
	"bench/load":    {[]string{"bench/backend", "bench/stats"}, []string{"golang.org/x/sys/unix"}},
	"bench/lab":     {[]string{"bench/backend", "bench/load", "bench/node", "bench/plot", "bench/stats"}, []string{"golang.org/x/sys/unix"}},
	"bench/node":    {nil, nil},
	"bench/big":     {[]string{"bench/node"}, nil},
	"bench/cluster": {[]string{"bench/node"}, nil},
	"bench/idle":    {[]string{"bench/node"}, nil},
	"bench/slow":    {[]string{"bench/node"}, nil},
	"bench/upgrade": {[]string{"bench/node"}, nil},
}

var (
	protos   = []string{"proto/lbd/v1", "proto/lbd/raft/v1"}
	protobuf = []string{"google.golang.org/protobuf", "google.golang.org/grpc", "google.golang.org/genproto/googleapis/rpc"}
)

// hotPath packages serve requests: net/http has no business in them.
var hotPath = []string{"lb", "lb/loop", "lb/http1", "lb/balance", "tls", "health"}

func TestImportPolicy(t *testing.T) {
	root := filepath.Join("..", "..")
	seen := map[string]bool{}
	walkGo(t, root, func(file, dir string) {
		rule, ok := policy[dir]
		if !ok {
			t.Errorf("%s: package %s is not in the import table", file, dir)
			return
		}
		seen[dir] = true
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		for _, imp := range imports(t, filepath.Join(root, file)) {
			inside, isOurs := strings.CutPrefix(imp, "lbd/")
			switch {
			case isOurs && !slices.Contains(rule.inside, inside):
				t.Errorf("%s: %s may not import %s", file, dir, imp)
			case !isOurs && strings.Contains(strings.Split(imp, "/")[0], ".") && !hasPrefix(rule.outside, imp):
				t.Errorf("%s: %s may not import %s", file, dir, imp)
			case slices.Contains(hotPath, dir) && imp == "net/http":
				t.Errorf("%s: %s is on the hot path and may not import %s", file, dir, imp)
			}
		}
	})
	for dir := range policy {
		if !seen[dir] {
			t.Errorf("the import table names %s, which has no Go file", dir)
		}
	}
}

func hasPrefix(prefixes []string, imp string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return imp == p || strings.HasPrefix(imp, p+"/") })
}

func imports(t *testing.T, file string) []string {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range f.Imports {
		p, err := strconv.Unquote(s.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// walkGo calls visit with each Go file's path from the root and its folder.
func walkGo(t *testing.T, root string, visit func(file, dir string)) {
	t.Helper()
	n := 0
	err := fs.WalkDir(os.DirFS(root), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || p != "." && strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(p, ".go") {
			n++
			visit(p, path.Dir(p))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 50 {
		t.Fatalf("found only %d Go files below %s: looking in the wrong place", n, root)
	}
}
