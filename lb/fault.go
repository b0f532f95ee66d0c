package lb

import (
	"errors"
	"io"
	"os"
	"syscall"

	"lbd/lb/loop"
)

// fault says why an exchange cannot go on: whose doing it is, what the client may still be told, and whether another try
// can help. A nil *fault is success.
type fault struct {
	reason Reason
	status int    // our answer if none has begun; 0: there is nobody to tell
	detail string // short and stable: the log's detail
	retry  retry
	on     RetryOn // what the route must allow, if retry is elsewhere
	cause  error   // nil where detail says all

	retryAfter string     // seconds, of a 503; empty: the usual
	page       *errorPage // in place of the route's; nil: that
}

// retry is where another try may succeed.
type retry uint8

const (
	// never: a second try may do harm, or cannot help.
	never retry = iota
	// fresh: an idle connection turned out stale; the same backend on a new connection, outside attempts and budget.
	fresh
	// elsewhere: another eligible backend.
	elsewhere
)

// ofBackend reports whether it counts as the backend's failure. A stale idle connection does not: both sides may close one.
func (f *fault) ofBackend() bool {
	switch f.reason {
	case ConnectFailed, BackendTimeout, BackendAborted, BackendTruncated:
		return f.retry != fresh
	}
	return false
}

// Faults that need no cause. They are values: never written to.
var (
	faultNoRoute      = &fault{reason: NoRoute, status: 404, detail: "no_route"}
	faultNoBackend    = &fault{reason: NoBackend, status: 503, detail: "no_eligible_backend"}
	faultUnseated     = &fault{reason: NoBackend, status: 503, detail: "no_eligible_backend"} // of one that waited
	faultConnections  = &fault{reason: Limited, status: 503, detail: "connections"}           // the pool has no queue
	faultQueueFull    = &fault{reason: QueueFull, status: 503, detail: "connections"}
	faultQueueTimeout = &fault{reason: QueueTimeout, status: 503, detail: "connections"}
	faultTruncated    = &fault{reason: BackendTruncated, status: 502, detail: "ended_early"}
	faultInterim      = &fault{reason: BackendAborted, status: 502, detail: "too_many_interim_answers"}
	faultBodySize     = &fault{reason: Limited, status: 413, detail: "body_size"}
	// A part of the head is longer than the host's routes have it tested.
	faultLongPath  = &fault{reason: BadRequest, status: 414, detail: "path_bytes"}
	faultLongQuery = &fault{reason: BadRequest, status: 414, detail: "query_bytes"}
	faultLongField = &fault{reason: BadRequest, status: 431, detail: "field_bytes"}
	// faultDenied and faultConcurrency: a policy of the route says so.
	faultDenied      = &fault{reason: Denied, status: 403, detail: "address"}
	faultConcurrency = &fault{reason: Limited, status: 503, detail: "concurrency"}
	// faultRedirectLoop: the route's redirect leads to what was asked, so the client would come back for ever.
	faultRedirectLoop = &fault{reason: NoRoute, status: 508, detail: "redirect_loop"}
	// faultNoHost: a redirect needs the client's host, and an HTTP/1.0 client named none.
	faultNoHost = &fault{reason: BadRequest, status: 400, detail: "no_host"}
	// faultStatus is a whole answer that the route does not want: no failure of the backend's, and never the client's.
	faultStatus = &fault{reason: OK, detail: "status_5xx", retry: elsewhere, on: OnStatus5xx}
	// faultCut: the backend has drained, and what is still open there ends.
	faultCut = &fault{reason: Drained, status: 503, detail: "backend_drained", retry: elsewhere, on: OnReset}
	// faultGone: the client has reset its connection while an answer was awaited or under way. Its FIN alone is no such thing.
	faultGone    = &fault{reason: ClientAborted, detail: "gone"}
	faultStalled = &fault{reason: ClientTimeout, detail: "write_stall"}
)

// clientFault judges a failed read from or write to the client.
func clientFault(err error, phase string) *fault {
	switch {
	case isTimeout(err):
		return &fault{reason: ClientTimeout, status: 408, detail: phase, cause: err}
	case errors.Is(err, loop.ErrClosed):
		return &fault{reason: Drained, detail: phase, cause: err}
	}
	return &fault{reason: ClientAborted, detail: phase, cause: err}
}

// isTimeout reports whether a deadline of ours has passed.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// isGone reports whether the other side has closed or reset the connection.
func isGone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}
