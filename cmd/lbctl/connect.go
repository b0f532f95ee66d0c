package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
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
	// dialTimeout bounds the connection to one node, its handshake included, so that the next one gets its turn.
	dialTimeout = 5 * time.Second
)

// client talks to the first node that answers.
type client struct {
	conn    *nodes
	reach   *reach
	timeout time.Duration

	config      lbdv1.ConfigServiceClient
	certificate lbdv1.CertificateServiceClient
	backend     lbdv1.BackendServiceClient
	traffic     lbdv1.TrafficServiceClient
	system      lbdv1.SystemServiceClient
	auth        lbdv1.AuthServiceClient
}

// connect prepares a connection; it is made by the first call.
func (c *cli) connect() (*client, error) {
	r, err := c.reach()
	if err != nil {
		return nil, err
	}
	conn, err := r.open(func(text string) { fmt.Fprintf(c.stderr, "warning: %s\n", text) })
	if err != nil {
		return nil, err
	}
	return &client{
		conn:        conn,
		reach:       r,
		timeout:     c.timeout,
		config:      lbdv1.NewConfigServiceClient(conn),
		certificate: lbdv1.NewCertificateServiceClient(conn),
		backend:     lbdv1.NewBackendServiceClient(conn),
		traffic:     lbdv1.NewTrafficServiceClient(conn),
		system:      lbdv1.NewSystemServiceClient(conn),
		auth:        lbdv1.NewAuthServiceClient(conn),
	}, nil
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

// explain puts what the person can do into the error of a call.
func (cl *client) explain(err error) error {
	var f *failure
	var late *lateError
	if errors.As(err, &late) {
		err = late.last
	}
	s, isStatus := status.FromError(err)
	unreached := cl.conn.unreached()
	switch {
	case err == nil || errors.As(err, &f) || !isStatus:
		return err
	case denials[reason(err)] != nil:
		return fail(exitForbidden, "%s%s", s.Message(), denials[reason(err)](cl.reach))
	case s.Code() == codes.Unavailable && unreached != nil:
		return cl.unreachable(unreached)
	case reason(err) == "NO_LEADER":
		return fail(exitUnavailable, "%s; `lbctl status` may say why", s.Message())
	case reason(err) == "OUTCOME_UNKNOWN":
		return fail(exitUnavailable, "the change may be stored or not: `lbctl history` tells, and the same document may be applied again; `lbctl status` may say why")
	case s.Code() == codes.Unavailable && reason(err) == "":
		return fail(exitUnavailable, "the lbd node has not answered (%s): safe to retry", s.Message())
	case s.Code() == codes.DeadlineExceeded:
		return fail(exitUnavailable, "no answer within %s: what was asked may still be done; `lbctl status` says whether something holds it up", cl.timeout)
	}
	return err
}

// unreachable says why no node could be reached, and what to do.
func (cl *client) unreachable(why error) error {
	var stranger *strangerError
	remedy := "is it running? one with a --data-dir of its own answers at --endpoints unix:DIR/control.sock; `lbd run --dev` starts one to try out"
	if cl.reach.authority != nil {
		remedy = "is it running, and is that its control port (`lbd run --control`)?"
	}
	switch {
	case errors.As(why, &stranger):
		return fail(exitForbidden, "not the cluster that was asked for, and no token was sent: %w; the pin is right that `lbctl whoami` shows on a node's own machine", why)
	case errors.Is(why, fs.ErrPermission):
		return fail(exitForbidden, "no right to use %w: be root, in group lbd, or the user who started lbd", why)
	}
	return fail(exitUnavailable, "no lbd node answers at %w: %s", why, remedy)
}

// retried runs a call until it has an answer other than "unavailable", or the deadline has come; each time at another node, where
// there are several. Nodes that are not there at all are waited for no longer than grace.
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
		var stranger *strangerError
		switch why := cl.conn.unreached(); {
		case why == nil:
			cl.conn.next()
		case errors.As(why, &stranger) || time.Since(started) >= grace:
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
