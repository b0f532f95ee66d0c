package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

// archive is a gzipped tar of files.
func archive(t *testing.T, files ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	entries := tar.NewWriter(zipped)
	for _, f := range files {
		if err := entries.WriteHeader(&tar.Header{Name: "lbd-debug-n1/" + f[0], Mode: 0o600, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := entries.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := entries.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestDebugBundle: what is not whole is told, what does not come whole is kept, and nothing is written over.
func TestDebugBundle(t *testing.T) {
	t.Chdir(t.TempDir())
	manifest := [2]string{"manifest.json", `{"node":"n1","files":[{"name":"log.txt"},{"name":"metrics.txt","error":"not\tthere"}]}`}
	whole := archive(t, [2]string{"log.txt", strings.Repeat("line\n", 1000)}, manifest)
	pieces, end := [][]byte{whole[:10], whole[10:]}, error(nil)
	node := &fakeNode{fakeLive: fakeLive{debug: func(_ *lbdv1.CollectDebugRequest, stream grpc.ServerStreamingServer[lbdv1.CollectDebugResponse]) error {
		for _, p := range pieces {
			if err := stream.Send(&lbdv1.CollectDebugResponse{Data: p}); err != nil {
				return err
			}
		}
		return end
	}}}
	node.start(t)
	lbctl("", "debug", "bundle", "a.tar.gz", "--cpu-profile", "7s").wants(t, 0, "wrote a.tar.gz, ", "warning: metrics.txt is not whole: not there\n")
	if r := received[*lbdv1.CollectDebugRequest](node)[0]; r.GetCpuProfile().AsDuration() != 7*time.Second {
		t.Errorf("asked %v", r)
	}
	if got, err := os.ReadFile("a.tar.gz"); err != nil || !bytes.Equal(got, whole) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if info, err := os.Stat("a.tar.gz"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	lbctl("", "debug", "bundle", "a.tar.gz").wants(t, 2, "", "exists")
	lbctl("", "debug", "bundle", "b.tar.gz", "-o", "json").wants(t, 0, `"not_whole": [`, "is not whole")
	lbctl("", "debug", "bundle").wants(t, 0, "2 files of node n1\n", "is not whole")
	if named, err := filepath.Glob("lbd-debug-2*Z.tar.gz"); err != nil || len(named) != 1 {
		t.Errorf("%v, %v", named, err)
	}
	if r := received[*lbdv1.CollectDebugRequest](node); r[len(r)-1].GetCpuProfile() != nil {
		t.Error("a profile is asked for")
	}
	if o := lbctl("", "debug", "bundle", "-"); o.code != 0 || o.stdout != string(whole) {
		t.Errorf("to stdout: exit %d, %d bytes\n%s", o.code, len(o.stdout), o.stderr)
	}

	pieces, end = [][]byte{whole[:100]}, status.Error(codes.Unavailable, "the node is gone")
	lbctl("", "debug", "bundle", "c.tar.gz").wants(t, 7, "", "c.tar.gz has what came before\n")
	if info, err := os.Stat("c.tar.gz"); err != nil || info.Size() != 100 {
		t.Errorf("what came is not kept: %v", err)
	}
	end = nil
	lbctl("", "debug", "bundle", "d.tar.gz").wants(t, 7, "", "d.tar.gz did not come whole")
	pieces = [][]byte{archive(t, [2]string{"log.txt", ""})}
	lbctl("", "debug", "bundle", "e.tar.gz").wants(t, 7, "", "it has no manifest.json")
	pieces, end = nil, status.Error(codes.PermissionDenied, "it takes an admin")
	lbctl("", "debug", "bundle", "f.tar.gz").wants(t, 4, "", "it takes an admin")
	if _, err := os.Stat("f.tar.gz"); err == nil {
		t.Error("a file of nothing is left")
	}
}

func TestLogs(t *testing.T) {
	level := lbdv1.LogLevel_LOG_LEVEL_INFO
	node := &fakeNode{fakeLive: fakeLive{logLevel: func(r *lbdv1.SetLogLevelRequest) (*lbdv1.SetLogLevelResponse, error) {
		before := level
		if r.GetLevel() != lbdv1.LogLevel_LOG_LEVEL_UNSPECIFIED {
			level = r.GetLevel()
		}
		return &lbdv1.SetLogLevelResponse{Level: level, Before: before}, nil
	}}}
	node.start(t)
	lbctl("", "logs").wants(t, 0, "level info\n", "")
	for _, word := range []string{"debug", "warn", "error", "info"} {
		lbctl("", "logs", "--level", word).wants(t, 0, "level "+word+", before ", "")
	}
	lbctl("", "logs", "-o", "json").wants(t, 0, `"level": "INFO"`, "")
	lbctl("", "logs", "-o", "name").wants(t, 0, "info\n", "")
	lbctl("", "logs", "--level", "loud").wants(t, 2, "", `not "loud"`)
	if n := len(received[*lbdv1.SetLogLevelRequest](node)); n != 7 {
		t.Errorf("asked %d times", n)
	}
}
