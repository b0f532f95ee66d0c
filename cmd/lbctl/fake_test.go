package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	lbdv1 "lbd/proto/lbd/v1"
)

// fakeNode answers as each test says. What a test leaves nil is not to be called.
type fakeNode struct {
	fakeDocuments
	fakeLive
	fakeIdentity

	apply     func(*lbdv1.ApplyHeader, []*lbdv1.Resource) (*lbdv1.ApplyResponse, error)
	wait      func(*lbdv1.WaitForRevisionRequest, grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error
	get       func(*lbdv1.GetRequest) (*lbdv1.GetResponse, error)
	list      func(*lbdv1.ListRequest) (*lbdv1.ListResponse, error)
	revisions func(*lbdv1.ListRevisionsRequest) (*lbdv1.ListRevisionsResponse, error)
	export    func(*lbdv1.ExportRequest) ([]*lbdv1.Resource, error)
	rotate    func(*lbdv1.RotateRequest) (*lbdv1.RotateResponse, error)
	certs     func(*lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error)
	backends  func(*lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error)
	status    func() (*lbdv1.SystemServiceGetStatusResponse, error)
	version   func() (*lbdv1.GetVersionResponse, error)
	cluster   lbdv1.ClusterServiceServer

	mu sync.Mutex
	// Every request, in the order of arrival.
	requests []proto.Message
}

func (f *fakeNode) note(m proto.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, m)
}

// received are the requests of one kind.
func received[T proto.Message](f *fakeNode) []T {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []T
	for _, m := range f.requests {
		if r, ok := m.(T); ok {
			all = append(all, r)
		}
	}
	return all
}

// start serves on a socket, points lbctl at it, and checks at the end that no goroutine is left.
func (f *fakeNode) start(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "control.sock")
	f.serve(t, "unix", socket)
	t.Setenv("LBCTL_ENDPOINTS", "unix:"+socket)
	return socket
}

// serve serves until the test ends.
func (f *fakeNode) serve(t *testing.T, network, address string, options ...grpc.ServerOption) net.Addr {
	t.Helper()
	before := goleak.IgnoreCurrent()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	lbdv1.RegisterConfigServiceServer(s, &fakeConfig{node: f})
	lbdv1.RegisterCertificateServiceServer(s, &fakeCertificate{node: f})
	lbdv1.RegisterBackendServiceServer(s, &fakeBackend{node: f})
	lbdv1.RegisterTrafficServiceServer(s, &fakeTraffic{node: f})
	lbdv1.RegisterSystemServiceServer(s, &fakeSystem{node: f})
	lbdv1.RegisterAuthServiceServer(s, &fakeAuth{node: f})
	if f.cluster != nil {
		lbdv1.RegisterClusterServiceServer(s, f.cluster)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); err != nil && err != grpc.ErrServerStopped {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
		goleak.VerifyNone(t, before)
	})
	return l.Addr()
}

type fakeConfig struct {
	lbdv1.UnimplementedConfigServiceServer
	node *fakeNode
}

func (f *fakeConfig) Apply(stream grpc.ClientStreamingServer[lbdv1.ApplyRequest, lbdv1.ApplyResponse]) error {
	var header *lbdv1.ApplyHeader
	var resources []*lbdv1.Resource
	for {
		part, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		f.node.note(part)
		if part.GetHeader() != nil {
			header = part.GetHeader()
		}
		resources = append(resources, part.GetResources().GetResources()...)
	}
	answer, err := f.node.apply(header, resources)
	if err != nil {
		return err
	}
	return stream.SendAndClose(answer)
}

func (f *fakeConfig) WaitForRevision(r *lbdv1.WaitForRevisionRequest, stream grpc.ServerStreamingServer[lbdv1.WaitForRevisionResponse]) error {
	f.node.note(r)
	return f.node.wait(r, stream)
}

func (f *fakeConfig) Get(_ context.Context, r *lbdv1.GetRequest) (*lbdv1.GetResponse, error) {
	f.node.note(r)
	return f.node.get(r)
}

func (f *fakeConfig) List(_ context.Context, r *lbdv1.ListRequest) (*lbdv1.ListResponse, error) {
	f.node.note(r)
	return f.node.list(r)
}

func (f *fakeConfig) ListRevisions(_ context.Context, r *lbdv1.ListRevisionsRequest) (*lbdv1.ListRevisionsResponse, error) {
	f.node.note(r)
	return f.node.revisions(r)
}

func (f *fakeConfig) Export(r *lbdv1.ExportRequest, stream grpc.ServerStreamingServer[lbdv1.ExportResponse]) error {
	f.node.note(r)
	resources, err := f.node.export(r)
	for _, res := range resources {
		if err := stream.Send(&lbdv1.ExportResponse{Resources: []*lbdv1.Resource{res}}); err != nil {
			return err
		}
	}
	return err
}

type fakeCertificate struct {
	lbdv1.UnimplementedCertificateServiceServer
	node *fakeNode
}

func (f *fakeCertificate) Rotate(_ context.Context, r *lbdv1.RotateRequest) (*lbdv1.RotateResponse, error) {
	f.node.note(r)
	return f.node.rotate(r)
}

func (f *fakeCertificate) GetStatus(_ context.Context, r *lbdv1.CertificateServiceGetStatusRequest) (*lbdv1.CertificateServiceGetStatusResponse, error) {
	f.node.note(r)
	return f.node.certs(r)
}

type fakeBackend struct {
	lbdv1.UnimplementedBackendServiceServer
	node *fakeNode
}

func (f *fakeBackend) GetStatus(_ context.Context, r *lbdv1.BackendServiceGetStatusRequest) (*lbdv1.BackendServiceGetStatusResponse, error) {
	f.node.note(r)
	return f.node.backends(r)
}

type fakeSystem struct {
	lbdv1.UnimplementedSystemServiceServer
	node *fakeNode
}

func (f *fakeSystem) GetStatus(context.Context, *lbdv1.SystemServiceGetStatusRequest) (*lbdv1.SystemServiceGetStatusResponse, error) {
	return f.node.status()
}

func (f *fakeSystem) GetVersion(context.Context, *lbdv1.GetVersionRequest) (*lbdv1.GetVersionResponse, error) {
	return f.node.version()
}

// refusal is a node's answer to what is invalid.
func refusal(t *testing.T, violations ...*errdetails.BadRequest_FieldViolation) error {
	s, err := status.New(codes.InvalidArgument, "invalid").WithDetails(&errdetails.BadRequest{FieldViolations: violations})
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}

// outcome is what one run of lbctl did.
type outcome struct {
	code           int
	stdout, stderr string
}

// lbctl runs a command line in this process.
func lbctl(stdin string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	code := run(args, strings.NewReader(stdin), &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// wants fails the test unless the run ended so: the texts are parts of stdout and stderr; "" means nothing at all.
func (o outcome) wants(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	ok := o.code == code
	for _, p := range [][2]string{{o.stdout, stdout}, {o.stderr, stderr}} {
		ok = ok && (p[1] != "" && strings.Contains(p[0], p[1]) || p[1] == "" && p[0] == "")
	}
	if !ok {
		t.Errorf("exit %d\nstdout: %s\nstderr: %s\nwant exit %d, stdout %q, stderr %q", o.code, o.stdout, o.stderr, code, stdout, stderr)
	}
}
