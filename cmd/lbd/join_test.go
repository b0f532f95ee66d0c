package main

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lbd/cluster"
	"lbd/cluster/rpc"
	raftv1 "lbd/proto/lbd/raft/v1"
)

func TestParseJoin(t *testing.T) {
	hash := strings.Repeat("0f", 32)
	token := "lbj_k3v9_secret_" + hash
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, from := range [][2]string{{token, ""}, {"", file}} {
		j, err := parseJoin("10.0.0.1:7443, edge-2:7443", from[0], from[1])
		if err != nil || strings.Join(j.addresses, " ") != "10.0.0.1:7443 edge-2:7443" || j.token != "k3v9_secret" || j.pin != "sha256:"+hash {
			t.Errorf("%q: %+v, %v", from, j, err)
		}
	}
	for _, test := range []struct{ where, token, file, want string }{
		{"10.0.0.1", token, "", "want HOST:PORT"},
		{"0.0.0.0:7443", token, "", "no address at which a node could be reached"},
		{":7443", token, "", "no address at which a node could be reached"},
		{"a:1", "", "", "--token or --token-file is missing"},
		{"a:1", token, file, "exclude each other"},
		{"a:1", "", file + "x", "no such file"},
		{"a:1", "lbt_k3v9_secret", "", "the join token is none"},
		{"a:1", token + "0", "", "the join token is none"},
		{"a:1", "lbj__secret_" + hash, "", "the join token is none"},
	} {
		_, err := parseJoin(test.where, test.token, test.file)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestMayRetry(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{&unreachedError{errors.New("refused")}, true},
		{&refusedError{status.New(codes.Unavailable, "no leader")}, true},
		{&refusedError{status.New(codes.Unauthenticated, "not known")}, false},
		{&pinError{"another one"}, false},
	} {
		if got := mayRetry(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}

// TestEnter: what a data directory is decides whether a node joins.
func TestEnter(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	enter := func(dir string) (*raftv1.JoinResponse, error) {
		return (&config{dataDir: dir}).enter(t.Context(), log)
	}
	dir := t.TempDir()
	if seed, err := enter(dir); seed != nil || err != nil {
		t.Errorf("an empty one: %v, %v", seed, err)
	}
	if _, err := cluster.MakeNodeID(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := enter(dir); err == nil || !strings.Contains(err.Error(), "has begun to join a cluster: go on with `lbd join`") {
		t.Errorf("one whose join was cut off: %v", err)
	}
	look := &check{cfg: config{dataDir: dir}}
	if look.dataDir(); len(look.found) == 0 || !strings.Contains(look.found[len(look.found)-1].GetMessage(), "has begun to join a cluster") {
		t.Errorf("check-config: %v", look.found)
	}
	if err := rpc.WriteSeed(dir, &raftv1.JoinResponse{ClusterId: "c-1", SealKeys: []byte("secret")}); err != nil {
		t.Fatal(err)
	}
	if seed, err := enter(dir); err != nil || seed.GetClusterId() != "c-1" || len(seed.GetSealKeys()) > 0 {
		t.Errorf("one that has joined: %v, %v", seed, err)
	}
	for _, name := range []string{sealKeyFile, nodeKeyFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("key"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := &config{dataDir: dir, node: "edge-1"}
	for range 2 { // whatever cut it off
		if err := cfg.forget("c-1", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{sealKeyFile, nodeKeyFile} {
		if fileIsThere(filepath.Join(dir, name)) {
			t.Errorf("%s is there still", name)
		}
	}
	if _, err := enter(dir); err == nil || !strings.Contains(err.Error(), "this node (edge-1) was removed from cluster c-1") {
		t.Errorf("one that was removed: %v", err)
	}
}
