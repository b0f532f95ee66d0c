package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	lbdv1 "lbd/proto/lbd/v1"
)

const (
	// answerBytesMax bounds one message of an answer.
	answerBytesMax = 16 << 20
	// A call that may be repeated is repeated after pauses that double from the first to the last.
	retryPauseMin = 100 * time.Millisecond
	retryPauseMax = 2 * time.Second
	// startGrace is how long a change waits for a socket that is not there yet: `lbd run &` takes a moment.
	startGrace = 5 * time.Second
)

// client talks to the first node that answers.
type client struct {
	conn      *grpc.ClientConn
	endpoints []string
	timeout   time.Duration
	// Why no node could be reached at the last attempt; nil once one was.
	unreached atomic.Pointer[error]

	config      lbdv1.ConfigServiceClient
	certificate lbdv1.CertificateServiceClient
	backend     lbdv1.BackendServiceClient
	traffic     lbdv1.TrafficServiceClient
	system      lbdv1.SystemServiceClient
}

// connect prepares a connection; it is made by the first call.
func (c *cli) connect() (*client, error) {
	endpoints, err := c.nodes()
	if err != nil {
		return nil, err
	}
	cl := &client{endpoints: endpoints, timeout: c.timeout}
	cl.conn, err = grpc.NewClient("passthrough:///lbd",
		grpc.WithContextDialer(cl.dial),
		// The socket's file mode and the caller's user are the credentials.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryPauseMin, Multiplier: 2, MaxDelay: retryPauseMax},
			MinConnectTimeout: retryPauseMax,
		}),
	)
	if err != nil {
		return nil, fail(exitInternal, "connect: %w", err)
	}
	cl.config = lbdv1.NewConfigServiceClient(cl.conn)
	cl.certificate = lbdv1.NewCertificateServiceClient(cl.conn)
	cl.backend = lbdv1.NewBackendServiceClient(cl.conn)
	cl.traffic = lbdv1.NewTrafficServiceClient(cl.conn)
	cl.system = lbdv1.NewSystemServiceClient(cl.conn)
	return cl, nil
}

// call connects, runs f and closes.
func (c *cli) call(f func(*client) error) error {
	cl, err := c.connect()
	if err != nil {
		return err
	}
	defer cl.conn.Close()
	return cl.explain(f(cl))
}

// nodes are the endpoints by flag, environment or the local node's default.
func (c *cli) nodes() ([]string, error) {
	endpoints := c.endpoints
	if v, ok := c.getenv("LBCTL_ENDPOINTS"); ok && v != "" && len(endpoints) == 0 {
		endpoints = strings.Split(v, ",")
	}
	if len(endpoints) == 0 {
		return c.localSockets(os.Getuid()), nil
	}
	for i, e := range endpoints {
		endpoints[i] = strings.TrimSpace(e)
		if path, ok := strings.CutPrefix(endpoints[i], "unix:"); !ok || path == "" {
			return nil, fail(exitUsage, "an endpoint is unix:PATH, not %q", e)
		}
	}
	return endpoints, nil
}

// localSockets is where a node on this machine answers: one that this user started, then the machine's own.
func (c *cli) localSockets(uid int) []string {
	const machine = "unix:/run/lbd/control.sock"
	if uid == 0 {
		return []string{machine}
	}
	for _, place := range [][]string{{"XDG_RUNTIME_DIR"}, {"XDG_STATE_HOME"}, {"HOME", ".local", "state"}} {
		if dir, ok := c.getenv(place[0]); ok && dir != "" {
			path := filepath.Join(append([]string{dir}, append(place[1:], "lbd", "control.sock")...)...)
			return []string{"unix:" + path, machine}
		}
	}
	return []string{machine}
}

// dial tries the endpoints in turn.
func (cl *client) dial(ctx context.Context, _ string) (net.Conn, error) {
	var d net.Dialer
	var tried []error
	for _, e := range cl.endpoints {
		conn, err := d.DialContext(ctx, "unix", strings.TrimPrefix(e, "unix:"))
		if err == nil {
			cl.unreached.Store(nil)
			return conn, nil
		}
		tried = append(tried, fmt.Errorf("%s (%w)", e, dialCause(err)))
	}
	err := joined(tried)
	cl.unreached.Store(&err)
	return nil, err
}

// joined is errors.Join on one line.
func joined(errs []error) error {
	err := errs[0]
	for _, e := range errs[1:] {
		err = fmt.Errorf("%w or %w", err, e)
	}
	return err
}

// dialCause is the system's word for why a socket does not answer.
func dialCause(err error) error {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return err
}

// explain puts what the person can do into the error of a call.
func (cl *client) explain(err error) error {
	var f *failure
	var late *lateError
	if errors.As(err, &late) {
		err = late.last
	}
	s, isStatus := status.FromError(err)
	switch {
	case err == nil || errors.As(err, &f) || !isStatus:
		return err
	case s.Code() == codes.Unavailable && cl.unreached.Load() != nil:
		why := *cl.unreached.Load()
		if errors.Is(why, fs.ErrPermission) {
			return fail(exitForbidden, "no right to use %w: be root, in group lbd, or the user who started lbd", why)
		}
		return fail(exitUnavailable, "no lbd node answers at %w: is it running? start one with `lbd run --dev`", why)
	case reason(err) == "NO_LEADER":
		return fail(exitUnavailable, "%s; `lbctl status` may say why", s.Message())
	case reason(err) == "OUTCOME_UNKNOWN":
		return fail(exitUnavailable, "the change may be stored or not: `lbctl history` tells, and the same document may be applied again; `lbctl status` may say why")
	case s.Code() == codes.Unavailable && reason(err) == "":
		return fail(exitUnavailable, "the lbd node has not answered (%s): safe to retry", s.Message())
	case s.Code() == codes.DeadlineExceeded:
		return fail(exitUnavailable, "no answer within %s", cl.timeout)
	}
	return err
}

// retried runs a call until it has an answer other than "unavailable", or the deadline has come. A socket that is not
// there at all is waited for no longer than grace.
func retried[T any](ctx context.Context, cl *client, grace time.Duration, f func() (T, error)) (T, error) {
	started, pause := time.Now(), retryPauseMin
	var last error
	for {
		answer, err := f()
		switch code := status.Code(err); {
		case code == codes.DeadlineExceeded && last != nil:
			return answer, &lateError{err, last}
		case code != codes.Unavailable:
			return answer, err
		}
		last = err
		if cl.unreached.Load() != nil && time.Since(started) >= grace {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(max(pause, retryDelay(err))):
		}
		pause = min(2*pause, retryPauseMax)
	}
}

// lateError is a deadline that came while a call was repeated: the last answer before it says why.
type lateError struct {
	error
	last error
}

func (e *lateError) Unwrap() error { return e.error }

// retryDelay is the pause that the node asks for, within reason.
func retryDelay(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			return min(info.GetRetryDelay().AsDuration(), retryPauseMax)
		}
	}
	return 0
}
