package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"lbd/cluster/state"
	raftv1 "lbd/proto/lbd/raft/v1"
	lbdv1 "lbd/proto/lbd/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is the clock of all tests.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// rig is a server on a real socket, with a real state behind it, and a client.
type rig struct {
	t        *testing.T
	dir      string
	store    *memoryStore
	keys     *testKeys
	observer *fakeObserver
	places   *fakePlaces
	log      *logBuffer
	later    atomic.Int64 // what the clock shows after now
	server   *Server
	conn     *grpc.ClientConn

	config   lbdv1.ConfigServiceClient
	certs    lbdv1.CertificateServiceClient
	backends lbdv1.BackendServiceClient
	traffic  lbdv1.TrafficServiceClient
	system   lbdv1.SystemServiceClient
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "lbd-rpc")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{
		t: t, dir: dir,
		store:    &memoryStore{state: state.New("cluster-1"), next: make(chan struct{})},
		keys:     &testKeys{},
		observer: newObserver(),
		places:   &fakePlaces{},
		log:      &logBuffer{},
	}
	r.observer.store = r.store
	cfg := r.serverConfig()
	for _, c := range change {
		c(&cfg)
	}
	if r.server, err = Serve(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.server.Close() })
	r.conn = r.dial()
	r.config = lbdv1.NewConfigServiceClient(r.conn)
	r.certs = lbdv1.NewCertificateServiceClient(r.conn)
	r.backends = lbdv1.NewBackendServiceClient(r.conn)
	r.traffic = lbdv1.NewTrafficServiceClient(r.conn)
	r.system = lbdv1.NewSystemServiceClient(r.conn)
	return r
}

func (r *rig) serverConfig() Config {
	return Config{
		Socket:   filepath.Join(r.dir, "control.sock"),
		Node:     "n1",
		Build:    &lbdv1.GetVersionResponse{Version: "1.2.3", GoVersion: "go1.26", Platform: "linux/amd64", Commit: "abc"},
		Store:    r.store,
		Keys:     r.keys,
		Observer: r.observer,
		Places:   r.places,
		Logger:   slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Now:      func() time.Time { return now.Add(time.Duration(r.later.Load())) },
	}
}

func (r *rig) dial() *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(r.dir, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ctx ends with the test, or after so long that only a hang can reach it.
func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

// apply sends a header and every specification in a part of its own.
func (r *rig) apply(head *lbdv1.ApplyHeader, specs ...proto.Message) (*lbdv1.ApplyResponse, error) {
	r.t.Helper()
	return r.send(r.request(head, specs...))
}

// send makes a call of Apply.
func (r *rig) send(requests []*lbdv1.ApplyRequest) (*lbdv1.ApplyResponse, error) {
	r.t.Helper()
	stream, err := r.config.Apply(r.ctx())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, request := range requests {
		if err := stream.Send(request); err != nil && !errors.Is(err, io.EOF) { // the answer says why
			r.t.Fatal(err)
		}
	}
	return stream.CloseAndRecv()
}

// diff makes a call of Diff.
func (r *rig) diff(requests []*lbdv1.ApplyRequest) (*lbdv1.DiffResponse, error) {
	r.t.Helper()
	stream, err := r.config.Diff(r.ctx())
	if err != nil {
		r.t.Fatal(err)
	}
	for _, request := range requests {
		if err := stream.Send(&lbdv1.DiffRequest{Part: request}); err != nil && !errors.Is(err, io.EOF) {
			r.t.Fatal(err)
		}
	}
	return stream.CloseAndRecv()
}

func (r *rig) request(head *lbdv1.ApplyHeader, specs ...proto.Message) []*lbdv1.ApplyRequest {
	r.t.Helper()
	requests := []*lbdv1.ApplyRequest{{Part: &lbdv1.ApplyRequest_Header{Header: head}}}
	for _, spec := range specs {
		resource, ok := state.Wrap("", proto.Clone(spec))
		if !ok {
			r.t.Fatalf("%T is no kind", spec)
		}
		part := &lbdv1.ApplyResources{Resources: []*lbdv1.Resource{resource}}
		requests = append(requests, &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: part}})
	}
	return requests
}

// deletes is a part of an apply.
func deletes(keys ...string) *lbdv1.ApplyRequest {
	return &lbdv1.ApplyRequest{Part: &lbdv1.ApplyRequest_Resources{Resources: &lbdv1.ApplyResources{Deletes: keys}}}
}

func (r *rig) mustApply(head *lbdv1.ApplyHeader, specs ...proto.Message) *lbdv1.ApplyResponse {
	r.t.Helper()
	answer, err := r.apply(head, specs...)
	if err != nil {
		r.t.Fatalf("apply: %v", err)
	}
	return answer
}

// export reads what a client gets.
func (r *rig) export(owner string) []*lbdv1.Resource {
	r.t.Helper()
	stream, err := r.config.Export(r.ctx(), &lbdv1.ExportRequest{Owner: owner})
	if err != nil {
		r.t.Fatal(err)
	}
	var all []*lbdv1.Resource
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			r.t.Fatal(err)
		}
		all = append(all, part.GetResources()...)
	}
}

// advance sets the server's clock forward.
func (r *rig) advance(d time.Duration) { r.later.Add(int64(d)) }

func owner(name string) *lbdv1.ApplyHeader { return &lbdv1.ApplyHeader{Owner: name} }

// failure is an error as clients see it.
type failure struct {
	code    codes.Code
	message string
	reason  string
	fields  map[string]string
	retry   bool
}

func failureOf(t *testing.T, err error) failure {
	t.Helper()
	st, ok := status.FromError(err)
	if err == nil || !ok {
		t.Fatalf("got %v, want a status", err)
	}
	f := failure{code: st.Code(), message: st.Message(), fields: map[string]string{}}
	for _, detail := range st.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if f.reason = detail.GetReason(); detail.GetDomain() != "lbd" {
				t.Errorf("domain %q of an error", detail.GetDomain())
			}
		case *errdetails.BadRequest:
			for _, v := range detail.GetFieldViolations() {
				f.fields[v.GetField()] = v.GetDescription()
			}
		case *errdetails.RetryInfo:
			f.retry = detail.GetRetryDelay().AsDuration() > 0
		}
	}
	return f
}

// memoryStore applies changes to a real state at once.
type memoryStore struct {
	scrubbed atomic.Int64
	mu       sync.Mutex
	state    *state.State
	next     chan struct{}
	// propose, if set, stands in for Propose.
	propose  func(context.Context, *raftv1.ChangeCommand) (state.Result, error)
	proposed int
}

func (s *memoryStore) State() *state.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *memoryStore) Propose(ctx context.Context, change *raftv1.ChangeCommand) (state.Result, error) {
	s.mu.Lock()
	instead := s.propose
	s.proposed++
	s.mu.Unlock()
	if instead != nil {
		return instead(ctx, change)
	}
	return s.applyNow(change)
}

func (s *memoryStore) applyNow(change *raftv1.ChangeCommand) (state.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applyLocked(&raftv1.Command{Kind: &raftv1.Command_Change{Change: change}})
}

func (s *memoryStore) ProposeOverride(_ context.Context, override *raftv1.OverrideCommand) (state.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applyLocked(&raftv1.Command{Kind: &raftv1.Command_Override{Override: override}})
}

func (s *memoryStore) ProposeCommand(_ context.Context, cmd *raftv1.Command) (state.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applyLocked(cmd)
}

func (s *memoryStore) applyLocked(cmd *raftv1.Command) (state.Result, error) {
	next, result := s.state.Apply(cmd)
	s.state = next
	close(s.next)
	s.next = make(chan struct{})
	return result, result.Err
}

func (s *memoryStore) Next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}

func (s *memoryStore) instead(propose func(context.Context, *raftv1.ChangeCommand) (state.Result, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.propose = propose
}

func (s *memoryStore) proposals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proposed
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu   sync.Mutex
	text []byte
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = append(b.text, p...)
	return len(p), nil
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}

// Scrub has no disk to look after.
func (s *memoryStore) Scrub(context.Context) error {
	s.scrubbed.Add(1)
	return nil
}
