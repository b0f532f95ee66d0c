package rpc

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	lbdv1 "lbd/proto/lbd/v1"
)

// collect makes an archive and takes it apart.
func (r *rig) collect(req *lbdv1.CollectDebugRequest) (files map[string]string, list manifest, err error) {
	r.t.Helper()
	stream, err := r.system.CollectDebug(r.ctx(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	var archive bytes.Buffer
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, list, err
		}
		if len(piece.GetData()) > pieceBytes {
			r.t.Errorf("a piece of %d bytes", len(piece.GetData()))
		}
		archive.Write(piece.GetData())
	}
	unzipped, err := gzip.NewReader(&archive)
	if err != nil {
		r.t.Fatal(err)
	}
	files = map[string]string{}
	for entries := tar.NewReader(unzipped); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.t.Fatal(err)
		}
		text, err := io.ReadAll(entries)
		if err != nil {
			r.t.Fatal(err)
		}
		if dir := path.Dir(header.Name); !strings.HasPrefix(dir, "lbd-debug-n1-") || header.Mode != 0o600 {
			r.t.Errorf("%s has mode %o", header.Name, header.Mode)
		}
		files[path.Base(header.Name)] = string(text)
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &list); err != nil {
		r.t.Fatal(err)
	}
	return files, list, nil
}

// TestCollectDebug: an archive has all that its list says, and no key.
func TestCollectDebug(t *testing.T) {
	r := newRig(t)
	id := newIdentity(t, "a.example")
	r.mustApply(owner("web"), append(web(), pemCertificate("a", id.chain, id.key))...)
	r.observer.backends = []*lbdv1.BackendStatus{{Pool: "shop", Address: "192.0.2.1:80"}}
	r.observer.happen(now, "it broke")
	r.observer.files = []DebugFile{{Name: "own.txt", About: "the process's own", Write: func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, "own")
		return err
	}}}
	files, list, err := r.collect(&lbdv1.CollectDebugRequest{CpuProfile: durationpb.New(3 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"own.txt": "own", "version.json": "1.2.3", "status.json": "leader", "doctor.json": "clock", "metrics.txt": "lbd_revision 1", "events.jsonl": "it broke",
		"backends.jsonl": "192.0.2.1:80", "connections.json": "connections", "resources.jsonl": "sha256:", "revisions.jsonl": "content_hash",
		"audit.jsonl": "ConfigService/Apply", "heap.pprof": "PROFILE_KIND_HEAP", "cpu.pprof": "PROFILE_KIND_CPU 3s",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s has no %q: %s", name, want, files[name])
		}
	}
	if _, there := files["overrides.jsonl"]; !there || len(list.Files)+1 != len(files) {
		t.Errorf("%d files, the list has %d", len(files), len(list.Files))
	}
	if list.Node != "n1" || list.ClusterID != "cluster-1" || list.Version != "1.2.3" || !list.Time.Equal(now) || !strings.HasPrefix(list.Author, "node/n1 uid=") {
		t.Errorf("manifest %+v", list)
	}
	for _, f := range list.Files {
		sum := sha256.Sum256([]byte(files[f.Name]))
		if f.Error != "" || f.About == "" || f.Bytes != len(files[f.Name]) || f.SHA256 != hex.EncodeToString(sum[:]) {
			t.Errorf("%+v", f)
		}
	}
	all := fmt.Sprint(files)
	for form, secret := range formsOf(id) {
		if strings.Contains(all, secret) {
			t.Errorf("the key is in the archive, as %s", form)
		}
	}
	if files, _, err = r.collect(&lbdv1.CollectDebugRequest{}); err != nil || files["cpu.pprof"] != "" {
		t.Errorf("a profile that nobody asked for: %v", err)
	}
}

// TestCollectDebugOfASickNode: what fails, panics, is too large or hangs costs itself alone, and is told.
func TestCollectDebugOfASickNode(t *testing.T) {
	r := newRig(t)
	r.observer.panics = true // when it is asked for backends
	hung := make(chan struct{})
	t.Cleanup(func() { close(hung) }) // before the server is closed, which waits for it
	r.observer.files = []DebugFile{
		{Name: "fails.txt", About: "fails", Write: func(_ context.Context, w io.Writer) error {
			_, _ = io.WriteString(w, "so far")
			return errors.New("no more")
		}},
		{Name: "large.txt", About: "large", Write: func(_ context.Context, w io.Writer) error {
			for range debugFileBytesMax/1000 + 1 {
				_, _ = io.WriteString(w, strings.Repeat("x", 1000))
			}
			return nil
		}},
		{Name: "hangs.txt", About: "hangs", Write: func(context.Context, io.Writer) error {
			<-hung
			return nil
		}},
	}
	files, list, err := r.collect(&lbdv1.CollectDebugRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"fails.txt": "no more", "large.txt": "cut off at", "hangs.txt": "not there within", "backends.jsonl": "a fault in the data plane",
	} {
		i := slices.IndexFunc(list.Files, func(f manifestFile) bool { return f.Name == name })
		if i < 0 || !strings.Contains(list.Files[i].Error, want) || !strings.Contains(files["errors.txt"], name+": ") {
			t.Errorf("of %s is told %q", name, files["errors.txt"])
		}
	}
	if files["fails.txt"] != "so far" || len(files["large.txt"]) != debugFileBytesMax || files["metrics.txt"] == "" {
		t.Errorf("%q, %d bytes of the large one, metrics %q", files["fails.txt"], len(files["large.txt"]), files["metrics.txt"])
	}
}

func TestCollectDebugRefused(t *testing.T) {
	r := newRig(t)
	for _, d := range []time.Duration{0, time.Millisecond, time.Hour} {
		_, _, err := r.collect(&lbdv1.CollectDebugRequest{CpuProfile: durationpb.New(d)})
		if f := failureOf(t, err); f.code != codes.InvalidArgument || f.fields["cpu_profile"] == "" {
			t.Errorf("a profile of %s: %v", d, err)
		}
	}
	begun, end := make(chan struct{}), make(chan struct{})
	r.observer.files = []DebugFile{{Name: "slow.txt", About: "slow", Write: func(context.Context, io.Writer) error {
		close(begun)
		<-end
		return nil
	}}}
	stream, err := r.system.CollectDebug(r.ctx(), &lbdv1.CollectDebugRequest{})
	if err != nil {
		t.Fatal(err)
	}
	<-begun
	_, _, err = r.collect(&lbdv1.CollectDebugRequest{})
	if f := failureOf(t, err); f.code != codes.Unavailable {
		t.Errorf("two at a time: %v", err)
	}
	close(end)
	for err == nil || !errors.Is(err, io.EOF) {
		if _, err = stream.Recv(); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
}

func TestSetLogLevel(t *testing.T) {
	r := newRig(t)
	tell := &lbdv1.SetLogLevelRequest{}
	answer, err := r.system.SetLogLevel(r.ctx(), tell)
	if err != nil || answer.GetLevel() != lbdv1.LogLevel_LOG_LEVEL_INFO || answer.GetBefore() != lbdv1.LogLevel_LOG_LEVEL_INFO {
		t.Errorf("it tells %v, %v", answer, err)
	}
	answer, err = r.system.SetLogLevel(r.ctx(), &lbdv1.SetLogLevelRequest{Level: lbdv1.LogLevel_LOG_LEVEL_DEBUG})
	if err != nil || answer.GetLevel() != lbdv1.LogLevel_LOG_LEVEL_DEBUG || answer.GetBefore() != lbdv1.LogLevel_LOG_LEVEL_INFO {
		t.Errorf("it sets %v, %v", answer, err)
	}
	if r.observer.LogLevel() != slog.LevelDebug || !strings.HasPrefix(r.observer.levelBy, "node/n1 uid=") {
		t.Errorf("level %v by %q", r.observer.LogLevel(), r.observer.levelBy)
	}
	_, err = r.system.SetLogLevel(r.ctx(), &lbdv1.SetLogLevelRequest{Level: 99})
	if f := failureOf(t, err); f.code != codes.InvalidArgument || f.fields["level"] == "" {
		t.Errorf("a level that is none: %v", err)
	}
}
