package rpc

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"lbd/cluster"
	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestSocketIsPrivate(t *testing.T) {
	r := newRig(t)
	info, err := os.Lstat(filepath.Join(r.dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, want a socket with 0600", info.Mode())
	}
	if left, _ := filepath.Glob(filepath.Join(r.dir, "*.new")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := r.server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(r.dir, "control.sock")); !os.IsNotExist(err) {
		t.Errorf("after Close the socket is still there: %v", err)
	}
}

func TestSocketMakesItsDirectory(t *testing.T) {
	r := newRig(t)
	cfg := r.serverConfig()
	cfg.Socket = filepath.Join(r.dir, "run", "lbd", "control.sock")
	s, err := Serve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if info, err := os.Stat(filepath.Dir(cfg.Socket)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info, err)
	}
}

func TestSocketLiveStaleAndForeign(t *testing.T) {
	r := newRig(t)
	if _, err := Serve(r.serverConfig()); err == nil || !strings.Contains(err.Error(), "a running lbd answers") {
		t.Errorf("a second server on a live socket: %v", err)
	}
	if _, err := r.config.List(r.ctx(), &lbdv1.ListRequest{Kind: "pools"}); err != nil {
		t.Errorf("the first server after that: %v", err)
	}

	cfg := r.serverConfig()
	cfg.Socket = filepath.Join(r.dir, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as after kill -9
	l.Close()
	s, err := Serve(cfg)
	if err != nil {
		t.Fatalf("over a stale socket: %v", err)
	}

	// Another process takes the place before this one has gone: its socket stays.
	if err := os.Remove(cfg.Socket); err != nil {
		t.Fatal(err)
	}
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(cfg.Socket); err != nil {
		t.Errorf("Close removed another process's socket: %v", err)
	}

	cfg.Socket = filepath.Join(r.dir, "file")
	if err := os.WriteFile(cfg.Socket, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Serve(cfg); err == nil || !strings.Contains(err.Error(), "something else") {
		t.Errorf("over a file: %v", err)
	}
	if text, _ := os.ReadFile(cfg.Socket); string(text) != "precious" {
		t.Error("the file is gone")
	}
	cfg.Socket = filepath.Join(r.dir, strings.Repeat("x", 100), "control.sock")
	if _, err := Serve(cfg); err == nil || !strings.Contains(err.Error(), "shorter directory") {
		t.Errorf("a path that is too long: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	r := newRig(t)
	for what, spoil := range map[string]func(*Config){
		"socket":   func(c *Config) { c.Socket = "" },
		"node":     func(c *Config) { c.Node = "" },
		"observer": func(c *Config) { c.Observer = nil },
	} {
		cfg := r.serverConfig()
		spoil(&cfg)
		if _, err := Serve(cfg); err == nil {
			t.Errorf("without %s: no error", what)
		}
	}
}

func TestSystem(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	r.observer.set(func(p *Progress) { p.Revision = 1 })
	system := lbdv1.NewSystemServiceClient(r.conn)
	version, err := system.GetVersion(r.ctx(), &lbdv1.GetVersionRequest{})
	if err != nil || version.GetVersion() != "1.2.3" || version.GetPlatform() != "linux/amd64" {
		t.Errorf("version: %v, %v", version, err)
	}
	st, err := system.GetStatus(r.ctx(), &lbdv1.SystemServiceGetStatusRequest{})
	if err != nil || st.GetNode() != "n1" || st.GetStoredRevision() != 1 || st.GetServedRevision() != 1 || st.GetEngine() != "epoll" {
		t.Errorf("status: %v, %v", st, err)
	}
}

func TestBackendStatus(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("a", "192.0.2.1:80"), pool("b", "192.0.2.2:80"))
	r.observer.backends = []*lbdv1.BackendStatus{
		{Node: "n1", Pool: "a", Address: "192.0.2.1:80", Health: lbdv1.BackendHealth_BACKEND_HEALTH_UP},
		{Node: "n1", Pool: "b", Address: "192.0.2.2:80", Health: lbdv1.BackendHealth_BACKEND_HEALTH_DOWN},
	}
	backends := lbdv1.NewBackendServiceClient(r.conn)
	for pool, want := range map[string]int{"": 2, "a": 1, "b": 1} {
		answer, err := backends.GetStatus(r.ctx(), &lbdv1.BackendServiceGetStatusRequest{Pool: pool})
		if err != nil || len(answer.GetBackends()) != want {
			t.Errorf("pool %q: %v, %v", pool, answer, err)
		}
	}
	_, err := backends.GetStatus(r.ctx(), &lbdv1.BackendServiceGetStatusRequest{Pool: "c"})
	if f := failureOf(t, err); f.code != codes.NotFound {
		t.Errorf("an unknown pool: %v", f)
	}
}

func TestPanicIsContained(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), pool("a", "192.0.2.1:80"))
	r.observer.mu.Lock()
	r.observer.panics = true
	r.observer.mu.Unlock()
	backends := lbdv1.NewBackendServiceClient(r.conn)
	_, err := backends.GetStatus(r.ctx(), &lbdv1.BackendServiceGetStatusRequest{})
	if f := failureOf(t, err); f.code != codes.Internal || strings.Contains(f.message, "data plane") {
		t.Errorf("a panicking handler: %v", f)
	}
	for _, want := range []string{"a fault in the data plane", "BackendService/GetStatus", "backend.go"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, r.log)
		}
	}
	r.store.instead(func(context.Context, *raftv1.ChangeCommand) (state.Result, error) { panic("a fault in the store") })
	_, err = r.apply(owner("web"), pool("a", "192.0.2.2:80"))
	if f := failureOf(t, err); f.code != codes.Internal {
		t.Errorf("a panic in a stream: %v", f)
	}
	r.store.instead(nil)
	if answer := r.mustApply(owner("web"), pool("a", "192.0.2.2:80")); answer.GetRevision() != 2 {
		t.Errorf("the next change, after a panic: %v", answer)
	}
}

func TestHealthFollowsTheNode(t *testing.T) {
	r := newRig(t)
	watch, err := healthpb.NewHealthClient(r.conn).Watch(r.ctx(), &healthpb.HealthCheckRequest{Service: "lbd.v1.ConfigService"})
	if err != nil {
		t.Fatal(err)
	}
	// The first answers may come before the server has looked at the node.
	expect := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for {
			answer, err := watch.Recv()
			if err != nil {
				t.Fatalf("waiting for %v: %v", want, err)
			}
			if answer.GetStatus() == want {
				return
			}
		}
	}
	expect(healthpb.HealthCheckResponse_SERVING)
	r.observer.set(func(p *Progress) { p.Serving = false })
	expect(healthpb.HealthCheckResponse_NOT_SERVING)
	r.observer.set(func(p *Progress) { p.Serving = true })
	expect(healthpb.HealthCheckResponse_SERVING)
	all, err := healthpb.NewHealthClient(r.conn).Check(r.ctx(), &healthpb.HealthCheckRequest{})
	if err != nil || all.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the whole server: %v, %v", all, err)
	}
}

func TestReflection(t *testing.T) {
	r := newRig(t)
	stream, err := reflectpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(r.ctx())
	if err != nil {
		t.Fatal(err)
	}
	list := &reflectpb.ServerReflectionRequest{MessageRequest: &reflectpb.ServerReflectionRequest_ListServices{}}
	if err := stream.Send(list); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range answer.GetListServicesResponse().GetService() {
		names[s.GetName()] = true
	}
	for _, want := range []string{"lbd.v1.ConfigService", "lbd.v1.CertificateService", "lbd.v1.BackendService", "lbd.v1.SystemService", "grpc.health.v1.Health"} {
		if !names[want] {
			t.Errorf("%s is not there: %v", want, names)
		}
	}
}

// Calls that hang in every way in which a client can make one hang do not keep Close.
func TestCloseEndsWhatWaits(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	waiting := r.wait(r.ctx(), 1)
	r.expect(waiting, "n1 PENDING 0")
	dawdling, err := r.config.Apply(r.ctx()) // a header, and then nothing
	if err != nil {
		t.Fatal(err)
	}
	if err := dawdling.Send(&lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Header{Header: owner("web")}}); err != nil {
		t.Fatal(err)
	}
	watching, err := healthpb.NewHealthClient(r.conn).Watch(r.ctx(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watching.Recv(); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := r.server.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took >= closeTimeout {
		t.Errorf("Close took %v: something held it to the end", took)
	}
	r.expect(waiting, "Unavailable STOPPING")
	_, err = dawdling.CloseAndRecv()
	if f := failureOf(t, err); f.code != codes.Unavailable {
		t.Errorf("the apply that was never finished: %v", f)
	}
	if err := r.server.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// A store that never answers keeps Close no longer than its grace.
func TestCloseGivesUpProposals(t *testing.T) {
	r := newRig(t)
	r.server.grace = 20 * time.Millisecond
	proposing := make(chan struct{})
	r.store.instead(func(ctx context.Context, _ *raftv1.ChangeCommand) (state.Result, error) {
		close(proposing)
		<-ctx.Done()
		return state.Result{}, fmt.Errorf("%w: %w", cluster.ErrOutcomeUnknown, ctx.Err())
	})
	answered := make(chan error, 1)
	go func() {
		_, err := r.apply(owner("web"), pool("a", "192.0.2.1:80"))
		answered <- err
	}()
	<-proposing

	// Meanwhile another change waits for its turn, as long as its client does.
	ctx, cancel := context.WithTimeout(r.ctx(), 20*time.Millisecond)
	defer cancel()
	_, err := r.certs.Rotate(ctx, &lbdv1.RotateRequest{Name: "a"})
	if f := failureOf(t, err); f.code != codes.DeadlineExceeded {
		t.Errorf("waiting for the turn: %v", f)
	}
	if err := r.server.Close(); err != nil {
		t.Fatal(err)
	}
	if f := failureOf(t, <-answered); f.code != codes.Unavailable {
		t.Errorf("the change that was given up: %v", f)
	}
}

func TestCallersNeedPeerCredentials(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, _, err := (peerCredentials{}).ServerHandshake(a); err == nil {
		t.Error("a connection without peer credentials was let in")
	}
	if _, err := callerOf(t.Context()); failureOf(t, err).code != codes.Unauthenticated {
		t.Errorf("a call without a caller: %v", err)
	}
}

func TestCallsAreBounded(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), web()...)
	var conns []*grpc.ClientConn
	var streams []waitStream
	for len(streams) < waitsEachMax {
		if len(streams)%(streamsMax/2) == 0 {
			conns = append(conns, r.dial())
		}
		client := lbdv1.NewConfigServiceClient(conns[len(conns)-1])
		stream, err := client.WaitForRevision(r.ctx(), &lbdv1.WaitForRevisionRequest{Revision: 1})
		if err != nil {
			t.Fatal(err)
		}
		r.expect(stream, "n1 PENDING 0")
		streams = append(streams, stream)
	}
	r.expect(r.wait(r.ctx(), 1), "Unavailable BUSY")
	if answer := r.mustApply(owner("web"), pool("shop", "192.0.2.3:80")); answer.GetRevision() != 2 {
		t.Errorf("a change while clients wait: %v", answer)
	}
	r.observer.set(func(p *Progress) { p.Revision = 2 })
	for _, stream := range streams {
		r.expect(stream, "n1 SERVED 2", "end")
	}
	r.expect(r.wait(r.ctx(), 2), "n1 SERVED 2", "end")
}

func TestConnectionsAreBounded(t *testing.T) {
	dir, err := os.MkdirTemp("", "lbd-rpc")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := listen(filepath.Join(dir, "s"), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c, err := net.Dial("unix", s.path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first, err := s.Accept()
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		c, err := s.Accept()
		if err == nil {
			c.Close()
		}
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("a second connection was accepted in place of one: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	first.Close()
	first.Close() // gives its slot back once
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := s.Accept(); err == nil {
		t.Fatal("accepted a connection after Close")
	}
}

// Many writers at once: every change is made on the state that the one before left.
func TestConcurrentChanges(t *testing.T) {
	r := newRig(t)
	r.mustApply(owner("web"), selfSigned("s", "s.example"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := r.certs.Rotate(r.ctx(), &lbdv1.RotateRequest{Name: "s"}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			answer, err := r.apply(owner("web"), selfSigned("s", "s.example"))
			if err != nil || len(answer.GetChanges()) != 0 {
				t.Errorf("an apply of the same document put a certificate back: %v, %v", answer, err)
			}
		})
	}
	wg.Wait()
	if got := r.store.State().Revision(); got != 9 {
		t.Errorf("revision %d, want 9: one for the first apply and each rotation", got)
	}
}
